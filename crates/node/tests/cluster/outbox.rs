//! One connection as the server has it: the replies that its client has not read, and its unread requests.
//!
//! The client acknowledges the bytes that it reads. The bounds are those of the real outbox, but smaller: see
//! [`Config::full_bytes`](crate::scenario::Config).

use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use conclave_core::{Code, Error};
use conclave_kernel::NodeId;
use conclave_node::codec;
use conclave_node::node::{Capacity, ConnectionId, Input, Outbox, Reply};
use conclave_wire::frame::{self, Frames};
use conclave_wire::v1;

/// The size at which an outbox is closed, as a multiple of the size at which it is full.
const OVERFLOW: usize = 3;

/// One connection of a server.
pub struct Connection {
    pub client: NodeId,
    pub replies: Arc<Replies>,
    /// The bytes of a frame that has not arrived completely.
    input: BytesMut,
    /// The bytes that arrived while reading was paused.
    held: Vec<u8>,
}

/// The replies of one connection that are not sent yet. It is the outbox that the node has.
pub struct Replies {
    full_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    frames: Frames,
    /// The size of the sent bytes that the client has not read.
    unread: usize,
    /// The node has named the connection for sending.
    is_named: bool,
    is_closed: bool,
    /// The session that was opened or resumed on this connection last.
    session: Option<u64>,
    is_paused: bool,
    is_room_awaited: bool,
    was_full: bool,
    has_overflowed: bool,
}

impl Connection {
    pub fn new(client: NodeId, full_bytes: usize) -> Self {
        let replies = Arc::new(Replies { full_bytes, state: Mutex::default() });
        Self { client, replies, input: BytesMut::new(), held: Vec::new() }
    }

    /// Returns the requests of these bytes, unless reading is paused.
    pub fn read(&mut self, id: ConnectionId, bytes: &[u8]) -> Option<Input<Arc<Replies>>> {
        self.held.extend_from_slice(bytes);
        if self.held.is_empty() || self.replies.with(|state| state.is_paused) {
            return None;
        }
        self.input.extend_from_slice(&std::mem::take(&mut self.held));
        let mut requests = Vec::new();
        while let Some(frame) =
            frame::decode::<v1::ClientFrame>(&mut self.input).expect("the client encoded it")
        {
            requests.extend(frame.messages.into_iter().map(Into::into));
        }
        Some(Input::Requests { connection: id, requests })
    }
}

impl Replies {
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn capacity_of(&self, state: &State) -> Capacity {
        let is_full = !state.is_closed && state.unread + state.frames.bytes().len() >= self.full_bytes;
        if is_full { Capacity::Full } else { Capacity::Free }
    }

    /// The node sends to this connection.
    pub fn name(&self) {
        self.with(|state| state.is_named = true);
    }

    /// Takes the bytes that can be sent now. The last bytes of a closed connection can always be sent.
    pub fn take(&self) -> Vec<u8> {
        self.with(|state| {
            let has_room = state.is_named && state.unread < self.full_bytes;
            if !(has_room || state.is_closed) || state.frames.bytes().is_empty() {
                return Vec::new();
            }
            state.is_named = false;
            let bytes = state.frames.take().to_vec();
            state.unread += bytes.len();
            bytes
        })
    }

    /// The client has read some bytes. Returns whether the node waits for the room.
    pub fn on_read(&self, bytes: usize) -> bool {
        self.with(|state| {
            state.unread = state.unread.saturating_sub(bytes);
            let has_room = self.capacity_of(state) == Capacity::Free;
            has_room && std::mem::take(&mut state.is_room_awaited)
        })
    }

    pub fn is_closed(&self) -> bool {
        self.with(|state| state.is_closed)
    }

    /// Returns the session of an open connection.
    pub fn session(&self) -> Option<u64> {
        self.with(|state| state.session.filter(|_| !state.is_closed))
    }

    /// Returns whether the outbox was full, whether it has overflowed, and whether reading is paused.
    pub fn situation(&self) -> (bool, bool, bool) {
        self.with(|state| (state.was_full, state.has_overflowed, state.is_paused))
    }
}

impl State {
    fn close(&mut self, why: &Error) {
        if !std::mem::replace(&mut self.is_closed, true) {
            let goodbye: v1::ServerMessage = v1::Goodbye { error: Some(why.into()) }.into();
            self.frames.push(&goodbye).expect("an error is small");
        }
    }
}

impl Outbox for Replies {
    fn push(&self, reply: &Reply) -> Capacity {
        self.with(|state| {
            if state.is_closed {
                return Capacity::Free;
            }
            if let Reply::Opened { session, .. } | Reply::Resumed { session, .. } = reply {
                state.session = Some(session.0);
            }
            state.frames.push(&codec::encode(reply)).expect("replies are small here");
            if state.unread + state.frames.bytes().len() > OVERFLOW * self.full_bytes {
                state.has_overflowed = true;
                state.frames.clear();
                state.close(&Error::new(Code::Overloaded, "the client does not read its replies"));
            }
            let capacity = self.capacity_of(state);
            state.was_full |= capacity == Capacity::Full;
            capacity
        })
    }

    fn close(&self, why: &Error) {
        self.with(|state| state.close(why));
    }

    fn pause_reading(&self, pause: bool) {
        self.with(|state| state.is_paused = pause);
    }

    fn capacity(&self) -> Capacity {
        self.with(|state| {
            let capacity = self.capacity_of(state);
            state.is_room_awaited = capacity == Capacity::Full;
            capacity
        })
    }
}
