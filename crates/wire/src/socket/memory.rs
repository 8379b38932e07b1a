//! A connection inside one process, for tests: two pipes with a bound, and no file descriptor.
//!
//! **Rules.** The halves behave like those of a TCP connection. A write takes as many bytes as there is room
//! for. The drop of a writer, or its shutdown, ends the stream of the other side behind the bytes that are
//! under way. After the drop of a reader, writes of the other side fail. [`Memory::reset`] breaks both
//! directions at once, and the bytes under way are lost.
//!
//! **Trap.** A test may pause the clock of its runtime. The clock then jumps to the next timer as soon as no
//! task can go on. Bytes that wait in a real socket do not count as work, so the clock would jump over them.
//! Here every write wakes the reading task.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

/// One end of a connection inside the process.
#[derive(Debug)]
pub struct Memory {
    /// The read half.
    pub reader: MemoryReader,
    /// The write half.
    pub writer: MemoryWriter,
}

/// The read half of a [`Memory`].
#[derive(Debug)]
pub struct MemoryReader(Arc<Pipe>);

/// The write half of a [`Memory`].
#[derive(Debug)]
pub struct MemoryWriter(Arc<Pipe>);

impl Memory {
    /// Creates a connection and returns its two ends. Each direction holds at most `bytes`; a writer then
    /// waits for the reader.
    pub fn pair(bytes: usize) -> (Self, Self) {
        let (one, other) = (Arc::new(Pipe::new(bytes)), Arc::new(Pipe::new(bytes)));
        let end = |reads: &Arc<Pipe>, writes: &Arc<Pipe>| Self {
            reader: MemoryReader(reads.clone()),
            writer: MemoryWriter(writes.clone()),
        };
        (end(&one, &other), end(&other, &one))
    }

    /// Breaks the connection: both ends get an error, and the bytes under way are lost.
    pub fn reset(self) {
        self.reader.0.break_off();
        self.writer.0.break_off();
    }
}

impl AsyncRead for MemoryReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.0.lock();
        if inner.is_broken {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if inner.bytes.is_empty() && !inner.is_ended {
            inner.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = inner.bytes.len().min(buffer.remaining());
        buffer.put_slice(&inner.bytes[..count]);
        inner.bytes.advance(count);
        wake(inner.writer.take(), inner);
        Poll::Ready(Ok(()))
    }
}

impl Drop for MemoryReader {
    fn drop(&mut self) {
        self.0.break_off();
    }
}

impl MemoryWriter {
    /// Writes as many bytes as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none; then wait with [`MemoryWriter::poll_writable`].
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock();
        let room = inner.room()?;
        if room == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = room.min(bytes.len());
        inner.bytes.extend_from_slice(&bytes[..count]);
        wake(inner.reader.take(), inner);
        Ok(count)
    }

    /// Waits until there is room, or the connection is broken.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.lock();
        if inner.room().is_ok_and(|room| room == 0) {
            inner.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Ends the stream.
    pub(super) fn end(&self) {
        let mut inner = self.0.lock();
        inner.is_ended = true;
        wake(inner.reader.take(), inner);
    }
}

impl Drop for MemoryWriter {
    fn drop(&mut self) {
        self.end();
    }
}

/// One direction of a connection.
#[derive(Debug)]
struct Pipe(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// The bytes under way, at most `limit`.
    bytes: BytesMut,
    limit: usize,
    /// Nothing more is written.
    is_ended: bool,
    /// The connection was reset, or nothing more is read.
    is_broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new(limit: usize) -> Self {
        let (bytes, is_ended, is_broken) = (BytesMut::new(), false, false);
        Self(Mutex::new(Inner { bytes, limit, is_ended, is_broken, reader: None, writer: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn break_off(&self) {
        let mut inner = self.lock();
        inner.is_broken = true;
        inner.bytes = BytesMut::new();
        let wakers = [inner.reader.take(), inner.writer.take()];
        drop(inner);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Inner {
    fn room(&self) -> io::Result<usize> {
        if self.is_broken || self.is_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(self.limit - self.bytes.len())
    }
}

/// Wakes a task after the lock is free: the task may run at once on another thread.
fn wake(waker: Option<Waker>, inner: MutexGuard<'_, Inner>) {
    drop(inner);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::super::Socket;
    use super::*;

    #[tokio::test]
    async fn bytes_arrive_in_order_although_they_are_more_than_fit() {
        let (one, other) = Memory::pair(7);
        let ((_, writer), (mut reader, _)) =
            (Socket::Memory(one).into_split(), Socket::Memory(other).into_split());
        let sent: Vec<u8> = (0..100).collect();
        let mut received = Vec::new();
        let send = async {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().unwrap();
        };
        let (_, read) = tokio::join!(send, reader.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(received, sent);
        assert_eq!(writer.try_write(b"more").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_full_pipe_accepts_nothing_until_the_reader_has_read() {
        let (mut one, other) = Memory::pair(4);
        assert_eq!(other.writer.try_write(b"abcdef").unwrap(), 4);
        assert_eq!(other.writer.try_write(b"ef").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut first = [0; 3];
        one.reader.read_exact(&mut first).await.unwrap();
        assert_eq!((&first, other.writer.try_write(b"ef").unwrap()), (b"abc", 2));
    }

    #[tokio::test]
    async fn a_reset_wakes_both_ends_and_loses_the_bytes_under_way() {
        let (server, client) = Memory::pair(2);
        client.writer.try_write(b"ab").unwrap();
        server.writer.try_write(b"yz").unwrap();
        let (mut reader, writer) = Socket::Memory(client).into_split();
        let blocked = tokio::spawn(async move { writer.write_all(b"cd").await });
        tokio::task::yield_now().await;
        server.reset();
        let read = reader.read_u8().await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(blocked.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
