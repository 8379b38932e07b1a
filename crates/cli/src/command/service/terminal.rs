//! The terminal of a command: whose it is, and that it comes back.
//!
//! A command runs in a process group of its own, so that all of it can be stopped. On a terminal only the foreground group may
//! read. So the terminal is handed to a command that needs it, which the kernel stops when it tries (SIGTTIN, SIGTTOU), and
//! taken back when it has ended. Not before: the foreground group has other members in a pipeline (`conclave run db -- dump |
//! less`), which need it too.

use std::fs::File;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::output;

/// The terminal, while a command has it. Dropped, it comes back.
pub struct HandedOver {
    terminal: File,
    to: Pid,
}

/// Hands the terminal to a process group, if it is ours to give.
pub fn transfer_leadership(to: Pid) -> Option<HandedOver> {
    let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
    let is_ours = tcgetpgrp(&terminal).is_ok_and(|foreground| foreground == getpgrp());
    (is_ours && tcsetpgrp(&terminal, to).is_ok()).then_some(HandedOver { terminal, to })
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        // Somebody else may have it meanwhile: the shell, for instance.
        if tcgetpgrp(&self.terminal).is_ok_and(|foreground| foreground == self.to) {
            // A terminal that cannot be had back is gone.
            with_ttou_blocked(|| _ = tcsetpgrp(&self.terminal, getpgrp()));
        }
    }
}

/// Says something while a command runs. A standard error that nobody reads, or a terminal that belongs to the command, must not
/// keep this process from watching over the lock: so it is said on a thread of its own.
pub fn say(message: String) {
    tokio::task::spawn_blocking(move || with_ttou_blocked(|| output::complain(&message)));
}

/// A background process that takes the terminal, or writes to one that does not like it, is stopped by SIGTTOU, unless it
/// blocks the signal.
#[allow(unsafe_code, reason = "no safe crate of ours changes the signal mask")]
fn with_ttou_blocked(act: impl FnOnce()) {
    // SAFETY: the sets are initialised by sigemptyset and pthread_sigmask before they are read, live on this stack, and the
    // mask of this thread alone is changed and set back.
    unsafe {
        let mut block: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut block);
        libc::sigaddset(&raw mut block, libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const block, &raw mut before);
        act();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
}
