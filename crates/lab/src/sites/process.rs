//! One child process, and the exchange of lines with it.
//!
//! **Rules.**
//! - The tool writes a line and waits for one line. Standard input and standard output of the child are the
//!   two directions of one socket, because a socket has timeouts.
//! - The child runs in a process group of its own, with a clean environment and a limit on its memory.
//! - A second process, the *watchdog*, reads from a pipe that only the tool can write to. The pipe closes
//!   when the tool drops the child, and also when the tool is killed. The watchdog then kills the group of
//!   the child.
//!
//! **Trap.** The kernel can also send a signal to a child when its parent ends. It sends that signal when the
//! *thread* ends that started the child, and a child here outlives the thread of a sweep.
//!
//! **Bounds.** [`Limits`].

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The limits of a program. A child that exceeds one of them is killed, and its run fails.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest time from the start of a child to its `hello`.
    pub start: Duration,
    /// The longest time of one step.
    pub step: Duration,
    /// The address space of a child, in KiB. A program that needs more gets an error from its allocator.
    pub memory_kib: u64,
    /// The longest reply, in bytes.
    pub reply_bytes: usize,
    /// The most bytes on standard error in one step.
    pub output_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(20),
            step: Duration::from_secs(5),
            memory_kib: 1 << 20,
            reply_bytes: 1 << 20,
            output_bytes: 1 << 16,
        }
    }
}

/// The other end of the protocol: a child process, or a script in tests.
pub(super) trait Host: Send {
    /// Sends a line and returns the reply, without its newline. Appends the output on standard error to
    /// `printed`.
    fn request(&mut self, line: &str, deadline: Instant, printed: &mut Vec<u8>) -> Result<String, Trouble>;
}

/// The reason why a child gave no reply. The child is then useless.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The process has ended, or has closed its standard output.
    Ended(Option<ExitStatus>),
    /// The deadline passed.
    Late,
    /// The reply exceeds the limit in bytes.
    TooLong(usize),
    /// The reply is followed by further output: both, shortened.
    SecondLine(String, String),
    /// The output on standard error exceeds the limit in bytes.
    TooMuchOutput(usize),
    /// The socket failed.
    Broken(io::Error),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(Some(status)) => write!(f, "the program ended ({status})"),
            Self::Ended(None) => f.write_str("the program closed its standard output"),
            Self::Late => f.write_str("the program did not reply in time; is there an endless loop?"),
            Self::TooLong(most) => write!(f, "the reply is longer than {most} bytes"),
            Self::SecondLine(first, second) => {
                write!(f, "the program wrote more than one line of reply: first {first} and then {second}")
            }
            Self::TooMuchOutput(most) => {
                write!(f, "the program wrote more than {most} bytes to standard error in one step")
            }
            Self::Broken(error) => write!(f, "the connection to the program failed: {error}"),
        }
    }
}

/// A child process that runs sites.
pub(super) struct Child {
    link: UnixStream,
    /// Bytes of the reply that have arrived.
    received: Vec<u8>,
    errors: UnixStream,
    limits: Limits,
    process: process::Child,
    watchdog: process::Child,
}

/// The time after which a waiting tool empties standard error and compares the clock with the deadline.
const SLICE: Duration = Duration::from_millis(20);

/// The time that a child has to end after it has closed its standard output.
const END: Duration = Duration::from_millis(500);

impl Child {
    /// Starts the program in `file`. A file that ends in `.py` is run by `python3`, any other file directly.
    pub(super) fn start(file: &Path, limits: Limits) -> io::Result<Self> {
        let (link, theirs) = UnixStream::pair()?;
        let (errors, their_errors) = UnixStream::pair()?;
        link.set_read_timeout(Some(SLICE))?;
        link.set_write_timeout(Some(limits.step.max(SLICE)))?;
        errors.set_nonblocking(true)?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "ulimit -v \"$0\" 2>/dev/null; exec \"$@\"", &limits.memory_kib.to_string()])
            .args(file.extension().is_some_and(|extension| extension == "py").then_some("python3"))
            .arg(file)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()))
            .envs([("LANG", "C.UTF-8"), ("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")])
            .stdin(OwnedFd::from(theirs.try_clone()?))
            .stdout(OwnedFd::from(theirs))
            .stderr(OwnedFd::from(their_errors))
            .process_group(0);
        if let Some(folder) = file.parent() {
            command.current_dir(folder);
        }
        let mut process = command.spawn()?;
        let watchdog = match watchdog(process.id()) {
            Ok(watchdog) => watchdog,
            Err(error) => {
                process.kill()?;
                process.wait()?;
                return Err(error);
            }
        };
        Ok(Self { link, received: Vec::new(), errors, limits, process, watchdog })
    }

    /// Moves the output on standard error to `printed`.
    fn drain(&mut self, printed: &mut Vec<u8>) -> Result<(), Trouble> {
        let most = self.limits.output_bytes;
        let room = most.saturating_sub(printed.len()) as u64 + 1;
        // The socket does not block, so the end of the output is an error of the kind `WouldBlock`.
        _ = (&self.errors).take(room).read_to_end(printed);
        match printed.len() > most {
            true => Err(Trouble::TooMuchOutput(most)),
            false => Ok(()),
        }
    }

    /// Reads a line without its newline.
    fn line(&mut self, deadline: Instant, printed: &mut Vec<u8>) -> Result<String, Trouble> {
        self.received.clear();
        let mut chunk = [0; 1 << 14];
        loop {
            match self.link.read(&mut chunk) {
                Ok(0) => return Err(self.ended(printed)),
                Ok(read) => {
                    self.received.extend_from_slice(&chunk[..read]);
                    if let Some(end) = chunk[..read].iter().position(|byte| *byte == b'\n') {
                        return self.split(self.received.len() - read + end);
                    }
                }
                Err(error) if is_timeout(&error) => self.drain(printed)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(self.ended(printed)),
                Err(error) => return Err(Trouble::Broken(error)),
            }
            if self.received.len() > self.limits.reply_bytes {
                return Err(Trouble::TooLong(self.limits.reply_bytes));
            }
            if Instant::now() >= deadline {
                return Err(Trouble::Late);
            }
        }
    }

    /// Returns the line that ends at this byte, which must be the last byte received.
    fn split(&self, end: usize) -> Result<String, Trouble> {
        if end > self.limits.reply_bytes {
            return Err(Trouble::TooLong(self.limits.reply_bytes));
        }
        let line = String::from_utf8_lossy(&self.received[..end]);
        match &self.received[end + 1..] {
            [] => Ok(line.into_owned()),
            more => {
                let more = String::from_utf8_lossy(more);
                Err(Trouble::SecondLine(super::shortened(&line), super::shortened(more.trim_end())))
            }
        }
    }

    /// Describes the end of the process, which has closed its standard output.
    fn ended(&mut self, printed: &mut Vec<u8>) -> Trouble {
        let began = Instant::now();
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                _ = self.drain(printed);
                return Trouble::Ended(Some(status));
            }
            if began.elapsed() > END {
                return Trouble::Ended(None);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Host for Child {
    fn request(&mut self, line: &str, deadline: Instant, printed: &mut Vec<u8>) -> Result<String, Trouble> {
        match self.link.write_all(line.as_bytes()) {
            Ok(()) => {}
            Err(error) if is_timeout(&error) => return Err(Trouble::Late),
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Err(self.ended(printed));
            }
            Err(error) => return Err(Trouble::Broken(error)),
        }
        let reply = self.line(deadline, printed);
        let drained = self.drain(printed);
        reply.and_then(|reply| drained.map(|()| reply))
    }
}

impl Drop for Child {
    /// Kills the group. The watchdog must do so before `wait` gives the id of the group free.
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        _ = self.watchdog.wait();
        // For a system on which the watchdog cannot kill.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Starts the watchdog of a process group. Its standard input is the pipe that only this process can write
/// to.
fn watchdog(group: u32) -> io::Result<process::Child> {
    Command::new("/bin/sh")
        .args(["-c", "trap '' HUP INT TERM; read _; kill -s KILL -- \"-$0\"", &group.to_string()])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
