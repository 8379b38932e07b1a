//! Parts of a server that only a local node has: the mark in its data folder, and its end when it is unused.
//!
//! A local node (`conclave run --local`) starts on demand and listens only on the Unix socket in its data
//! folder. A mark file in the folder ensures that a local node and `conclave serve` never open the same
//! folder.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::StartError;
use crate::replica::Identity;
use crate::replica::disk::Disk;

/// The address of a local node in the membership and in messages to clients.
pub const ADDRESS: &str = "local";
/// The shortest time that a new node waits for its first client.
const FIRST_USE: Duration = Duration::from_secs(10);
/// The name of the mark file in the data folder of a local node.
const MARK: &str = "local-node";

/// Returns whether a folder has the mark of a local node; `false` if it cannot be read.
pub(super) fn is_marked(folder: &Path) -> bool {
    folder.join(MARK).exists()
}

/// Checks that the folder belongs to this kind of node, and marks a new folder of a local node. The caller
/// holds the lock of the folder.
pub(super) fn check_and_mark(disk: &dyn Disk, is_local: bool) -> io::Result<Result<(), StartError>> {
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
    let text =
        "the data folder belongs to a local node (conclave run --local): choose another folder with --data";
    StartError::Cluster(text.to_owned())
}

/// The use of a local node, which ends when it is unused. Copies are handles of the same node.
///
/// **Trap.** A client connects while the node decides to end, and the node ends with that client. So one
/// value contains both the decision and the number of connections. A connection is either counted before the
/// decision, which then fails, or it is rejected.
#[derive(Clone)]
pub(super) struct Usage {
    /// `true` if no session and no lock-delay exists. The driver sets it.
    quiet: watch::Receiver<bool>,
    uses: Arc<watch::Sender<Uses>>,
}

#[derive(Default)]
struct Uses {
    connections: usize,
    /// `true` if a connection has been counted.
    has_begun: bool,
    /// `true` if the node is ending. No further connection is counted then.
    is_over: bool,
}

impl Uses {
    /// Returns the unused time after which the node ends: for a new node without a client, at least
    /// [`FIRST_USE`].
    fn limit(&self, limit: Duration) -> Duration {
        if self.has_begun { limit } else { limit.max(FIRST_USE) }
    }
}

/// A counted connection. The node does not end by itself while this value exists.
pub(super) struct InUse(Arc<watch::Sender<Uses>>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.send_modify(|uses| uses.connections -= 1);
    }
}

impl Usage {
    pub(super) fn new(quiet: watch::Receiver<bool>) -> Self {
        Self { quiet, uses: Arc::new(watch::Sender::default()) }
    }

    /// Counts a connection. Returns `None` if the node is ending.
    pub(super) fn begin(&self) -> Option<InUse> {
        let is_counted = self.uses.send_if_modified(|uses| {
            if !uses.is_over {
                uses.connections += 1;
                uses.has_begun = true;
            }
            !uses.is_over
        });
        is_counted.then(|| InUse(self.uses.clone()))
    }

    /// Decides that the node ends, unless it is in use, and returns the decision. Without a connection no
    /// client can open a session meanwhile.
    pub(super) fn try_end(&self) -> bool {
        let is_quiet = *self.quiet.borrow();
        self.uses.send_if_modified(|uses| {
            uses.is_over |= is_quiet && uses.connections == 0;
            uses.is_over
        })
    }

    /// Returns when the node is ending: it was unused for `limit`, or [`Usage::try_end`] succeeded.
    pub(super) async fn over(mut self, limit: Duration) {
        let mut uses = self.uses.subscribe();
        loop {
            let is_quiet = *self.quiet.borrow_and_update();
            let (is_unused, limit) = {
                let uses = uses.borrow_and_update();
                if uses.is_over {
                    return;
                }
                (is_quiet && uses.connections == 0, uses.limit(limit))
            };
            tokio::select! {
                Ok(()) = self.quiet.changed() => {}
                Ok(()) = uses.changed() => {}
                () = tokio::time::sleep(limit), if is_unused => if self.try_end() {
                    return;
                },
                // The driver has stopped, and so has the server.
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
        check_and_mark(&local, true).unwrap().unwrap();
        disk.crash();
        check_and_mark(&disk.handle(), true).unwrap().expect("its own folder, after a crash");
        let refused = check_and_mark(&disk.handle(), false).unwrap().unwrap_err();
        assert!(refused.to_string().contains("--data"), "{refused}");

        let disk = SimDisk::new(2);
        check_and_mark(&disk.handle(), false).unwrap().unwrap();
        Identity::mark_fresh(&disk.handle()).unwrap();
        let refused = check_and_mark(&disk.handle(), true).unwrap().unwrap_err();
        assert!(refused.to_string().contains("conclave serve"), "{refused}");
    }

    fn usage() -> (watch::Sender<bool>, Usage) {
        let (quiet, seen) = watch::channel(false);
        (quiet, Usage::new(seen))
    }

    /// Lets the other task run until it waits.
    async fn turns() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_connection_keeps_a_node() {
        let (quiet, usage) = usage();
        quiet.send_replace(true);
        let connection = usage.begin().expect("the node has just started");
        let second = usage.begin().expect("the node goes on");
        let over = tokio::spawn(usage.clone().over(Duration::ZERO));
        drop(second);
        turns().await;
        assert!(!over.is_finished() && !usage.try_end());
        drop(connection);
        over.await.unwrap();
        assert!(usage.begin().is_none(), "a node that ends takes no connection");
    }

    #[tokio::test]
    async fn a_session_keeps_a_node_without_connections() {
        let (quiet, usage) = usage();
        drop(usage.begin());
        let over = tokio::spawn(usage.clone().over(Duration::ZERO));
        turns().await;
        assert!(!over.is_finished() && !usage.try_end());
        quiet.send_replace(true);
        over.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_may_end_a_node_that_is_not_in_use() {
        let (quiet, usage) = usage();
        let over = tokio::spawn(usage.clone().over(Duration::MAX));
        quiet.send_replace(true);
        turns().await;
        assert!(!over.is_finished(), "the time is not over");
        assert!(usage.try_end());
        over.await.unwrap();
    }

    #[test]
    fn a_new_node_waits_for_its_first_client() {
        let second = Duration::from_secs(1);
        assert_eq!(Uses::default().limit(second), FIRST_USE);
        assert_eq!(Uses::default().limit(FIRST_USE * 2), FIRST_USE * 2);
        assert_eq!(Uses { has_begun: true, ..Uses::default() }.limit(second), second);
    }
}
