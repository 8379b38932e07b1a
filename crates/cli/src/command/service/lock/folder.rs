//! The sockets of lock holders: one Unix socket per holder, in a folder that only its user can write to.
//!
//! **Rules.** The name of a socket is `NAMESPACE-OWNER-KEY-HOLDER`. The parts are the number of the pid
//! namespace and the shell (or `detached`). Then follow a hash of the server and the expression, and the
//! process of the holder. So `unlock` finds the holders of its shell without a list that could be wrong. A
//! socket on which no process listens is a trace: its holder ended without `unlock`, and its lock is lost. A
//! file with the reason for the end is a trace too.
//!
//! **Bounds.** A new holder removes the traces of shells that have ended and the traces with its own key. It
//! removes traces of detached locks after a day.

use std::fs::{self, DirEntry};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use conclave_wire::socket::{is_safe, make_private, user_folder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;

use super::shell::Shell;

/// The most bytes of a reply.
const MAX_REPLY: u64 = 1 << 20;
/// The longest wait for a holder's reply about its state. A holder that takes longer is probably stopped.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// The time after which the trace of a detached lock is removed.
const TRACE_STAYS: Duration = Duration::from_secs(24 * 60 * 60);

/// A request to a holder: one line of JSON. The holder replies with one line and closes the connection.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Requests the state of the lock; the reply is a [`Status`].
    Status,
    /// Requests the release of the lock; the reply is an [`Unlocked`].
    Unlock,
}

/// The state of the lock of a holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub server: String,
    pub expr: String,
    /// The largest fence of the grant.
    pub fence: u64,
    /// The names with their fences.
    pub names: Vec<(String, u64)>,
}

/// The result of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlocked {
    /// The exit code for `unlock`.
    pub exit: u8,
    /// The error; empty if the lock was released.
    pub message: String,
}

/// The key of a lock in the folder.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    /// The shell; `None` for a detached lock.
    pub shell: Option<Shell>,
    pub server: &'a str,
    /// The expression in its canonical form.
    pub expr: &'a str,
}

impl Key<'_> {
    fn prefix(&self) -> String {
        format!("{}{:016x}-", prefix(self.shell), hash(&[self.server, self.expr]))
    }

    /// Returns the sockets with this key.
    pub fn sockets(&self) -> Vec<PathBuf> {
        with_prefix(&self.prefix())
    }
}

/// Returns all sockets of a shell; for `None`, those of the detached locks.
pub fn sockets(shell: Option<Shell>) -> Vec<PathBuf> {
    with_prefix(&prefix(shell))
}

/// Sends a request to the holder that listens on a socket. `limit` is the longest time until the reply.
///
/// # Errors
/// One of [`HAS_ENDED`] if no holder listens, or if it ends before the reply.
pub fn call<T: DeserializeOwned>(socket: &Path, request: &Request, limit: Option<Duration>) -> io::Result<T> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)?;
    stream.write_all(&line(request))?;
    let mut reply = String::new();
    BufReader::new(stream.take(MAX_REPLY)).read_line(&mut reply)?;
    if reply.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_str(&reply).map_err(io::Error::other)
}

/// The errors of a request to a holder that has ended, or ends before it replies.
const HAS_ENDED: [io::ErrorKind; 5] = [
    io::ErrorKind::ConnectionRefused,
    io::ErrorKind::NotFound,
    io::ErrorKind::UnexpectedEof,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::BrokenPipe,
];

/// Returns the state of the lock of a holder; `None` if the holder has ended.
///
/// # Errors
/// The holder does not reply.
pub fn status(socket: &Path) -> io::Result<Option<Status>> {
    match call(socket, &Request::Status, Some(ANSWERS_WITHIN)) {
        Ok(status) => Ok(Some(status)),
        Err(error) if HAS_ENDED.contains(&error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a value as one line of JSON.
pub fn line(value: &impl Serialize) -> Vec<u8> {
    // The types of this module always have a JSON form.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The socket of this holder. A socket that is not removed remains as a trace.
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Creates the socket of this process, and removes old traces.
    ///
    /// # Errors
    /// The folder is not private, or the system refuses.
    pub fn bind(key: &Key<'_>) -> io::Result<(UnixListener, Self)> {
        make_private(&user_folder())?;
        make_private(&folder())?;
        sweep();
        for trace in key.sockets().iter().filter(|socket| is_trace(socket)) {
            remove(trace);
        }
        let path = folder().join(format!("{}{}", key.prefix(), std::process::id()));
        // An earlier holder with the same process number has ended.
        remove(&path);
        Ok((UnixListener::bind(&path)?, Self { path }))
    }

    /// Replaces the socket by a trace with the reason for the end of the lock, for a later `unlock`.
    pub fn leave(&self, reason: &str) {
        remove(&self.path);
        // Without the reason, `unlock` finds no such lock.
        _ = fs::write(&self.path, reason);
    }

    /// Removes the socket, so that a later `unlock` does not find this holder.
    pub fn remove(&self) {
        remove(&self.path);
    }
}

/// Returns the reason that a holder has left in its trace; `None` if it was killed or stopped.
pub fn reason(trace: &Path) -> Option<String> {
    let mut reason = String::new();
    // A socket cannot be opened.
    fs::File::open(trace).ok()?.take(MAX_REPLY).read_to_string(&mut reason).ok()?;
    (!reason.is_empty()).then_some(reason)
}

/// Removes a socket. Another process may have removed it already.
pub fn remove(socket: &Path) {
    drop(fs::remove_file(socket));
}

/// Removes the sockets of shells that have ended, and old traces of detached locks.
fn sweep() {
    let namespace = format!("{}-", namespace());
    let is_old = |entry: &DirEntry| {
        let age =
            entry.metadata().and_then(|found| found.modified()).map(|at| at.elapsed().unwrap_or_default());
        age.is_ok_and(|age| age > TRACE_STAYS)
    };
    for entry in fs::read_dir(folder()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(|name| name.strip_prefix(&namespace)?.split('-').next())
        else {
            continue;
        };
        let is_useless = match owner.parse::<Shell>() {
            Ok(shell) => !shell.is_alive(),
            Err(_) => is_old(&entry) && is_trace(&entry.path()),
        };
        if is_useless {
            remove(&entry.path());
        }
    }
}

/// Returns whether no process listens on a socket.
fn is_trace(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn with_prefix(prefix: &str) -> Vec<PathBuf> {
    let folder = folder();
    // Ignore a folder that others can write to: another user could pretend to hold the lock.
    if is_safe(&user_folder()).and_then(|()| is_safe(&folder)).is_err() {
        return Vec::new();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_wanted =
        |entry: &DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
    entries.filter(is_wanted).map(|entry| entry.path()).collect()
}

fn folder() -> PathBuf {
    user_folder().join("locks")
}

fn prefix(shell: Option<Shell>) -> String {
    let owner = shell.map_or_else(|| "detached".to_owned(), |shell| shell.to_string());
    format!("{}-{owner}-", namespace())
}

/// Returns the number of the pid namespace. In another container, the same process number is another process.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Returns the FNV-1a hash of texts. It is the same in every version of this program; after a collision,
/// `unlock` compares the texts.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_with_different_servers_or_expressions_have_different_keys() {
        let key = |server, expr| Key { shell: None, server, expr }.prefix();
        assert_eq!(key("a:1", "x"), key("a:1", "x"));
        assert_ne!(key("a:1", "x"), key("a:1", "y"));
        assert_ne!(key("a:1", "x"), key("a:2", "x"));
        assert_ne!(key("a", "bc"), key("ab", "c"));
    }

    #[tokio::test]
    async fn a_holder_that_ends_during_a_request_has_ended() {
        let key = Key { shell: None, server: "test", expr: "a_holder_that_ends" };
        let (listener, socket) = Socket::bind(&key).expect("the folder is ours");
        let path = socket.path.clone();
        let asking = tokio::task::spawn_blocking(move || status(&path).ok());
        // Accept the request and close the connection without a reply.
        drop(listener.accept().await.expect("the request comes"));
        assert_eq!(asking.await.ok(), Some(Some(None)));
        socket.remove();
    }

    #[tokio::test]
    async fn a_holder_that_has_ended_leaves_a_trace_which_the_next_one_removes() {
        let key = Key { shell: None, server: "test", expr: "a_holder_that_has_ended" };
        let (listener, first) = Socket::bind(&key).expect("the folder is ours");
        assert_eq!(key.sockets(), std::slice::from_ref(&first.path));
        drop(listener);
        assert_eq!(status(&first.path).ok(), Some(None));
        let (_listener, second) = Socket::bind(&key).expect("the folder is ours");
        assert_eq!(key.sockets().len(), 1);
        second.remove();
        assert_eq!(key.sockets().len(), 0);
    }
}
