//! Tests of early grants while a sync hangs and the server then loses power: real clients, real sockets, and
//! a disk that loses unsynced data.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use conclave_client::{Client, Guard, LeaseState};

use super::*;
use crate::replica::disk::SimDisk;
use crate::replica::log::is_segment;
use crate::replica::tests::support::{Act, Gate, Hooked};

/// A single node with a disk whose syncs can be blocked.
struct SingleNode {
    disk: SimDisk,
    gate: Arc<Gate>,
    server: Server,
}

impl SingleNode {
    async fn start(disk: SimDisk, listen: SocketAddr) -> Self {
        let gate = Arc::new(Gate::default());
        let passes = gate.clone();
        let hooked = Hooked::new(disk.handle(), move |act, name| {
            if act == Act::Sync && is_segment(name) {
                passes.pass();
            }
            Ok(())
        });
        let config = Config { listen, ..Config::default() };
        let environment = Environment { disk: Arc::new(hooked), dial: Arc::new(Tcp) };
        let server = Server::start_in(config, environment).await.unwrap();
        Self { disk, gate, server }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.server.address().to_string()).await.unwrap()
    }

    /// Simulates a power failure and starts the node again.
    async fn lose_power(self) -> Self {
        let address = self.server.address();
        self.disk.crash();
        self.gate.open();
        self.server.kill().await;
        Self::start(self.disk, address).await
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("it hangs") });
}

/// Returns the guard of a client that holds `x`, and the requests of `waiting` clients in its queue.
async fn queue(node: &SingleNode, waiting: usize) -> (Guard, Vec<conclave_client::PendingLock>) {
    let guard = node.client().await.lock("x").await.unwrap();
    let mut queue = Vec::new();
    for _ in 0..waiting {
        let mut waits = node.client().await.lock("x").start().unwrap();
        // The reply arrives only after the entry is synced.
        waits.queued().await.unwrap();
        queue.push(waits);
    }
    (guard, queue)
}

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn a_lock_passes_along_the_line_while_the_disk_hangs() {
    run(async {
        let node = SingleNode::start(SimDisk::new(1), anywhere()).await;
        let (mut guard, queue) = queue(&node, 5).await;
        let asks = node.client().await;
        node.gate.close();
        let mut releases = Vec::new();
        for mut waits in queue {
            let fence = guard.fence();
            releases.push(tokio::spawn(guard.release()));
            guard = waits.granted().await.unwrap();
            assert!(guard.fence() > fence);
        }
        assert!(releases.iter().all(|release| !release.is_finished()), "no reply is sent before the sync");
        let reads = tokio::spawn(async move { asks.why("x").await });
        node.gate.open();
        for release in releases {
            release.await.unwrap().unwrap();
        }
        reads.await.unwrap().unwrap();
        guard.release().await.unwrap();
        node.server.shutdown().await;
    });
}

#[test]
fn an_early_grant_stays_true_after_the_log_loses_it() {
    run(async {
        let node = SingleNode::start(SimDisk::new(1), anywhere()).await;
        let (first, mut queue) = queue(&node, 2).await;
        node.gate.close();
        let mut releases = vec![tokio::spawn(first.release())];
        let second = queue[0].granted().await.unwrap();
        releases.push(tokio::spawn(second.release()));
        let third = queue[1].granted().await.unwrap();
        // The log still says that the first client holds the lock and two wait.
        let node = node.lose_power().await;
        let late = node.client().await;
        let mut late = late.lock("x").priority(i32::MAX).start().unwrap();
        for release in releases {
            release.await.unwrap().unwrap();
        }
        late.queued().await.unwrap();
        assert_eq!(third.state(), LeaseState::Valid);
        let fence = third.fence();
        let late = tokio::spawn(async move { late.granted().await });
        // The reply to this later request arrives after any grant to `late` would have arrived.
        assert!(node.client().await.lock("x").try_now().await.unwrap().is_none());
        assert!(!late.is_finished());
        third.release().await.unwrap();
        let late = late.await.unwrap().unwrap();
        assert!(late.fence() > fence);
        late.release().await.unwrap();
        node.server.shutdown().await;
    });
}
