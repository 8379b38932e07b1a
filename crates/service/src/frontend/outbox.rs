//! What waits to be sent on one connection.
//!
//! The hub puts messages in and never waits; the connection takes all there is and sends it in as few writes as possible.
//!
//! **Bound.** When more than [`OUTBOX_BYTES`] wait, the client does not read: everything is dropped but one last word, and the
//! connection ends. Nothing is lost by that: answers are remembered by the state, watches are told of their gap.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use conclave_api::proto::v1::{Goodbye, ServerFrame, ServerMessage};
use conclave_api::{Code, Error};
use futures_util::task::AtomicWaker;
use prost::Message;

/// The most that waits for a client, in bytes.
pub const OUTBOX_BYTES: usize = 4 * 1024 * 1024;
/// Frames are closed when they have this size; a single larger message has a frame of its own.
const FRAME_BYTES: usize = 64 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    reader: AtomicWaker,
}

#[derive(Debug, Default)]
struct Inner {
    messages: Vec<ServerMessage>,
    bytes: usize,
    /// Nothing is added any more.
    closed: bool,
}

impl Outbox {
    /// Adds a message. The reader is not woken yet: see [`Outbox::wake`].
    pub(crate) fn push(&self, message: ServerMessage) {
        let bytes = message.encoded_len();
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        if inner.bytes + bytes > OUTBOX_BYTES {
            let text =
                format!("more than {OUTBOX_BYTES} bytes wait for you: read faster, or resume elsewhere");
            inner.messages.clear();
            inner.close(&Error::new(Code::Overloaded, text));
            drop(inner);
            return self.wake();
        }
        inner.bytes += bytes;
        inner.messages.push(message);
    }

    /// Wakes the reader; once for many messages.
    pub(crate) fn wake(&self) {
        self.reader.wake();
    }

    /// Says goodbye after everything that waits, and ends the connection.
    pub(crate) fn close(&self, why: &Error) {
        self.lock().close(why);
        self.wake();
    }

    /// Takes everything that waits, as frames; `None` at the end.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Option<Vec<ServerFrame>>> {
        if let Some(ready) = self.take() {
            return Poll::Ready(ready);
        }
        self.reader.register(cx.waker());
        // Between the look and the registration somebody may have pushed and woken nobody.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn take(&self) -> Option<Option<Vec<ServerFrame>>> {
        let mut inner = self.lock();
        if inner.messages.is_empty() {
            return inner.closed.then_some(None);
        }
        inner.bytes = 0;
        let messages = std::mem::take(&mut inner.messages);
        drop(inner);
        Some(Some(frames(messages)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn close(&mut self, why: &Error) {
        if !self.closed {
            self.closed = true;
            self.messages.push(Goodbye { error: Some(why.into()) }.into());
        }
    }
}

fn frames(messages: Vec<ServerMessage>) -> Vec<ServerFrame> {
    if messages.len() < 16 {
        let bytes: usize = messages.iter().map(Message::encoded_len).sum();
        if bytes <= FRAME_BYTES {
            return vec![ServerFrame { messages }];
        }
    }
    let mut frames: Vec<ServerFrame> = Vec::new();
    let mut room = 0;
    for message in messages {
        let bytes = message.encoded_len();
        match frames.last_mut().filter(|_| bytes <= room) {
            Some(frame) => frame.messages.push(message),
            None => {
                frames.push(ServerFrame { messages: vec![message] });
                room = FRAME_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    frames
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use conclave_api::proto::v1::{Answer, File, KeptAlive, answer, server_message};

    use super::*;

    fn take(outbox: &Outbox) -> Poll<Option<Vec<ServerFrame>>> {
        outbox.poll_take(&mut Context::from_waker(Waker::noop()))
    }

    fn file(bytes: usize) -> ServerMessage {
        let file = File { data: vec![0; bytes], ..Default::default() };
        Answer { id: 1, result: Some(answer::Result::File(file)) }.into()
    }

    fn is_goodbye(message: &ServerMessage) -> bool {
        matches!(message.message, Some(server_message::Message::Goodbye(_)))
    }

    #[test]
    fn many_small_messages_share_a_frame_and_keep_their_order() {
        let outbox = Outbox::default();
        let sent: Vec<ServerMessage> = (0..100).map(|token| KeptAlive { token }.into()).collect();
        sent.iter().cloned().for_each(|message| outbox.push(message));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames, [ServerFrame { messages: sent }]);
        assert!(take(&outbox).is_pending());
    }

    #[test]
    fn a_large_message_does_not_make_a_frame_too_long() {
        let outbox = Outbox::default();
        (0..10).for_each(|_| outbox.push(file(256 * 1024)));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames.len(), 10);
    }

    #[test]
    fn who_does_not_read_is_told_goodbye_and_nothing_else() {
        let outbox = Outbox::default();
        (0..20).for_each(|_| outbox.push(file(256 * 1024)));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        let messages: Vec<ServerMessage> = frames.into_iter().flat_map(|frame| frame.messages).collect();
        assert_eq!(messages.len(), 1);
        assert!(is_goodbye(&messages[0]));
        outbox.push(file(1));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }

    #[test]
    fn goodbye_comes_after_what_waits() {
        let outbox = Outbox::default();
        outbox.push(file(1));
        outbox.close(&Error::new(Code::ShuttingDown, "bye"));
        outbox.close(&Error::new(Code::Internal, "twice"));
        let Poll::Ready(Some(frames)) = take(&outbox) else { panic!("nothing to take") };
        assert_eq!(frames[0].messages.len(), 2);
        assert!(is_goodbye(&frames[0].messages[1]));
        assert_eq!(take(&outbox), Poll::Ready(None));
    }
}
