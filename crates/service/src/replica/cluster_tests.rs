//! Whole replicas: one node alone, three over wires that can be cut, disks that forget.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proptest::prelude::*;

use super::disk::{RealDisk, SimDisk};
use super::network::{Reply, Request};
use super::testing::{Act, Cluster, Hooked, Notebook, TempFolder, member, quick, write};
use super::*;

/// A hang fails the test instead of holding everybody up; nothing else depends on the time.
fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), test).await.expect("it hangs") });
}

/// A transport for a node that has no peers.
struct Nobody;

impl Transport for Nobody {
    fn call(&self, _: NodeId, _: &Member, _: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

const ALONE: Identity = Identity { cluster: 9, node: 1 };

async fn alone(disk: Arc<dyn Disk>) -> Result<(Replica<Notebook>, Deliveries<Notebook>), OpenError> {
    let opened = Replica::open(disk, ALONE, Arc::new(Nobody), Notebook::default(), quick()).await?;
    opened.0.bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
    Ok(opened)
}

async fn alone_on(disk: &SimDisk) -> Replica<Notebook> {
    let (replica, deliveries) = alone(Arc::new(disk.handle())).await.unwrap();
    drop(deliveries);
    replica
}

#[test]
fn one_node_writes_restarts_and_has_it_all() {
    run(async {
        let folder = TempFolder::new();
        for life in 0..3 {
            let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
            let (replica, deliveries) = alone(disk).await.unwrap();
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
fn what_one_node_acknowledged_survives_power_cuts() {
    run(async {
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            let mut acknowledged = Vec::new();
            for life in 0..3 {
                let replica = alone_on(&disk).await;
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
fn effects_are_heard_in_order_before_the_proposer_is_answered() {
    run(async {
        let (replica, mut deliveries) = alone(Arc::new(SimDisk::new(1).handle())).await.unwrap();
        for number in 0..50 {
            let id = write(&replica, number).await;
            let mut heard = Vec::new();
            while heard.is_empty() {
                // Already there: nothing here waits.
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
fn a_disk_that_fails_stops_the_node_and_it_says_so() {
    run(async {
        let disk = SimDisk::new(1);
        let replica = alone_on(&disk).await;
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
        let replica = alone_on(&SimDisk::new(1)).await;
        let mut failed = std::pin::pin!(replica.failed());
        for number in 0..10 {
            write(&replica, number).await;
            assert!(futures_util::poll!(failed.as_mut()).is_pending());
        }
        replica.inner.raft.shutdown().await.unwrap();
        assert_eq!(failed.await, "consensus has stopped: raft stopped");
        assert_eq!(replica.failed().await, "consensus has stopped: raft stopped", "whoever asks later");
    });
}

#[test]
fn a_command_too_large_is_refused_and_nothing_is_lost() {
    run(async {
        let replica = alone_on(&SimDisk::new(1)).await;
        replica.wait_for(Status::leads).await.unwrap();
        let most = quick().log.entry_bytes_max();
        assert_eq!(replica.propose(vec![1; most + 1]).await, Err(ProposeError::TooLarge));
        replica.propose(vec![2; most - 8]).await.unwrap();
        assert_eq!(replica.read(|notebook| notebook.seen.clone()).await, Ok(vec![2]));
        // Its neighbours are not refused with it.
        let results = replica.propose_all(vec![vec![3], vec![1; most + 1], vec![4]]).await;
        assert!(matches!(results[..], [Ok(_), Err(ProposeError::TooLarge), Ok(_)]), "{results:?}");
        assert_eq!(replica.propose_all(vec![vec![1; most + 1]]).await, [Err(ProposeError::TooLarge)]);
        assert_eq!(replica.read(|notebook| notebook.seen.clone()).await, Ok(vec![2, 3, 4]));
    });
}

#[test]
fn three_nodes_agree_go_on_without_their_leader_and_take_it_back() {
    run(async {
        let mut cluster = Cluster::of(3, quick()).await;
        let mut last = LogId::default();
        for number in 0..100 {
            last = write(&cluster.nodes[&(number % 3 + 1)].replica, number).await;
        }
        assert_eq!(cluster.agreed(last.index).await.seen, (0..100).collect::<Vec<_>>());
        let leader = cluster.leader(&[1, 2, 3]).await;
        let disk = cluster.kill(leader).await;
        let others: Vec<NodeId> = cluster.nodes.keys().copied().collect();
        let next = cluster.leader(&others).await;
        for number in 100..150 {
            last = write(&cluster.nodes[&next].replica, number).await;
        }
        assert!(last.term > 1);
        cluster.start(leader, disk).await;
        assert_eq!(cluster.agreed(last.index).await.seen, (0..150).collect::<Vec<_>>());
        // Every node that lived through it heard every effect, once, in order.
        for node in others {
            let heard = cluster.nodes[&node].heard.clone();
            let numbers = || {
                let heard = heard.lock().unwrap();
                let effects = heard.iter().flat_map(|delivery| match delivery {
                    Delivery::Applied { effects, .. } => effects.clone(),
                    Delivery::Restored { .. } => panic!("no snapshot was due"),
                });
                effects.map(|(number, _)| number).collect::<Vec<u64>>()
            };
            // The state is there when the delivery is on its way, perhaps not yet here.
            while numbers().len() < 150 {
                tokio::task::yield_now().await;
            }
            assert_eq!(numbers(), (0..150).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_power_cut_of_all_nodes_loses_nothing_acknowledged() {
    run(async {
        let mut cluster = Cluster::of(3, quick()).await;
        let mut last = LogId::default();
        for round in 0..3 {
            for number in round * 20..(round + 1) * 20 {
                last = write(&cluster.nodes[&1].replica, number).await;
            }
            let mut disks = Vec::new();
            for node in 1..=3 {
                disks.push((node, cluster.kill(node).await));
            }
            for (node, disk) in disks {
                cluster.start(node, disk).await;
            }
            let seen = cluster.agreed(last.index).await.seen;
            assert_eq!(seen, (0..(round + 1) * 20).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_node_far_behind_gets_a_snapshot_and_its_frontends_hear_of_it() {
    run(async {
        let mut options = quick();
        options.snapshot_every = 50;
        options.keep = 5;
        let mut cluster = Cluster::of(3, options).await;
        write(&cluster.nodes[&1].replica, 0).await;
        let disk = cluster.kill(3).await;
        let leader = cluster.leader(&[1, 2]).await;
        let leader = cluster.nodes[&leader].replica.clone();
        let mut last = LogId::default();
        for number in 1..400 {
            last = write(&leader, number).await;
        }
        leader.wait_for(|status| status.purged.is_some_and(|id| id.index > 300)).await.unwrap();
        cluster.start(3, disk).await;
        assert_eq!(cluster.agreed(last.index).await.seen, (0..400).collect::<Vec<_>>());
        {
            let heard = cluster.nodes[&3].heard.clone();
            let restored =
                |delivery: &Delivery<_>| matches!(delivery, Delivery::Restored { id } if id.index > 300);
            // The state is there when the delivery is on its way, perhaps not yet here.
            while !heard.lock().unwrap().iter().any(restored) {
                tokio::task::yield_now().await;
            }
        }
        // And it stands on that snapshot after a power cut.
        let disk = cluster.kill(3).await;
        cluster.start(3, disk).await;
        last = write(&cluster.nodes[&3].replica, 400).await;
        assert_eq!(cluster.agreed(last.index).await.seen, (0..=400).collect::<Vec<_>>());
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
        // Far fewer than would be kept by their number.
        assert!(last.index < options.keep);
        replica.wait_for(|status| status.purged.is_some_and(|id| id.index > 100)).await.unwrap();
        // The purge is in the log when something behind it is.
        write(&replica, 200).await;
        assert!(replica.inner.log.bytes() <= options.log_bytes_max, "{}", replica.inner.log.bytes());
        assert_eq!(replica.peek(|notebook| notebook.seen.len()), 201);
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

#[test]
fn a_leader_that_lost_its_office_does_not_answer_with_what_was() {
    run(async {
        let cluster = Cluster::of(3, quick()).await;
        let old = cluster.leader(&[1, 2, 3]).await;
        write(&cluster.nodes[&old].replica, 1).await;
        cluster.wires.cut_off(old, true);
        let others: Vec<NodeId> = cluster.nodes.keys().copied().filter(|node| *node != old).collect();
        let new = cluster.leader(&others).await;
        write(&cluster.nodes[&new].replica, 2).await;
        // It may well still believe that it leads.
        let deposed = &cluster.nodes[&old].replica;
        assert_eq!(deposed.read(|notebook| notebook.seen.clone()).await, Err(ReadError::Retry));
        assert_eq!(deposed.peek(|notebook| notebook.seen.clone()), vec![1]);
        cluster.wires.cut_off(old, false);
        deposed.wait_for(|status| status.leader.is_some_and(|leader| leader != old)).await.unwrap();
        loop {
            match deposed.read(|notebook| notebook.seen.clone()).await {
                Ok(seen) => break assert_eq!(seen, vec![1, 2]),
                Err(error) => assert_eq!(error, ReadError::Retry),
            }
        }
    });
}

#[test]
fn a_leader_that_restarts_at_once_does_not_read_what_was_before_its_last_commit() {
    run(async {
        let mut cluster = Cluster::of(3, quick()).await;
        for round in 0..5 {
            let leader = cluster.leader(&[1, 2, 3]).await;
            let written = write(&cluster.nodes[&leader].replica, round).await;
            // Before anybody misses it. What was committed it has on disk; that it was, perhaps not.
            let disk = cluster.kill(leader).await;
            cluster.start(leader, disk).await;
            let back = cluster.nodes[&leader].replica.clone();
            let seen = loop {
                match back.read(|notebook| notebook.seen.clone()).await {
                    Ok(seen) => break seen,
                    Err(error) => assert_eq!(error, ReadError::Retry),
                }
            };
            assert_eq!(seen, (0..=round).collect::<Vec<_>>(), "written as {written:?}");
        }
    });
}

#[test]
fn a_proposal_of_a_leader_cut_off_is_never_reported_as_applied() {
    run(async {
        let cluster = Cluster::of(3, quick()).await;
        let old = cluster.leader(&[1, 2, 3]).await;
        cluster.wires.cut_off(old, true);
        let proposer = cluster.nodes[&old].replica.clone();
        let together = proposer.propose_all(vec![vec![76], vec![78]]);
        let proposed = tokio::spawn(async move { (proposer.propose(vec![77]).await, together.await) });
        let others: Vec<NodeId> = cluster.nodes.keys().copied().filter(|node| *node != old).collect();
        let new = cluster.leader(&others).await;
        let last = write(&cluster.nodes[&new].replica, 2).await;
        cluster.wires.cut_off(old, false);
        let (alone, together) = proposed.await.unwrap();
        assert!(alone.is_err());
        assert!(matches!(together[..], [Err(_), Err(_)]), "{together:?}");
        assert_eq!(cluster.agreed(last.index).await.seen, vec![2]);
    });
}

/// Some before there is a leader, which a task gathers, and some after, which need no task.
#[test]
fn what_is_handed_in_later_is_applied_later() {
    run(async {
        for seed in 0..20 {
            let (replica, deliveries) = alone(Arc::new(SimDisk::new(seed).handle())).await.unwrap();
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

/// The runtime lets a task that has done much find nothing more ready until its next turn.
#[test]
fn who_has_had_his_turn_hands_in_all_the_same() {
    run(async {
        let replica = alone_on(&SimDisk::new(1)).await;
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

#[test]
fn more_at_once_than_may_be_under_way_are_told_to_come_again() {
    run(async {
        let replica = alone_on(&SimDisk::new(1)).await;
        replica.wait_for(Status::leads).await.unwrap();
        let numbers = |from: u64| (from..from + 10_000).map(|number| vec![number]).collect::<Vec<_>>();
        let (first, second) = (replica.propose_all(numbers(0)), replica.propose_all(numbers(10_000)));
        assert!(second.await.iter().all(|result| *result == Err(ProposeError::Retry)));
        assert!(first.await.iter().all(Result::is_ok));
        // Those who were answered have made room.
        assert!(replica.propose_all(numbers(10_000)).await.iter().all(Result::is_ok));
        let seen = replica.read(|notebook| notebook.seen.clone()).await.unwrap();
        assert_eq!(seen, (0..20_000).collect::<Vec<_>>());
    });
}

/// What a follower forwarded just before the leader lost its majority: there is an answer, though it says nothing.
#[test]
fn a_leader_cut_off_answers_its_peers_all_the_same() {
    run(async {
        let options = Options { answer_limit: Duration::from_millis(200), ..quick() };
        let cluster = Cluster::of(3, options).await;
        let old = cluster.leader(&[1, 2, 3]).await;
        cluster.wires.cut_off(old, true);
        let proposal = Proposal::<Notebook>::new(vec![77]).unwrap().data().to_vec();
        for request in [Request::Propose(vec![proposal]), Request::ReadIndex] {
            let bytes = network::seal_request(7, old, &request).unwrap();
            match postcard::from_bytes(&cluster.nodes[&old].replica.answer(&bytes).await).unwrap() {
                Reply::Refused(why) => assert!(why.contains("no answer within 200ms"), "{why}"),
                Reply::ReadIndex(result) => assert_eq!(result, Err(ReadError::Retry)),
                _ => panic!("it had no majority"),
            }
        }
    });
}

#[test]
fn a_node_cut_off_asks_in_vain_and_raises_no_term() {
    run(async {
        let cluster = Cluster::of(3, quick()).await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        let term = cluster.nodes[&leader].replica.status().term;
        let apart = cluster.nodes.keys().copied().find(|node| *node != leader).unwrap();
        cluster.wires.cut_off(apart, true);
        let before = cluster.wires.in_vain.borrow().get(&apart).copied().unwrap_or(0);
        let mut in_vain = cluster.wires.in_vain.subscribe();
        // Two peers, asked in three elections at least.
        in_vain.wait_for(|calls| calls.get(&apart).is_some_and(|calls| *calls >= before + 6)).await.unwrap();
        assert_eq!(cluster.nodes[&apart].replica.status().term, term, "it voted for itself without asking");
        cluster.wires.cut_off(apart, false);
        let last = write(&cluster.nodes[&apart].replica, 5).await;
        assert_eq!(last.term, term, "its return disturbed the leader");
    });
}

#[test]
fn a_leader_hands_its_office_over_before_anybody_misses_it() {
    run(async {
        // Nobody would stand for election by itself.
        let election = (Duration::from_secs(300), Duration::from_secs(400));
        let cluster = Cluster::of(3, Options { election, ..quick() }).await;
        let old = cluster.leader(&[1, 2, 3]).await;
        cluster.nodes[&old].replica.hand_over().await;
        assert!(!cluster.nodes[&old].replica.status().leads());
        let others: Vec<NodeId> = cluster.nodes.keys().copied().filter(|node| *node != old).collect();
        cluster.leader(&others).await;
        write(&cluster.nodes[&old].replica, 1).await;
        // Whoever does not lead has nothing to hand over.
        cluster.nodes[&old].replica.hand_over().await;
    });
}

#[test]
fn a_leader_that_is_alone_goes_on_leading() {
    run(async {
        let replica = alone_on(&SimDisk::new(1)).await;
        replica.wait_for(Status::leads).await.unwrap();
        replica.hand_over().await;
        assert!(replica.status().leads());
    });
}

#[test]
fn a_node_removed_takes_no_part_any_more() {
    run(async {
        let mut cluster = Cluster::of(3, quick()).await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        let gone = cluster.nodes.keys().copied().find(|node| *node != leader).unwrap();
        let stay: BTreeSet<NodeId> = cluster.nodes.keys().copied().filter(|node| *node != gone).collect();
        let replica = cluster.nodes[&leader].replica.clone();
        replica.set_voters(stay.clone()).await.unwrap();
        assert_eq!(replica.status().membership.voters, vec![stay.clone()]);
        assert!(!replica.status().membership.nodes.contains_key(&gone));
        cluster.kill(gone).await;
        write(&replica, 1).await;
        let follower = stay.into_iter().find(|node| *node != leader).unwrap();
        let refused = cluster.nodes[&follower].replica.add_learner(9, member(9)).await;
        assert_eq!(refused, Err(MembershipError::NotLeader(Some(leader))));
    });
}

#[test]
fn a_data_folder_that_lost_its_log_or_its_snapshot_is_refused() {
    run(async {
        let disk = SimDisk::new(1);
        let replica = alone_on(&disk).await;
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
        let refused = alone(Arc::new(without_log.handle())).await.err().unwrap();
        assert!(refused.to_string().contains("forgot its votes"), "{refused}");

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
        // The purge is in the log when something behind it is.
        write(&replica, 200).await;
        replica.shutdown().await;
        disk.handle().remove("snapshot").unwrap();
        let refused = alone(Arc::new(disk.handle())).await.err().unwrap();
        assert!(refused.to_string().contains("no snapshot covers"), "{refused}");
    });
}

#[test]
fn a_message_for_another_node_or_cluster_is_refused() {
    run(async {
        let replica = alone_on(&SimDisk::new(1)).await;
        let ours = |identity: Identity, version: u8| {
            let body = Request::ReadIndex;
            let mut bytes = network::seal_request(identity.cluster, identity.node, &body).unwrap();
            bytes[0] = version;
            bytes
        };
        for (bytes, why) in [
            (ours(Identity { cluster: 8, node: 1 }, 1), "another cluster"),
            (ours(Identity { cluster: 9, node: 2 }, 1), "for node 2"),
            (ours(ALONE, 2), "message format 2"),
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

    /// Whatever a peer sends, there is an answer and the node lives.
    #[test]
    fn no_bytes_from_a_peer_stop_a_node(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 64)) {
        run(async {
            let replica = alone_on(&SimDisk::new(1)).await;
            replica.wait_for(Status::leads).await.unwrap();
            for body in messages {
                // Bare, and where a body is expected.
                replica.answer(&body).await;
                let mut enveloped = network::seal_request(9, 1, &Request::ReadIndex).unwrap();
                enveloped.pop();
                enveloped.extend(body);
                replica.answer(&enveloped).await;
            }
            assert!(replica.status().running);
            write(&replica, 1).await;
        });
    }
}
