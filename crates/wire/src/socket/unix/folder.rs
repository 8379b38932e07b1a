//! The Unix socket of a local node, which is a file in the data folder of that node.
//!
//! **Intuition.** A local node serves one user on one machine, and its data folder is its identity. The
//! socket is inside that folder, so a client that finds the folder also finds the node. A network namespace
//! or a `/tmp` of its own changes nothing.
//!
//! **Trap.** The address of a Unix socket has at most 107 bytes, and a home folder may be deep. A longer
//! path is reached through `/proc/self/fd/N`, where N is a descriptor of the folder.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::ReadBuf;
use tokio::net::{UnixListener, UnixStream};

use super::{Local, LocalListener, is_safe};
use crate::socket::Socket;

/// The name of the socket in the data folder.
const NAME: &str = "socket";
/// The longest path in the address of a Unix socket on Linux, without the terminating zero. Other systems
/// have less.
const PATH_BYTES_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

impl Socket {
    /// Connects to the local node of a data folder.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if other users may write to the folder; the error of the system
    /// if the folder or the socket is missing, or if no node listens.
    pub async fn connect_in(folder: &Path) -> io::Result<Self> {
        is_safe(folder)?;
        let place = Place::of(folder)?;
        let stream = UnixStream::connect(&place.path).await?;
        Local::new(stream).map(Self::Unix)
    }
}

impl LocalListener {
    /// Listens in the data folder of a local node. The caller holds the lock of the folder, so a socket
    /// that is there belongs to a node that has ended; it is removed.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if other users may write to the folder; the error of the system
    /// if the file system has no sockets.
    pub fn bind_in(folder: &Path) -> io::Result<Self> {
        is_safe(folder)?;
        let path = folder.join(NAME);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let place = Place::of(folder)?;
        let listener = UnixListener::bind(&place.path)?;
        // The user may have created the folder with permissions for others.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(Self { listener, path })
    }
}

impl Local {
    /// Waits for the first byte of the other side and returns it, without taking it from the stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the other side has closed the connection.
    pub async fn first_byte(&self) -> io::Result<u8> {
        loop {
            let mut ready = self.stream.readable().await?;
            let mut byte = [0];
            match rustix::net::recv(self.stream.get_ref(), &mut byte, RecvFlags::PEEK) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {
                    ready.retain_ready();
                    return Ok(byte[0]);
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives bytes until the buffer is full.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the other side closes the connection before.
    pub async fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut buffer = ReadBuf::new(bytes);
        while buffer.remaining() > 0 {
            let before = buffer.remaining();
            std::future::poll_fn(|cx| self.poll_read(cx, &mut buffer)).await?;
            if buffer.remaining() == before {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Sends a few bytes without waiting. The system accepts them if its buffer has space.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the other side has not read the earlier bytes.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = self.stream.get_ref();
        stream.write_all(bytes)
    }

    /// The connection as a stream of the runtime, for protocols that need one.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn into_stream(self) -> io::Result<UnixStream> {
        UnixStream::from_std(self.stream.get_ref().try_clone()?)
    }
}

/// The path of the socket, short enough for an address.
struct Place {
    path: PathBuf,
    /// The folder, open while `path` leads through its descriptor.
    _folder: Option<OwnedFd>,
}

impl Place {
    fn of(folder: &Path) -> io::Result<Self> {
        let path = folder.join(NAME);
        if path.as_os_str().len() <= PATH_BYTES_MAX {
            return Ok(Self { path, _folder: None });
        }
        let folder = File::open(folder)?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(NAME);
        Ok(Self { path, _folder: Some(folder.into()) })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::io::AsyncWriteExt;

    use super::super::tests::folder;
    use super::*;

    #[tokio::test]
    async fn a_client_finds_the_listener_of_a_folder() {
        let folder = folder("found");
        let missing = Socket::connect_in(&folder).await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let listener = LocalListener::bind_in(&folder).unwrap();
        let client = Socket::connect_in(&folder).await.unwrap();
        listener.accept().await.unwrap();
        drop((client, listener));
        assert!(!folder.join(NAME).exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn the_socket_of_a_killed_node_is_replaced() {
        let folder = folder("killed");
        drop(UnixListener::bind(folder.join(NAME)).unwrap());
        let refused = Socket::connect_in(&folder).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let _listener = LocalListener::bind_in(&folder).unwrap();
        Socket::connect_in(&folder).await.unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_others_may_write_to_is_refused_on_both_sides() {
        let folder = folder("open");
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let refused = LocalListener::bind_in(&folder).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        let _listener = LocalListener::bind_in(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let refused = Socket::connect_in(&folder).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_path_that_is_too_long_for_an_address_works() {
        let top = folder("deep");
        let deep = top.join("d".repeat(100)).join("e".repeat(100));
        fs::create_dir_all(&deep).unwrap();
        fs::set_permissions(&deep, Permissions::from_mode(0o700)).unwrap();
        let listener = LocalListener::bind_in(&deep).unwrap();
        Socket::connect_in(&deep).await.unwrap();
        listener.accept().await.unwrap();
        fs::remove_dir_all(&top).unwrap();
    }

    #[tokio::test]
    async fn the_first_byte_stays_in_the_stream() {
        let folder = folder("peek");
        let listener = LocalListener::bind_in(&folder).unwrap();
        let Socket::Unix(client) = Socket::connect_in(&folder).await.unwrap() else {
            panic!("no Unix socket")
        };
        let Socket::Unix(mut server) = listener.accept().await.unwrap() else { panic!("no Unix socket") };
        client.send(b"hello").unwrap();
        assert_eq!(server.first_byte().await.unwrap(), b'h');
        let mut hello = [0; 5];
        server.receive(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        let mut client = client.into_stream().unwrap();
        let (first, written) = tokio::join!(server.first_byte(), client.write_all(b"GET"));
        written.unwrap();
        assert_eq!(first.unwrap(), b'G');
        let mut server = server.into_stream().unwrap();
        let mut bytes = [0; 3];
        tokio::io::AsyncReadExt::read_exact(&mut server, &mut bytes).await.unwrap();
        assert_eq!(&bytes, b"GET");
        drop(client);
        let Socket::Unix(mut client) = Socket::connect_in(&folder).await.unwrap() else {
            panic!("no Unix socket")
        };
        drop(listener);
        assert!(client.receive(&mut bytes).await.is_err(), "a listener that is closed replies nothing");
        fs::remove_dir_all(&folder).unwrap();
    }
}
