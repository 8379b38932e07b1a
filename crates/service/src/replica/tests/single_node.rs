//! A single replica: its writes survive a restart, and invalid requests do not harm it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proptest::prelude::*;

use super::super::disk::{RealDisk, SimDisk};
use super::super::rpc_client::{Reply, Request};
use super::super::*;
use super::support::{Act, Hooked, Notebook, TempFolder, member, quick, run, write};

/// A transport for a node that has no peers.
struct Nobody;

impl Transport for Nobody {
    fn call(&self, _: NodeId, _: &Member, _: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

const ALONE: Identity = Identity { cluster: 9, node: 1 };

async fn open_single_node(
    disk: Arc<dyn Disk>,
) -> Result<(Replica<Notebook>, Deliveries<Notebook>), OpenError> {
    let opened = Replica::open(disk, ALONE, Arc::new(Nobody), Notebook::default(), quick()).await?;
    opened.0.bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
    Ok(opened)
}

async fn single_node_on(disk: &SimDisk) -> Replica<Notebook> {
    let (replica, deliveries) = open_single_node(Arc::new(disk.handle())).await.unwrap();
    drop(deliveries);
    replica
}

#[test]
fn one_node_writes_restarts_and_has_it_all() {
    run(async {
        let folder = TempFolder::new();
        for life in 0..3 {
            let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
            let (replica, deliveries) = open_single_node(disk).await.unwrap();
            drop(deliveries);
            for number in life * 100..(life + 1) * 100 {
                write(&replica, number).await;
            }
            let seen = replica.read(|notebook| notebook.seen.clone()).await.unwrap();
            assert_eq!(seen, (0..(life + 1) * 100).collect::<Vec<_>>());
            replica.shutdown().await;
        }
    });
}

#[test]
fn a_read_that_waits_for_an_entry_is_refused_when_the_node_stops() {
    run(async {
        let replica = single_node_on(&SimDisk::new(1)).await;
        let waiting = replica.applied_or_stopped(1_000_000);
        let mut waiting = std::pin::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        replica.shutdown().await;
        assert_eq!(waiting.await, Err(ReadError::Stopped));
    });
}

#[test]
fn acknowledged_commands_of_a_single_node_survive_power_cuts() {
    run(async {
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            let mut acknowledged = Vec::new();
            for life in 0..3 {
                let replica = single_node_on(&disk).await;
                let seen = replica.read(|notebook| notebook.seen.clone()).await;
                let seen = match seen {
                    Ok(seen) => seen,
                    Err(ReadError::Retry) => {
                        replica.wait_for(Status::leads).await.unwrap();
                        replica.read(|notebook| notebook.seen.clone()).await.unwrap()
                    }
                    Err(ReadError::Stopped) => panic!("seed {seed}: stopped"),
                };
                for number in &acknowledged {
                    assert!(seen.contains(number), "seed {seed}: {number} was acknowledged and is gone");
                }
                disk.lose_power_after(10 + seed * 3);
                let mut number = life * 1000;
                while replica.propose(vec![number]).await.is_ok() {
                    acknowledged.push(number);
                    number += 1;
                }
                assert!(!replica.failed().await.is_empty());
                disk.crash();
                replica.shutdown().await;
            }
            assert!(!acknowledged.is_empty());
        }
    });
}

#[test]
fn effects_are_delivered_in_order_before_the_result_of_the_proposal() {
    run(async {
        let (replica, mut deliveries) = open_single_node(Arc::new(SimDisk::new(1).handle())).await.unwrap();
        for number in 0..50 {
            let id = write(&replica, number).await;
            let mut heard = Vec::new();
            while heard.is_empty() {
                // The delivery has arrived already, so this need not wait.
                heard = deliveries.try_recv().unwrap();
                heard.retain(
                    |delivery| !matches!(delivery, Delivery::Applied { effects, .. } if effects.is_empty()),
                );
            }
            let effects = vec![(number, usize::try_from(number).unwrap() + 1)];
            assert_eq!(heard, vec![Delivery::Applied { id, effects }]);
        }
        replica.shutdown().await;
    });
}

#[test]
fn a_failed_disk_stops_the_node_with_an_error() {
    run(async {
        let disk = SimDisk::new(1);
        let replica = single_node_on(&disk).await;
        write(&replica, 1).await;
        disk.fail_syncs_after(0);
        let refused = replica.propose(vec![2]).await.unwrap_err();
        assert!(matches!(refused, ProposeError::Unknown | ProposeError::Stopped), "{refused}");
        let why = replica.failed().await;
        assert!(why.contains("stopped"), "{why}");
        replica.wait_for(|status| !status.running).await;
        assert_eq!(replica.propose(vec![3]).await, Err(ProposeError::Stopped));
        assert_eq!(replica.read(|_| ()).await, Err(ReadError::Stopped));
    });
}

#[test]
fn consensus_that_stops_is_a_failure_and_an_entry_is_none() {
    run(async {
        let replica = single_node_on(&SimDisk::new(1)).await;
        let mut failed = std::pin::pin!(replica.failed());
        for number in 0..10 {
            write(&replica, number).await;
            assert!(futures_util::poll!(failed.as_mut()).is_pending());
        }
        replica.inner.raft.shutdown().await.unwrap();
        assert_eq!(failed.await, "consensus has stopped: raft stopped");
        assert_eq!(
            replica.failed().await,
            "consensus has stopped: raft stopped",
            "a later caller gets the same reason"
        );
    });
}

#[test]
fn a_command_too_large_is_refused_and_nothing_is_lost() {
    run(async {
        let replica = single_node_on(&SimDisk::new(1)).await;
        replica.wait_for(Status::leads).await.unwrap();
        let most = quick().log.entry_bytes_max();
        assert_eq!(replica.propose(vec![1; most + 1]).await, Err(ProposeError::TooLarge));
        replica.propose(vec![2; most - 8]).await.unwrap();
        assert_eq!(replica.read(|notebook| notebook.seen.clone()).await, Ok(vec![2]));
        // The commands beside it are accepted.
        let results = replica.propose_all(vec![vec![3], vec![1; most + 1], vec![4]]).await;
        assert!(matches!(results[..], [Ok(_), Err(ProposeError::TooLarge), Ok(_)]), "{results:?}");
        assert_eq!(replica.propose_all(vec![vec![1; most + 1]]).await, [Err(ProposeError::TooLarge)]);
        assert_eq!(replica.read(|notebook| notebook.seen.clone()).await, Ok(vec![2, 3, 4]));
    });
}

#[test]
fn a_log_of_few_but_large_entries_is_bounded_by_its_bytes() {
    run(async {
        let options = Options { log_bytes_max: 8 * quick().log.segment_bytes, ..quick() };
        let disk = Arc::new(SimDisk::new(1).handle());
        let opened = Replica::open(disk, ALONE, Arc::new(Nobody), Notebook::default(), options.clone());
        let (replica, deliveries) = opened.await.unwrap();
        drop(deliveries);
        replica.bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
        replica.wait_for(Status::leads).await.unwrap();
        let mut last = LogId::default();
        for number in 0..200 {
            last = replica.propose(vec![u64::MAX - number; 300]).await.unwrap();
        }
        // Far fewer entries than the option `keep` allows.
        assert!(last.index < options.keep);
        replica.wait_for(|status| status.purged.is_some_and(|id| id.index > 100)).await.unwrap();
        // The log may have grown since the last check; then it is cut once more. A purge is written with the
        // next entry.
        let mut written = 200;
        loop {
            let purged = replica.status().purged;
            write(&replica, written).await;
            written += 1;
            if replica.inner.log.bytes() <= options.log_bytes_max {
                break;
            }
            replica.wait_for(|status| status.purged > purged).await.unwrap();
        }
        assert_eq!(replica.peek(|notebook| notebook.seen.len() as u64), written);
    });
}

#[test]
fn a_disk_with_no_room_for_a_snapshot_does_not_stop_the_node() {
    run(async {
        let refused = Arc::new(AtomicUsize::new(0));
        let disk = Hooked::new(SimDisk::new(1).handle(), {
            let refused = refused.clone();
            move |act, name| {
                if act == Act::Write && name == "snapshot.draft" {
                    refused.fetch_add(1, Ordering::SeqCst);
                    return Err(io::ErrorKind::StorageFull.into());
                }
                Ok(())
            }
        });
        let options = Options { snapshot_every: 30, ..quick() };
        let opened = Replica::open(Arc::new(disk), ALONE, Arc::new(Nobody), Notebook::default(), options);
        let (replica, deliveries) = opened.await.unwrap();
        drop(deliveries);
        replica.bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
        replica.wait_for(Status::leads).await.unwrap();
        for number in 0..300 {
            write(&replica, number).await;
        }
        assert_eq!(refused.load(Ordering::SeqCst), 1, "once, and not again for a while");
        assert!(replica.status().running && replica.status().snapshot.is_none());
    });
}

/// The first half is proposed before there is a leader and waits for one. The second half is proposed to the
/// leader.
#[test]
fn proposals_are_applied_in_their_order() {
    run(async {
        for seed in 0..20 {
            let (replica, deliveries) =
                open_single_node(Arc::new(SimDisk::new(seed).handle())).await.unwrap();
            drop(deliveries);
            let early = (0..50).map(|number| replica.propose_all(vec![vec![number]]));
            let early: Vec<_> = early.collect();
            replica.wait_for(Status::leads).await.unwrap();
            let late = (50..100).map(|number| replica.propose_all(vec![vec![number]]));
            let late: Vec<_> = late.collect();
            for results in futures_util::future::join_all(early.into_iter().chain(late)).await {
                assert!(matches!(results[..], [Ok(_)]), "seed {seed}: {results:?}");
            }
            let seen = replica.read(|notebook| notebook.seen.clone()).await.unwrap();
            assert_eq!(seen, (0..100).collect::<Vec<_>>(), "seed {seed}");
            replica.shutdown().await;
        }
    });
}

/// After a task has done much work, the tokio runtime reports nothing as ready until the task's next turn.
#[test]
fn a_task_that_has_used_its_turn_still_proposes() {
    run(async {
        let replica = single_node_on(&SimDisk::new(1)).await;
        replica.wait_for(Status::leads).await.unwrap();
        let proposer = replica.clone();
        let proposed = tokio::spawn(async move {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            (0..1000).for_each(|number| sender.send(number).unwrap());
            let taken = std::iter::from_fn(|| receiver.recv().now_or_never()).count();
            assert!(taken < 1000, "the turn is over");
            proposer.propose_all(vec![vec![1]]).await
        });
        assert!(matches!(proposed.await.unwrap()[..], [Ok(_)]));
    });
}

/// The node bounds the commands in flight; the replica accepts all it gets.
#[test]
fn many_at_once_are_all_applied_in_their_order() {
    run(async {
        let replica = single_node_on(&SimDisk::new(1)).await;
        replica.wait_for(Status::leads).await.unwrap();
        let numbers = |from: u64| (from..from + 10_000).map(|number| vec![number]).collect::<Vec<_>>();
        let (first, second) = (replica.propose_all(numbers(0)), replica.propose_all(numbers(10_000)));
        assert!(second.await.iter().chain(&first.await).all(Result::is_ok));
        let seen = replica.read(|notebook| notebook.seen.clone()).await.unwrap();
        assert_eq!(seen, (0..20_000).collect::<Vec<_>>());
    });
}

#[test]
fn a_leader_that_is_alone_goes_on_leading() {
    run(async {
        let replica = single_node_on(&SimDisk::new(1)).await;
        replica.wait_for(Status::leads).await.unwrap();
        replica.transfer_leadership().await;
        assert!(replica.status().leads());
    });
}

#[test]
fn a_data_folder_that_lost_its_log_or_its_snapshot_is_refused() {
    run(async {
        let disk = SimDisk::new(1);
        let replica = single_node_on(&disk).await;
        for number in 0..20 {
            write(&replica, number).await;
        }
        replica.snapshot().await.unwrap();
        replica.wait_for(|status| status.snapshot.is_some()).await.unwrap();
        replica.shutdown().await;
        let without_log = disk.copy(2);
        for name in without_log.handle().list().unwrap().iter().filter(|name| name.ends_with(".log")) {
            without_log.handle().remove(name).unwrap();
        }
        let refused = open_single_node(Arc::new(without_log.handle())).await.err().unwrap();
        assert!(refused.to_string().contains("no log"), "{refused}");

        let mut options = quick();
        options.snapshot_every = 30;
        options.keep = 0;
        let opened =
            Replica::open(Arc::new(disk.handle()), ALONE, Arc::new(Nobody), Notebook::default(), options);
        let (replica, deliveries) = opened.await.unwrap();
        drop(deliveries);
        replica.wait_for(Status::leads).await.unwrap();
        for number in 20..200 {
            write(&replica, number).await;
        }
        replica.wait_for(|status| status.purged.is_some()).await.unwrap();
        // The purge is written with the next entry.
        write(&replica, 200).await;
        replica.shutdown().await;
        disk.handle().remove("snapshot").unwrap();
        let refused = open_single_node(Arc::new(disk.handle())).await.err().unwrap();
        assert!(refused.to_string().contains("no snapshot covers"), "{refused}");
    });
}

/// At its start, a node checks at once whether it has entries or must found a cluster.
#[test]
fn a_node_that_has_only_a_snapshot_knows_it_as_soon_as_it_is_open() {
    run(async {
        for seed in 0..20 {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(seed).handle());
            let before = Notebook { seen: vec![7] };
            let identity = restore(&disk, "here", &before.snapshot()).unwrap();
            let opened = Replica::open(disk, identity, Arc::new(Nobody), Notebook::default(), quick());
            let (replica, deliveries) = opened.await.unwrap();
            drop(deliveries);
            assert!(replica.status().last >= Some(restore::BEGINNING.index), "seed {seed}");
            replica.wait_for(Status::leads).await.unwrap();
            assert_eq!(replica.read(|notebook| notebook.seen.clone()).await, Ok(vec![7]), "seed {seed}");
            replica.shutdown().await;
        }
    });
}

#[test]
fn a_message_for_another_node_or_cluster_is_refused() {
    run(async {
        let replica = single_node_on(&SimDisk::new(1)).await;
        let ours = |identity: Identity, version: u8| {
            let body = Request::ReadIndex;
            let mut bytes = rpc_client::seal_request(identity.cluster, identity.node, &body).unwrap();
            bytes[0] = version;
            bytes
        };
        for (bytes, why) in [
            (ours(Identity { cluster: 8, node: 1 }, 1), "another cluster"),
            (ours(Identity { cluster: 9, node: 2 }, 1), "for node 2"),
            (ours(ALONE, 2), "has format 2"),
            (Vec::new(), "empty"),
        ] {
            match postcard::from_bytes(&replica.answer(&bytes).await).unwrap() {
                Reply::Refused(reason) => assert!(reason.contains(why), "{reason}"),
                _ => panic!("answered what should be refused: {why}"),
            }
        }
        replica.wait_for(Status::leads).await.unwrap();
        let answer = replica.answer(&ours(ALONE, 1)).await;
        assert!(matches!(postcard::from_bytes(&answer).unwrap(), Reply::ReadIndex(Ok(_))));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Any bytes from a peer get a reply, and the node continues to run.
    #[test]
    fn no_bytes_from_a_peer_stop_a_node(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 64)) {
        run(async {
            let replica = single_node_on(&SimDisk::new(1)).await;
            replica.wait_for(Status::leads).await.unwrap();
            for body in messages {
                // Send the bytes alone, and as the body of an envelope.
                replica.answer(&body).await;
                let mut enveloped = rpc_client::seal_request(9, 1, &Request::ReadIndex).unwrap();
                enveloped.pop();
                enveloped.extend(body);
                replica.answer(&enveloped).await;
            }
            assert!(replica.status().running);
            write(&replica, 1).await;
        });
    }
}
