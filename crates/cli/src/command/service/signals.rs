//! The signals that end a command, and the signals that `run` passes on to its command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::output::Failure;

/// The signals that request the end of a process.
pub const STOP: &[Signal] = &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
/// The signals that `run` passes on to its command.
pub const PASSED_ON: &[Signal] =
    &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// A stream of signals. While it exists, these signals do not end the process by themselves.
pub struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Starts to receive the signals. A signal that was ignored at the start of the process (`nohup`, `&` in
    /// a script) stays ignored, also for the commands that the process starts.
    pub fn new(kinds: &[Signal]) -> Result<Self, Failure> {
        let listen = |kind: Signal| Ok((kind, unix::signal(SignalKind::from_raw(kind.as_raw()))?));
        let heeded = kinds.iter().copied().filter(|kind| !is_ignored(*kind));
        let listening = heeded.map(listen).collect::<io::Result<Vec<_>>>();
        listening.map(Self).map_err(|error| Failure::usage(format!("cannot receive signals: {error}")))
    }

    /// Returns the next signal. The future may be dropped and made again; no signal is lost.
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

    /// The result of `future`, or a failure if a signal comes first.
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

/// The failure of a process that a signal has ended: 128 + the signal, as in a shell. It has no message.
pub fn killed_by(signal: Signal) -> Failure {
    Failure::new(u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX), "signal", "")
}

#[allow(unsafe_code, reason = "no dependency has a safe function that reads the action of a signal")]
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: without a new action, sigaction changes nothing. It writes the present action to this stack
    // before it is read.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let result = libc::sigaction(signal.as_raw(), std::ptr::null(), &raw mut action);
        result == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
