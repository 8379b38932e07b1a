//! Queries: reads of the state and of the cluster's status.

use conclave_core::report::{ClusterStatus, FileStat, LockInfo, LockReport, MemberStatus, SessionInfo};
use conclave_core::{Code, Error, FilePath};

use super::Query;
use super::View;
use crate::cluster::{Member, NodeId, Status};
use crate::state::State;
use crate::state::query::{Page, page};

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
        stat: FileStat,
        /// The index of the state that was read.
        index: u64,
    },
    /// The children of a file.
    Children {
        /// Their names.
        names: Page<String>,
        /// The metadata of the file.
        stat: FileStat,
        /// The index of the state that was read.
        index: u64,
    },
    /// The names in use, and the index of the state that was read.
    Locks(Page<LockInfo>, u64),
    /// One name.
    Why(LockReport),
    /// The sessions, and the index of the state that was read.
    Sessions(Page<SessionInfo>, u64),
    /// The nodes of the cluster.
    Cluster(ClusterStatus),
    /// The query was rejected.
    Refused(Error),
}

/// Answers a query.
pub(super) fn answer(view: &dyn View, query: &Query) -> QueryAnswer {
    super::read_state(view, |state| read(view, state, query))
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
            QueryAnswer::Locks(state.locks(prefix, after.as_ref(), PAGE), index)
        }
        Query::Why(name) => QueryAnswer::Why(state.why(name)),
        Query::Sessions { after } => QueryAnswer::Sessions(state.sessions(*after, PAGE), index),
        Query::Cluster => QueryAnswer::Cluster(cluster(&view.status(), view.cluster_id())),
    }
}

/// Returns the nodes of the cluster, as the node with this status sees them.
pub fn cluster(status: &Status, cluster_id: u128) -> ClusterStatus {
    let votes = |node: &NodeId| status.membership.voters.iter().any(|voters| voters.contains(node));
    let member = |(node, member): (&NodeId, &Member)| {
        let mut found = MemberStatus::default();
        (found.node, found.address, found.voter) = (*node, member.address.clone(), votes(node));
        found.matched = status.matched.get(node).copied().flatten();
        found
    };
    let mut cluster = ClusterStatus::default();
    cluster.node = status.node;
    cluster.leader = status.leader;
    cluster.term = status.term;
    cluster.applied = status.applied.map(|id| id.index);
    cluster.members = status.membership.nodes.iter().map(member).collect();
    cluster.version = env!("CARGO_PKG_VERSION").to_owned();
    cluster.cluster = format!("{cluster_id:032x}");
    cluster.last = status.last;
    cluster.snapshot = status.snapshot.map(|id| id.index);
    cluster
}

fn no_such_file(path: &FilePath) -> QueryAnswer {
    QueryAnswer::Refused(Error::new(Code::NoSuchFile, format!("{} does not exist", path.as_str())))
}
