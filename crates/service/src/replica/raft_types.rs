//! Conversions between the types of this project and those of openraft, and the bytes of an entry.
//!
//! **Rules.** Everything written to disk or sent to a peer is a type of this project. Openraft's types may
//! change with every release, but the format on disk must not.
//!
//! The data of an entry begins with one byte: 0 is a blank entry (a leader's first), 1 a command, 2 a
//! membership. The command or the membership follows in postcard.

use std::cmp::Ordering;
use std::error::Error;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use openraft::vote::leader_id_std;
use openraft::{EntryPayload, RaftTypeConfig};

pub(super) use conclave_node::cluster::{Member, Membership, NodeId};

use super::log;
use super::runtime::Runtime;
use super::state_machine::Machine;

/// A command on its way through the log: its bytes for the disk and the wire, and, until it is applied, the
/// decoded command. [`Proposal::take`] removes the decoded command. So entries kept for followers hold only
/// the bytes, and nothing is copied.
pub(super) struct Proposal<M: Machine>(Arc<Content<M::Command>>);

struct Content<C> {
    command: Mutex<Option<C>>,
    data: Arc<[u8]>,
}

impl<M: Machine> Proposal<M> {
    pub(super) fn new(command: M::Command) -> Result<Self, postcard::Error> {
        let data = postcard::to_extend(&command, vec![COMMAND])?;
        debug_assert!(
            postcard::from_bytes::<M::Command>(&data[1..]).is_ok(),
            "a command that cannot be read back would stop every node that reads it: {command:?}"
        );
        Ok(Self::of(command, data.into()))
    }

    /// Decodes a command that another node forwarded.
    pub(super) fn parse(data: Arc<[u8]>) -> io::Result<Self> {
        match data.split_first() {
            Some((&COMMAND, bytes)) => {
                let command = postcard::from_bytes(bytes).map_err(invalid)?;
                Ok(Self::of(command, data))
            }
            _ => Err(invalid("what was forwarded is no command")),
        }
    }

    /// Returns the command to apply. A second call decodes it from the bytes.
    pub(super) fn take(&self) -> io::Result<M::Command> {
        let taken = self.0.command.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.map_or_else(|| postcard::from_bytes(&self.0.data[1..]).map_err(invalid), Ok)
    }

    pub(super) fn data(&self) -> &Arc<[u8]> {
        &self.0.data
    }

    fn of(command: M::Command, data: Arc<[u8]>) -> Self {
        Self(Arc::new(Content { command: Mutex::new(Some(command)), data }))
    }
}

impl<M: Machine> Clone for Proposal<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Machine> fmt::Debug for Proposal<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a command of {} bytes", self.data().len())
    }
}

impl<M: Machine> fmt::Display for Proposal<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The type configuration of openraft. Each term has one leader, as in the Raft paper.
pub(super) struct Types<M>(PhantomData<fn() -> M>);

// Not derived: derives would require the same traits of the machine.
impl<M> Clone for Types<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Types<M> {}

impl<M> Default for Types<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M> fmt::Debug for Types<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Types")
    }
}

impl<M> PartialEq for Types<M> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<M> Eq for Types<M> {}

impl<M> PartialOrd for Types<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Types<M> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl<M: Machine> RaftTypeConfig for Types<M> {
    type D = Proposal<M>;
    type R = ();
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, NodeId>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = EntryPayload<Proposal<M>, NodeId, Member>;
    type Entry = openraft::Entry<CommittedLeaderId, Self::Payload>;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = openraft::impls::ProgressResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(super) type CommittedLeaderId = leader_id_std::CommittedLeaderId<u64>;
pub(super) type RaftLogId = openraft::LogId<CommittedLeaderId>;
pub(super) type RaftVote = openraft::Vote<leader_id_std::LeaderId<u64, NodeId>>;
pub(super) type RaftEntry<M> = openraft::alias::EntryOf<Types<M>>;
pub(super) type RaftMembership = openraft::Membership<NodeId, Member>;
pub(super) type StoredMembership = openraft::StoredMembership<CommittedLeaderId, NodeId, Member>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, NodeId, Member>;

pub(super) fn raft_id(id: log::LogId) -> RaftLogId {
    RaftLogId::new(id.term.into(), id.index)
}

pub(super) fn log_id(id: &RaftLogId) -> log::LogId {
    log::LogId { term: id.committed_leader_id().term, index: id.index() }
}

pub(super) fn raft_vote(vote: log::Vote) -> RaftVote {
    match vote.committed {
        true => RaftVote::new_committed(vote.term, vote.node),
        false => RaftVote::new(vote.term, vote.node),
    }
}

pub(super) fn log_vote(vote: &RaftVote) -> log::Vote {
    log::Vote { term: vote.leader_id.term, node: vote.leader_id.voted_for, committed: vote.committed }
}

pub(super) fn raft_membership(membership: Membership) -> io::Result<RaftMembership> {
    RaftMembership::new(membership.voters, membership.nodes).map_err(|error| invalid(error.to_string()))
}

pub(super) fn own_membership(membership: &RaftMembership) -> Membership {
    Membership {
        voters: membership.get_joint_config().clone(),
        nodes: membership.nodes().map(|(id, member)| (*id, member.clone())).collect(),
    }
}

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Encodes an entry for the log and for peers.
pub(super) fn encode<M: Machine>(entry: &RaftEntry<M>) -> io::Result<log::Entry> {
    let id = log_id(&entry.log_id);
    Ok(match &entry.payload {
        EntryPayload::Blank => log::Entry { id, membership: false, data: [BLANK].into() },
        EntryPayload::Normal(proposal) => log::Entry { id, membership: false, data: proposal.data().clone() },
        EntryPayload::Membership(membership) => {
            let data = postcard::to_extend(&own_membership(membership), vec![MEMBERSHIP]).map_err(invalid)?;
            log::Entry { id, membership: true, data: data.into() }
        }
    })
}

/// Decodes an entry from the log or from a peer.
pub(super) fn decode<M: Machine>(entry: &log::Entry) -> io::Result<RaftEntry<M>> {
    let payload = match entry.data.split_first() {
        Some((&BLANK, [])) => EntryPayload::Blank,
        Some((&COMMAND, _)) => EntryPayload::Normal(Proposal::parse(entry.data.clone())?),
        Some((&MEMBERSHIP, bytes)) => {
            EntryPayload::Membership(raft_membership(postcard::from_bytes(bytes).map_err(invalid)?)?)
        }
        _ => return Err(invalid(format!("entry {} is of no known kind", entry.id.index))),
    };
    Ok(openraft::Entry { log_id: raft_id(entry.id), payload })
}

pub(super) fn invalid(what: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
