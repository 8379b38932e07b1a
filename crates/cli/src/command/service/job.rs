//! The process group of a command: signals to all of it, why it stops, and who of it is left.
//!
//! **The number of a group** is that of its first process, and is free for others when that one has been waited for and nobody is
//! left. So the first process is only looked at here (`WNOWAIT`): as long as it is not waited for, a signal to the group
//! cannot reach strangers.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::supervise::NOT_SUSPENDED;
use super::terminal::{self, HandedOver};

/// How often to look for what nobody tells: that the group is empty, that the terminal is ours to give.
const OFTEN: Duration = Duration::from_millis(50);
/// How long to look after those who got the terminal. Who asks for a password stops itself in its own time, when the terminal may
/// have been given already, and the first process of the group does not tell.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);

/// A command that runs.
pub struct Job {
    group: Pid,
    /// Its first process.
    has_ended: bool,
    /// It was stopped because it needs the terminal, and waits for it.
    wants_terminal: bool,
    was_told: bool,
    terminal: Option<HandedOver>,
    /// When it got the terminal.
    given_at: Option<Instant>,
}

impl Job {
    /// The group of this process.
    pub fn new(group: Pid) -> Self {
        Self {
            group,
            has_ended: false,
            wants_terminal: false,
            was_told: false,
            terminal: None,
            given_at: None,
        }
    }

    /// The number of the group.
    pub fn number(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Whether its first process has ended. It can be waited for.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// To all of it. A group that is gone needs no signal.
    pub fn send(&self, signal: Signal) {
        _ = kill_process_group(self.group, signal);
        if self.wants_terminal {
            // Who is stopped does not hear.
            _ = kill_process_group(self.group, Signal::CONT);
        }
    }

    /// Learns what happened to its first process, and lets it go on if it was stopped.
    pub fn look(&mut self) {
        let quietly = WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(self.group), WaitIdOptions::EXITED | quietly);
        self.has_ended = !matches!(ended, Ok(None));
        let stops = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.group), stops) {
            let signal = status.stopping_signal();
            let for_terminal = [Signal::TTIN, Signal::TTOU].map(|signal| Some(signal.as_raw()));
            self.wants_terminal = for_terminal.contains(&signal);
            if status.stopped() && !self.wants_terminal {
                terminal::say(NOT_SUSPENDED.to_owned());
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

    /// When to look again, if nothing happens.
    pub fn next_look(&self) -> Duration {
        let is_soon = self.wants_terminal || self.has_ended || self.is_settling();
        if is_soon { OFTEN } else { Duration::MAX }
    }

    /// Whether nobody of it runs. Where that cannot be known, somebody may.
    pub fn is_empty(&self) -> bool {
        !self.has_member(|_, state| !matches!(state, "Z" | "X"))
    }

    fn is_settling(&self) -> bool {
        self.given_at.is_some_and(|given| given.elapsed() < SETTLES_WITHIN)
    }

    /// Whether there may be such a member, by its number and state.
    fn has_member(&self, wanted: impl Fn(i32, &str) -> bool) -> bool {
        let Ok(processes) = fs::read_dir("/proc") else { return true };
        let stats = processes.flatten().filter_map(|process| fs::read(process.path().join("stat")).ok());
        let is_wanted = |stat: &str| match member(stat) {
            Some((process, state, group)) => group == self.number() && wanted(process, state),
            None => false,
        };
        stats.into_iter().any(|stat| is_wanted(&String::from_utf8_lossy(&stat)))
    }

    /// In the background it is not ours to give: then the command waits until the shell brings us to the foreground.
    fn give_terminal(&mut self) {
        // What it had before comes back first.
        self.terminal = None;
        self.terminal = terminal::hand_over(self.group);
        if self.terminal.is_some() {
            self.wants_terminal = false;
            self.given_at = Some(Instant::now());
            self.send(Signal::CONT);
        } else if !self.was_told {
            self.was_told = true;
            terminal::say(
                "the command needs the terminal, and waits until it is in the foreground".to_owned(),
            );
        }
    }
}

/// The number of a process, its state and its group. The kernel says it so: `number (program) state parent group ...`; the
/// program may contain anything.
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
    fn a_process_is_read_whatever_its_name() {
        assert_eq!(member("7 (a) b) S 1 42 43 0"), Some((7, "S", 42)));
        assert_eq!(member("7 (sh"), None);
        assert_eq!(member(""), None);
    }

    #[test]
    fn this_process_runs_in_its_group() {
        assert!(!Job::new(rustix::process::getpgrp()).is_empty());
    }
}
