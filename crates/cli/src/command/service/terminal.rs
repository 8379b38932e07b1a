//! The terminal of a command: passed to the command, and taken back when the command ends.
//!
//! A command runs in a process group of its own, so that it can be stopped with all its children. Only the
//! foreground group of a terminal may read from it. The kernel stops a command that needs the terminal
//! (SIGTTIN, SIGTTOU); then the command receives the terminal until it ends. It does not receive the terminal
//! earlier: in a pipeline (`conclave run db -- dump | less`) other members of the foreground group need it
//! too.

use std::fs::File;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::output;

/// The terminal, while a command has it. Dropping the value takes the terminal back.
pub struct HandedOver {
    terminal: File,
    to: Pid,
}

/// Passes the terminal to a process group, if this process is in the foreground.
pub fn hand_over(to: Pid) -> Option<HandedOver> {
    let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
    let is_ours = tcgetpgrp(&terminal).is_ok_and(|foreground| foreground == getpgrp());
    (is_ours && tcsetpgrp(&terminal, to).is_ok()).then_some(HandedOver { terminal, to })
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        // Another process, such as the shell, may have the terminal meanwhile.
        if tcgetpgrp(&self.terminal).is_ok_and(|foreground| foreground == self.to) {
            // A terminal that cannot be taken back is gone.
            with_ttou_blocked(|| _ = tcsetpgrp(&self.terminal, getpgrp()));
        }
    }
}

/// Prints a message while a command runs. Standard error may block, if it has no reader or the terminal
/// belongs to the command. A thread of its own prints, so that this process continues to guard the lock.
pub fn print(message: String) {
    tokio::task::spawn_blocking(move || with_ttou_blocked(|| output::complain(&message)));
}

/// Runs `act` with SIGTTOU blocked. Otherwise the kernel stops a background process that takes the terminal
/// or writes to it.
#[allow(unsafe_code, reason = "no safe crate of ours changes the signal mask")]
fn with_ttou_blocked(act: impl FnOnce()) {
    // SAFETY: sigemptyset and pthread_sigmask initialise the sets before they are read. The sets are on this
    // stack. Only the mask of this thread is changed, and then restored.
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
