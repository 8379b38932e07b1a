//! The signals that end a command, or are passed on to the one it runs.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::output::Failure;

/// Those that say stop.
pub const STOP: &[Signal] = &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
/// Those that are passed on to a command.
pub const PASSED_ON: &[Signal] =
    &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals as they arrive. From its making on they no longer end the process by themselves.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens. What is ignored from the start (`nohup`, `&` in a script) stays so, for the commands that are run too.
    pub fn new(kinds: &[Signal]) -> Result<Self, Failure> {
        let listen = |kind: Signal| Ok((kind, unix::signal(SignalKind::from_raw(kind.as_raw()))?));
        let heeded = kinds.iter().copied().filter(|kind| !is_ignored(*kind));
        let listening = heeded.map(listen).collect::<io::Result<Vec<_>>>();
        listening.map(Self).map_err(|error| Failure::usage(format!("signals: {error}")))
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

    /// What comes of it, unless a signal comes first.
    pub async fn or_stop<T>(
        &mut self,
        future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = future => done,
            signal = self.next() => Err(killed_by(signal)),
        }
    }
}

/// As the shell says it. Who sent the signal needs no message.
pub fn killed_by(signal: Signal) -> Failure {
    Failure::new(u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX), "signal", "")
}

#[allow(unsafe_code, reason = "no safe crate of ours asks what a signal does")]
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: without a new action nothing is changed; the present one is written to this stack before it is read.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let asked = libc::sigaction(signal.as_raw(), std::ptr::null(), &raw mut action);
        asked == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
