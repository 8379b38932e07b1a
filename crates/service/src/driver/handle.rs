//! The handles through which connections reach the driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conclave_core::{Code, Error, SessionId};
use conclave_node::leases::KeepAliveResult;
use conclave_node::node::metrics::{self, Metrics};
use conclave_node::node::{ClientRequest, ConnectionId, Input};
use conclave_wire::socket::Writer;
use tokio::sync::{mpsc, oneshot};

use super::Outbox;

/// An event in the driver's queue.
pub(crate) enum Event {
    /// An input for the node.
    Input(Input<Arc<Outbox>>),
    /// Keep-alives that another node forwards. `results` is sent after a quorum has confirmed this node as
    /// leader.
    KeepAlives { sessions: Vec<SessionId>, results: oneshot::Sender<Vec<KeepAliveResult>> },
    /// The request to stop. `done` is sent after each connection got its last message.
    Stop { done: oneshot::Sender<()> },
}

/// A handle of the node. Copies are handles of the same node.
#[derive(Clone)]
pub(crate) struct NodeHandle {
    pub(crate) metrics: Arc<Metrics>,
    pub(super) sender: mpsc::Sender<Event>,
    pub(super) next: Arc<AtomicU64>,
}

/// The error of a handle whose node has stopped.
#[derive(Debug)]
pub(crate) struct Stopped;

impl NodeHandle {
    /// Adds a connection. With a socket, the driver writes replies to it. Without one (gRPC), the task of the
    /// connection takes the replies, and the client may close its half of the connection.
    pub(crate) async fn attach(&self, socket: Option<Arc<Writer>>) -> Result<ConnectionHandle, Stopped> {
        let connection = self.next.fetch_add(1, Ordering::Relaxed);
        let half_close = socket.is_none();
        let outbox = Arc::new(Outbox::new(socket));
        let attached = Input::Attached { connection, outbox: outbox.clone(), half_close };
        self.sender.send(Event::Input(attached)).await.map_err(|_| Stopped)?;
        metrics::add(&self.metrics.connections_total, 1);
        Ok(ConnectionHandle { connection, outbox, sender: self.sender.clone() })
    }

    /// Passes keep-alives of another node to the driver and returns the result of each. Returns no results if
    /// this node has stopped.
    pub(crate) async fn keep_alive(&self, sessions: Vec<SessionId>) -> Vec<KeepAliveResult> {
        let (results, answered) = oneshot::channel();
        if self.sender.send(Event::KeepAlives { sessions, results }).await.is_err() {
            return Vec::new();
        }
        answered.await.unwrap_or_default()
    }

    /// Sends a last message to every client, then stops the driver.
    pub(crate) async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.sender.send(Event::Stop { done }).await.is_ok() {
            // An error means that the driver has ended already.
            drop(stopped.await);
        }
    }
}

/// The handle of one connection. Dropping it removes the connection from the node.
pub(crate) struct ConnectionHandle {
    connection: ConnectionId,
    pub(crate) outbox: Arc<Outbox>,
    sender: mpsc::Sender<Event>,
}

impl ConnectionHandle {
    /// Passes messages of the client to the driver. Waits while the driver's queue is full.
    pub(crate) async fn send(&self, requests: Vec<ClientRequest>) -> Result<(), Stopped> {
        if requests.is_empty() {
            return Ok(());
        }
        let requests = Input::Requests { connection: self.connection, requests };
        self.sender.send(Event::Input(requests)).await.map_err(|_| Stopped)
    }

    /// Reports that the client has closed its half. The outbox closes after every request has a reply.
    pub(crate) async fn finish(&self) {
        self.send_or_close(Input::HalfClosed(self.connection)).await;
    }

    /// Reports that bytes of the client cannot be decoded. The outbox closes with the error.
    pub(crate) async fn fail(&self, error: Error) {
        self.send_or_close(Input::ReadFailed { connection: self.connection, error }).await;
    }

    async fn send_or_close(&self, input: Input<Arc<Outbox>>) {
        if self.sender.send(Event::Input(input)).await.is_err() {
            self.outbox.close(&Error::new(Code::ShuttingDown, "this node has stopped"));
        }
    }

    /// Reports that replies were sent. The node is notified only if it waits for free space in the outbox.
    pub(crate) fn on_sent(&self) {
        if self.outbox.take_drained() {
            self.pass_on(Input::Writable(self.connection));
        }
    }

    /// Passes an input to the driver without waiting.
    fn pass_on(&self, input: Input<Arc<Outbox>>) {
        if let Err(mpsc::error::TrySendError::Full(input)) = self.sender.try_send(Event::Input(input)) {
            let sender = self.sender.clone();
            // The queue is full, which is rare. A driver that has ended has removed the connection already.
            tokio::spawn(async move { drop(sender.send(input).await) });
        }
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.pass_on(Input::Detached(self.connection));
    }
}
