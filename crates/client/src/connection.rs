//! The connection to a server: the state that all handles share with the task, and the writes.
//!
//! **Rules.**
//! - One write carries everything that was submitted since the last one.
//! - A caller writes by itself if its burst is as large as the last one (`write_policy.rs`). Otherwise it
//!   wakes the task, which writes. The task also writes the bytes that the socket does not accept at once.
//! - The task reads. The keep-alive thread reads and writes only while the task cannot run (`keep_alive.rs`).

mod dial;
mod driver;
mod keep_alive;
mod read_half;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use conclave_wire::frame::{self, CLIENT_MAGIC, Frames};
use conclave_wire::socket::Writer;
use tokio::sync::Notify;

use self::read_half::ReadHalf;
use crate::clock::Clock;
use crate::core::Core;
use crate::lease::Now;

pub use dial::Connector;
pub(crate) use dial::{Direct, connect};
pub(crate) use driver::Driver;

/// The state that the handles and the task share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    clock: Clock,
    /// The write half of the connection; `None` without a connection. Locked before `core`, never after it,
    /// and during each write. So messages are written in the order in which the core returned them.
    write_half: Mutex<Option<WriteHalf>>,
    /// The read half of the connection; `None` without a connection. Locked before `core`, never after it.
    read_half: Mutex<Option<ReadHalf>>,
    wake: Notify,
    /// True if the keep-alive thread has an entry for this client. Changed only under the lock of `core`.
    has_keep_alive: AtomicBool,
    /// True if the present connection, or the last one, uses a Unix socket.
    is_local: AtomicBool,
}

impl Shared {
    pub(crate) fn new(core: Core) -> Self {
        Self {
            core: Mutex::new(core),
            clock: Clock::System,
            write_half: Mutex::new(None),
            read_half: Mutex::new(None),
            wake: Notify::new(),
            has_keep_alive: AtomicBool::new(false),
            is_local: AtomicBool::new(false),
        }
    }

    /// Replaces the clock.
    pub(crate) fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The clock of the client.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Calls `act` with the core and the time.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        act(&mut self.lock(), self.clock.now())
    }

    /// Calls `act` with the core and the time. Then writes the new messages, or wakes the task to write them.
    pub(crate) fn submit<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        // If another thread writes now, it may have drained the core already. Then the task writes the new
        // messages.
        let mut half = self.write_half.try_lock().ok();
        let mut half = half.as_deref_mut().and_then(Option::as_mut);
        let result = self.with(|core, now| {
            let result = act(core, now);
            half = half.take().filter(|_| core.caller_should_write());
            if let Some(half) = &mut half {
                core.drain(&mut half.output);
            }
            result
        });
        // After a write error the task finds the broken connection too.
        let is_sent = half.is_some_and(|half| half.send().is_ok() && half.output.bytes().is_empty());
        if !is_sent {
            self.wake.notify_one();
        }
        result
    }

    /// Calls `act`, then writes the messages of the core.
    fn flush(&self, act: impl FnOnce(&mut Core, Now)) -> io::Result<Flushed> {
        let mut half = self.write_half();
        let Some(half) = half.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        let is_closed = self.with(|core, now| {
            act(core, now);
            core.drain(&mut half.output);
            core.is_closed()
        });
        half.send()?;
        Ok(match half.output.bytes() {
            [] if is_closed => Flushed::Last,
            [] => Flushed::All,
            _ => Flushed::InPart,
        })
    }

    /// Reads once, like [`ReadHalf::poll_receive`].
    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        match self.read_half().as_mut() {
            Some(half) => half.poll_receive(cx, self),
            None => Poll::Ready(Ok(false)),
        }
    }

    /// Drops the connection.
    fn disconnect(&self) {
        *self.read_half() = None;
        *self.write_half() = None;
    }

    /// Returns the time of the first check by the keep-alive thread, if a session is open and the thread has
    /// no entry for this client. The caller must then call [`Shared::start_keep_alive`].
    fn plan_keep_alive(&self, core: &Core, now: Now) -> Option<Now> {
        // The clock of a test may be paused, but the thread uses the clock of the system. So such a client
        // gets no entry.
        if !self.clock.is_system() || self.has_keep_alive.load(Ordering::Relaxed) {
            return None;
        }
        self.schedule_check(core, now)
    }

    fn start_keep_alive(self: &Arc<Self>, at: Now) {
        if !keep_alive::register(self, at) {
            // The task tries again in its next iteration.
            self.has_keep_alive.store(false, Ordering::Relaxed);
        }
    }

    /// Sends and receives in place of the task, if the answer to a keep-alive is overdue. Returns the time of
    /// the next check, or `None` if no session is open.
    fn keep_alive(&self) -> Option<Now> {
        let (next, is_overdue) =
            self.with(|core, now| (self.schedule_check(core, now), core.is_overdue(now)));
        if !is_overdue {
            return next;
        }
        // After an error the task finds the broken connection too.
        drop(self.flush(Core::on_tick));
        if let Some(half) = self.read_half().as_mut() {
            half.receive_now(self);
        }
        // The task may have to write the rest, or to set its alarm again.
        self.wake.notify_one();
        self.with(|core, now| self.schedule_check(core, now))
    }

    fn schedule_check(&self, core: &Core, now: Now) -> Option<Now> {
        let next = core.next_check(now);
        self.has_keep_alive.store(next.is_some(), Ordering::Relaxed);
        next
    }

    /// Returns whether the present connection, or the last one, uses a Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // No code panics while it holds the lock. If some did, the tables would still be complete.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_half(&self) -> MutexGuard<'_, Option<ReadHalf>> {
        self.read_half.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_half(&self) -> MutexGuard<'_, Option<WriteHalf>> {
        self.write_half.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a write.
#[derive(PartialEq)]
enum Flushed {
    All,
    InPart,
    /// Everything is written, and nothing more will follow.
    Last,
}

/// The write half of a connection, and the bytes that are not written yet.
struct WriteHalf {
    writer: Arc<Writer>,
    output: Frames,
}

impl WriteHalf {
    fn new(writer: Arc<Writer>) -> Self {
        Self { writer, output: Frames::behind(frame::preface(CLIENT_MAGIC)) }
    }

    /// Writes as many bytes as the socket accepts now.
    fn send(&mut self) -> io::Result<()> {
        while !self.output.bytes().is_empty() {
            match self.writer.try_write(self.output.bytes()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.output.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use bytes::BytesMut;
    use conclave_wire::socket::Socket;
    use conclave_wire::v1;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    use super::*;
    use crate::core::{Opening, Reply};

    /// Creates a client on a connection without its task. Returns it with the server's end.
    async fn connected() -> (Shared, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_, writer) = Socket::Tcp(client).into_split();
        writer.writable().await.unwrap();
        let shared = Shared::new(Core::new(Opening::default(), Duration::from_secs(10)));
        shared.with(Core::on_connected);
        *shared.write_half() = Some(WriteHalf { writer: Arc::new(writer), output: Frames::default() });
        (shared, listener.accept().await.unwrap().0)
    }

    /// Runs one iteration of the task.
    fn turn(shared: &Shared) -> Flushed {
        let tick = |core: &mut Core, now| {
            core.next_tick(now);
        };
        shared.flush(tick).unwrap()
    }

    fn send_query(shared: &Shared) -> u64 {
        send_query_of(shared, "x")
    }

    pub(super) fn send_query_of(shared: &Shared, name: &str) -> u64 {
        let query = v1::query::Kind::Why(v1::Why { name: name.into() });
        let (sender, _) = oneshot::channel();
        shared.submit(|core, now| core.query(now, query, Reply::Once(sender))).unwrap()
    }

    fn answer(shared: &Shared, id: u64) {
        let result = v1::answer::Result::Done(v1::Done {});
        let answer = v1::Answer { id, result: Some(result) };
        shared.with(|core, now| core.on_message(now, answer.into()));
    }

    /// Returns whether the task was woken since the last call.
    fn is_woken(shared: &Shared) -> bool {
        std::pin::pin!(shared.wake.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    pub(super) fn ids(frame: v1::ClientFrame) -> Vec<u64> {
        let id = |message: v1::ClientMessage| match message.message {
            Some(v1::client_message::Message::Query(query)) => query.id,
            other => panic!("nobody said {other:?}"),
        };
        frame.messages.into_iter().map(id).collect()
    }

    /// Reads the next frame and returns the numbers of its queries.
    async fn read(server: &mut TcpStream) -> Vec<u64> {
        let mut input = BytesMut::new();
        loop {
            if let Some(frame) = frame::decode(&mut input).unwrap() {
                return ids(frame);
            }
            assert_ne!(server.read_buf(&mut input).await.unwrap(), 0, "the connection ended");
        }
    }

    #[tokio::test]
    async fn a_caller_writes_a_burst_as_large_as_the_last_one() {
        for usual in 1..=3 {
            let (shared, mut server) = connected().await;
            let first: Vec<u64> = (0..usual).map(|_| send_query(&shared)).collect();
            assert!(is_woken(&shared), "nobody knows yet how many there will be");
            assert!(turn(&shared) == Flushed::All);
            assert_eq!(read(&mut server).await, first);
            first.into_iter().for_each(|id| answer(&shared, id));
            for _ in 0..3 {
                let most: Vec<u64> = (1..usual).map(|_| send_query(&shared)).collect();
                // The task has no chance to run.
                assert_eq!(is_woken(&shared), usual > 1);
                let next = most.into_iter().chain([send_query(&shared)]).collect::<Vec<_>>();
                assert!(!is_woken(&shared));
                assert_eq!(read(&mut server).await, next, "in one write");
                next.into_iter().for_each(|id| answer(&shared, id));
            }
            // A burst that is larger than the last one: its first part cannot be recognised in time.
            let as_usual: Vec<u64> = (0..usual).map(|_| send_query(&shared)).collect();
            assert_eq!(is_woken(&shared), usual > 1);
            assert_eq!(read(&mut server).await, as_usual);
            let more = [send_query(&shared), send_query(&shared)];
            assert!(is_woken(&shared));
            turn(&shared);
            assert_eq!(read(&mut server).await, more, "in one write");
            as_usual.into_iter().chain(more).for_each(|id| answer(&shared, id));
            send_query(&shared);
            assert!(is_woken(&shared), "there were more a moment ago");
        }
    }

    #[tokio::test]
    async fn the_task_writes_bytes_that_the_socket_did_not_accept() {
        let (shared, mut server) = connected().await;
        let first = send_query(&shared);
        assert!(is_woken(&shared));
        turn(&shared);
        assert_eq!(read(&mut server).await, [first]);
        answer(&shared, first);
        // Fill the socket: the server does not read.
        let writer = shared.write_half().as_ref().unwrap().writer.clone();
        let mut filled = 0;
        while let Ok(written) = writer.try_write(&[0; 1 << 16]) {
            filled += written;
        }
        let next = send_query(&shared);
        assert!(is_woken(&shared));
        assert!(turn(&shared) == Flushed::InPart);
        let task = async {
            while turn(&shared) == Flushed::InPart {
                writer.writable().await.unwrap();
            }
        };
        let mut filling = vec![1; filled];
        let (_, all) = tokio::join!(task, server.read_exact(&mut filling));
        all.unwrap();
        assert_eq!(read(&mut server).await, [next]);
    }
}
