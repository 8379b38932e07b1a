//! Runs a command under a lock: passes signals on, and stops all of it before the lock can be somebody else's.
//!
//! **Rules** (docs/service.md 5 and 10). The command has a process group of its own. 3 s before the deadline of the lease the group
//! gets TERM, 1 s before it KILL; with a short lease three and one tenth of it. A lock that is taken away by an
//! operator leaves the time between the two; one that is past its deadline leaves none. It is not enough that the first process of the
//! group has obeyed: the time is for all of them, and who is left over gets KILL.
//!
//! **The trap.** None of this helps if this process is stopped itself (SIGSTOP, a suspended machine): then nobody watches, and
//! the command goes on. Only the store that compares fences refuses it: give it `$CONCLAVE_FENCE`. If this process is
//! killed, the command dies with it: the kernel sees to that, for the process that was started here, not for those it started.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use conclave_client::{Guard, LockName, Loss, Standing};
use rustix::process::{Pid, Signal, getppid};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::job::Job;
use super::signals::Signals;
use super::{LOST, terminal};
use crate::output::Failure;

/// What to do when the lock is in danger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// TERM, then KILL.
    Term,
    /// KILL at once.
    Kill,
    /// Say so, and go on.
    Warn,
    /// Run this by the shell in place of TERM, then KILL.
    Command(String),
}

/// Reads it from a flag.
pub fn on_lost(text: &str) -> Result<OnLost, String> {
    Ok(match text {
        "term" => OnLost::Term,
        "kill" => OnLost::Kill,
        "warn" => OnLost::Warn,
        "" => return Err("expected term, kill, warn or a command".into()),
        command => OnLost::Command(command.to_owned()),
    })
}

/// How often to look at the deadline: alarms are not counted through a suspension of the machine, leases are.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long before the deadline the command is told to stop, and made to.
#[derive(Clone, Copy)]
pub struct Margins {
    term: Duration,
    kill: Duration,
}

impl Margins {
    /// For a lease of this length.
    pub fn of(ttl: Duration) -> Self {
        Self { term: Duration::from_secs(3).min(ttl * 3 / 10), kill: Duration::from_secs(1).min(ttl / 10) }
    }
}

/// Runs `command` while `guard` is held; gives its exit code, or [`LOST`] if it had to be stopped.
pub async fn supervise(
    guard: &Guard,
    command: &[OsString],
    on_lost: &OnLost,
    margins: Margins,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    check_time(guard.remaining(), margins)?;
    let mut news = signal(SignalKind::child()).map_err(|error| cannot(command, &error))?;
    let mut suspends = Signals::new(&[Signal::TSTP])?;
    let mut child = spawn(guard, command).map_err(|error| cannot(command, &error))?;
    let Some(group) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) else {
        return Err(cannot(command, &io::Error::other("it has no process id")));
    };
    let mut danger = Danger { guard, on_lost, margins, job: Job::new(group), alarm: Alarm::default() };
    loop {
        danger.look();
        if danger.is_over() {
            let status = child.wait().await.map_err(|error| cannot(command, &error))?;
            return Ok(danger.verdict(status));
        }
        let standing = guard.standing();
        tokio::select! {
            biased;
            _ = news.recv() => {}
            signal = signals.next() => danger.job.send(signal),
            _ = suspends.next() => terminal::say(NOT_SUSPENDED.to_owned()),
            _ = guard.changed(standing), if standing != Standing::Lost => {}
            () = tokio::time::sleep(danger.next_look()) => {}
        }
    }
}

/// A command that is suspended (Ctrl-Z) would keep the lock without doing anything, and this process would not watch over it.
pub const NOT_SUSPENDED: &str = "a command that holds a lock is not suspended";

/// Watches the deadline for the command.
struct Danger<'a> {
    guard: &'a Guard,
    on_lost: &'a OnLost,
    margins: Margins,
    job: Job,
    alarm: Alarm,
}

impl Danger<'_> {
    fn look(&mut self) {
        self.job.look();
        let left = self.guard.remaining();
        let is_lost = self.guard.loss().is_some();
        if !self.job.has_ended() && self.alarm.look(left <= self.margins.term, is_lost, self.on_lost) {
            self.tell(left);
        }
        if self.must_stop() && !self.alarm.killed && self.grace().is_zero() {
            self.alarm.killed = true;
            self.job.send(Signal::KILL);
        }
    }

    /// Whether the command was told to stop, by more than words.
    fn must_stop(&self) -> bool {
        self.alarm.told.is_some() && *self.on_lost != OnLost::Warn
    }

    /// Whether nobody is left who was told to stop. Then its first process can be waited for; not before, since its number is
    /// that of the group.
    fn is_over(&self) -> bool {
        if !self.job.has_ended() || (self.must_stop() && !self.alarm.killed && !self.job.is_empty()) {
            return false;
        }
        if self.must_stop() {
            // Who was being born while the others were looked at.
            self.job.send(Signal::KILL);
        }
        true
    }

    /// First the signal, then the words: nobody may be there to hear them.
    fn tell(&self, left: Duration) {
        match self.on_lost {
            OnLost::Term => self.job.send(Signal::TERM),
            OnLost::Kill => self.job.send(Signal::KILL),
            OnLost::Warn => {}
            OnLost::Command(text) => self.start_hook(text),
        }
        let why = match self.guard.loss() {
            Some(loss) => format!("the lock is lost: {loss}"),
            None => format!("the lock will be lost in {:.1} s: no server confirms it", left.as_secs_f64()),
        };
        let action = match self.on_lost {
            OnLost::Warn => "the command goes on",
            _ => "stopping the command",
        };
        terminal::say(format!("{why}; {action}"));
    }

    fn start_hook(&self, text: &str) {
        let mut hook = Command::new("sh");
        hook.arg("-c").arg(text).env("CONCLAVE_GROUP", self.job.number().to_string());
        say_what_is_held(self.guard, &mut hook);
        if let Err(error) = hook.spawn() {
            self.job.send(Signal::TERM);
            terminal::say(format!("sh -c {text:?}: {error}; sent TERM instead"));
        }
    }

    /// How long the command still has, after it was told.
    fn grace(&self) -> Duration {
        if *self.on_lost == OnLost::Kill {
            return Duration::ZERO;
        }
        let given = self.margins.term - self.margins.kill;
        let given = given.saturating_sub(self.alarm.told.map(|told| told.elapsed()).unwrap_or_default());
        let left = self.guard.remaining().saturating_sub(self.margins.kill);
        match self.guard.loss() {
            // The lock may be confirmed again. Who is left of a command that has ended is not waited for as long as that.
            None if self.job.has_ended() => left.min(given),
            None => left,
            Some(Loss::Broken { .. }) => given,
            Some(Loss::Deadline | Loss::Session(_)) => Duration::ZERO,
        }
    }

    fn next_look(&self) -> Duration {
        let deadline = match self.alarm.told {
            None => self.guard.remaining().saturating_sub(self.margins.term),
            Some(_) if self.alarm.killed || *self.on_lost == OnLost::Warn => LOOK_EVERY,
            Some(_) => self.grace(),
        };
        deadline.min(self.job.next_look()).min(LOOK_EVERY)
    }

    fn verdict(&self, status: ExitStatus) -> u8 {
        if self.must_stop() { LOST } else { exit_code(status) }
    }
}

/// What was done about the danger.
#[derive(Default)]
struct Alarm {
    /// When the command was told to stop, or somebody was warned.
    told: Option<Instant>,
    /// It was said that the lock is lost.
    is_final: bool,
    killed: bool,
}

impl Alarm {
    /// Whether there is something new to tell. If the lock is confirmed again the alarm is over, where it has stopped nobody for
    /// certain; the next danger is told again.
    fn look(&mut self, is_in_danger: bool, is_lost: bool, on_lost: &OnLost) -> bool {
        if !is_in_danger {
            if matches!(on_lost, OnLost::Warn | OnLost::Command(_)) && !self.killed {
                *self = Self::default();
            }
            return false;
        }
        // Who goes on after a warning is not told by a signal.
        let is_news = self.told.is_none() || (*on_lost == OnLost::Warn && is_lost && !self.is_final);
        self.told.get_or_insert_with(Instant::now);
        self.is_final |= is_lost;
        is_news
    }
}

/// Refuses to start what would have to be stopped at once.
fn check_time(left: Duration, margins: Margins) -> Result<(), Failure> {
    if left > margins.term {
        return Ok(());
    }
    let message = "no server confirms the lock any more: the command was not started; try again";
    Err(Failure::new(LOST, "lost", message))
}

/// As the shell says it: the code, or 128 and the signal.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

fn spawn(guard: &Guard, command: &[OsString]) -> io::Result<Child> {
    let (program, args) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(args).process_group(0);
    say_what_is_held(guard, &mut command);
    die_with_parent(&mut command);
    command.spawn()
}

fn say_what_is_held(guard: &Guard, command: &mut Command) {
    command.env("CONCLAVE_LOCKS", names(guard)).env("CONCLAVE_FENCE", guard.fence().to_string());
}

fn names(guard: &Guard) -> String {
    // Quoted where a name has spaces, so that the list can be read back.
    let show = |name| LockName::new(name).map_or_else(|_| name.to_owned(), |name| name.to_string());
    guard.locks().map(show).collect::<Vec<_>>().join(" ")
}

/// If this process is killed, so is the command: it must not go on without the lock.
#[allow(unsafe_code, reason = "a child can only ask for it between fork and exec")]
fn die_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        let parent = rustix::process::getpid();
        // SAFETY: between fork and exec only two system calls are made; nothing is allocated and no lock is taken.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have died before the signal was asked for.
                if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            });
        }
    }
}

/// As the shell says it: 127 if there is no such command, 126 if it cannot be run.
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
        let margins = Margins::of(Duration::from_secs(10));
        assert_eq!((margins.term, margins.kill), (Duration::from_secs(3), Duration::from_secs(1)));
        let margins = Margins::of(Duration::from_secs(1));
        assert_eq!((margins.term, margins.kill), (Duration::from_millis(300), Duration::from_millis(100)));
    }

    #[test]
    fn a_command_that_would_be_stopped_at_once_is_not_started() {
        let margins = Margins::of(Duration::from_secs(10));
        assert!(check_time(Duration::from_millis(3_001), margins).is_ok());
        for left in [Duration::from_secs(3), Duration::ZERO] {
            assert_eq!(check_time(left, margins).expect_err("too late").code, LOST);
        }
    }

    #[test]
    fn a_warning_is_given_again_in_the_next_danger_and_when_the_lock_is_lost() {
        let mut alarm = Alarm::default();
        for _ in 0..2 {
            assert!(!alarm.look(false, false, &OnLost::Warn));
            assert!(alarm.look(true, false, &OnLost::Warn));
            assert!(!alarm.look(true, false, &OnLost::Warn), "once is enough");
        }
        assert!(alarm.look(true, true, &OnLost::Warn), "it is lost");
        assert!(!alarm.look(true, true, &OnLost::Warn));
    }

    #[test]
    fn a_hook_runs_again_in_the_next_danger_and_who_is_stopped_is_told_once() {
        let hook = OnLost::Command("true".into());
        for (on_lost, again) in [(&hook, true), (&OnLost::Term, false), (&OnLost::Kill, false)] {
            let mut alarm = Alarm::default();
            assert!(alarm.look(true, false, on_lost));
            assert!(!alarm.look(true, true, on_lost), "it is being stopped");
            assert!(!alarm.look(false, false, on_lost));
            assert_eq!(alarm.told.is_none(), again);
            assert_eq!(alarm.look(true, false, on_lost), again);
        }
        let mut killed = Alarm { told: Some(Instant::now()), is_final: false, killed: true };
        assert!(!killed.look(false, false, &hook));
        assert!(killed.told.is_some(), "it was stopped for the lock");
    }

    #[test]
    fn what_is_no_word_of_ours_is_a_command() {
        assert_eq!(on_lost("warn"), Ok(OnLost::Warn));
        assert_eq!(on_lost("logger lost"), Ok(OnLost::Command("logger lost".into())));
        assert!(on_lost("").is_err());
    }
}
