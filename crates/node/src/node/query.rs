//! Queries: reads of the state and of the cluster's status.

use conclave_core::{Code, Error, LockName};

use super::Query;
use super::View;
use crate::cluster::{Member, NodeId};
use crate::state::query::{LockInfo, Page, SessionInfo, WhyInfo, page};
use crate::state::tree::Stat;
use crate::state::{FilePath, State};

/// The most names, sessions or children in one answer. A longer list is cut, and the answer has `more` set.
const PAGE: usize = 1000;

/// The answer to a query.
#[derive(Clone, Debug, PartialEq)]
pub enum QueryAnswer {
    /// A file.
    File {
        /// Its content.
        data: Vec<u8>,
        /// Its metadata.
        stat: Stat,
        /// The index of the state that was read.
        index: u64,
    },
    /// The children of a file.
    Children {
        /// Their names.
        names: Page<String>,
        /// The metadata of the file.
        stat: Stat,
        /// The index of the state that was read.
        index: u64,
    },
    /// The names in use.
    Locks {
        /// The names.
        locks: Page<LockInfo>,
        /// The index of the state that was read.
        index: u64,
    },
    /// One name.
    Why {
        /// The name.
        name: LockName,
        /// The report about the name; `None` if the state has no record of it.
        why: Option<WhyInfo>,
        /// The index of the state that was read.
        index: u64,
    },
    /// The sessions.
    Sessions {
        /// The sessions.
        sessions: Page<SessionInfo>,
        /// The index of the state that was read.
        index: u64,
    },
    /// The nodes of the cluster.
    Cluster(ClusterInfo),
    /// The query was rejected.
    Refused(Error),
}

/// The nodes of the cluster, as this node sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterInfo {
    /// This node.
    pub node: NodeId,
    /// The leader, if one is known.
    pub leader: Option<NodeId>,
    /// The current term.
    pub term: u64,
    /// The index of the last entry applied here.
    pub applied: u64,
    /// The members.
    pub members: Vec<MemberInfo>,
    /// The version of this node's program.
    pub version: String,
    /// The identity of the cluster.
    pub cluster: u128,
    /// The index of the last entry in the log.
    pub last: u64,
    /// The index of the last entry that a snapshot covers.
    pub snapshot: u64,
}

/// One member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its number.
    pub node: NodeId,
    /// Its address.
    pub address: String,
    /// Whether it votes.
    pub voter: bool,
    /// The last index up to which its log is known to agree with the leader's. Known on the leader only.
    pub matched: Option<u64>,
}

/// Answers a query.
pub(super) fn answer(view: &dyn View, query: &Query) -> QueryAnswer {
    super::look(view, |state| read(view, state, query))
}

fn read(view: &dyn View, state: &State, query: &Query) -> QueryAnswer {
    let index = state.applied();
    match query {
        Query::File(path) => match state.file(path) {
            Some((data, stat)) => QueryAnswer::File { data: data.to_vec(), stat, index },
            None => no_such_file(path),
        },
        Query::Children { path, after } => match (state.list_after(path, after), state.file(path)) {
            (Some(names), Some((_, stat))) => {
                let names = page(names.map(str::to_owned), PAGE, String::len);
                QueryAnswer::Children { names, stat, index }
            }
            _ => no_such_file(path),
        },
        Query::Locks { prefix, after } => {
            QueryAnswer::Locks { locks: state.locks(prefix, after.as_ref(), PAGE), index }
        }
        Query::Why(name) => QueryAnswer::Why { name: name.clone(), why: state.why(name), index },
        Query::Sessions { after } => QueryAnswer::Sessions { sessions: state.sessions(*after, PAGE), index },
        Query::Cluster => QueryAnswer::Cluster(cluster(view)),
    }
}

/// Returns the nodes of the cluster.
pub fn cluster(view: &dyn View) -> ClusterInfo {
    let status = view.status();
    let votes = |node: &NodeId| status.membership.voters.iter().any(|voters| voters.contains(node));
    let member = |(node, member): (&NodeId, &Member)| MemberInfo {
        node: *node,
        address: member.address.clone(),
        voter: votes(node),
        matched: status.matched.get(node).copied().flatten(),
    };
    ClusterInfo {
        node: status.node,
        leader: status.leader,
        term: status.term,
        applied: status.applied.map_or(0, |id| id.index),
        members: status.membership.nodes.iter().map(member).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        cluster: view.cluster_id(),
        last: status.last.unwrap_or(0),
        snapshot: status.snapshot.map_or(0, |id| id.index),
    }
}

fn no_such_file(path: &FilePath) -> QueryAnswer {
    QueryAnswer::Refused(Error::new(Code::NoSuchFile, format!("{} does not exist", path.as_str())))
}
