//! The process group of a command: it sends signals to the group, detects why the group stops, and checks
//! whether processes remain.
//!
//! **Trap.** The number of a group is the number of its first process. The kernel may reuse it after that
//! process is reaped and the group is empty. A signal to the group would then reach other processes. So this
//! module only observes the first process (`WNOWAIT`) and does not reap it.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::supervise::NOT_SUSPENDED;
use super::terminal::{self, HandedOver};

/// The interval of checks for changes that cause no event: the group is empty, or this process is in the
/// foreground.
const OFTEN: Duration = Duration::from_millis(50);
/// The time after the group got the terminal in which stopped processes of the group are continued. A program
/// that reads a password may stop itself then, and the kernel reports only the first process of the group.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);

/// A running command.
pub struct Job {
    group: Pid,
    /// `true` if the first process has ended.
    has_ended: bool,
    /// `true` if the kernel has stopped the command because it needs the terminal.
    wants_terminal: bool,
    /// `true` if the message that the command waits for the terminal was printed.
    was_reported: bool,
    terminal: Option<HandedOver>,
    /// The time at which the command got the terminal; `None` if it has not.
    given_at: Option<Instant>,
}

impl Job {
    /// Creates the job for the group whose first process has this number.
    pub fn new(group: Pid) -> Self {
        Self {
            group,
            has_ended: false,
            wants_terminal: false,
            was_reported: false,
            terminal: None,
            given_at: None,
        }
    }

    /// Returns the number of the group.
    pub fn number(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Returns whether the first process has ended, so that it can be reaped.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Sends a signal to all processes of the group. An empty group is no error.
    pub fn send(&self, signal: Signal) {
        _ = kill_process_group(self.group, signal);
        if self.wants_terminal {
            // A stopped process handles a signal only after it is continued.
            _ = kill_process_group(self.group, Signal::CONT);
        }
    }

    /// Checks the state of the first process, and continues it if it was stopped.
    pub fn check(&mut self) {
        let quietly = WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(self.group), WaitIdOptions::EXITED | quietly);
        self.has_ended = !matches!(ended, Ok(None));
        let stops = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.group), stops) {
            let signal = status.stopping_signal();
            let for_terminal = [Signal::TTIN, Signal::TTOU].map(|signal| Some(signal.as_raw()));
            self.wants_terminal = for_terminal.contains(&signal);
            if status.stopped() && !self.wants_terminal {
                terminal::print(NOT_SUSPENDED.to_owned());
                self.send(Signal::CONT);
            }
        }
        if self.wants_terminal && !self.has_ended {
            self.give_terminal();
        } else if self.is_settling()
            && self.has_member(|process, state| process != self.number() && state == "T")
        {
            self.send(Signal::CONT);
        }
    }

    /// Returns the time until the next check, if no event comes before.
    pub fn next_check(&self) -> Duration {
        let is_soon = self.wants_terminal || self.has_ended || self.is_settling();
        if is_soon { OFTEN } else { Duration::MAX }
    }

    /// Returns whether no process of the group runs. Returns `false` if `/proc` is missing.
    pub fn is_empty(&self) -> bool {
        !self.has_member(|_, state| !matches!(state, "Z" | "X"))
    }

    fn is_settling(&self) -> bool {
        self.given_at.is_some_and(|given| given.elapsed() < SETTLES_WITHIN)
    }

    /// Returns whether `wanted` accepts a process of the group; its arguments are the number and the state.
    /// Returns `true` if `/proc` is missing.
    fn has_member(&self, wanted: impl Fn(i32, &str) -> bool) -> bool {
        let Ok(processes) = fs::read_dir("/proc") else { return true };
        let stats = processes.flatten().filter_map(|process| fs::read(process.path().join("stat")).ok());
        let is_wanted = |stat: &str| match member(stat) {
            Some((process, state, group)) => group == self.number() && wanted(process, state),
            None => false,
        };
        stats.into_iter().any(|stat| is_wanted(&String::from_utf8_lossy(&stat)))
    }

    /// Gives the terminal to the command. A background process cannot do that: the command then waits until
    /// the shell brings this process to the foreground.
    fn give_terminal(&mut self) {
        // Take back the terminal of an earlier call first.
        self.terminal = None;
        self.terminal = terminal::hand_over(self.group);
        if self.terminal.is_some() {
            self.wants_terminal = false;
            self.given_at = Some(Instant::now());
            self.send(Signal::CONT);
        } else if !self.was_reported {
            self.was_reported = true;
            terminal::print(
                "the command needs the terminal, and waits until it is in the foreground".to_owned(),
            );
        }
    }
}

/// Returns number, state and group of a process, from its file `stat`: `number (program) state parent group
/// ...`. The name of the program may contain any bytes.
fn member(stat: &str) -> Option<(i32, &str, i32)> {
    let (process, _) = stat.split_once(' ')?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    Some((process.parse().ok()?, state, fields.nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_any_name_is_read() {
        assert_eq!(member("7 (a) b) S 1 42 43 0"), Some((7, "S", 42)));
        assert_eq!(member("7 (sh"), None);
        assert_eq!(member(""), None);
    }

    #[test]
    fn this_process_runs_in_its_group() {
        assert!(!Job::new(rustix::process::getpgrp()).is_empty());
    }
}
