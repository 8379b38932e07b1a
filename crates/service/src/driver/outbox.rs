//! The outbox: the replies that wait for one connection.
//!
//! **Intuition.** The node adds replies and never waits. The driver writes to the socket itself, because
//! waking a task for one write costs as much as the write. The connection's task writes the bytes that the
//! socket did not take, and all replies after them until it has written everything. A connection without its
//! own socket (a gRPC stream) sends all replies through its task.
//!
//! **Trap.** The driver and the task write at the same time, and their bytes mix. So the task writes only
//! from the moment when bytes remain, or the outbox is closed, until nothing is left. The driver writes only
//! before and after.
//!
//! **Bounds.** From [`FULL_BYTES`] on, the node holds queries back. If many of them wait on a connection
//! without a session, the task stops reading. Other replies are added up to [`OUTBOX_BYTES`]; above that they are written at once. If the
//! socket has already refused bytes, the client does not read. The outbox then drops everything except a last
//! message, and the connection closes. The client loses no result: the state remembers replies, and watches
//! report the gap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::BytesMut;
use conclave_core::{Code, Error};
use conclave_wire::frame::{FrameError, Frames};
use conclave_wire::socket::Writer;
use conclave_wire::v1::server_message::Message;
use conclave_wire::v1::{Goodbye, ServerMessage};
use futures_util::task::AtomicWaker;

use conclave_node::codec;
use conclave_node::node::{self, Capacity, FULL_BYTES, Reply};

/// The most bytes that wait for a client. A client that does not read them is disconnected.
pub const OUTBOX_BYTES: usize = 4 * 1024 * 1024;

/// The replies that wait for one connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    task: AtomicWaker,
    socket: Option<Arc<Writer>>,
    /// `true` if reading is paused, because many requests wait in the node and there is no session yet.
    is_reading_paused: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    /// The bytes that the socket did not take. The task writes them before anything else.
    rest: BytesMut,
    frames: Frames,
    /// `true` if the task has bytes that it has not written completely.
    task_writes: bool,
    /// `true` if the node waits for free space.
    room_awaited: bool,
    /// `true` if the outbox is closed. A closed outbox ignores further replies.
    closed: bool,
}

impl Outbox {
    /// Creates an outbox. With a socket, the driver writes to it.
    pub(crate) fn new(socket: Option<Arc<Writer>>) -> Self {
        Self { socket, ..Self::default() }
    }

    /// Adds a reply and returns whether queries must wait. [`Outbox::flush`] sends it.
    pub(crate) fn add(&self, message: &ServerMessage) -> Capacity {
        let mut inner = self.lock();
        if inner.closed {
            return Capacity::Free;
        }
        if let Err(error) = inner.push(message) {
            // No message should be so large: files and pages are bounded far below a frame.
            inner.close(&Error::new(Code::Internal, error.to_string()));
        } else if inner.frames.bytes().len() <= OUTBOX_BYTES {
            return inner.capacity();
        } else if !self.write(&mut inner) {
            let text = format!("the client has not read {OUTBOX_BYTES} bytes of replies");
            inner.frames.clear();
            inner.close(&Error::new(Code::Overloaded, text));
        }
        let capacity = inner.capacity();
        drop(inner);
        self.task.wake();
        capacity
    }

    /// Writes everything and leaves the rest to the task. Returns `false` without a socket, or if the task
    /// has bytes already.
    fn write(&self, inner: &mut Inner) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|_| !inner.task_writes) else { return false };
        let bytes = inner.frames.bytes();
        let written = socket.try_write(bytes).unwrap_or(0);
        inner.rest.extend_from_slice(&bytes[written..]);
        inner.task_writes = !inner.rest.is_empty();
        inner.frames.clear();
        true
    }

    /// Writes the replies to the socket, or wakes the task that does. `scratch` is empty before and after.
    pub(crate) fn flush(&self, scratch: &mut Frames) {
        let Some(socket) = &self.socket else { return self.task.wake() };
        let mut inner = self.lock();
        if inner.task_writes || inner.closed {
            drop(inner);
            return self.task.wake();
        }
        if inner.frames.bytes().is_empty() {
            return;
        }
        std::mem::swap(&mut inner.frames, scratch);
        drop(inner);
        // No lock is needed: the task writes only after bytes remain, and they remain only below.
        let bytes = scratch.bytes();
        let written = socket.try_write(bytes).unwrap_or(0);
        if written < bytes.len() {
            // An error counts as zero bytes: the task writes again and gets the error itself.
            let mut inner = self.lock();
            inner.rest.extend_from_slice(&bytes[written..]);
            inner.task_writes = true;
            drop(inner);
            self.task.wake();
        }
        scratch.clear();
    }

    /// Returns whether the node must be notified of free space. Returns `true` once for each time that the
    /// node waits.
    pub(crate) fn take_drained(&self) -> bool {
        let mut inner = self.lock();
        let has_room = inner.room_awaited && inner.capacity() == Capacity::Free;
        inner.room_awaited &= !has_room;
        has_room
    }

    /// Returns whether reading is paused. A task that waits in [`Outbox::poll_take`] is woken when reading
    /// resumes.
    pub(crate) fn is_reading_paused(&self) -> bool {
        self.is_reading_paused.load(Ordering::Acquire)
    }

    /// Adds a last message with the reason. The connection closes when everything is written.
    pub(crate) fn close(&self, why: &Error) {
        self.lock().close(why);
        self.task.wake();
    }

    /// Takes the frames that the task is to send; `None` at the end. The task calls this again after it has
    /// sent them.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        if let Some(ready) = self.take() {
            return Poll::Ready(ready);
        }
        self.task.register(cx.waker());
        // A reply may have been added before the waker was registered, so check again.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn take(&self) -> Option<Option<BytesMut>> {
        let mut inner = self.lock();
        if !inner.rest.is_empty() {
            return Some(Some(std::mem::take(&mut inner.rest)));
        }
        if self.socket.is_some() && !inner.task_writes && !inner.closed {
            return None;
        }
        if inner.frames.bytes().is_empty() {
            inner.task_writes = false;
            return inner.closed.then_some(None);
        }
        Some(Some(inner.frames.take()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl node::Outbox for Outbox {
    fn push(&self, reply: &Reply) -> Capacity {
        self.add(&codec::encode(reply))
    }

    fn close(&self, why: &Error) {
        Outbox::close(self, why);
    }

    fn pause_reading(&self, pause: bool) {
        if self.is_reading_paused.swap(pause, Ordering::AcqRel) && !pause {
            self.task.wake();
        }
    }

    fn capacity(&self) -> Capacity {
        let mut inner = self.lock();
        let capacity = inner.capacity();
        inner.room_awaited = capacity == Capacity::Full;
        capacity
    }
}

impl Inner {
    fn capacity(&self) -> Capacity {
        let is_full = !self.closed && self.rest.len() + self.frames.bytes().len() >= FULL_BYTES;
        if is_full { Capacity::Full } else { Capacity::Free }
    }

    /// Adds a message. A reply that is too large for a frame becomes an error with its request number, and
    /// the connection continues.
    fn push(&mut self, message: &ServerMessage) -> Result<(), FrameError> {
        match (self.frames.push(message), &message.message) {
            (Err(error), Some(Message::Answer(answer))) => {
                let refusal = codec::refusal(answer.id, &Error::new(Code::TooLarge, error.to_string()));
                self.frames.push(&refusal)
            }
            (pushed, _) => pushed,
        }
    }

    fn close(&mut self, why: &Error) {
        if !self.closed {
            self.closed = true;
            let goodbye: ServerMessage = Goodbye { error: Some(why.into()) }.into();
            // The message is far smaller than a frame. Without it the connection would still close.
            drop(self.frames.push(&goodbye));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use conclave_wire::frame;
    use conclave_wire::socket::Socket;
    use conclave_wire::v1::{Answer, Broken, File, KeptAlive, ServerFrame, answer};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn take(outbox: &Outbox) -> Poll<Option<Vec<ServerFrame>>> {
        let frames = outbox.poll_take(&mut Context::from_waker(Waker::noop()));
        frames.map(|bytes| bytes.map(decode))
    }

    fn decode(mut bytes: BytesMut) -> Vec<ServerFrame> {
        let frames = std::iter::from_fn(|| frame::decode(&mut bytes).unwrap()).collect();
        assert!(bytes.is_empty(), "frames are whole");
        frames
    }

    fn kept(token: u64) -> ServerMessage {
        KeptAlive { token }.into()
    }

    fn file(bytes: usize) -> ServerMessage {
        let file = File { data: vec![0; bytes], ..Default::default() };
        Answer { id: 1, result: Some(answer::Result::File(file)) }.into()
    }

    fn is_goodbye(message: &ServerMessage) -> bool {
        matches!(message.message, Some(Message::Goodbye(_)))
    }

    /// Returns an outbox with a socket, and the client's end of the connection.
    async fn connected() -> (Outbox, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_, socket) = Socket::Tcp(listener.accept().await.unwrap().0).into_split();
        socket.writable().await.unwrap();
        (Outbox::new(Some(Arc::new(socket))), client)
    }

    async fn read(client: &mut TcpStream, count: usize) -> Vec<ServerMessage> {
        let (mut input, mut messages) = (BytesMut::new(), Vec::new());
        while messages.len() < count {
            assert_ne!(client.read_buf(&mut input).await.unwrap(), 0, "the connection ended");
            while let Some(frame) = frame::decode::<ServerFrame>(&mut input).unwrap() {
                messages.extend(frame.messages);
            }
        }
        messages
    }

    #[test]
    fn many_small_messages_share_a_frame_and_keep_their_order() {
        let outbox = Outbox::default();
        let sent: Vec<ServerMessage> = (0..100).map(kept).collect();
        sent.iter().for_each(|message| assert_eq!(outbox.add(message), Capacity::Free));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames, [ServerFrame { messages: sent }]);
        assert!(take(&outbox).is_pending());
    }

    #[test]
    fn a_large_message_does_not_make_a_frame_too_long() {
        let outbox = Outbox::default();
        (0..10).for_each(|_| _ = outbox.add(&file(256 * 1024)));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames.len(), 10);
    }

    #[test]
    fn a_client_that_does_not_read_gets_only_a_last_message() {
        let outbox = Outbox::default();
        (0..20).for_each(|_| _ = outbox.add(&file(256 * 1024)));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        let messages: Vec<ServerMessage> = frames.into_iter().flat_map(|frame| frame.messages).collect();
        assert_eq!(messages.len(), 1);
        assert!(is_goodbye(&messages[0]));
        outbox.add(&file(1));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }

    #[test]
    fn an_answer_that_no_frame_can_have_is_an_error_under_its_number() {
        let outbox = Outbox::default();
        outbox.add(&file(frame::MAX_FRAME_BYTES));
        outbox.add(&kept(2));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        let Some(Message::Answer(answer)) = &frames[0].messages[0].message else { panic!("no answer") };
        let Some(answer::Result::Error(error)) = &answer.result else { panic!("no error") };
        assert_eq!((answer.id, error.name.as_str()), (1, "too-large"));
        assert_eq!(frames[0].messages[1], kept(2), "the connection goes on");
    }

    #[test]
    fn another_message_too_large_for_a_frame_ends_the_connection() {
        let outbox = Outbox::default();
        outbox.add(&kept(1));
        let reason = "x".repeat(frame::MAX_FRAME_BYTES);
        outbox.add(&Broken { reason, ..Default::default() }.into());
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames[0].messages[0], kept(1));
        assert!(is_goodbye(&frames[0].messages[1]));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }

    #[tokio::test]
    async fn more_than_the_bound_in_one_turn_is_written_before_anybody_is_called_slow() {
        let (outbox, mut client) = connected().await;
        let sent: Vec<ServerMessage> = (0..20).map(|_| file(256 * 1024)).collect();
        sent.iter().for_each(|message| _ = outbox.add(message));
        assert!(!outbox.lock().closed);
        let task = async {
            let socket = outbox.socket.as_ref().unwrap();
            outbox.flush(&mut Frames::default());
            while let Poll::Ready(Some(bytes)) = outbox.poll_take(&mut Context::from_waker(Waker::noop())) {
                socket.write_all(&bytes).await.unwrap();
            }
        };
        let (received, ()) = tokio::join!(read(&mut client, sent.len()), task);
        assert!(received == sent);
    }

    #[test]
    fn take_drained_returns_true_once_per_wait() {
        let outbox = Outbox::default();
        assert!(!(node::Outbox::capacity(&outbox) == Capacity::Full));
        let added = [0; 4].map(|_| outbox.add(&file(FULL_BYTES / 4)) == Capacity::Full);
        assert_eq!(added, [false, false, false, true]);
        assert!(!outbox.take_drained(), "the node does not wait for room");
        assert!((node::Outbox::capacity(&outbox) == Capacity::Full));
        assert!(!outbox.take_drained(), "there is none");
        assert!(take(&outbox).is_ready());
        assert!(outbox.take_drained());
        assert!(!outbox.take_drained());
    }

    #[test]
    fn a_last_message_follows_the_waiting_replies() {
        let outbox = Outbox::default();
        outbox.add(&file(1));
        outbox.close(&Error::new(Code::ShuttingDown, "bye"));
        outbox.close(&Error::new(Code::Internal, "twice"));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames[0].messages.len(), 2);
        assert!(is_goodbye(&frames[0].messages[1]));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }

    #[tokio::test]
    async fn a_flush_writes_and_leaves_nothing_to_the_task() {
        let ((outbox, mut client), mut scratch) = (connected().await, Frames::default());
        outbox.add(&kept(1));
        assert!(take(&outbox).is_pending(), "the driver will write it");
        outbox.flush(&mut scratch);
        assert!(take(&outbox).is_pending());
        outbox.add(&kept(2));
        outbox.add(&kept(3));
        outbox.flush(&mut scratch);
        assert_eq!(read(&mut client, 3).await, [kept(1), kept(2), kept(3)]);
        assert!(scratch.bytes().is_empty());
    }

    #[tokio::test]
    async fn the_task_sends_the_bytes_that_the_socket_did_not_take() {
        let ((outbox, mut client), mut scratch) = (connected().await, Frames::default());
        let mut sent = Vec::new();
        while !outbox.lock().task_writes {
            assert!(sent.len() < 100, "the socket takes all bytes although no client reads");
            sent.push(file(1_000_000));
            outbox.add(&sent[sent.len() - 1]);
            outbox.flush(&mut scratch);
        }
        sent.push(kept(1));
        outbox.add(&kept(1));
        outbox.flush(&mut scratch);
        sent.push(kept(2));
        let task = async {
            let socket = outbox.socket.as_ref().unwrap();
            while let Poll::Ready(Some(bytes)) = outbox.poll_take(&mut Context::from_waker(Waker::noop())) {
                socket.write_all(&bytes).await.unwrap();
            }
            outbox.add(&kept(2));
            outbox.flush(&mut scratch);
            assert!(take(&outbox).is_pending(), "the driver writes again");
            // Close the socket, so that a read of missing messages fails instead of waiting for ever.
            socket.shutdown().unwrap();
        };
        let (received, ()) = tokio::join!(read(&mut client, sent.len()), task);
        assert!(received == sent, "something is missing, or not in its place");
    }

    #[tokio::test]
    async fn the_driver_writes_nothing_while_the_task_has_something_in_hand() {
        let ((outbox, client), mut scratch) = (connected().await, Frames::default());
        // As if an earlier write had left bytes, although the socket now has space.
        outbox.lock().task_writes = true;
        outbox.add(&kept(1));
        outbox.flush(&mut scratch);
        tokio::task::yield_now().await;
        assert!(client.try_read(&mut [0; 100]).is_err(), "it would be in the midst of what the task writes");
        assert!(matches!(take(&outbox), Poll::Ready(Some(_))));
    }

    #[tokio::test]
    async fn after_a_close_everything_is_the_tasks() {
        let ((outbox, _client), mut scratch) = (connected().await, Frames::default());
        outbox.add(&kept(1));
        outbox.close(&Error::new(Code::ShuttingDown, "bye"));
        outbox.flush(&mut scratch);
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames[0].messages[0], kept(1));
        assert!(is_goodbye(&frames[0].messages[1]));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }
}
