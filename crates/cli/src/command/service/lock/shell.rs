//! The process that a lock is bound to: usually the shell that calls `conclave lock`.
//!
//! **Trap.** The process ends, and the kernel gives its number to another process. So a [`Shell`] also
//! contains the start time of the process. A holder watches the process by a pidfd, which never refers to
//! another process.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use rustix::process::{Pid, Signal, getppid, test_kill_process};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::command::service::REFUSED;
use crate::output::Failure;

/// A process, by its number and its start time in ticks since the boot. The text form is `NUMBER.START`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shell {
    pid: Pid,
    started: u64,
}

impl Shell {
    /// Returns the parent of this process.
    pub fn parent() -> Result<Self, Failure> {
        let parent = getppid().ok_or_else(|| unbound("the calling shell is outside this container"))?;
        let shell = Self::of(parent)?;
        // Check the parent again: if it is unchanged, the start time above is not that of a later process
        // with the same number.
        if getppid() != Some(parent) {
            return Err(unbound("the calling shell has ended"));
        }
        if parent == Pid::INIT {
            return Err(unbound("the parent of this command is process 1, which is usually no shell"));
        }
        Ok(shell)
    }

    /// Returns the process with this number.
    pub fn of(pid: Pid) -> Result<Self, Failure> {
        match started(pid) {
            Ok(started) => Ok(Self { pid, started }),
            Err(error) => Err(unbound(&format!("process {pid}: {error}", pid = pid.as_raw_nonzero()))),
        }
    }

    /// Returns the number of the process.
    pub fn number(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Returns whether the process still runs. A zombie counts as running.
    pub fn is_alive(&self) -> bool {
        started(self.pid).is_ok_and(|started| started == self.started)
    }

    /// Starts to watch the process.
    ///
    /// # Errors
    /// The process has ended, this user may not send it signals, or the system has no pidfd.
    pub fn watch(&self) -> Result<Watch, Failure> {
        let shell = self.number();
        let fd = open(self.pid).map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => unbound("this system has no pidfd_open (Linux 5.3 or later)"),
            _ => unbound(&format!("process {shell}: {error}")),
        })?;
        // The descriptor may refer to a later process with the same number, which has another start time.
        if !self.is_alive() {
            return Err(unbound(&format!("process {shell} has ended")));
        }
        // Check the permission to send signals, because a lost lock stops the process by a signal.
        test_kill_process(self.pid).map_err(|error| unbound(&format!("process {shell}: {error}")))?;
        let fd = watch(fd).map_err(|error| unbound(&format!("process {shell}: {error}")))?;
        Ok(Watch { fd, shell: *self })
    }
}

impl fmt::Display for Shell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.number(), self.started)
    }
}

impl FromStr for Shell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (pid, started) = text.split_once('.')?;
            let pid = Pid::from_raw(pid.parse().ok().filter(|pid| *pid > 0)?)?;
            Some(Self { pid, started: started.parse().ok()? })
        };
        parse().ok_or_else(|| format!("expected NUMBER.START, got {text:?}"))
    }
}

/// A watch of a process by its pidfd.
pub struct Watch {
    fd: AsyncFd<OwnedFd>,
    shell: Shell,
}

impl Watch {
    /// Returns the number of the process.
    pub fn number(&self) -> i32 {
        self.shell.number()
    }

    /// Returns when the process has ended. A dropped future may be created again.
    pub async fn ended(&self) {
        // A pidfd becomes readable at the end of its process and stays readable. An error means that the
        // runtime has ended.
        if let Ok(mut ready) = self.fd.readable().await {
            ready.retain_ready();
        }
    }

    /// Sends a signal to the process. A process that has ended is no error.
    pub fn send(&self, signal: Signal) {
        #[cfg(target_os = "linux")]
        {
            _ = rustix::process::pidfd_send_signal(self.fd.get_ref(), signal);
        }
        #[cfg(not(target_os = "linux"))]
        {
            _ = signal;
        }
    }
}

/// Parses the value of `--pid`.
pub fn pid(text: &str) -> Result<Pid, String> {
    let number = text.parse().ok().filter(|number: &i32| *number > 0);
    number.and_then(Pid::from_raw).ok_or_else(|| "expected the number of a process".to_owned())
}

fn unbound(why: &str) -> Failure {
    let message = format!("{why}; name the process by --pid PID, or use --for D or `conclave run`");
    Failure::new(REFUSED, "no-shell", message)
}

#[cfg(target_os = "linux")]
fn open(pid: Pid) -> io::Result<OwnedFd> {
    use rustix::process::{PidfdFlags, pidfd_open};

    pidfd_open(pid, PidfdFlags::empty()).map_err(Into::into)
}

#[cfg(not(target_os = "linux"))]
fn open(_: Pid) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

#[expect(
    deprecated,
    reason = "the successor is unsafe for types that give their descriptor away; this one keeps it"
)]
fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Returns the start time of a process, from field 22 of its file `stat`: `number (program) state ...`.
fn started(pid: Pid) -> io::Result<u64> {
    let stat =
        fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::other("there is no such process"),
            _ => error,
        })?;
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program may contain any characters, even parentheses.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let started = fields.and_then(|mut fields| fields.nth(19)?.parse().ok());
    started.ok_or_else(|| io::Error::other("its start time cannot be read"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let shell = Shell::of(rustix::process::getpid()).expect("it runs");
        assert!(shell.is_alive());
        assert_eq!(shell.to_string().parse(), Ok(shell));
        let earlier = Shell { started: shell.started - 1, ..shell };
        assert!(!earlier.is_alive(), "another process had the number before");
        for wrong in ["", "7", "7.", "-7.1", "0.1", "x.1"] {
            assert!(wrong.parse::<Shell>().is_err(), "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_noticed_and_stays_noticed() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat is there");
        let shell = Shell::of(Pid::from_child(&child)).expect("it runs");
        let watch = shell.watch().expect("it runs");
        watch.send(Signal::TERM);
        watch.ended().await;
        watch.ended().await;
        child.wait().expect("it is our child");
        assert!(shell.watch().is_err(), "the number is free");
    }
}
