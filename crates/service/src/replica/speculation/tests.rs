//! The rules of speculation, tested alone; then whole replicas on a disk whose syncs can wait and fail.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::super::disk::SimDisk;
use super::super::tests::support::{Act, EARLY, Gate, Hooked, Notebook, member, quick, write};
use super::super::{
    Deliveries, Delivery, Identity, Member, ProposeError, ReadError, Replica, Status, Transport,
};
use super::*;

type Done = Arc<Mutex<Vec<u64>>>;

fn noting(done: &Done, number: u64) -> impl FnOnce() + Send + 'static {
    let done = done.clone();
    move || done.lock().unwrap().push(number)
}

fn single_node() -> Speculation {
    let speculation = Speculation::new(None);
    speculation.on_membership(0, 1, [1].into_iter(), true);
    speculation
}

fn failure() -> io::Result<()> {
    Err(io::Error::other("no disk"))
}

#[test]
fn held_back_actions_run_in_order_after_the_sync() {
    let (speculation, done) = (single_node(), Done::default());
    assert!(speculation.allow(3));
    assert!(speculation.allow(5));
    speculation.when_durable(2, noting(&done, 2));
    speculation.when_durable(3, noting(&done, 3));
    let waits = speculation.durable(3);
    let mut waits = std::pin::pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    speculation.when_durable(5, noting(&done, 5));
    assert!(done.lock().unwrap().is_empty());
    speculation.on_written(3, &Ok(()));
    assert_eq!(*done.lock().unwrap(), [2, 3]);
    assert!(waits.now_or_never().unwrap().is_ok());
    assert!(speculation.is_unsynced());
    speculation.on_written(5, &Ok(()));
    assert_eq!(*done.lock().unwrap(), [2, 3, 5]);
    assert!(!speculation.is_unsynced());
    // These entries are durable, or were never promised, so the actions run at once.
    speculation.when_durable(4, noting(&done, 4));
    speculation.when_durable(9, noting(&done, 9));
    assert_eq!(*done.lock().unwrap(), [2, 3, 5, 4, 9]);
}

#[test]
fn effects_lost_by_a_failed_disk_are_never_delivered() {
    let (speculation, done) = (single_node(), Done::default());
    assert!(speculation.allow(1) && speculation.allow(2));
    speculation.when_durable(1, noting(&done, 1));
    speculation.when_durable(2, noting(&done, 2));
    let waits = speculation.durable(2);
    let mut waits = std::pin::pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    speculation.on_written(1, &Ok(()));
    speculation.on_written(2, &failure());
    assert!(waits.now_or_never().unwrap().is_err(), "a waiting caller gets the error");
    speculation.when_durable(2, noting(&done, 2));
    assert!(speculation.durable(2).now_or_never().unwrap().is_err());
    assert_eq!(*done.lock().unwrap(), [1]);
    assert!(!speculation.allow(3), "a log that has failed takes nothing");
}

#[test]
fn only_the_one_node_of_a_cluster_goes_ahead() {
    let speculation = Speculation::new(None);
    assert!(!speculation.allow(1), "the members are not known yet");
    assert!(speculation.may_speculate(), "but may be soon");
    speculation.on_membership(0, 1, [1].into_iter(), true);
    assert!(speculation.allow(1));
    speculation.on_membership(5, 1, [1, 2].into_iter(), true);
    assert!(!speculation.allow(6) && !speculation.may_speculate());
    // A reader may rely on the durable state by now.
    speculation.on_membership(9, 1, [1].into_iter(), true);
    assert!(!speculation.allow(10) && !speculation.may_speculate());
    // At the next start no reader relies on it yet.
    let restarted = Speculation::new(Some(9));
    for (index, nodes) in [(0, &[1][..]), (5, &[1, 2]), (9, &[1])] {
        assert!(!restarted.allow(10), "the last membership is not applied yet");
        restarted.on_membership(index, 1, nodes.iter().copied(), false);
    }
    assert!(restarted.allow(10));
    let elsewhere = Speculation::new(None);
    elsewhere.on_membership(0, 2, [1].into_iter(), true);
    assert!(!elsewhere.allow(1), "it is another node that is alone");
}

#[test]
fn a_change_of_the_membership_waits_for_the_disk_and_nothing_goes_past_it() {
    let speculation = single_node();
    assert!(speculation.allow(7));
    let change = speculation.change_membership(7);
    let mut change = std::pin::pin!(change);
    assert!(change.as_mut().now_or_never().is_none());
    assert!(!speculation.allow(9));
    speculation.on_written(7, &Ok(()));
    assert!(change.now_or_never().unwrap().is_ok());
    assert!(!speculation.allow(9), "it is durable, not applied");
    speculation.on_membership(7, 1, [1].into_iter(), true);
    assert!(speculation.allow(9), "the node has only moved");
}

struct Nobody;

impl Transport for Nobody {
    fn call(&self, _: NodeId, _: &Member, _: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

/// A single node that leads, on a disk whose syncs of the log wait while the gate is closed.
struct Held {
    disk: SimDisk,
    gate: Arc<Gate>,
    /// The number of writes to files other than the log.
    beside: Arc<AtomicUsize>,
    replica: Replica<Notebook>,
    deliveries: Deliveries<Notebook>,
}

impl Held {
    async fn start(disk: SimDisk) -> Self {
        let gate = Arc::new(Gate::default());
        let beside = Arc::new(AtomicUsize::new(0));
        let (passes, counts) = (gate.clone(), beside.clone());
        let hooked = Hooked::new(disk.handle(), move |act, name| {
            match (act, super::super::log::is_segment(name)) {
                (Act::Sync, true) => passes.pass(),
                (Act::Write, false) => drop(counts.fetch_add(1, Ordering::SeqCst)),
                _ => {}
            }
            Ok(())
        });
        let identity = Identity { cluster: 9, node: 1 };
        let opened =
            Replica::open(Arc::new(hooked), identity, Arc::new(Nobody), Notebook::default(), quick()).await;
        let (replica, deliveries) = opened.unwrap();
        replica.bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
        replica.wait_for(Status::leads).await.unwrap();
        write(&replica, 0).await;
        Self { disk, gate, beside, replica, deliveries }
    }

    /// Waits until a number is in the state, durable or not.
    async fn applied(&self, number: u64) {
        while !self.replica.peek(|notebook| notebook.seen.contains(&number)) {
            tokio::task::yield_now().await;
        }
    }

    /// Returns the numbers delivered to the frontends so far.
    fn delivered(&mut self) -> Vec<u64> {
        let mut delivered = Vec::new();
        while let Ok(batch) = self.deliveries.try_recv() {
            for delivery in batch {
                if let Delivery::Applied { effects, .. } | Delivery::Early { effects } = delivery {
                    delivered.extend(effects.iter().map(|(number, _)| *number));
                }
            }
        }
        delivered
    }

    async fn stop(self) -> SimDisk {
        self.disk.crash();
        self.gate.open();
        self.replica.shutdown().await;
        self.disk
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let limit = std::time::Duration::from_secs(60);
    runtime.block_on(async { tokio::time::timeout(limit, test).await.expect("it hangs") });
}

#[test]
fn an_early_effect_is_delivered_once_during_the_sync() {
    run(async {
        let mut node = Held::start(SimDisk::new(1)).await;
        node.delivered();
        node.gate.close();
        // One number is durable.
        let replica = node.replica.clone();
        let mut proposed = Box::pin(replica.propose(vec![7, EARLY + 1, EARLY + 2]));
        assert!(proposed.as_mut().now_or_never().is_none());
        node.applied(EARLY + 2).await;
        assert_eq!(node.deliveries.recv().await, Some(vec![early(EARLY + 1, 3)]));
        // More numbers are in the state, but no more are durable.
        let mut second = Box::pin(replica.propose(vec![EARLY + 3, EARLY]));
        assert!(second.as_mut().now_or_never().is_none());
        node.applied(EARLY).await;
        assert_eq!(node.deliveries.recv().await, Some(vec![early(EARLY, 6)]));
        assert!(node.delivered().is_empty());
        assert!(proposed.as_mut().now_or_never().is_none(), "the proposer waits for the disk");
        node.gate.open();
        proposed.await.unwrap();
        second.await.unwrap();
        assert_eq!(node.delivered(), [7, EARLY + 2, EARLY + 3]);
        node.stop().await;
    });
}

fn early(number: u64, seen: usize) -> Delivery<(u64, usize)> {
    Delivery::Early { effects: vec![(number, seen)] }
}

#[test]
fn an_entry_is_applied_during_the_sync_and_delivered_after_it() {
    run(async {
        let mut node = Held::start(SimDisk::new(1)).await;
        node.delivered();
        node.gate.close();
        let mut proposed = Box::pin(node.replica.propose(vec![1]));
        assert!(proposed.as_mut().now_or_never().is_none());
        node.applied(1).await;
        assert!(node.replica.may_be_unsynced());
        assert!(proposed.as_mut().now_or_never().is_none(), "the proposer waits");
        let mut read = Box::pin(node.replica.read(|notebook| notebook.seen.clone()));
        let mut stale = Box::pin(node.replica.read_stale(|notebook| notebook.seen.clone()));
        // The leader is confirmed although the sync hangs, because the acknowledged entries are durable.
        node.replica.confirm().await.unwrap();
        assert!(read.as_mut().now_or_never().is_none(), "the reader waits");
        assert!(stale.as_mut().now_or_never().is_none(), "so does one that is content with less");
        drop((read, stale));
        let replica = node.replica.clone();
        drop(proposed);
        assert!(node.delivered().is_empty(), "and so do the frontends");
        node.gate.open();
        assert_eq!(replica.read(|notebook| notebook.seen.clone()).await, Ok(vec![0, 1]));
        assert_eq!(node.delivered(), [1]);
        node.stop().await;
    });
}

#[test]
fn effects_lost_in_a_power_cut_were_not_delivered() {
    run(async {
        let mut gone = 0;
        for seed in 0..8 {
            let node = Held::start(SimDisk::new(seed)).await;
            node.gate.close();
            let replica = node.replica.clone();
            let proposed = tokio::spawn(async move { replica.propose(vec![1]).await });
            node.applied(1).await;
            let replica = node.replica.clone();
            let read = tokio::spawn(async move { replica.read(|notebook| notebook.seen.clone()).await });
            // The power fails during the sync.
            let disk = node.stop().await;
            let proposed = proposed.await.unwrap();
            assert!(
                matches!(proposed, Err(ProposeError::Unknown | ProposeError::Stopped)),
                "seed {seed}: {proposed:?}"
            );
            assert_eq!(read.await.unwrap(), Err(ReadError::Stopped), "seed {seed}");
            let again = Held::start(disk).await;
            let seen = again.replica.read(|notebook| notebook.seen.clone()).await.unwrap();
            assert_eq!(seen[0], 0, "seed {seed}: that was acknowledged");
            gone += u32::from(seen == [0]);
            again.stop().await;
        }
        assert!(gone > 0, "the disk forgot nothing");
    });
}

#[test]
fn a_snapshot_is_not_on_disk_before_its_entries() {
    run(async {
        let node = Held::start(SimDisk::new(3)).await;
        node.gate.close();
        let replica = node.replica.clone();
        let proposed = tokio::spawn(async move { replica.propose(vec![1]).await });
        node.applied(1).await;
        let before = node.beside.load(Ordering::SeqCst);
        node.replica.snapshot().await.unwrap();
        // This takes far longer than writing a snapshot.
        for _ in 0..20_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(node.beside.load(Ordering::SeqCst), before, "it has been written already");
        assert_eq!(node.replica.status().snapshot, None);
        node.gate.open();
        proposed.await.unwrap().unwrap();
        let taken = node.replica.wait_for(|status| status.snapshot.is_some()).await.unwrap();
        assert_eq!(taken.snapshot, taken.applied);
        let disk = node.stop().await;
        let again = Held::start(disk).await;
        assert_eq!(again.replica.read(|notebook| notebook.seen.clone()).await, Ok(vec![0, 1]));
        again.stop().await;
    });
}

#[test]
fn a_second_node_is_admitted_after_the_sync_and_gets_only_durable_entries() {
    run(async {
        let node = Held::start(SimDisk::new(4)).await;
        node.gate.close();
        let replica = node.replica.clone();
        let proposed = tokio::spawn(async move { replica.propose(vec![1]).await });
        node.applied(1).await;
        let last = node.replica.status().last;
        let replica = node.replica.clone();
        let admitted = tokio::spawn(async move { replica.admit(2, member(2), Default::default()).await });
        // If the change had been appended, the status would show the new node now.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(node.replica.status().membership.nodes.len(), 1, "behind entry {last:?}");
        node.gate.open();
        proposed.await.unwrap().unwrap();
        admitted.await.unwrap().unwrap();
        assert_eq!(node.replica.status().membership.nodes.len(), 2);
        assert!(!node.replica.may_be_unsynced());
        // From now on the state holds only durable entries.
        node.gate.close();
        let replica = node.replica.clone();
        let proposed = tokio::spawn(async move { replica.propose(vec![2]).await });
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert!(!node.replica.peek(|notebook| notebook.seen.contains(&2)));
        node.gate.open();
        proposed.await.unwrap().unwrap();
        node.stop().await;
    });
}
