//! Connection limits, separate for clients and for other nodes.
//!
//! **Rules.** Clients (gRPC and HTTP included) have the configured limit, other nodes have [`NODES_MAX`]. A
//! node with the most clients must still accept other nodes, or the cluster could not recover.
//!
//! **Bounds.** An unclassified connection has sent no preface yet. It counts as a client, or, if no client
//! place is free, as one of [`UNCLASSIFIED_MAX`].

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::membership::join::MAX_NODES;

/// File descriptors that connections must leave free for the log, for connections to other nodes, and for the
/// runtime.
const OWN_DESCRIPTORS: usize = 128;
/// The most connections from other nodes. Each node has one, sometimes a short one for a request, or a broken
/// one that is not detected yet. Further ones are closed; the other node connects again.
pub(super) const NODES_MAX: usize = 4 * MAX_NODES;
/// The most unclassified connections beyond the limit of clients. Further ones are closed before their
/// preface is read.
const UNCLASSIFIED_MAX: usize = 64;

/// The permits for connections, by kind.
#[derive(Clone)]
pub(super) struct ConnectionLimits {
    clients: Arc<Semaphore>,
    nodes: Arc<Semaphore>,
    unclassified: Arc<Semaphore>,
}

/// The permit of a connection whose preface has not been read.
pub(super) struct Unclassified {
    permit: OwnedSemaphorePermit,
    /// `true` if the permit is one for a client.
    is_client: bool,
}

impl ConnectionLimits {
    pub(super) fn new(clients: usize) -> Self {
        let permits = |connections| Arc::new(Semaphore::new(connections));
        Self { clients: permits(clients), nodes: permits(NODES_MAX), unclassified: permits(UNCLASSIFIED_MAX) }
    }

    pub(super) fn client(&self) -> Option<OwnedSemaphorePermit> {
        self.clients.clone().try_acquire_owned().ok()
    }

    pub(super) fn unclassified(&self) -> Option<Unclassified> {
        if let Some(permit) = self.client() {
            return Some(Unclassified { permit, is_client: true });
        }
        let permit = self.unclassified.clone().try_acquire_owned().ok()?;
        Some(Unclassified { permit, is_client: false })
    }

    /// Converts the permit to one for a client; `None` if no place is free.
    pub(super) fn as_client(&self, permit: Unclassified) -> Option<OwnedSemaphorePermit> {
        if permit.is_client { Some(permit.permit) } else { self.client() }
    }

    /// Returns a permit for another node and frees the unclassified one; `None` if no place is free.
    pub(super) fn as_node(&self, _: Unclassified) -> Option<OwnedSemaphorePermit> {
        self.nodes.clone().try_acquire_owned().ok()
    }
}

/// Returns the limit of client connections: `wanted`, or less if the process may not open enough descriptors.
pub(super) fn connections_max(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let limit = getrlimit(Resource::Nofile).current;
    let allowed = limit.map_or(wanted, |descriptors| clients_max(descriptors).min(wanted));
    if allowed < wanted {
        tracing::warn!(
            "the limit of open files allows only {allowed} connections; raise it (ulimit -n) to allow more"
        );
    }
    allowed
}

/// Returns the number of clients that leaves enough descriptors for the log and for other nodes.
fn clients_max(descriptors: u64) -> usize {
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    descriptors.saturating_sub(OWN_DESCRIPTORS + NODES_MAX + UNCLASSIFIED_MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_to_the_log_and_to_other_nodes() {
        assert_eq!([0, 256, 257, 258, 1024].map(clients_max), [1, 1, 1, 2, 768]);
        assert_eq!(connections_max(1), 1);
    }

    #[test]
    fn connections_without_a_preface_are_bounded() {
        let room = ConnectionLimits::new(1);
        let mut unclassified: Vec<_> = (0..=UNCLASSIFIED_MAX).map(|_| room.unclassified().unwrap()).collect();
        assert!(room.unclassified().is_none());
        // The first permit is one for a client, the others are not.
        assert!(room.as_client(unclassified.pop().unwrap()).is_none());
        let client = room.as_client(unclassified.swap_remove(0));
        assert!(client.is_some());
        drop(client);
        assert!(room.as_client(unclassified.pop().unwrap()).is_some());
    }
}
