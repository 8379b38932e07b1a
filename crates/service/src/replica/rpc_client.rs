//! Requests between nodes: their format, and how this node sends them.
//!
//! **Intuition.** A [`Transport`] carries a request to a node and returns the reply; it need not understand
//! either. All messages are types of this project, encoded with postcard. Their envelope names the format
//! version, the cluster and the receiver. So a node of another cluster, or a different node at an old
//! address, rejects the request.
//!
//! **Trap.** Openraft's default `pre_vote` grants without a request to the peers. A node cut off from all
//! others would then count itself as a quorum, and disturb the leader when it reconnects. This implementation
//! sends the request.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use serde::{Deserialize, Serialize};

use super::log::{Entry, LogId, Vote};
use super::raft_types::{
    Member, NodeId, RaftVote, Types, encode, invalid, log_id, log_vote, raft_id, raft_vote,
};
use super::snapshot::{Description, SnapshotBytes};
use super::state_machine::Machine;
use super::{Identity, ProposeError, ReadError};

/// Carries requests to other nodes.
pub trait Transport: Send + Sync + 'static {
    /// Carries `request` to a node, where [`super::Replica::answer`] makes the reply. The caller sets a time
    /// limit.
    ///
    /// # Errors
    /// No reply came; the node may have executed the request all the same. Three kinds of error mean that the
    /// request was not sent:
    /// - [`io::ErrorKind::InvalidInput`]: it is too long;
    /// - [`io::ErrorKind::WouldBlock`]: too many requests are in flight;
    /// - [`io::ErrorKind::HostUnreachable`]: the node cannot be reached.
    fn call(&self, to: NodeId, member: &Member, request: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>>;
}

/// The most bytes of a snapshot in one message. A longer snapshot is sent in several pieces.
const PIECE_BYTES: usize = 1024 * 1024;
/// The longest time to send entries, sync them and reply; then they are sent again. It is much longer than a
/// heartbeat, because entries could never arrive over a slow link within one heartbeat.
const ENTRIES_LIMIT: Duration = Duration::from_secs(20);
/// The most bytes of a snapshot that a node collects. It rejects a larger one.
pub(super) const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;
const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
struct Envelope<B> {
    version: u8,
    cluster: u128,
    to: NodeId,
    body: B,
}

/// A request from one replica to another.
#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    Append {
        vote: Vote,
        previous: Option<LogId>,
        committed: Option<LogId>,
        entries: Vec<WireEntry>,
    },
    Vote(Ballot),
    PreVote(Ballot),
    /// One piece of a snapshot. The reply to the last piece comes after the snapshot is installed.
    Snapshot(Piece),
    Transfer {
        from: Vote,
        to: NodeId,
        last: Option<LogId>,
    },
    /// Commands for the leader, each as the data of its entry.
    Propose(Vec<Vec<u8>>),
    /// Lets the leader confirm that it leads. The reply is the last entry that the reader must have applied.
    ReadIndex,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireEntry {
    id: LogId,
    membership: bool,
    data: Vec<u8>,
}

/// A piece of a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) vote: Vote,
    pub(super) description: Description,
    pub(super) offset: u64,
    pub(super) total: u64,
    pub(super) bytes: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Ballot {
    pub(super) vote: Vote,
    pub(super) last: Option<LogId>,
    pub(super) transfer: bool,
}

/// The replies, each to the request of the same name.
#[derive(Serialize, Deserialize)]
pub(super) enum Reply {
    Append(AppendReply),
    Vote {
        vote: Vote,
        granted: bool,
        last: Option<LogId>,
    },
    Snapshot {
        vote: Option<Vote>,
    },
    Transfer {
        accepted: bool,
    },
    Propose(Vec<Result<LogId, ProposeError>>),
    ReadIndex(Result<LogId, ReadError>),
    /// The request cannot be read or is for another node, or this node cannot carry it out. The text says
    /// why.
    Refused(String),
}

#[derive(Serialize, Deserialize)]
pub(super) enum AppendReply {
    Success,
    Partial(Option<LogId>),
    Conflict,
    HigherVote(Vote),
}

impl From<Entry> for WireEntry {
    fn from(entry: Entry) -> Self {
        Self { id: entry.id, membership: entry.membership, data: entry.data.to_vec() }
    }
}

impl From<WireEntry> for Entry {
    fn from(entry: WireEntry) -> Self {
        Self { id: entry.id, membership: entry.membership, data: entry.data.into() }
    }
}

/// Decodes a request that arrived at `me`.
pub(super) fn open_request(me: Identity, bytes: &[u8]) -> Result<Request, String> {
    // The version is the first byte, so it can be read in every format.
    match bytes.first() {
        Some(&VERSION) => {}
        Some(other) => return Err(format!("the message has format {other}; this node uses {VERSION}")),
        None => return Err("the message is empty".to_owned()),
    }
    let envelope: Envelope<Request> =
        postcard::from_bytes(bytes).map_err(|error| format!("the message cannot be read: {error}"))?;
    if envelope.cluster != me.cluster {
        return Err("the message is from another cluster".to_owned());
    }
    if envelope.to != me.node {
        return Err(format!("the message is for node {}, but this is node {}", envelope.to, me.node));
    }
    Ok(envelope.body)
}

pub(super) fn seal_request(cluster: u128, to: NodeId, body: &Request) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(&Envelope { version: VERSION, cluster, to, body }).map_err(invalid)
}

pub(super) fn seal_reply(reply: &Reply) -> Vec<u8> {
    // Writing to memory cannot fail. If it did, the sender would reject the empty reply.
    postcard::to_stdvec(reply).unwrap_or_default()
}

/// Sends requests to the nodes of one cluster.
#[derive(Clone)]
pub(super) struct Network {
    cluster: u128,
    transport: Arc<dyn Transport>,
    /// The current addresses of the nodes. Openraft does not update a connection when its node moves.
    addresses: Arc<Mutex<BTreeMap<NodeId, Member>>>,
}

impl Network {
    pub(super) fn new(cluster: u128, transport: Arc<dyn Transport>) -> Self {
        Self { cluster, transport, addresses: Arc::default() }
    }

    /// Keeps the addresses equal to the membership until the node stops.
    pub(super) async fn keep_addresses<M: Machine>(
        self,
        mut metrics: openraft::alias::WatchReceiverOf<
            Types<M>,
            openraft::metrics::RaftServerMetrics<Types<M>>,
        >,
    ) {
        loop {
            let membership = metrics.borrow_watched().membership_config.clone();
            let nodes = membership.nodes().map(|(node, member)| (*node, member.clone())).collect();
            *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the current address of a node, or `known` if the membership does not have the node.
    fn member(&self, node: NodeId, known: &Member) -> Member {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.get(&node).unwrap_or(known).clone()
    }

    pub(super) async fn call(
        &self,
        to: NodeId,
        member: &Member,
        body: &Request,
        limit: Duration,
    ) -> io::Result<Reply> {
        let bytes = seal_request(self.cluster, to, body)?;
        let member = self.member(to, member);
        let answer = tokio::time::timeout(limit, self.transport.call(to, &member, bytes)).await;
        let answer = answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        match postcard::from_bytes(&answer).map_err(invalid)? {
            Reply::Refused(why) => Err(io::Error::other(format!("node {to} refuses: {why}"))),
            reply => Ok(reply),
        }
    }
}

impl<M: Machine> RaftNetworkFactory<Types<M>> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, member: &Member) -> Peer {
        Peer { network: self.clone(), target, member: member.clone() }
    }
}

/// The connection to one other node, as openraft uses it.
pub(super) struct Peer {
    network: Network,
    target: NodeId,
    member: Member,
}

impl Peer {
    async fn call<M: Machine>(&self, request: Request, limit: Duration) -> Result<Reply, RPCError<Types<M>>> {
        let reply = self.network.call(self.target, &self.member, &request, limit).await;
        // `Unreachable` makes openraft wait before it retries, which is right for every error.
        reply.map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))
    }

    async fn ballot<M: Machine>(
        &self,
        request: Request,
        option: &RPCOption,
    ) -> Result<VoteResponse<Types<M>>, RPCError<Types<M>>> {
        // Use the whole time limit: a voter replies only when its vote is durable, and a slow disk needs most
        // of the time.
        match self.call(request, option.hard_ttl()).await? {
            Reply::Vote { vote, granted, last } => {
                Ok(VoteResponse::new(raft_vote(vote), last.map(raft_id), granted))
            }
            _ => Err(unexpected()),
        }
    }
}

impl<M: Machine> RaftNetworkV2<Types<M>> for Peer {
    type SnapshotData = SnapshotBytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types<M>>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types<M>>, RPCError<Types<M>>> {
        let entries = rpc.entries.iter().map(|entry| encode(entry).map(WireEntry::from));
        let entries = entries.collect::<io::Result<_>>();
        let entries = entries.map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        let limit = if rpc.entries.is_empty() { option.soft_ttl() } else { ENTRIES_LIMIT };
        let previous = rpc.prev_log_id.as_ref().map(log_id);
        let request = Request::Append {
            vote: log_vote(&rpc.vote),
            previous,
            committed: rpc.leader_commit.as_ref().map(log_id),
            entries,
        };
        match self.call(request, limit).await? {
            Reply::Append(AppendReply::Success) => Ok(AppendEntriesResponse::Success),
            Reply::Append(AppendReply::Partial(last)) => {
                Ok(AppendEntriesResponse::PartialSuccess(last.map(raft_id)))
            }
            // Nothing precedes the first entry, so it cannot conflict. Openraft would panic on such a reply.
            Reply::Append(AppendReply::Conflict) if previous.is_some() => Ok(AppendEntriesResponse::Conflict),
            Reply::Append(AppendReply::HigherVote(vote)) => {
                Ok(AppendEntriesResponse::HigherVote(raft_vote(vote)))
            }
            _ => Err(unexpected()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types<M>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<M>>, RPCError<Types<M>>> {
        self.ballot(Request::Vote(ballot(&rpc)), &option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types<M>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<M>>, RPCError<Types<M>>> {
        self.ballot(Request::PreVote(ballot(&rpc)), &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: openraft::alias::SnapshotOf<Types<M>, SnapshotBytes>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types<M>>, StreamingError<Types<M>>> {
        let description = Description::of(&snapshot.meta);
        let total = snapshot.snapshot.len() as u64;
        let mut cancel = std::pin::pin!(cancel);
        let mut offset = 0;
        loop {
            let end = (offset + PIECE_BYTES).min(snapshot.snapshot.len());
            let request = Request::Snapshot(Piece {
                vote: log_vote(&vote),
                description: description.clone(),
                offset: offset as u64,
                total,
                bytes: snapshot.snapshot[offset..end].to_vec(),
            });
            let call = self.network.call(self.target, &self.member, &request, option.soft_ttl());
            let reply = tokio::select! {
                biased;
                closed = &mut cancel => return Err(StreamingError::Closed(closed)),
                reply = call => reply.map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))?,
            };
            match reply {
                Reply::Snapshot { vote: Some(vote) } => return Ok(SnapshotResponse::new(raft_vote(vote))),
                Reply::Snapshot { vote: None } if end < snapshot.snapshot.len() => offset = end,
                _ => {
                    let error = invalid("a reply to another request");
                    return Err(StreamingError::Network(NetworkError::new(&error)));
                }
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types<M>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types<M>>, RPCError<Types<M>>> {
        let request = Request::Transfer {
            from: log_vote(request.from_leader()),
            to: *request.to_node_id(),
            last: request.last_log_id().map(log_id),
        };
        match self.call(request, option.soft_ttl()).await? {
            Reply::Transfer { accepted: true } => Ok(Ok(())),
            Reply::Transfer { accepted: false } => {
                let error = io::Error::other(format!("node {} is not ready to lead", self.target));
                Err(RPCError::Unreachable(Unreachable::new(&error)))
            }
            _ => Err(unexpected()),
        }
    }
}

fn ballot<M: Machine>(rpc: &VoteRequest<Types<M>>) -> Ballot {
    Ballot {
        vote: log_vote(&rpc.vote),
        last: rpc.last_log_id.as_ref().map(log_id),
        transfer: rpc.leadership_transfer,
    }
}

fn unexpected<M: Machine>() -> RPCError<Types<M>> {
    RPCError::Network(NetworkError::new(&invalid("a reply to another request")))
}
