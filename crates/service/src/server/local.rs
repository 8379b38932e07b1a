//! The parts of a server that only a local node has: the mark on its data folder, and its end when nobody uses it.
//!
//! A local node (`conclave run --local`) starts on demand and listens only on the Unix socket in its data folder. A file
//! marks that folder, so that a local node and `conclave serve` never open the folder of the other.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::StartError;
use crate::replica::Identity;
use crate::replica::disk::Disk;

/// The address that a local node has in the membership, and in what it tells clients.
pub const ADDRESS: &str = "local";
/// The file that marks the data folder of a local node.
const MARK: &str = "local-node";

/// Whether a folder carries the mark of a local node. A folder that cannot be read has none.
pub(super) fn is_marked(folder: &Path) -> bool {
    folder.join(MARK).exists()
}

/// Checks, under the lock of the folder, that the folder belongs to this kind of node. Marks a new folder of a local node.
pub(super) fn claim(disk: &dyn Disk, is_local: bool) -> io::Result<Result<(), StartError>> {
    let is_marked = disk.list()?.iter().any(|name| name == MARK);
    if is_marked && !is_local {
        return Ok(Err(belongs_to_local()));
    }
    if is_local && !is_marked {
        if Identity::load(disk)?.is_some() || Identity::is_fresh(disk)? {
            let text = "the folder belongs to `conclave serve`: a local node needs a folder of its own";
            return Ok(Err(StartError::Cluster(text.to_owned())));
        }
        disk.create(MARK)?.sync()?;
        disk.sync_names()?;
    }
    Ok(Ok(()))
}

pub(super) fn belongs_to_local() -> StartError {
    let text = "the data folder belongs to a local node (conclave run --local): choose another folder with --data";
    StartError::Cluster(text.to_owned())
}

/// Whether anything uses the server: watched by a local node, which ends when nothing does.
#[derive(Clone)]
pub(super) struct Usage {
    /// No session and no lock-delay exists. The hub sets it.
    pub(super) quiet: watch::Receiver<bool>,
    /// The connections open now. The acceptor sets it.
    pub(super) connections: watch::Receiver<usize>,
    /// Notified when a client has asked the node to end and nothing is held.
    pub(super) end: Arc<Notify>,
}

impl Usage {
    /// Returns when no connection, session or lock-delay has existed for `limit`, or when a client has asked for the end while
    /// nothing was held.
    pub(super) async fn ended(mut self, limit: Duration) {
        let end = self.end.clone();
        tokio::select! {
            () = end.notified() => {}
            () = self.unused(limit) => {}
        }
    }

    async fn unused(&mut self, limit: Duration) {
        loop {
            let is_unused = *self.quiet.borrow_and_update() && *self.connections.borrow_and_update() == 0;
            tokio::select! {
                Ok(()) = self.quiet.changed() => {}
                Ok(()) = self.connections.changed() => {}
                () = tokio::time::sleep(limit), if is_unused => return,
                // The hub and the acceptor are gone: the server has stopped.
                else => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::disk::SimDisk;

    #[test]
    fn a_local_node_and_a_server_never_share_a_folder() {
        let disk = SimDisk::new(1);
        let local = disk.handle();
        claim(&local, true).unwrap().unwrap();
        disk.crash();
        claim(&disk.handle(), true).unwrap().expect("its own folder, after a crash");
        let refused = claim(&disk.handle(), false).unwrap().unwrap_err();
        assert!(refused.to_string().contains("--data"), "{refused}");

        let disk = SimDisk::new(2);
        claim(&disk.handle(), false).unwrap().unwrap();
        Identity::mark_fresh(&disk.handle()).unwrap();
        let refused = claim(&disk.handle(), true).unwrap().unwrap_err();
        assert!(refused.to_string().contains("conclave serve"), "{refused}");
    }

    fn usage() -> (watch::Sender<bool>, watch::Sender<usize>, Usage) {
        let (quiet, quiet_seen) = watch::channel(false);
        let (connections, connections_seen) = watch::channel(1);
        let end = Arc::new(Notify::new());
        (quiet, connections, Usage { quiet: quiet_seen, connections: connections_seen, end })
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_node_ends_a_minute_after_its_last_use() {
        let (quiet, connections, usage) = usage();
        let began = tokio::time::Instant::now();
        let ended = tokio::spawn(usage.ended(MINUTE));
        tokio::time::sleep(MINUTE * 2).await;
        quiet.send_replace(true);
        tokio::time::sleep(MINUTE * 2).await;
        assert!(!ended.is_finished(), "a connection is open");
        connections.send_replace(0);
        tokio::time::sleep(MINUTE / 2).await;
        connections.send_replace(1);
        connections.send_replace(0);
        tokio::time::sleep(MINUTE * 3 / 4).await;
        assert!(!ended.is_finished(), "a short connection starts the minute again");
        ended.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 60 * 5 + 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_keeps_a_node_without_connections() {
        let (quiet, connections, usage) = usage();
        connections.send_replace(0);
        let ended = tokio::spawn(usage.ended(MINUTE));
        tokio::time::sleep(MINUTE * 10).await;
        assert!(!ended.is_finished());
        quiet.send_replace(true);
        ended.await.unwrap();
    }
}
