//! The identifiers, members and errors that the node and its replica share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a node in its cluster.
pub type NodeId = u64;

/// The identity of a log entry: the term of the leader that proposed it, and its position in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogId {
    /// The term of the leader.
    pub term: u64,
    /// The position in the log; the first entry has index 0.
    pub index: u64,
}

/// The data that the cluster keeps about one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The address at which peers and clients reach the node.
    pub address: String,
}

/// The members of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The voters: one set, or two while a change is under way. Then a majority of each set must agree.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// All nodes. A node that is no voter is a learner.
    pub nodes: BTreeMap<NodeId, Member>,
}

/// The state of a replica at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// This node.
    pub node: NodeId,
    /// The current term.
    pub term: u64,
    /// The leader, as far as this node knows.
    pub leader: Option<NodeId>,
    /// The index of the last entry in the log.
    pub last: Option<u64>,
    /// The last entry applied on this node.
    pub applied: Option<LogId>,
    /// The last entry that a snapshot covers.
    pub snapshot: Option<LogId>,
    /// The last entry purged from the log.
    pub purged: Option<LogId>,
    /// The members of the cluster.
    pub membership: Membership,
    /// The last index up to which the log of each node is known to agree with this one. Empty unless this
    /// node leads.
    pub matched: BTreeMap<NodeId, Option<u64>>,
    /// `true` while the replica is running.
    pub running: bool,
}

impl Status {
    /// Returns whether this node believes that it leads.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.node)
    }

    /// Returns whether a node votes and no change of the voters is under way.
    pub fn votes(&self, node: NodeId) -> bool {
        matches!(&self.membership.voters[..], [voters] if voters.contains(&node))
    }
}

/// The reason why a command was not applied, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProposeError {
    /// Definite: the command is not in the log. There is no leader, or it has just changed. The caller may
    /// retry here.
    Retry,
    /// Indefinite: the command may have been applied, or may be applied later. A retry is safe only with the
    /// same request id.
    Unknown,
    /// Definite: the node has stopped and did not take the command.
    Stopped,
    /// Definite: the command is larger than an entry may be.
    TooLarge,
}

impl fmt::Display for ProposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "the command was not proposed: there is no leader, or a new one",
            Self::Unknown => "the outcome is unknown: the leader changed or did not reply",
            Self::Stopped => "the command was not proposed: the node has stopped",
            Self::TooLarge => "the command was not proposed: it is larger than an entry of the log",
        })
    }
}

impl std::error::Error for ProposeError {}

/// The reason why a read was not confirmed. A read changes nothing, so the caller may always retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadError {
    /// No quorum confirmed a leader. The caller may retry here.
    Retry,
    /// The node has stopped.
    Stopped,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "no majority confirms a leader",
            Self::Stopped => "the node has stopped",
        })
    }
}

impl std::error::Error for ReadError {}
