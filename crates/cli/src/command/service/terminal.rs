//! The terminal of a command: whose it is, and that it comes back.
//!
//! A command runs in a process group of its own, so that all of it can be stopped. On a terminal only the foreground group may
//! read, and gets Ctrl-C: so the terminal is handed to the command, and taken back when it has ended.

use std::io::{self, IsTerminal};

use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal, while a command has it. Dropped, it comes back.
pub struct HandedOver(());

/// Hands the terminal to a process group, if standard input is one and it is ours to give.
pub fn hand_over(group: Pid) -> Option<HandedOver> {
    let stdin = io::stdin();
    let ours = stdin.is_terminal() && tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp());
    (ours && tcsetpgrp(&stdin, group).is_ok()).then_some(HandedOver(()))
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        let stdin = io::stdin();
        // A terminal that cannot be had back is gone.
        with_ttou_blocked(|| _ = tcsetpgrp(&stdin, getpgrp()));
    }
}

/// A background process that takes the terminal is stopped by SIGTTOU, unless it blocks the signal.
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
