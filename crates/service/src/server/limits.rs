//! For whom there is room on the port.
//!
//! So many clients as are configured, gRPC and HTTP among them, and [`NODES_MAX`] connections of other nodes. The two do not
//! compete: a node that is full of clients still hears the others, or the cluster could not heal. Until it has said what it is,
//! a connection counts as a client, or, if there is no room for one, as one of [`UNKNOWN_MAX`].

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::membership::join::MAX_NODES;

/// File descriptors that are not for those who connect: the log's, those of connections to other nodes, the runtime's.
const OWN_DESCRIPTORS: usize = 128;
/// Connections of other nodes: each has one, and now and then others for a question, or one that nobody has noticed the end of.
/// Beyond, they are refused and come again.
pub(super) const NODES_MAX: usize = 4 * MAX_NODES;
/// Connections that have not said what they are, when there is no room for a client. Beyond, they are refused unheard.
const UNKNOWN_MAX: usize = 64;

/// For whom there is room.
#[derive(Clone)]
pub(super) struct ConnectionLimits {
    clients: Arc<Semaphore>,
    nodes: Arc<Semaphore>,
    unknown: Arc<Semaphore>,
}

/// The right to be connected, of somebody who has not said what it is.
pub(super) struct Unclassified {
    permit: OwnedSemaphorePermit,
    /// It has the place of a client already.
    is_client: bool,
}

impl ConnectionLimits {
    pub(super) fn new(clients: usize) -> Self {
        let room = |connections| Arc::new(Semaphore::new(connections));
        Self { clients: room(clients), nodes: room(NODES_MAX), unknown: room(UNKNOWN_MAX) }
    }

    pub(super) fn client(&self) -> Option<OwnedSemaphorePermit> {
        self.clients.clone().try_acquire_owned().ok()
    }

    pub(super) fn unknown(&self) -> Option<Unclassified> {
        if let Some(permit) = self.client() {
            return Some(Unclassified { permit, is_client: true });
        }
        let permit = self.unknown.clone().try_acquire_owned().ok()?;
        Some(Unclassified { permit, is_client: false })
    }

    /// It is a client.
    pub(super) fn as_client(&self, permit: Unclassified) -> Option<OwnedSemaphorePermit> {
        if permit.is_client { Some(permit.permit) } else { self.client() }
    }

    /// It is another node: its place among the clients is free.
    pub(super) fn as_node(&self, _: Unclassified) -> Option<OwnedSemaphorePermit> {
        self.nodes.clone().try_acquire_owned().ok()
    }
}

/// How many connections there may be: as many as wanted, if the process may have as many descriptors.
pub(super) fn connections_max(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Should it be refused, there are as many as there were.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let limit = getrlimit(Resource::Nofile).current;
    let room = limit.map_or(wanted, |descriptors| room_in(descriptors).min(wanted));
    if room < wanted {
        tracing::warn!(
            "the limit of open files allows only {room} connections; raise it (ulimit -n) to allow more"
        );
    }
    room
}

/// Clients must not keep the log from its next segment, nor other nodes from this one.
fn room_in(descriptors: u64) -> usize {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    descriptors.saturating_sub(OWN_DESCRIPTORS + NODES_MAX + UNKNOWN_MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_to_the_log_and_to_other_nodes() {
        assert_eq!([0, 256, 257, 258, 1024].map(room_in), [1, 1, 1, 2, 768]);
        assert_eq!(connections_max(1), 1);
    }

    #[test]
    fn who_has_not_said_what_it_is_is_bounded_too() {
        let room = ConnectionLimits::new(1);
        let mut unknown: Vec<_> = (0..=UNKNOWN_MAX).map(|_| room.unknown().unwrap()).collect();
        assert!(room.unknown().is_none());
        // The first has the place of a client, the others do not.
        assert!(room.as_client(unknown.pop().unwrap()).is_none());
        let client = room.as_client(unknown.swap_remove(0));
        assert!(client.is_some());
        drop(client);
        assert!(room.as_client(unknown.pop().unwrap()).is_some());
    }
}
