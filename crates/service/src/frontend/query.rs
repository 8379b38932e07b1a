//! Answers queries from the state: what the native frontends tell programs.

use conclave_api::proto::v1;
use conclave_api::{Code, Error};

use super::wire::{self, Query};
use crate::machine::Service;
use crate::replica::{NodeId, Replica};
use crate::state::query::{Page, page};
use crate::state::{FilePath, State};

/// The most names, sessions or children in one answer.
const PAGE: usize = 1000;

/// The answer to a query about the state; `nodes` is for the one about the nodes.
pub(super) fn answer(
    state: &State,
    query: &Query,
    nodes: impl FnOnce() -> v1::Cluster,
) -> v1::answer::Result {
    use v1::answer::Result as Wire;
    let index = state.applied();
    match query {
        Query::File(path) => match state.file(path) {
            Some((data, stat)) => {
                Wire::File(v1::File { data: data.to_vec(), stat: Some(wire::stat(&stat)), index })
            }
            None => no_such_file(path),
        },
        Query::Children { path, after } => match (state.list_after(path, after), state.file(path)) {
            (Some(names), Some((_, stat))) => {
                let Page { items: names, more } = page(names.map(str::to_owned), PAGE, String::len);
                Wire::Children(v1::Children { names, stat: Some(wire::stat(&stat)), more, index })
            }
            _ => no_such_file(path),
        },
        Query::Locks { prefix, after } => {
            let Page { items, more } = state.locks(prefix, after.as_ref(), PAGE);
            Wire::Locks(v1::Locks { locks: items.iter().map(wire::lock).collect(), more, index })
        }
        Query::Why(name) => Wire::Report(wire::report(name, state.why(name), index)),
        Query::Sessions { after } => {
            let Page { items, more } = state.sessions(*after, PAGE);
            Wire::Sessions(v1::Sessions { sessions: items.iter().map(wire::session).collect(), more, index })
        }
        Query::Cluster => Wire::Cluster(nodes()),
    }
}

/// The nodes.
pub(super) fn cluster(replica: &Replica<Service>) -> v1::Cluster {
    let status = replica.status();
    let votes = |node: &NodeId| status.membership.voters.iter().any(|voters| voters.contains(node));
    let member = |(node, member): (&NodeId, &crate::replica::Member)| v1::Member {
        node: *node,
        address: member.address.clone(),
        voter: votes(node),
        matched: status.matched.get(node).copied().flatten(),
    };
    v1::Cluster {
        node: status.node,
        leader: status.leader,
        term: status.term,
        applied: status.applied.map_or(0, |id| id.index),
        members: status.membership.nodes.iter().map(member).collect(),
        version: env!("CARGO_PKG_VERSION").into(),
        cluster: format!("{:032x}", replica.identity().cluster),
        last: status.last.unwrap_or(0),
        snapshot: status.snapshot.map_or(0, |id| id.index),
    }
}

fn no_such_file(path: &FilePath) -> v1::answer::Result {
    v1::answer::Result::Error(
        (&Error::new(Code::NoSuchFile, format!("{} does not exist", path.as_str()))).into(),
    )
}
