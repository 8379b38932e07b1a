//! A connection that is written and read in pieces: what is sent gathers until an answer is waited for, what arrived gathers until it is whole.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::Result;

/// No answer that is waited for here comes near it: whoever sends more does not speak the protocol.
const LARGEST_ANSWER: usize = 1 << 20;

/// By TCP or by a Unix socket.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection with its buffers.
pub struct Wire {
    stream: Box<dyn Stream>,
    /// To be sent, in one write, when an answer is waited for.
    pub out: Vec<u8>,
    arrived: Vec<u8>,
}

impl Wire {
    /// Connects, without the delay that waits for more to send. What begins with a slash is the path of a Unix socket.
    pub async fn connect(server: &str) -> Result<Self> {
        let stream: Box<dyn Stream> = if server.starts_with('/') {
            Box::new(UnixStream::connect(server).await?)
        } else {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        };
        Ok(Self { stream, out: Vec::new(), arrived: Vec::new() })
    }

    /// Sends what has gathered, and reads until `parse` finds something whole, which it returns with its length.
    pub async fn receive<T>(&mut self, parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>>) -> Result<T> {
        self.flush().await?;
        loop {
            if let Some((found, length)) = parse(&self.arrived)? {
                self.arrived.drain(..length);
                return Ok(found);
            }
            if self.arrived.len() > LARGEST_ANSWER {
                return Err("an answer of more than a megabyte".into());
            }
            if self.stream.read_buf(&mut self.arrived).await? == 0 {
                return Err("the server closed the connection".into());
            }
        }
    }

    /// Sends what has gathered, and reads until the server closes.
    pub async fn rest(&mut self) -> Result<String> {
        self.flush().await?;
        self.stream.read_to_end(&mut self.arrived).await?;
        Ok(String::from_utf8_lossy(&self.arrived).into_owned())
    }

    async fn flush(&mut self) -> Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).await?;
            self.out.clear();
        }
        Ok(())
    }
}
