//! The connections between the clients and the cluster in memory, and the faults of the network.
//!
//! **Rules.** A paused world reads nothing, sends nothing and runs no node, but its clock goes on. A client
//! that is cut off keeps its connections; nothing passes in either direction. All connections are handled in
//! the order of their numbers.
//!
//! **Bounds.** At most [`CONNECTIONS_MAX`] connections; one more is refused. Each direction of a connection
//! holds [`PIPE_BYTES`], and then the writer waits. Replies that wait are bounded in `outbox.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use conclave_core::{Code, Error};
use conclave_node::node::{ClientRequest, ConnectionId, Input};
use conclave_wire::frame::{self, CLIENT_MAGIC, PREFACE_BYTES};
use conclave_wire::socket::{Memory, MemoryReader, MemoryWriter, Socket};
use conclave_wire::v1::ClientFrame;
use tokio::io::{AsyncRead, ReadBuf};

use super::cluster::{Cluster, NODES, address};
use super::outbox::{Outbox, Written};
use crate::lease::Now;

/// The most connections. One more is refused.
const CONNECTIONS_MAX: usize = 1024;
/// The most bytes in each direction of a connection. Then the writer waits.
const PIPE_BYTES: usize = 64 * 1024;
/// The most rounds of one [`World::poll`]. Then other tasks run first.
const ROUNDS_MAX: usize = 100;

/// The number of a connector. All connections of one client have the same.
pub(super) type LinkId = u64;

/// The cluster with all its connections.
pub(super) struct World {
    pub(super) cluster: Cluster,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: ConnectionId,
    /// The clients that are cut off.
    cut: BTreeSet<LinkId>,
    pub(super) pause: Pause,
    pub(super) refuses: bool,
    is_stopped: bool,
    /// Wakes the task that polls.
    waker: Option<Waker>,
}

/// The pause of the world, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    No,
    Until(Now),
    UntilResumed,
}

struct Connection {
    link: LinkId,
    /// The node at the other end.
    node: usize,
    reader: MemoryReader,
    writer: MemoryWriter,
    outbox: Arc<Outbox>,
    /// Bytes that are not a whole frame yet.
    input: BytesMut,
    is_greeted: bool,
    /// The client sent bytes that cannot be decoded; nothing more is read.
    has_failed: bool,
    /// The connection is broken, but its client is cut off and has not noticed it.
    is_broken: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            cluster: Cluster::new(seed),
            connections: BTreeMap::new(),
            last_connection: 0,
            cut: BTreeSet::new(),
            pause: Pause::No,
            refuses: false,
            is_stopped: false,
            waker: None,
        }
    }

    /// Connects a client to the node of this name.
    pub(super) fn connect(&mut self, now: Now, link: LinkId, name: &str) -> io::Result<Socket> {
        let is_full = self.connections.len() >= CONNECTIONS_MAX;
        if self.is_stopped || self.refuses || is_full {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "the server in memory has no such node");
        let node = (0..NODES).find(|node| address(*node) == name).ok_or_else(unknown)?;
        self.last_connection += 1;
        let connection = self.last_connection;
        let outbox = Arc::new(Outbox::new(now + self.cluster.draw_delay()));
        let (Memory { reader, writer }, client) = Memory::pair(PIPE_BYTES);
        self.cluster.input(node, Input::Attached { connection, outbox: outbox.clone(), half_close: false });
        let known = Connection {
            link,
            node,
            reader,
            writer,
            outbox,
            input: BytesMut::new(),
            is_greeted: false,
            has_failed: false,
            is_broken: false,
        };
        self.connections.insert(connection, known);
        self.wake();
        Ok(Socket::Memory(client))
    }

    /// Does everything that is due. Returns the time of the next call; `None` if the world is paused until it
    /// is resumed. The caller wakes the task after each change from outside.
    pub(super) fn poll(&mut self, now: Now, cx: &mut Context<'_>) -> Option<Now> {
        self.waker = Some(cx.waker().clone());
        match self.pause {
            Pause::UntilResumed => return None,
            Pause::Until(end) if now < end => return Some(end),
            Pause::Until(_) | Pause::No => self.pause = Pause::No,
        }
        for _ in 0..ROUNDS_MAX {
            let has_read = self.read(cx);
            let wake_at = self.cluster.run(now);
            let (has_ended, arrival) = self.write(now, cx);
            if !has_read && !has_ended {
                return [Some(wake_at), arrival].into_iter().flatten().min();
            }
        }
        Some(now)
    }

    /// Cuts a client off, or connects it again.
    pub(super) fn set_cut(&mut self, link: LinkId, is_cut: bool) {
        if is_cut {
            self.cut.insert(link);
        } else {
            self.cut.remove(&link);
            self.reset_broken();
        }
    }

    /// Returns whether a client is cut off.
    pub(super) fn is_cut(&self, link: LinkId) -> bool {
        self.cut.contains(&link)
    }

    /// Breaks all connections. A client that is cut off notices this when it is connected again.
    pub(super) fn drop_connections(&mut self) {
        for (id, known) in self.connections.iter_mut().filter(|(_, known)| !known.is_broken) {
            known.is_broken = true;
            self.cluster.input(known.node, Input::Detached(*id));
        }
        self.reset_broken();
    }

    /// Restarts all nodes; the log stays.
    pub(super) fn cut_power(&mut self, now: Now) {
        self.drop_connections();
        self.cluster.restart(now);
    }

    /// Breaks all connections and refuses all further ones.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.cut.clear();
        self.drop_connections();
    }

    /// Wakes the task that polls.
    pub(super) fn wake(&self) {
        self.waker.iter().for_each(Waker::wake_by_ref);
    }

    /// Passes everything that clients have sent to the nodes. Returns whether there was anything.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let mut has_read = false;
        let mut ended = Vec::new();
        for (id, known) in &mut self.connections {
            if known.has_failed || self.cut.contains(&known.link) || known.outbox.is_reading_paused() {
                continue;
            }
            match known.read(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(true)) => {
                    has_read = true;
                    known.take_frames(*id, &mut self.cluster);
                }
                Poll::Ready(Ok(false) | Err(_)) => ended.push(*id),
            }
        }
        has_read |= !ended.is_empty();
        ended.into_iter().for_each(|id| self.detach(id));
        has_read
    }

    /// Sends the replies that arrive now. Returns whether a connection has ended or has room again, and the
    /// time of the next arrival.
    fn write(&mut self, now: Now, cx: &mut Context<'_>) -> (bool, Option<Now>) {
        let (mut has_changed, mut next) = (false, None);
        let mut ended = Vec::new();
        for (id, known) in &self.connections {
            if self.cut.contains(&known.link) {
                continue;
            }
            match known.outbox.write(now, &known.writer, cx) {
                Ok(Written::Until(at)) => next = [next, at].into_iter().flatten().min(),
                Ok(Written::Last) | Err(_) => ended.push(*id),
            }
            if known.outbox.take_room() {
                has_changed = true;
                self.cluster.input(known.node, Input::Writable(*id));
            }
        }
        has_changed |= !ended.is_empty();
        ended.into_iter().for_each(|id| self.detach(id));
        (has_changed, next)
    }

    fn reset_broken(&mut self) {
        let cut = &self.cut;
        let is_known = |known: &Connection| known.is_broken && !cut.contains(&known.link);
        for (_, Connection { reader, writer, .. }) in
            self.connections.extract_if(.., |_, known| is_known(known))
        {
            Memory { reader, writer }.reset();
        }
    }

    fn detach(&mut self, id: ConnectionId) {
        if let Some(known) = self.connections.remove(&id) {
            self.cluster.input(known.node, Input::Detached(id));
        }
    }
}

impl Connection {
    /// Reads some bytes. Returns `false` at the end of the stream.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut bytes = [0; 4096];
        let mut buffer = ReadBuf::new(&mut bytes);
        Pin::new(&mut self.reader).poll_read(cx, &mut buffer).map_ok(|()| {
            self.input.extend_from_slice(buffer.filled());
            !buffer.filled().is_empty()
        })
    }

    /// Passes every complete frame to the node.
    fn take_frames(&mut self, connection: ConnectionId, cluster: &mut Cluster) {
        let (mut requests, mut error): (Vec<ClientRequest>, _) = (Vec::new(), None);
        if !self.is_greeted && self.input.len() >= PREFACE_BYTES {
            self.is_greeted = true;
            if self.input.split_to(PREFACE_BYTES)[..] != frame::preface(CLIENT_MAGIC) {
                error = Some("the first bytes are no preface of this protocol".to_owned());
            }
        }
        while self.is_greeted && error.is_none() {
            match frame::decode::<ClientFrame>(&mut self.input) {
                Ok(Some(frame)) => requests.extend(frame.messages.into_iter().map(ClientRequest::from)),
                Ok(None) => break,
                Err(wrong) => error = Some(wrong.to_string()),
            }
        }
        cluster.input(self.node, Input::Requests { connection, requests });
        if let Some(text) = error {
            self.has_failed = true;
            let error = Error::new(Code::Unsupported, text);
            cluster.input(self.node, Input::ReadFailed { connection, error });
        }
    }
}
