//! The client without a socket, a task or a clock, for tests in a simulator.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use conclave_core::report::WatchEvent;
use conclave_core::{Code, Error};
use conclave_wire::frame::{self, Frames};
use conclave_wire::v1;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::Result;
use crate::core::{Core, Opening, Reply};
use crate::lease::{LeaseState, Now};
use crate::watch::Queue;

/// A bug in the client that a test plants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The client counts its lease from the reply to a keep-alive, not from the sending of the keep-alive.
    CountsFromReply,
}

/// The client without a socket, a task or a clock: the code of [`crate::Client`], driven by a test.
///
/// The caller reports every event with the time of the client's clock. After each event it calls
/// [`Conversation::on_tick`], sends the bytes of [`Conversation::take_output`], and calls
/// [`Conversation::on_tick`] again at [`Conversation::next_tick`] at the latest. The two prefaces of the
/// native protocol are left out.
pub struct Conversation {
    core: Core,
    input: BytesMut,
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation").field("session", &self.core.session()).finish_non_exhaustive()
    }
}

/// A reply that has not arrived yet.
#[derive(Debug)]
pub struct Pending<T>(oneshot::Receiver<Result<T>>);

impl<T> Pending<T> {
    /// Takes the reply, if it has arrived.
    pub fn poll(&mut self) -> Option<Result<T>> {
        match self.0.try_recv() {
            Ok(reply) => Some(reply),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(crate::core::stopped())),
        }
    }
}

/// A watch. It ends with [`Conversation::unwatch`].
pub struct Watching {
    /// Its number.
    pub id: u64,
    /// The index of the state with which it begins.
    pub begun: Pending<u64>,
    queue: Arc<Queue>,
}

impl Watching {
    /// Takes the next event, if there is one.
    pub fn poll(&mut self) -> Option<Result<WatchEvent>> {
        self.queue.pop()
    }
}

impl Conversation {
    /// Creates a client without a connection.
    pub fn new(ttl: Duration, lock_delay: Duration, retry_timeout: Duration, flaw: Option<Flaw>) -> Self {
        let millis = crate::client::millis;
        let opening =
            Opening { ttl_ms: millis(ttl), lock_delay_ms: Some(millis(lock_delay)), label: String::new() };
        let mut core = Core::new(opening, retry_timeout);
        core.flaw = flaw;
        Self { core, input: BytesMut::new() }
    }

    /// Reports a new connection to the client.
    pub fn on_connected(&mut self, now: Now) {
        self.input.clear();
        self.core.on_connected(now);
    }

    /// The server has accepted the connection.
    pub fn on_greeted(&mut self, now: Now) {
        self.core.on_greeted(now);
    }

    /// Bytes have arrived.
    ///
    /// # Errors
    /// The bytes cannot be decoded.
    pub fn on_bytes(&mut self, now: Now, bytes: &[u8]) -> Result<()> {
        self.input.extend_from_slice(bytes);
        let garbled = |error: frame::FrameError| Error::new(Code::Disconnected, error.to_string());
        while let Some(frame) = frame::decode::<v1::ServerFrame>(&mut self.input).map_err(garbled)? {
            frame.messages.into_iter().for_each(|message| self.core.on_message(now, message));
        }
        Ok(())
    }

    /// The connection has ended. Returns whether it was productive: whether the server replied to anything.
    pub fn on_disconnected(&mut self, now: Now, why: Error) -> bool {
        self.core.on_disconnected(now, why)
    }

    /// Does everything that is due.
    pub fn on_tick(&mut self, now: Now) {
        self.core.on_tick(now);
    }

    /// Returns the time of the next call of [`Conversation::on_tick`].
    pub fn next_tick(&mut self, now: Now) -> Option<Now> {
        self.core.next_tick(now)
    }

    /// Returns whether the server has been silent for too long. The caller then closes the connection.
    pub fn is_silent(&mut self, now: Now) -> bool {
        self.core.is_silent(now)
    }

    /// Takes the bytes to send.
    pub fn take_output(&mut self) -> Vec<u8> {
        let mut frames = Frames::default();
        self.core.drain(&mut frames);
        frames.take().to_vec()
    }

    /// Requests a lock. Returns the number of the grant and the reply to come.
    ///
    /// # Errors
    /// There are too many requests without a reply.
    pub fn acquire(&mut self, now: Now, acquire: v1::Acquire) -> Result<(u64, Pending<v1::Granted>)> {
        let (done, granted) = oneshot::channel();
        let op = v1::request::Op::Acquire(acquire);
        let id = self.core.request(now, op, Reply::Acquire { done, queued: None })?;
        Ok((id, Pending(granted)))
    }

    /// Releases a grant.
    ///
    /// # Errors
    /// The grant was lost before.
    pub fn release(&mut self, now: Now, id: u64) -> Result<Pending<v1::answer::Result>> {
        self.core.release(now, id).map(Pending)
    }

    /// Drops a grant or a request for one, as the drop of a guard does.
    pub fn abandon(&mut self, now: Now, id: u64) {
        self.core.abandon(now, id);
    }

    /// Sends a request that changes the state.
    ///
    /// # Errors
    /// There are too many requests without a reply.
    pub fn request(&mut self, now: Now, op: v1::request::Op) -> Result<Pending<v1::answer::Result>> {
        let (reply, answer) = oneshot::channel();
        self.core.request(now, op, Reply::Once(reply))?;
        Ok(Pending(answer))
    }

    /// Sends a query.
    ///
    /// # Errors
    /// There are too many requests without a reply.
    pub fn query(&mut self, now: Now, query: v1::query::Kind) -> Result<Pending<v1::answer::Result>> {
        let (reply, answer) = oneshot::channel();
        self.core.query(now, query, Reply::Once(reply))?;
        Ok(Pending(answer))
    }

    /// Starts a watch of all changes from now on.
    ///
    /// # Errors
    /// The client was stopped.
    pub fn watch(&mut self, now: Now, target: v1::watch::Target) -> Result<Watching> {
        let queue = Arc::new(Queue::default());
        let (id, begun) = self.core.watch(now, target, None, queue.clone())?;
        Ok(Watching { id, begun: Pending(begun), queue })
    }

    /// Ends a watch.
    pub fn unwatch(&mut self, id: u64) {
        self.core.unwatch(id);
    }

    /// Returns the state of a grant at `now`.
    pub fn standing(&self, now: Now, id: u64) -> LeaseState {
        self.core.grant_state(now, id).0
    }

    /// Returns the deadline of the lease, if a session is open.
    pub fn deadline(&self) -> Option<Now> {
        self.core.deadline()
    }

    /// Returns the number of the session, if one is open.
    pub fn session(&self) -> Option<u64> {
        self.core.session()
    }
}
