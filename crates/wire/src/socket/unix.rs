//! Unix sockets: the sockets of servers on this machine, and the folders that contain them.
//!
//! **Traps.**
//! - A Unix socket becomes writable whenever the other side reads. A task that waits for readable and
//!   writable is then woken for nothing by each message. So the tasks wait for readable only, and for
//!   writable only after a failed write.
//! - Another user may create the folder in `/tmp` first, and listen in it. So both sides check it: it must
//!   be a folder of this user that no other user may write to.

mod folder;

use std::collections::HashSet;
use std::fs::{DirBuilder, DirEntry, Metadata};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::net::Shutdown;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

use super::Socket;

/// Connects to the Unix socket that belongs to `address`. Returns `None` after any error; the caller then
/// uses TCP.
pub(super) async fn connect(address: SocketAddr) -> Option<Socket> {
    let path = path_of(address)?;
    is_safe(path.parent()?).ok()?;
    let stream = UnixStream::connect(path).await.ok()?;
    Local::new(stream).ok().map(Socket::Unix)
}

/// One end of a Unix socket, or one direction of it.
#[derive(Debug)]
pub struct Local {
    stream: Arc<AsyncFd<net::UnixStream>>,
    /// The maximum number of bytes of the next read.
    step: usize,
}

/// The usual and the largest read, in bytes. The usual one holds most messages and needs little memory to be
/// zeroed. The largest one follows a read that filled its buffer.
const STEP: (usize, usize) = (4 * 1024, 64 * 1024);

impl Local {
    fn new(stream: UnixStream) -> io::Result<Self> {
        let stream = watched(stream.into_std()?, Interest::READABLE)?;
        Ok(Self { stream: Arc::new(stream), step: STEP.0 })
    }

    /// Returns the other direction of the same socket.
    pub(super) fn other_half(&self) -> Self {
        Self { stream: self.stream.clone(), step: self.step }
    }

    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = std::task::ready!(self.stream.poll_read_ready(cx))?;
            let room = self.step.min(buffer.remaining());
            match self.stream.get_ref().read(buffer.initialize_unfilled_to(room)) {
                Ok(read) => {
                    buffer.advance(read);
                    if read < room {
                        // Everything is read: the system reports the next bytes.
                        ready.clear_ready();
                    }
                    self.step = if read < room { STEP.0 } else { STEP.1 };
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    pub(super) fn read_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.get_ref().read(bytes)
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.get_ref().write(bytes)
    }

    pub(super) fn shutdown(&self) -> io::Result<()> {
        shutdown(self.stream.get_ref())
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        // Use a second descriptor. The first one would otherwise wake its task for writability from then on.
        let stream = watched(self.stream.get_ref().try_clone()?, Interest::WRITABLE)?;
        stream.writable().await?.retain_ready();
        Ok(())
    }
}

/// Reads the bytes that have arrived. The socket is in non-blocking mode, as all sockets of the runtime.
pub(super) fn read_now(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(socket, bytes)?)
}

/// Closes the direction of a socket in which this side writes.
pub(super) fn shutdown(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

#[expect(
    deprecated,
    reason = "its successor is unsafe for types that give their descriptor away; this one keeps it"
)]
fn watched(stream: net::UnixStream, interest: Interest) -> io::Result<AsyncFd<net::UnixStream>> {
    AsyncFd::with_interest(stream, interest)
}

/// A Unix listener for clients of the same machine and user. Its drop removes the path of the socket.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalListener {
    /// Listens on the Unix socket that belongs to `address`. The caller listens on `address` already, so an
    /// earlier owner of the path has ended; its path is replaced.
    ///
    /// # Errors
    /// The address belongs to another machine, the folder does not belong to this user alone, or the system
    /// rejects the socket.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let path = path_of(address).ok_or(io::ErrorKind::Unsupported)?;
        let folder = path.parent().ok_or(io::ErrorKind::Unsupported)?;
        make_private(folder)?;
        // A path that cannot be removed stays, and does no harm.
        drop(sweep(folder));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { listener: UnixListener::bind(&path)?, path })
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The error of the system, most likely that the process has no descriptor left.
    pub async fn accept(&self) -> io::Result<Socket> {
        let (stream, _) = self.listener.accept().await?;
        Local::new(stream).map(Socket::Unix)
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        // If the path stays, clients find no listener and use TCP.
        drop(std::fs::remove_file(&self.path));
    }
}

/// Removes the paths that killed servers of this network namespace left. Paths of living servers are in the
/// system's list of sockets. If another server binds a dead path at this moment, its clients use TCP.
fn sweep(folder: &Path) -> io::Result<()> {
    let network = format!("{}-", network());
    let is_ours =
        |entry: &DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&network));
    // Read the paths first. A running server with a path at this time is also in the list that is read later.
    let names: Vec<PathBuf> =
        std::fs::read_dir(folder)?.flatten().filter(is_ours).map(|entry| entry.path()).collect();
    let sockets = std::fs::read("/proc/net/unix")?;
    let sockets = String::from_utf8_lossy(&sockets);
    let living: HashSet<&Path> =
        sockets.lines().filter_map(|line| line.split(' ').next_back()).map(Path::new).collect();
    for dead in names.iter().filter(|name| !living.contains(name.as_path())) {
        // Another server may remove the same path.
        drop(std::fs::remove_file(dead));
    }
    Ok(())
}

/// The number of the network namespace.
fn network() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// Returns the path of the Unix socket for this address, if the address can belong to this machine.
fn path_of(address: SocketAddr) -> Option<PathBuf> {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let name = format!("{}-{}", network(), SocketAddr::new(ip, address.port()));
    ip.is_loopback().then(|| user_folder().join(name))
}

/// The folder for the sockets of this user. It may not exist, or may not be private; [`make_private`] creates
/// and checks it.
pub fn user_folder() -> PathBuf {
    format!("/tmp/conclave-{}", rustix::process::getuid().as_raw()).into()
}

/// Creates a folder that only this user can write to. The parent folder must exist.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] if the folder exists, but belongs to another user, is a link, or
/// others may write to it.
pub fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => is_safe(folder),
    }
}

/// Checks that only this user, or root, can create files in a folder.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] if another user can, [`io::ErrorKind::NotFound`] if the folder does
/// not exist.
pub fn is_safe(folder: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(folder)?;
    let is_ours = |found: &Metadata| found.is_dir() && found.uid() == rustix::process::getuid().as_raw();
    if !is_ours(&found) || found.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "other users may write to the folder: correct its mode or remove it",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    pub(super) fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("conclave-socket-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        folder
    }

    #[tokio::test]
    async fn a_local_client_uses_the_unix_socket_without_the_prefix_tcp() {
        let (listener, address) = listener().await;
        let local = LocalListener::bind(address).unwrap();
        assert!(matches!(Socket::connect(&address.to_string()).await.unwrap(), Socket::Unix(_)));
        local.accept().await.unwrap();
        assert!(matches!(Socket::connect(&format!("tcp:{address}")).await.unwrap(), Socket::Tcp(_)));
        listener.accept().await.unwrap();
    }

    #[tokio::test]
    async fn a_client_uses_tcp_if_no_unix_socket_listens() {
        let (listener, address) = listener().await;
        let local = LocalListener::bind(address).unwrap();
        let path = local.path.clone();
        drop(local);
        assert!(!path.exists());
        assert!(matches!(Socket::connect(&address.to_string()).await.unwrap(), Socket::Tcp(_)));
        // A killed server leaves its path; the next server replaces it.
        drop(UnixListener::bind(&path).unwrap());
        assert!(matches!(Socket::connect(&address.to_string()).await.unwrap(), Socket::Tcp(_)));
        let _local = LocalListener::bind(address).unwrap();
        assert!(matches!(Socket::connect(&address.to_string()).await.unwrap(), Socket::Unix(_)));
        drop(listener);
    }

    #[tokio::test]
    async fn names_that_lead_nowhere_are_swept_and_no_others() {
        let (_tcp, address) = listener().await;
        let living = LocalListener::bind(address).unwrap();
        let folder = living.path.parent().unwrap();
        // One path of a killed server, and one of a server in another container, whose state is unknown here.
        let (dead, elsewhere) =
            (format!("{}-dead-{}", network(), address.port()), format!("elsewhere-{}", address.port()));
        let (dead, elsewhere) = (folder.join(dead), folder.join(elsewhere));
        drop((UnixListener::bind(&dead).unwrap(), UnixListener::bind(&elsewhere).unwrap()));
        let (_tcp, other) = listener().await;
        let _other = LocalListener::bind(other).unwrap();
        assert!(!dead.exists());
        assert!(living.path.exists() && elsewhere.exists());
        fs::remove_file(elsewhere).unwrap();
    }

    #[tokio::test]
    async fn both_ways_carry_both_directions_and_an_end() {
        let (listener, address) = listener().await;
        let local = LocalListener::bind(address).unwrap();
        for server in [format!("tcp:{address}"), address.to_string()] {
            let client = Socket::connect(&server).await.unwrap();
            let accepted = match client {
                Socket::Unix(_) => local.accept().await.unwrap(),
                _ => Socket::Tcp(listener.accept().await.unwrap().0),
            };
            let ((mut heard, said), (mut read, answered)) = (client.into_split(), accepted.into_split());
            // More than the system buffers for a side that does not read.
            let question = vec![7; 16 << 20];
            let (mut question_read, mut answer) = (Vec::new(), Vec::new());
            let ask = async {
                said.write_all(&question).await.unwrap();
                said.shutdown().unwrap();
            };
            let (_, all) = tokio::join!(ask, read.read_to_end(&mut question_read));
            all.unwrap();
            assert!(question_read == question, "by {server}");
            answered.write_all(b"yes").await.unwrap();
            answered.shutdown().unwrap();
            heard.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"yes", "by {server}");
        }
    }

    #[test]
    fn the_name_is_that_of_a_loopback_address() {
        let path = |address: &str| path_of(address.parse().unwrap());
        assert_eq!(
            path("0.0.0.0:7411"),
            path("127.0.0.1:7411"),
            "a server on every address listens on loopback too"
        );
        assert_eq!(path("[::]:7411"), path("[::1]:7411"));
        assert_ne!(path("127.0.0.1:7411"), path("127.0.0.2:7411"));
        assert_ne!(path("127.0.0.1:7411"), path("127.0.0.1:7412"));
        assert_eq!(path("10.0.0.1:7411"), None, "the address may belong to another machine");
        let refused = LocalListener::bind("10.0.0.1:7411".parse().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_folder_that_others_may_have_prepared_is_not_trusted() {
        let ours = folder("ours");
        is_safe(&ours).unwrap();
        for mode in [0o770, 0o707, 0o1777] {
            fs::set_permissions(&ours, Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_safe(&ours).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
        }
        fs::set_permissions(&ours, Permissions::from_mode(0o700)).unwrap();
        let link = ours.join("link");
        symlink(&ours, &link).unwrap();
        assert!(is_safe(&link).is_err(), "the target of a link may change");
        fs::remove_dir_all(&ours).unwrap();
        assert_eq!(is_safe(&ours).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
