//! Where connections come in, and a connection's end of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conclave_api::socket::Writer;
use conclave_api::{Error, SessionId};
use tokio::sync::{mpsc, oneshot};

use super::super::metrics::{self, Metrics};
use super::super::outbox::Outbox;
use super::stopping;
use conclave_node::codec::Ask;
use conclave_node::leases::Kept;

/// One connection of a client.
pub(crate) type ConnectionId = u64;

/// What the hub hears.
pub(crate) enum Inbound {
    Attach {
        connection: ConnectionId,
        outbox: Arc<Outbox>,
    },
    Asks {
        connection: ConnectionId,
        asks: Vec<Ask>,
    },
    /// The connection cannot be read any further.
    Fail {
        connection: ConnectionId,
        error: Error,
    },
    /// The client will ask nothing more, and still hears what it has asked.
    Finish {
        connection: ConnectionId,
    },
    /// There is room in the outbox again.
    Drained {
        connection: ConnectionId,
    },
    Detach {
        connection: ConnectionId,
    },
    /// Another node passes on keep-alives of its clients. Answered when the round is over.
    Forwarded {
        sessions: Vec<SessionId>,
        answer: oneshot::Sender<Vec<Kept>>,
    },
    /// Everybody is told goodbye.
    Stop {
        done: oneshot::Sender<()>,
    },
}

/// Where connections come in.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) metrics: Arc<Metrics>,
    pub(super) sender: mpsc::Sender<Inbound>,
    pub(super) next: Arc<AtomicU64>,
}

/// The hub has stopped.
#[derive(Debug)]
pub(crate) struct Stopped;

impl Door {
    /// A new connection; with a socket, it is answered there.
    pub(crate) async fn attach(&self, socket: Option<Arc<Writer>>) -> Result<Link, Stopped> {
        let connection = self.next.fetch_add(1, Ordering::Relaxed);
        let outbox = Arc::new(Outbox::new(socket));
        let attach = Inbound::Attach { connection, outbox: outbox.clone() };
        self.sender.send(attach).await.map_err(|_| Stopped)?;
        metrics::add(&self.metrics.connections_total, 1);
        Ok(Link { connection, outbox, sender: self.sender.clone() })
    }

    /// Keep-alives that another node passes on; nothing if this node has stopped.
    pub(crate) async fn forwarded(&self, sessions: Vec<SessionId>) -> Vec<Kept> {
        let (answer, answered) = oneshot::channel();
        if self.sender.send(Inbound::Forwarded { sessions, answer }).await.is_err() {
            return Vec::new();
        }
        answered.await.unwrap_or_default()
    }

    /// Tells everybody goodbye; then the hub is gone.
    pub(crate) async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.sender.send(Inbound::Stop { done }).await.is_ok() {
            // An error says that the hub is gone, which is what is wanted.
            drop(stopped.await);
        }
    }
}

/// A connection's end of the hub. Dropped, the connection is forgotten.
pub(crate) struct Link {
    connection: ConnectionId,
    pub(crate) outbox: Arc<Outbox>,
    sender: mpsc::Sender<Inbound>,
}

impl Link {
    /// Hands in what was read; waits while the hub has too much to do.
    pub(crate) async fn send(&self, asks: Vec<Ask>) -> Result<(), Stopped> {
        if asks.is_empty() {
            return Ok(());
        }
        self.sender.send(Inbound::Asks { connection: self.connection, asks }).await.map_err(|_| Stopped)
    }

    /// Says that nothing more will be asked; the outbox ends with a goodbye when all is answered.
    pub(crate) async fn finish(&self) {
        let finish = Inbound::Finish { connection: self.connection };
        if self.sender.send(finish).await.is_err() {
            self.outbox.close(&stopping());
        }
    }

    /// Something was sent: tells the hub if it waits for that.
    pub(crate) fn on_sent(&self) {
        if self.outbox.has_room_again() {
            self.tell(Inbound::Drained { connection: self.connection });
        }
    }

    /// Tells the hub something without waiting.
    fn tell(&self, inbound: Inbound) {
        if let Err(mpsc::error::TrySendError::Full(inbound)) = self.sender.try_send(inbound) {
            let sender = self.sender.clone();
            // Rare: the hub is behind. A closed hub has forgotten the connection anyway.
            tokio::spawn(async move { drop(sender.send(inbound).await) });
        }
    }

    /// Says that nothing more can be read; the outbox then ends with a goodbye.
    pub(crate) async fn fail(&self, error: Error) {
        let fail = Inbound::Fail { connection: self.connection, error };
        if self.sender.send(fail).await.is_err() {
            self.outbox.close(&stopping());
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tell(Inbound::Detach { connection: self.connection });
    }
}
