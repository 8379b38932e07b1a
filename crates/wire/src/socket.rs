//! The connection between a client and a server: TCP, or on one machine a Unix socket, which needs half the
//! CPU time.
//!
//! **Intuition.** A client with the address `127.0.0.1:7411` means a server on its own machine. If that
//! server belongs to the same user, it also listens on a Unix socket, whose path follows from the address.
//! The client uses that socket. If the socket is missing, or no server listens on it, the client uses TCP. So
//! users configure nothing, and no connection fails that worked with TCP.
//!
//! **Rules.** The path is `/tmp/conclave-USER/NETWORK-ADDRESS`, with the numbers of the user and of the
//! network namespace: the same address in another container is another server. An address with the prefix
//! `tcp:` uses only TCP. The socket of a local node (`conclave run --local`) is in its data folder instead:
//! `folder`.
//!
//! **Other systems.** Everything about Unix sockets is in `unix`. On a system without that module, every
//! connection uses TCP.

#[cfg(feature = "memory")]
mod memory;
#[cfg(unix)]
mod unix;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, tcp};

#[cfg(unix)]
pub use unix::{Local, LocalListener, is_safe, make_private, user_folder};

#[cfg(feature = "memory")]
pub use self::memory::{Memory, MemoryReader, MemoryWriter};

/// The prefix of an address that uses only TCP.
const TCP_ONLY: &str = "tcp:";

/// A connection between a client and a server.
#[derive(Debug)]
#[non_exhaustive]
pub enum Socket {
    /// A TCP connection, over the network or loopback.
    Tcp(TcpStream),
    /// A Unix socket, within the machine.
    #[cfg(unix)]
    Unix(Local),
    /// A connection inside the process, for tests.
    #[cfg(feature = "memory")]
    Memory(Memory),
}

impl Socket {
    /// Connects to a server: an address, or a name and a port.
    ///
    /// # Errors
    /// The errors of TCP.
    pub async fn connect(server: &str) -> io::Result<Self> {
        if let Some(server) = server.strip_prefix(TCP_ONLY) {
            return Self::connect_by_tcp(server).await;
        }
        #[cfg(unix)]
        if let Ok(address) = server.parse()
            && let Some(local) = unix::connect(address).await
        {
            return Ok(local);
        }
        Self::connect_by_tcp(server).await
    }

    async fn connect_by_tcp(server: &str) -> io::Result<Self> {
        // An address needs no resolver, and so no thread for it.
        let stream = match server.parse::<SocketAddr>() {
            Ok(address) => TcpStream::connect(address).await?,
            Err(_) => TcpStream::connect(server).await?,
        };
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Returns whether the connection is a Unix socket.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(unix)]
            Self::Unix(_) => true,
            #[cfg(feature = "memory")]
            Self::Memory(_) => false,
        }
    }

    /// Splits the connection into its two directions.
    pub fn into_split(self) -> (Reader, Writer) {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Reader::Tcp(reader), Writer::Tcp(writer))
            }
            #[cfg(unix)]
            Self::Unix(local) => {
                let writer = local.other_half();
                (Reader::Unix(local), Writer::Unix(writer))
            }
            #[cfg(feature = "memory")]
            Self::Memory(Memory { reader, writer }) => (Reader::Memory(reader), Writer::Memory(writer)),
        }
    }
}

/// The read half of a connection.
#[derive(Debug)]
pub enum Reader {
    /// The read half of a [`Socket::Tcp`].
    Tcp(tcp::OwnedReadHalf),
    /// The read half of a [`Socket::Unix`].
    #[cfg(unix)]
    Unix(Local),
    /// The read half of a [`Socket::Memory`].
    #[cfg(feature = "memory")]
    Memory(MemoryReader),
}

impl Reader {
    /// Reads the bytes that have arrived, without the runtime: for a thread that stands in while the runtime
    /// is blocked. A task that waits on this socket may be woken for bytes that are already read.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing has arrived. After any other error the connection is broken.
    pub fn read_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            #[cfg(unix)]
            Self::Tcp(reader) => unix::read_now(reader.as_ref(), bytes),
            #[cfg(not(unix))]
            Self::Tcp(reader) => reader.try_read(bytes),
            #[cfg(unix)]
            Self::Unix(reader) => reader.read_now(bytes),
            // A client in memory has the clock of its runtime: no thread stands in for it.
            #[cfg(feature = "memory")]
            Self::Memory(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(reader) => Pin::new(reader).poll_read(cx, buffer),
            #[cfg(unix)]
            Self::Unix(reader) => reader.poll_read(cx, buffer),
            #[cfg(feature = "memory")]
            Self::Memory(reader) => Pin::new(reader).poll_read(cx, buffer),
        }
    }
}

/// The write half of a connection.
#[derive(Debug)]
pub enum Writer {
    /// The write half of a [`Socket::Tcp`].
    Tcp(tcp::OwnedWriteHalf),
    /// The write half of a [`Socket::Unix`].
    #[cfg(unix)]
    Unix(Local),
    /// The write half of a [`Socket::Memory`].
    #[cfg(feature = "memory")]
    Memory(MemoryWriter),
}

impl Writer {
    /// Writes as many bytes as the socket accepts now.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if it accepts none; then wait with [`Writer::writable`].
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(writer) => writer.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(writer) => writer.try_write(bytes),
            #[cfg(feature = "memory")]
            Self::Memory(writer) => writer.try_write(bytes),
        }
    }

    /// Waits until the socket may accept bytes.
    ///
    /// # Errors
    /// The runtime has ended.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(writer) => writer.writable().await,
            #[cfg(unix)]
            Self::Unix(writer) => writer.writable().await,
            #[cfg(feature = "memory")]
            Self::Memory(writer) => {
                std::future::poll_fn(|cx| writer.poll_writable(cx)).await;
                Ok(())
            }
        }
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Closes this direction: nothing more will be written. On a system other than Unix, the drop of the
    /// writer closes it.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            #[cfg(unix)]
            Self::Tcp(writer) => unix::shutdown(writer.as_ref()),
            #[cfg(not(unix))]
            Self::Tcp(_) => Ok(()),
            #[cfg(unix)]
            Self::Unix(writer) => writer.shutdown(),
            #[cfg(feature = "memory")]
            Self::Memory(writer) => {
                writer.end();
                Ok(())
            }
        }
    }
}
