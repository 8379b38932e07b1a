//! The replies that wait for one connection.
//!
//! The node puts replies in and never waits. The driver then writes to the socket itself: waking a task for one write
//! would cost as much as the write. Bytes that the socket does not take are left to the connection's task, and so is everything
//! behind them until the task has written them. A connection without a socket of its own (a gRPC stream) takes
//! everything through its task.
//!
//! **Trap.** The driver and the task may both write to the socket, but never at the same time, or their bytes would mix. The task
//! writes from the moment when it was left bytes, or the outbox was closed, until nothing is left. The driver writes only before
//! and after.
//!
//! **Bounds.** From [`FULL_BYTES`] on the node answers no more queries, and behind many of them the task reads no more, until
//! there is room again. Other replies are added up to [`OUTBOX_BYTES`] and then written at once. If the socket already refused bytes,
//! the client does not read: everything is dropped except a last message, and the connection closes. Nothing is lost by
//! that: the state remembers answers, and watches learn of the gap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::BytesMut;
use conclave_api::proto::frame::{FrameError, Frames};
use conclave_api::proto::v1::server_message::Message;
use conclave_api::proto::v1::{Goodbye, ServerMessage};
use conclave_api::socket::Writer;
use conclave_api::{Code, Error};
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
    /// The node has many waiting requests of the client: nothing more is read.
    is_reading_paused: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    /// The bytes that the socket did not take: the task writes them before anything else.
    rest: BytesMut,
    frames: Frames,
    /// The task was left bytes and has not written all of them.
    task_writes: bool,
    /// The node waits for room.
    room_awaited: bool,
    /// Nothing is added any more.
    closed: bool,
}

impl Outbox {
    /// Creates an outbox. With a socket, the driver writes to it.
    pub(crate) fn new(socket: Option<Arc<Writer>>) -> Self {
        Self { socket, ..Self::default() }
    }

    /// Adds a reply and returns whether queries must wait. It is not sent yet: see [`Outbox::flush`].
    pub(crate) fn add(&self, message: &ServerMessage) -> Capacity {
        let mut inner = self.lock();
        if inner.closed {
            return Capacity::Free;
        }
        if let Err(error) = inner.push(message) {
            // Only an answer can be as large, and files and pages are bounded far below.
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

    /// Writes everything and leaves the rest to the task. Returns `false` if the task was left bytes already.
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
        // Without the lock, and still no other writer: the task writes only after it was left bytes, which happens here.
        let bytes = scratch.bytes();
        let written = socket.try_write(bytes).unwrap_or(0);
        if written < bytes.len() {
            // If the connection is broken, the task finds out as well.
            let mut inner = self.lock();
            inner.rest.extend_from_slice(&bytes[written..]);
            inner.task_writes = true;
            drop(inner);
            self.task.wake();
        }
        scratch.clear();
    }

    /// Returns whether the node is to learn that there is room. `true` once for each time that it waits.
    pub(crate) fn take_drained(&self) -> bool {
        let mut inner = self.lock();
        let has_room = inner.room_awaited && inner.capacity() == Capacity::Free;
        inner.room_awaited &= !has_room;
        has_room
    }

    /// Returns whether nothing more is read for now. A task that waits in [`Outbox::poll_take`] is woken when reading resumes.
    pub(crate) fn is_reading_paused(&self) -> bool {
        self.is_reading_paused.load(Ordering::Acquire)
    }

    /// Adds a last message with the reason. The connection closes when everything is written.
    pub(crate) fn close(&self, why: &Error) {
        self.lock().close(why);
        self.task.wake();
    }

    /// Takes the frames that the task is to send; `None` at the end. The task calls it again when they are sent.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        if let Some(ready) = self.take() {
            return Poll::Ready(ready);
        }
        self.task.register(cx.waker());
        // A reply may have been added between the look and the registration, when no waker was registered.
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

    /// Adds a message. An answer that fits no frame becomes an error under its number: the connection goes on.
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
            // An error is far below a frame; without the last message the connection still closes.
            drop(self.frames.push(&goodbye));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use conclave_api::proto::frame;
    use conclave_api::proto::v1::{Answer, Broken, File, KeptAlive, ServerFrame, answer};
    use conclave_api::socket::Socket;
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

    /// An outbox with a socket, and the client's end of it.
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
    fn who_does_not_read_is_told_goodbye_and_nothing_else() {
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
    fn what_else_no_frame_can_have_ends_the_connection_after_what_waits() {
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
    fn the_task_says_once_that_there_is_room_again() {
        let outbox = Outbox::default();
        assert!(!(node::Outbox::capacity(&outbox) == Capacity::Full));
        let added = [0; 4].map(|_| outbox.add(&file(FULL_BYTES / 4)) == Capacity::Full);
        assert_eq!(added, [false, false, false, true]);
        assert!(!outbox.take_drained(), "nobody waits");
        assert!((node::Outbox::capacity(&outbox) == Capacity::Full));
        assert!(!outbox.take_drained(), "there is none");
        assert!(take(&outbox).is_ready());
        assert!(outbox.take_drained());
        assert!(!outbox.take_drained());
    }

    #[test]
    fn goodbye_comes_after_what_waits() {
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
        let ((outbox, mut client), mut spare) = (connected().await, Frames::default());
        outbox.add(&kept(1));
        assert!(take(&outbox).is_pending(), "the driver will write it");
        outbox.flush(&mut spare);
        assert!(take(&outbox).is_pending());
        outbox.add(&kept(2));
        outbox.add(&kept(3));
        outbox.flush(&mut spare);
        assert_eq!(read(&mut client, 3).await, [kept(1), kept(2), kept(3)]);
        assert!(spare.bytes().is_empty());
    }

    #[tokio::test]
    async fn what_does_not_go_through_is_the_tasks_until_all_of_it_is_sent() {
        let ((outbox, mut client), mut spare) = (connected().await, Frames::default());
        let mut sent = Vec::new();
        while !outbox.lock().task_writes {
            assert!(sent.len() < 100, "all of it goes through though nobody reads");
            sent.push(file(1_000_000));
            outbox.add(&sent[sent.len() - 1]);
            outbox.flush(&mut spare);
        }
        sent.push(kept(1));
        outbox.add(&kept(1));
        outbox.flush(&mut spare);
        sent.push(kept(2));
        let task = async {
            let socket = outbox.socket.as_ref().unwrap();
            while let Poll::Ready(Some(bytes)) = outbox.poll_take(&mut Context::from_waker(Waker::noop())) {
                socket.write_all(&bytes).await.unwrap();
            }
            outbox.add(&kept(2));
            outbox.flush(&mut spare);
            assert!(take(&outbox).is_pending(), "the driver writes again");
            // Whoever waits for more would wait for ever.
            socket.shutdown().unwrap();
        };
        let (received, ()) = tokio::join!(read(&mut client, sent.len()), task);
        assert!(received == sent, "something is missing, or not in its place");
    }

    #[tokio::test]
    async fn the_driver_writes_nothing_while_the_task_has_something_in_hand() {
        let ((outbox, client), mut spare) = (connected().await, Frames::default());
        // As if a write had not gone through, though now there is room.
        outbox.lock().task_writes = true;
        outbox.add(&kept(1));
        outbox.flush(&mut spare);
        tokio::task::yield_now().await;
        assert!(client.try_read(&mut [0; 100]).is_err(), "it would be in the midst of what the task writes");
        assert!(matches!(take(&outbox), Poll::Ready(Some(_))));
    }

    #[tokio::test]
    async fn after_a_close_everything_is_the_tasks() {
        let ((outbox, _client), mut spare) = (connected().await, Frames::default());
        outbox.add(&kept(1));
        outbox.close(&Error::new(Code::ShuttingDown, "bye"));
        outbox.flush(&mut spare);
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames[0].messages[0], kept(1));
        assert!(is_goodbye(&frames[0].messages[1]));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }
}
