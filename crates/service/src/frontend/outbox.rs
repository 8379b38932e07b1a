//! What waits to be sent on one connection.
//!
//! The hub puts messages in and never waits. When it flushes, it writes to the socket itself: to wake a task for one write
//! would cost as much as what the write has to say. What does not go through at once is left to the connection's task, and
//! until that has sent it, so is everything behind it. A connection without a socket of its own (a gRPC stream) takes
//! everything by its task.
//!
//! **The trap.** Two may write to the socket, but never at the same time, or their bytes would mix: the task writes from the
//! moment when it has been left something, or the outbox is closed, until nothing is left; the hub only before and after.
//!
//! **Bounds.** From [`FULL_BYTES`] on the hub answers no more queries, and behind many of them the task reads no more, until
//! there is room again: who asks for much at once gets it as fast as it reads. What is not asked for one by one is put in all the same, up to
//! [`OUTBOX_BYTES`], and then written at once. If that waits behind what the socket has refused already, the client does not
//! read: everything is dropped but one last word, and the connection ends. Nothing is lost by that: answers are remembered
//! by the state, watches are told of their gap.

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

use super::wire;

/// The most that waits for a client, in bytes.
pub const OUTBOX_BYTES: usize = 4 * 1024 * 1024;

/// So much waits for a client before it is fetched more.
pub(super) const FULL_BYTES: usize = 1024 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    task: AtomicWaker,
    socket: Option<Arc<Writer>>,
    /// The hub has many queries of the client that wait for room: nothing more is to be read.
    is_behind: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    /// What the hub could not write: the task sends it before anything else.
    rest: BytesMut,
    frames: Frames,
    /// The task has been left something, and has not said that it is sent.
    task_writes: bool,
    /// The hub is to be told when there is room.
    room_awaited: bool,
    /// Nothing is added any more.
    closed: bool,
}

impl Outbox {
    /// An outbox; with a socket, the hub writes to it.
    pub(crate) fn new(socket: Option<Arc<Writer>>) -> Self {
        Self { socket, ..Self::default() }
    }

    /// Whether the hub writes by itself.
    pub(crate) fn has_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Adds a message; whether what can wait should now. It is not sent yet: see [`Outbox::flush`].
    pub(crate) fn push(&self, message: &ServerMessage) -> bool {
        let mut inner = self.lock();
        if inner.closed {
            return false;
        }
        if let Err(error) = inner.push(message) {
            // Nothing of ours but an answer can be as large, and hardly that: files and pages are bounded far below.
            inner.close(&Error::new(Code::Internal, error.to_string()));
        } else if inner.frames.bytes().len() <= OUTBOX_BYTES {
            return inner.is_full();
        } else if !self.write(&mut inner) {
            let text = format!("the client has not read {OUTBOX_BYTES} bytes of replies");
            inner.frames.clear();
            inner.close(&Error::new(Code::Overloaded, text));
        }
        let is_full = inner.is_full();
        drop(inner);
        self.task.wake();
        is_full
    }

    /// Writes what there is and leaves the rest to the task; `false` if the task has been left something already.
    fn write(&self, inner: &mut Inner) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|_| !inner.task_writes) else { return false };
        let bytes = inner.frames.bytes();
        let written = socket.try_write(bytes).unwrap_or(0);
        inner.rest.extend_from_slice(&bytes[written..]);
        inner.task_writes = !inner.rest.is_empty();
        inner.frames.clear();
        true
    }

    /// Sends what was added, or wakes who does; once for many messages. `spare` is empty before and after.
    pub(crate) fn flush(&self, spare: &mut Frames) {
        let Some(socket) = &self.socket else { return self.task.wake() };
        let mut inner = self.lock();
        if inner.task_writes || inner.closed {
            drop(inner);
            return self.task.wake();
        }
        if inner.frames.bytes().is_empty() {
            return;
        }
        std::mem::swap(&mut inner.frames, spare);
        drop(inner);
        // Not under the lock, and still nobody else writes: the task only does when it was told to, which is done here.
        let bytes = spare.bytes();
        let written = socket.try_write(bytes).unwrap_or(0);
        if written < bytes.len() {
            // If the connection is broken, the task finds out as well.
            let mut inner = self.lock();
            inner.rest.extend_from_slice(&bytes[written..]);
            inner.task_writes = true;
            drop(inner);
            self.task.wake();
        }
        spare.clear();
    }

    /// Whether what can wait must. Then the task is to say when it need not: see [`Outbox::has_room_again`].
    pub(crate) fn must_wait(&self) -> bool {
        let mut inner = self.lock();
        inner.room_awaited = inner.is_full();
        inner.room_awaited
    }

    /// Whether the hub is to be told that there is room. Once.
    pub(crate) fn has_room_again(&self) -> bool {
        let mut inner = self.lock();
        let has_room = inner.room_awaited && !inner.is_full();
        inner.room_awaited &= !has_room;
        has_room
    }

    /// The hub has many queries that wait for room, or no longer has.
    pub(crate) fn set_behind(&self, is_behind: bool) {
        if self.is_behind.swap(is_behind, Ordering::AcqRel) && !is_behind {
            self.task.wake();
        }
    }

    /// Whether nothing more is to be read for now. Whoever waits for the end of it in [`Outbox::poll_take`] is woken.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Acquire)
    }

    /// Says goodbye after everything that waits, and ends the connection.
    pub(crate) fn close(&self, why: &Error) {
        self.lock().close(why);
        self.task.wake();
    }

    /// Takes what the task is to send, as frames; `None` at the end. To be asked again when that is sent.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<BytesMut>> {
        if let Some(ready) = self.take() {
            return Poll::Ready(ready);
        }
        self.task.register(cx.waker());
        // Between the look and the registration somebody may have pushed and woken nobody.
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

impl Inner {
    fn is_full(&self) -> bool {
        !self.closed && self.rest.len() + self.frames.bytes().len() >= FULL_BYTES
    }

    /// An answer that no frame can have is an error under its number: there may be other answers to wait for.
    fn push(&mut self, message: &ServerMessage) -> Result<(), FrameError> {
        match (self.frames.push(message), &message.message) {
            (Err(error), Some(Message::Answer(answer))) => {
                let refusal = wire::refusal(answer.id, &Error::new(Code::TooLarge, error.to_string()));
                self.frames.push(&refusal)
            }
            (pushed, _) => pushed,
        }
    }

    fn close(&mut self, why: &Error) {
        if !self.closed {
            self.closed = true;
            let goodbye: ServerMessage = Goodbye { error: Some(why.into()) }.into();
            // An error has a sentence, not a megabyte; without a goodbye the connection ends all the same.
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
        sent.iter().for_each(|message| assert!(!outbox.push(message)));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames, [ServerFrame { messages: sent }]);
        assert!(take(&outbox).is_pending());
    }

    #[test]
    fn a_large_message_does_not_make_a_frame_too_long() {
        let outbox = Outbox::default();
        (0..10).for_each(|_| _ = outbox.push(&file(256 * 1024)));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames.len(), 10);
    }

    #[test]
    fn who_does_not_read_is_told_goodbye_and_nothing_else() {
        let outbox = Outbox::default();
        (0..20).for_each(|_| _ = outbox.push(&file(256 * 1024)));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        let messages: Vec<ServerMessage> = frames.into_iter().flat_map(|frame| frame.messages).collect();
        assert_eq!(messages.len(), 1);
        assert!(is_goodbye(&messages[0]));
        outbox.push(&file(1));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }

    #[test]
    fn an_answer_that_no_frame_can_have_is_an_error_under_its_number() {
        let outbox = Outbox::default();
        outbox.push(&file(frame::MAX_FRAME_BYTES));
        outbox.push(&kept(2));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        let Some(Message::Answer(answer)) = &frames[0].messages[0].message else { panic!("no answer") };
        let Some(answer::Result::Error(error)) = &answer.result else { panic!("no error") };
        assert_eq!((answer.id, error.name.as_str()), (1, "too-large"));
        assert_eq!(frames[0].messages[1], kept(2), "the connection goes on");
    }

    #[test]
    fn what_else_no_frame_can_have_ends_the_connection_after_what_waits() {
        let outbox = Outbox::default();
        outbox.push(&kept(1));
        let reason = "x".repeat(frame::MAX_FRAME_BYTES);
        outbox.push(&Broken { reason, ..Default::default() }.into());
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames[0].messages[0], kept(1));
        assert!(is_goodbye(&frames[0].messages[1]));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }

    #[tokio::test]
    async fn more_than_the_bound_in_one_turn_is_written_before_anybody_is_called_slow() {
        let (outbox, mut client) = connected().await;
        let sent: Vec<ServerMessage> = (0..20).map(|_| file(256 * 1024)).collect();
        sent.iter().for_each(|message| _ = outbox.push(message));
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
        assert!(!outbox.must_wait());
        assert_eq!([0; 4].map(|_| outbox.push(&file(FULL_BYTES / 4))), [false, false, false, true]);
        assert!(!outbox.has_room_again(), "nobody waits");
        assert!(outbox.must_wait());
        assert!(!outbox.has_room_again(), "there is none");
        assert!(take(&outbox).is_ready());
        assert!(outbox.has_room_again());
        assert!(!outbox.has_room_again());
    }

    #[test]
    fn goodbye_comes_after_what_waits() {
        let outbox = Outbox::default();
        outbox.push(&file(1));
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
        outbox.push(&kept(1));
        assert!(take(&outbox).is_pending(), "the hub will write it");
        outbox.flush(&mut spare);
        assert!(take(&outbox).is_pending());
        outbox.push(&kept(2));
        outbox.push(&kept(3));
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
            outbox.push(&sent[sent.len() - 1]);
            outbox.flush(&mut spare);
        }
        sent.push(kept(1));
        outbox.push(&kept(1));
        outbox.flush(&mut spare);
        sent.push(kept(2));
        let task = async {
            let socket = outbox.socket.as_ref().unwrap();
            while let Poll::Ready(Some(bytes)) = outbox.poll_take(&mut Context::from_waker(Waker::noop())) {
                socket.write_all(&bytes).await.unwrap();
            }
            outbox.push(&kept(2));
            outbox.flush(&mut spare);
            assert!(take(&outbox).is_pending(), "the hub writes again");
            // Whoever waits for more would wait for ever.
            socket.shutdown().unwrap();
        };
        let (received, ()) = tokio::join!(read(&mut client, sent.len()), task);
        assert!(received == sent, "something is missing, or not in its place");
    }

    #[tokio::test]
    async fn the_hub_writes_nothing_while_the_task_has_something_in_hand() {
        let ((outbox, client), mut spare) = (connected().await, Frames::default());
        // As if a write had not gone through, though now there is room.
        outbox.lock().task_writes = true;
        outbox.push(&kept(1));
        outbox.flush(&mut spare);
        tokio::task::yield_now().await;
        assert!(client.try_read(&mut [0; 100]).is_err(), "it would be in the midst of what the task writes");
        assert!(matches!(take(&outbox), Poll::Ready(Some(_))));
    }

    #[tokio::test]
    async fn after_a_close_everything_is_the_tasks() {
        let ((outbox, _client), mut spare) = (connected().await, Frames::default());
        outbox.push(&kept(1));
        outbox.close(&Error::new(Code::ShuttingDown, "bye"));
        outbox.flush(&mut spare);
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames[0].messages[0], kept(1));
        assert!(is_goodbye(&frames[0].messages[1]));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }
}
