//! The signals that end a command, or are passed on to the one it runs.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

const KINDS: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals as they arrive. From its making on they no longer end the process by themselves.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens.
    pub fn new() -> io::Result<Self> {
        let listen = |kind: Signal| Ok((kind, unix::signal(SignalKind::from_raw(kind.as_raw()))?));
        KINDS.into_iter().map(listen).collect::<io::Result<Vec<_>>>().map(Self)
    }

    /// The next signal. May be dropped and called again.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (kind, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*kind);
                }
            }
            Poll::Pending
        })
        .await
    }
}
