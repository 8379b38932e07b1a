//! Running a command under a lock: passes signals on, and stops the whole command before another client can
//! get the lock.
//!
//! **Rules** (docs/service.md 5 and 10). The command has its own process group. The group gets TERM 3 s
//! before the deadline of the lease, and KILL 1 s before it. For a short lease, these times are three tenths
//! and one tenth of the lease. If an operator breaks the lock, the time between TERM and KILL is the same.
//! After the deadline the group gets KILL at once. The times apply to all processes of the group: if the
//! first process has ended, the others still get KILL.
//!
//! **Trap.** A stopped process (SIGSTOP, a suspended machine) cannot watch the lease, and its command may
//! continue without the lock. Only a store that compares fences rejects that command: give it
//! `$CONCLAVE_FENCE`. If this process is killed, the kernel kills the command's first process, but not the
//! processes that it has started.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use conclave_client::{Guard, LeaseState, LockName, LossReason};
use rustix::process::{Pid, Signal, getppid};
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::job::Job;
use super::signals::Signals;
use super::{LOST, terminal};
use crate::output::Failure;

/// The action when the lock is in danger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// Send TERM, then KILL.
    Term,
    /// Send KILL at once.
    Kill,
    /// Print a message only.
    Warn,
    /// Run a shell command instead of TERM, then send KILL.
    Command(String),
}

/// Parses the value of `--on-lost`.
pub fn on_lost(text: &str) -> Result<OnLost, String> {
    Ok(match text {
        "term" => OnLost::Term,
        "kill" => OnLost::Kill,
        "warn" => OnLost::Warn,
        "" => return Err("expected term, kill, warn or a command".into()),
        command => OnLost::Command(command.to_owned()),
    })
}

/// The longest time between two checks of the deadline. Leases expire while the machine is suspended, but
/// timers then do not run.
pub const CLOCK_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The times before the deadline of the lease at which the command gets TERM and KILL.
#[derive(Clone, Copy)]
pub struct Margins {
    pub term: Duration,
    kill: Duration,
}

/// The lease of a session that requests no other.
const USUAL_TTL: Duration = Duration::from_secs(10);

impl Margins {
    /// Returns the margins for a lease of this length; `None` is the default length.
    pub fn of(ttl: Option<Duration>) -> Self {
        let ttl = ttl.unwrap_or(USUAL_TTL);
        Self { term: Duration::from_secs(3).min(ttl * 3 / 10), kill: Duration::from_secs(1).min(ttl / 10) }
    }
}

/// The result of a command.
pub struct Outcome {
    /// The exit code for the shell: the command's, 128 + its signal, or [`LOST`].
    pub exit: u8,
    pub ended: Ended,
}

/// The kind of end of a command. `--json` prints the variants in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// The command exited by itself.
    Exited,
    /// A signal ended the command, and `run` did not send it because of the lock.
    Signal,
    /// `run` stopped the command because the lock was lost or about to be lost.
    Lost,
}

/// Runs `command` while `guard` is held.
pub async fn supervise(
    guard: &Guard,
    command: &[OsString],
    on_lost: &OnLost,
    margins: Margins,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    check_time(guard.remaining(), margins)?;
    let mut child_events = signal(SignalKind::child()).map_err(|error| cannot(command, &error))?;
    let mut suspends = Signals::new(&[Signal::TSTP])?;
    let mut child = spawn(guard, command).map_err(|error| cannot(command, &error))?;
    let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) else {
        return Err(cannot(command, &io::Error::other("it has no process id")));
    };
    let mut danger = Danger { guard, on_lost, margins, job: Job::new(group), alarm: Alarm::default() };
    loop {
        danger.check();
        if danger.is_over() {
            let status = child.wait().await.map_err(|error| cannot(command, &error))?;
            return Ok(danger.verdict(status));
        }
        let state = guard.state();
        tokio::select! {
            biased;
            _ = child_events.recv() => {}
            signal = signals.next() => danger.job.send(signal),
            _ = suspends.next() => terminal::print(NOT_SUSPENDED.to_owned()),
            _ = guard.changed(state), if state != LeaseState::Lost => {}
            () = tokio::time::sleep(danger.next_check()) => {}
        }
    }
}

/// The message for Ctrl-Z. A suspended command would keep the lock without working, and this process would
/// not watch the lease.
pub const NOT_SUSPENDED: &str = "a command that holds a lock is not suspended";

/// The check of the deadline while the command runs.
struct Danger<'a> {
    guard: &'a Guard,
    on_lost: &'a OnLost,
    margins: Margins,
    job: Job,
    alarm: Alarm,
}

impl Danger<'_> {
    fn check(&mut self) {
        self.job.check();
        let left = self.guard.remaining();
        let is_lost = self.guard.loss().is_some();
        if !self.job.has_ended() && self.alarm.check(left <= self.margins.term, is_lost, self.on_lost) {
            self.act(left);
        }
        if self.must_stop() && !self.alarm.killed && self.grace().is_zero() {
            self.alarm.killed = true;
            self.job.send(Signal::KILL);
        }
    }

    /// Returns whether the command must end because of the lock.
    fn must_stop(&self) -> bool {
        self.alarm.acted_at.is_some() && *self.on_lost != OnLost::Warn
    }

    /// Returns whether the command and all processes that must end have ended. Only then may the first
    /// process be reaped, because its number is the number of the group.
    fn is_over(&self) -> bool {
        if !self.job.has_ended() || (self.must_stop() && !self.alarm.killed && !self.job.is_empty()) {
            return false;
        }
        if self.must_stop() {
            // A process may have forked during the check of the group.
            self.job.send(Signal::KILL);
        }
        true
    }

    /// Acts on the danger, then prints a message. The message comes second, because printing may block.
    fn act(&self, left: Duration) {
        match self.on_lost {
            OnLost::Term => self.job.send(Signal::TERM),
            OnLost::Kill => self.job.send(Signal::KILL),
            OnLost::Warn => {}
            OnLost::Command(text) => self.start_hook(text),
        }
        let why = danger(self.guard, left);
        let action = match self.on_lost {
            OnLost::Warn => "the command goes on",
            _ => "stopping the command",
        };
        terminal::print(format!("{why}; {action}"));
    }

    fn start_hook(&self, text: &str) {
        let mut hook = Command::new("sh");
        hook.arg("-c").arg(text).env("CONCLAVE_GROUP", self.job.number().to_string());
        pass_lock(self.guard, &mut hook);
        if let Err(error) = hook.spawn() {
            self.job.send(Signal::TERM);
            terminal::print(format!("sh -c {text:?}: {error}; sent TERM instead"));
        }
    }

    /// Returns the time until KILL, after the first action.
    fn grace(&self) -> Duration {
        if *self.on_lost == OnLost::Kill {
            return Duration::ZERO;
        }
        let given = self.margins.term - self.margins.kill;
        let given =
            given.saturating_sub(self.alarm.acted_at.map(|acted_at| acted_at.elapsed()).unwrap_or_default());
        let left = self.guard.remaining().saturating_sub(self.margins.kill);
        match self.guard.loss() {
            // A server may still confirm the lock. If the first process has ended, the remaining ones get
            // less time.
            None if self.job.has_ended() => left.min(given),
            None => left,
            Some(LossReason::Broken { .. }) => given,
            Some(_) => Duration::ZERO,
        }
    }

    fn next_check(&self) -> Duration {
        let deadline = match self.alarm.acted_at {
            None => self.guard.remaining().saturating_sub(self.margins.term),
            Some(_) if self.alarm.killed || *self.on_lost == OnLost::Warn => CLOCK_CHECK_INTERVAL,
            Some(_) => self.grace(),
        };
        deadline.min(self.job.next_check()).min(CLOCK_CHECK_INTERVAL)
    }

    fn verdict(&self, status: ExitStatus) -> Outcome {
        match status.signal() {
            _ if self.must_stop() => Outcome { exit: LOST, ended: Ended::Lost },
            Some(_) => Outcome { exit: exit_code(status), ended: Ended::Signal },
            None => Outcome { exit: exit_code(status), ended: Ended::Exited },
        }
    }
}

/// Returns the danger in words. `left` is the time until the deadline.
pub fn danger(guard: &Guard, left: Duration) -> String {
    match guard.loss() {
        Some(loss) => format!("the lock is lost: {loss}"),
        None => format!("the lock will be lost in {:.1} s: no server confirms it", left.as_secs_f64()),
    }
}

/// The actions that the current danger has caused so far.
#[derive(Default)]
pub struct Alarm {
    /// The time of the first action; `None` before it.
    acted_at: Option<Instant>,
    /// `true` if the message that the lock is lost was printed.
    is_final: bool,
    killed: bool,
}

impl Alarm {
    /// Returns whether an action is due. If a server confirms the lock after a warning or a hook, the alarm
    /// is reset. The next danger then causes an action again.
    pub fn check(&mut self, is_in_danger: bool, is_lost: bool, on_lost: &OnLost) -> bool {
        if !is_in_danger {
            if matches!(on_lost, OnLost::Warn | OnLost::Command(_)) && !self.killed {
                *self = Self::default();
            }
            return false;
        }
        // After a warning the command continues, so the message is repeated when the lock is lost.
        let is_new = self.acted_at.is_none() || (*on_lost == OnLost::Warn && is_lost && !self.is_final);
        self.acted_at.get_or_insert_with(Instant::now);
        self.is_final |= is_lost;
        is_new
    }
}

/// Fails if the command would have to be stopped at once.
fn check_time(left: Duration, margins: Margins) -> Result<(), Failure> {
    if left > margins.term {
        return Ok(());
    }
    let message = "no server confirms the lock any more, so the command was not started; try again";
    Err(Failure::new(LOST, "lost", message))
}

/// Returns the exit code as a shell does: the code, or 128 + the signal.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

fn spawn(guard: &Guard, command: &[OsString]) -> io::Result<Child> {
    let (program, args) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    pass_lock(guard, &mut command);
    die_with_parent(&mut command);
    command.spawn()
}

/// Puts the names and the fence into the environment of a command.
pub fn pass_lock(guard: &Guard, command: &mut Command) {
    command.env("CONCLAVE_LOCKS", names(guard)).env("CONCLAVE_FENCE", guard.fence().to_string());
}

fn names(guard: &Guard) -> String {
    // Quote a name with spaces, so that a reader can split the list.
    let show = |name| LockName::new(name).map_or_else(|_| name.to_owned(), |name| name.to_string());
    guard.names().iter().map(|held| show(&held.name)).collect::<Vec<_>>().join(" ")
}

/// Makes the kernel kill the command if this process is killed, because the command must not continue without
/// the lock.
#[allow(unsafe_code, reason = "a child can request this only between fork and exec")]
fn die_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec only two system calls are made; nothing is allocated and no lock is
        // taken.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have died before the request.
                if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            });
        }
    }
}

/// Returns the failure of a command that cannot run: 127 if it does not exist, else 126, as in a shell.
fn cannot(command: &[OsString], error: &io::Error) -> Failure {
    let name = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Failure::new(code, "cannot-run", format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_lease_has_short_margins() {
        let margins = Margins::of(None);
        assert_eq!((margins.term, margins.kill), (Duration::from_secs(3), Duration::from_secs(1)));
        let margins = Margins::of(Some(Duration::from_secs(1)));
        assert_eq!((margins.term, margins.kill), (Duration::from_millis(300), Duration::from_millis(100)));
    }

    #[test]
    fn a_command_that_would_be_stopped_at_once_is_not_started() {
        let margins = Margins::of(None);
        assert!(check_time(Duration::from_millis(3_001), margins).is_ok());
        for left in [Duration::from_secs(3), Duration::ZERO] {
            assert_eq!(check_time(left, margins).expect_err("too late").code, LOST);
        }
    }

    #[test]
    fn a_warning_is_given_again_in_the_next_danger_and_when_the_lock_is_lost() {
        let mut alarm = Alarm::default();
        for _ in 0..2 {
            assert!(!alarm.check(false, false, &OnLost::Warn));
            assert!(alarm.check(true, false, &OnLost::Warn));
            assert!(!alarm.check(true, false, &OnLost::Warn), "once is enough");
        }
        assert!(alarm.check(true, true, &OnLost::Warn), "it is lost");
        assert!(!alarm.check(true, true, &OnLost::Warn));
    }

    #[test]
    fn a_hook_runs_at_each_danger_and_a_stop_signal_is_sent_once() {
        let hook = OnLost::Command("true".into());
        for (on_lost, again) in [(&hook, true), (&OnLost::Term, false), (&OnLost::Kill, false)] {
            let mut alarm = Alarm::default();
            assert!(alarm.check(true, false, on_lost));
            assert!(!alarm.check(true, true, on_lost), "it is being stopped");
            assert!(!alarm.check(false, false, on_lost));
            assert_eq!(alarm.acted_at.is_none(), again);
            assert_eq!(alarm.check(true, false, on_lost), again);
        }
        let mut killed = Alarm { acted_at: Some(Instant::now()), is_final: false, killed: true };
        assert!(!killed.check(false, false, &hook));
        assert!(killed.acted_at.is_some(), "it was stopped for the lock");
    }

    #[test]
    fn a_value_of_on_lost_that_is_no_keyword_is_a_command() {
        assert_eq!(on_lost("warn"), Ok(OnLost::Warn));
        assert_eq!(on_lost("logger lost"), Ok(OnLost::Command("logger lost".into())));
        assert!(on_lost("").is_err());
    }
}
