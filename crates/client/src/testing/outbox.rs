//! The replies that wait for one connection.
//!
//! **Bounds.** From [`FULL_BYTES`] on, the node holds queries back. Above [`OUTBOX_BYTES`], the outbox drops
//! everything except a last message, and the connection closes. The client then resumes its session and
//! repeats its requests.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

use bytes::{Buf, BytesMut};
use conclave_core::{Code, Error};
use conclave_node::codec;
use conclave_node::node::{self, Capacity, FULL_BYTES, Reply};
use conclave_wire::frame::{self, CLIENT_MAGIC, Frames};
use conclave_wire::socket::MemoryWriter;
use conclave_wire::v1;

use crate::lease::Now;

/// The most bytes that wait for a client. A client that does not read them is disconnected, as by a real
/// server.
const OUTBOX_BYTES: usize = 4 * 1024 * 1024;

/// The replies that wait for one connection.
#[derive(Debug)]
pub(super) struct Outbox(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// The replies that the node has not sent.
    frames: Frames,
    /// The replies under way, each with the time of its arrival. The times never fall.
    under_way: VecDeque<(Now, BytesMut)>,
    /// The size of the replies under way.
    bytes: usize,
    is_closed: bool,
    is_reading_paused: bool,
    /// The node waits for room.
    is_room_awaited: bool,
}

/// The result of [`Outbox::write`].
pub(super) enum Written {
    /// More replies arrive at this time; `None` if none is under way, or the client must read first.
    Until(Option<Now>),
    /// Everything is written, and the connection is closed.
    Last,
}

impl Outbox {
    /// Creates the outbox of a new connection. The preface of the server arrives at `at`.
    pub(super) fn new(at: Now) -> Self {
        let preface = BytesMut::from(&frame::preface(CLIENT_MAGIC)[..]);
        Self(Mutex::new(Inner {
            frames: Frames::default(),
            bytes: preface.len(),
            under_way: [(at, preface)].into(),
            is_closed: false,
            is_reading_paused: false,
            is_room_awaited: false,
        }))
    }

    /// Sends the replies of the node. They arrive at `at`, or with the replies before them if those arrive
    /// later.
    pub(super) fn send(&self, at: Now) {
        self.lock().send(at);
    }

    /// Writes the replies that have arrived at `now`. If the pipe is full, the task of `cx` is woken when
    /// there is space again.
    pub(super) fn write(&self, now: Now, writer: &MemoryWriter, cx: &mut Context<'_>) -> io::Result<Written> {
        let mut inner = self.lock();
        if inner.is_closed {
            inner.send(now);
        }
        while let Some((at, bytes)) = inner.under_way.front_mut() {
            if *at > now {
                return Ok(Written::Until(Some(*at)));
            }
            if writer.poll_writable(cx).is_pending() {
                return Ok(Written::Until(None));
            }
            let written = writer.try_write(bytes)?;
            bytes.advance(written);
            let is_done = bytes.is_empty();
            inner.bytes -= written;
            if is_done {
                inner.under_way.pop_front();
            }
        }
        Ok(if inner.is_closed { Written::Last } else { Written::Until(None) })
    }

    /// Returns whether the node waits for room and there is room now. Then also ends this wait.
    pub(super) fn take_room(&self) -> bool {
        let mut inner = self.lock();
        inner.is_room_awaited && inner.total() < FULL_BYTES && {
            inner.is_room_awaited = false;
            true
        }
    }

    /// Returns whether the node has paused reading.
    pub(super) fn is_reading_paused(&self) -> bool {
        self.lock().is_reading_paused
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn total(&self) -> usize {
        self.frames.bytes().len() + self.bytes
    }

    fn capacity(&mut self) -> Capacity {
        self.is_room_awaited |= self.total() >= FULL_BYTES;
        if self.is_room_awaited { Capacity::Full } else { Capacity::Free }
    }

    fn send(&mut self, at: Now) {
        let frames = self.frames.take();
        if !frames.is_empty() {
            let at = self.under_way.back().map_or(at, |(before, _)| at.max(*before));
            self.bytes += frames.len();
            self.under_way.push_back((at, frames));
        }
    }

    fn close(&mut self, why: &Error) {
        if !std::mem::replace(&mut self.is_closed, true) {
            let goodbye: v1::ServerMessage = v1::Goodbye { error: Some(why.into()) }.into();
            // The message is far smaller than a frame. Without it the connection would still close.
            drop(self.frames.push(&goodbye));
        }
    }
}

impl node::Outbox for Outbox {
    fn push(&self, reply: &Reply) -> Capacity {
        let mut inner = self.lock();
        if inner.is_closed {
            return Capacity::Free;
        }
        if let Err(error) = inner.frames.push(&codec::encode(reply)) {
            // Files and pages are bounded far below a frame.
            inner.close(&Error::new(Code::Internal, error.to_string()));
        } else if inner.total() > OUTBOX_BYTES {
            // The first replies under way may be written in part.
            inner.under_way.truncate(1);
            inner.bytes = inner.under_way.front().map_or(0, |(_, bytes)| bytes.len());
            inner.frames.clear();
            let text = format!("the client has not read {OUTBOX_BYTES} bytes of replies");
            inner.close(&Error::new(Code::Overloaded, text));
        }
        inner.capacity()
    }

    fn close(&self, why: &Error) {
        self.lock().close(why);
    }

    fn pause_reading(&self, pause: bool) {
        self.lock().is_reading_paused = pause;
    }

    fn capacity(&self) -> Capacity {
        self.lock().capacity()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use conclave_node::node::Outbox as _;
    use conclave_wire::frame::PREFACE_BYTES;
    use conclave_wire::socket::Memory;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn refusal(id: u64) -> Reply {
        Reply::Refused { id, error: Error::new(Code::Internal, "x".repeat(500_000)) }
    }

    fn write(outbox: &Outbox, at: Now, server: &Memory) -> Written {
        outbox.write(at, &server.writer, &mut Context::from_waker(Waker::noop())).unwrap()
    }

    /// Reads everything, and returns the messages behind the preface.
    async fn read(mut client: Memory) -> Vec<v1::ServerMessage> {
        let mut bytes = Vec::new();
        client.reader.read_to_end(&mut bytes).await.unwrap();
        let mut bytes = BytesMut::from(&bytes[PREFACE_BYTES..]);
        let frames = std::iter::from_fn(|| frame::decode::<v1::ServerFrame>(&mut bytes).unwrap());
        let messages = frames.flat_map(|frame| frame.messages).collect();
        assert!(bytes.is_empty(), "frames are whole");
        messages
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_gets_the_reason_and_no_further_reply() {
        let (outbox, (server, client)) = (Outbox::new(Now::ZERO), Memory::pair(8 << 20));
        let capacities: Vec<Capacity> = (0..20).map(|id| outbox.push(&refusal(id))).collect();
        assert_eq!((capacities[0], capacities[2]), (Capacity::Free, Capacity::Full));
        assert!(matches!(write(&outbox, Now::ZERO, &server), Written::Last));
        drop(server);
        let messages = read(client).await;
        let Some(v1::server_message::Message::Goodbye(goodbye)) = &messages[0].message else {
            panic!("{messages:?}")
        };
        assert_eq!((messages.len(), goodbye.error.as_ref().unwrap().name.as_str()), (1, "overloaded"));
    }

    #[tokio::test]
    async fn replies_arrive_at_their_time_and_not_before_earlier_ones() {
        let (outbox, (server, client)) = (Outbox::new(Now::ZERO), Memory::pair(1 << 20));
        let late = Duration::from_secs(5);
        for (token, at) in [(1, late), (2, Now::ZERO)] {
            outbox.push(&Reply::KeptAlive { token });
            outbox.send(at);
        }
        assert!(matches!(write(&outbox, Now::ZERO, &server), Written::Until(Some(at)) if at == late));
        assert!(matches!(write(&outbox, late, &server), Written::Until(None)));
        drop(server);
        let expected = [1, 2].map(|token| v1::ServerMessage::from(v1::KeptAlive { token }));
        assert_eq!(read(client).await, expected);
    }
}
