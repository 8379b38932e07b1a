//! The start of the local node, as a background process.
//!
//! The node is this program with a special argument. It must outlive the command that starts it. So it has
//! its own session, and gets no signal of the terminal. It has no descriptors of the caller, and its working
//! folder is the root folder.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::oneshot;

use super::about::About;
use super::{folder_failure, log, node, unusable};
use crate::output::Failure;

/// The file that is locked while a node is started.
const STARTER: &str = "starter";
/// The longest time of a start. Then the command fails.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The longest message in bytes of a node that does not start. Further bytes are not read.
const MESSAGE_BYTES_MAX: u64 = 64 * 1024;

/// Creates the folder if it is missing, and waits for the lock that allows starting a node in it.
pub async fn lock(folder: &Path) -> Result<File, Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| folder_failure("cannot make the folder of the local node,", folder, &error))?;
    let path = folder.join(STARTER);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(|error| folder_failure("cannot open", &path, &error))?;
    match tokio::time::timeout(START_LIMIT, locked(file)).await {
        Ok(locked) => locked.map_err(|error| folder_failure("cannot lock", &path, &error)),
        Err(_) => Err(unusable(format!(
            "another command has tried to start the local node for {} s; see {}, then try again",
            START_LIMIT.as_secs(),
            folder.join(log::NAME).display()
        ))),
    }
}

/// Locks a file on a separate thread. The wait has no limit and ends with the process; the runtime would wait
/// for a thread of its own pool.
async fn locked(file: File) -> io::Result<File> {
    let (sender, done) = oneshot::channel();
    thread::Builder::new().name("starter".to_owned()).spawn(move || {
        let locked = loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                locked => break locked.map(|()| file),
            }
        };
        // The caller may have stopped waiting. The lock is then released here.
        drop(sender.send(locked));
    })?;
    Ok(done.await.map_err(io::Error::other)??)
}

/// Starts a node and waits until it listens. `unreached` is the error of the earlier attempt to connect.
pub async fn node(folder: &Path, starter: File, unreached: &io::Error) -> Result<(), Failure> {
    let log =
        log::open(folder).map_err(|error| folder_failure("cannot open", &folder.join(log::NAME), &error))?;
    let spawned = spawn(folder, starter, log);
    let mut child = spawned.map_err(|error| unusable(format!("cannot start the local node: {error}")))?;
    let mut line = String::new();
    let reading = async {
        let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        BufReader::new(stdout.take(MESSAGE_BYTES_MAX)).read_line(&mut line).await
    };
    let read = tokio::time::timeout(START_LIMIT, reading).await;
    let see_log = format!("see {}", folder.join(log::NAME).display());
    match (read, node::Report::parse(&line)) {
        (Ok(Ok(_)), Some(node::Report::Ready)) => Ok(()),
        (Ok(Ok(_)), Some(node::Report::Busy)) => Err(unusable(busy(folder, unreached))),
        (Ok(Ok(_)), Some(node::Report::Failed(why))) => Err(unusable(format!(
            "the local node cannot start: {why}; correct that and try again, or {see_log}"
        ))),
        (Ok(Ok(_)), None) => Err(unusable(format!("the local node ended before it was ready; {see_log}"))),
        (Ok(Err(error)), _) => Err(unusable(format!("the local node does not start: {error}; {see_log}"))),
        (Err(_), _) => {
            let limit = START_LIMIT.as_secs();
            Err(unusable(format!("the local node is not ready after {limit} s; {see_log}")))
        }
    }
}

/// Returns the message for a folder that another process has locked although no node listens.
fn busy(folder: &Path, unreached: &io::Error) -> String {
    let process = About::read(folder)
        .map_or_else(String::new, |about| format!(", perhaps process {} of its last node", about.process));
    format!(
        "the folder {} of the local node is locked by another process{process}, but no node can be reached in \
         it ({unreached}); end that process, then try again",
        folder.display()
    )
}

fn spawn(folder: &Path, starter: File, log: File) -> io::Result<tokio::process::Child> {
    let mut command = Command::new(program());
    command.arg0("conclave").arg(node::COMMAND).arg(folder).current_dir("/");
    command.stdin(Stdio::from(starter)).stdout(Stdio::piped()).stderr(log);
    detach(&mut command);
    command.spawn()
}

/// Returns the path of this program. If an upgrade has removed its file, `/proc/self/exe` still has its
/// content.
fn program() -> PathBuf {
    let file = std::env::current_exe().ok().filter(|file| file.exists());
    file.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// Moves the child to its own session, and closes descriptors that the caller has inherited. Otherwise a lock
/// or a pipe of a script would stay open as long as the node.
#[allow(unsafe_code, reason = "a child can only do this between fork and exec")]
fn detach(command: &mut Command) {
    // SAFETY: between fork and exec only system calls are made; nothing is allocated and no lock is taken.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            close_on_exec();
            Ok(())
        });
    }
}

/// Makes the kernel close all descriptors above standard error when the new program starts.
#[allow(unsafe_code, reason = "no safe crate of ours closes descriptors that others have opened")]
fn close_on_exec() {
    #[cfg(target_os = "linux")]
    {
        const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
        // SAFETY: the call only sets a flag of descriptors of this process, which is about to run another
        // program.
        let done = unsafe {
            libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC)
        };
        if done == 0 {
            return;
        }
    }
    // An older kernel has no such call. The bound is far above the descriptors that a shell passes on.
    for descriptor in 3..4096 {
        // SAFETY: as above; a number without a descriptor is an error and nothing else.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Releases the inherited lock of the starting command, and the pipe to that command.
pub fn release() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(null.as_fd())?;
    Ok(())
}
