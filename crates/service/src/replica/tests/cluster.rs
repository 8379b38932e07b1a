//! Three replicas on a simulated network that can be cut, with disks that lose unsynced data.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::rpc_client::{Reply, Request};
use super::super::*;
use super::support::{Cluster, NO_ELECTIONS, Notebook, member, quick, run, write};

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
        // Every node that ran all the time delivered every effect once, in order.
        for node in others {
            let heard = cluster.nodes[&node].heard.clone();
            let numbers = || {
                let heard = heard.lock().unwrap();
                let effects = heard.iter().flat_map(|delivery| match delivery {
                    Delivery::Applied { effects, .. } => effects.clone(),
                    Delivery::Early { .. } => panic!("nobody is alone"),
                    Delivery::Restored { .. } => panic!("no snapshot was due"),
                });
                effects.map(|(number, _)| number).collect::<Vec<u64>>()
            };
            // The state changes before the delivery arrives, so wait for the delivery.
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
fn a_node_far_behind_gets_a_snapshot_and_delivers_it() {
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
            // The state changes before the delivery arrives, so wait for the delivery.
            while !heard.lock().unwrap().iter().any(restored) {
                tokio::task::yield_now().await;
            }
        }
        // The node recovers from that snapshot after a power failure.
        let disk = cluster.kill(3).await;
        cluster.start(3, disk).await;
        last = write(&cluster.nodes[&3].replica, 400).await;
        assert_eq!(cluster.agreed(last.index).await.seen, (0..=400).collect::<Vec<_>>());
    });
}

#[test]
fn a_deposed_leader_does_not_serve_old_reads() {
    run(async {
        let cluster = Cluster::of(3, quick()).await;
        let old = cluster.leader(&[1, 2, 3]).await;
        write(&cluster.nodes[&old].replica, 1).await;
        cluster.wires.cut_off(old, true);
        let others: Vec<NodeId> = cluster.nodes.keys().copied().filter(|node| *node != old).collect();
        let new = cluster.leader(&others).await;
        write(&cluster.nodes[&new].replica, 2).await;
        // The deposed leader may still believe that it leads.
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
fn a_restarted_leader_does_not_read_before_its_last_commit() {
    run(async {
        let mut cluster = Cluster::of(3, quick()).await;
        for round in 0..5 {
            let leader = cluster.leader(&[1, 2, 3]).await;
            let written = write(&cluster.nodes[&leader].replica, round).await;
            // Restart it before an election. It has the committed entries on disk, but perhaps not the commit
            // index.
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

/// A follower may forward requests just before the leader loses its majority. They get a reply, though it
/// leaves the outcome unknown.
#[test]
fn a_leader_cut_off_answers_its_peers_all_the_same() {
    run(async {
        let options = Options { answer_limit: Duration::from_millis(200), ..quick() };
        let cluster = Cluster::of(3, options).await;
        let old = cluster.leader(&[1, 2, 3]).await;
        cluster.wires.cut_off(old, true);
        let proposal = Proposal::<Notebook>::new(vec![77]).unwrap().data().to_vec();
        for request in [Request::Propose(vec![proposal]), Request::ReadIndex] {
            let bytes = rpc_client::seal_request(7, old, &request).unwrap();
            match postcard::from_bytes(&cluster.nodes[&old].replica.answer(&bytes).await).unwrap() {
                Reply::Refused(why) => assert!(why.contains("no answer within 200ms"), "{why}"),
                Reply::ReadIndex(result) => assert_eq!(result, Err(ReadError::Retry)),
                _ => panic!("it had no majority"),
            }
        }
    });
}

#[test]
fn an_isolated_node_does_not_raise_the_term() {
    run(async {
        let cluster = Cluster::of(3, quick()).await;
        let leader = cluster.leader(&[1, 2, 3]).await;
        let term = cluster.nodes[&leader].replica.status().term;
        let apart = cluster.nodes.keys().copied().find(|node| *node != leader).unwrap();
        cluster.wires.cut_off(apart, true);
        let before = cluster.wires.in_vain.borrow().get(&apart).copied().unwrap_or(0);
        let mut in_vain = cluster.wires.in_vain.subscribe();
        // The node has called its two peers in at least three elections.
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
        let cluster = Cluster::of(3, Options { election: NO_ELECTIONS, ..quick() }).await;
        let old = cluster.leader(&[1, 2, 3]).await;
        cluster.nodes[&old].replica.transfer_leadership().await;
        assert!(!cluster.nodes[&old].replica.status().leads());
        let others: Vec<NodeId> = cluster.nodes.keys().copied().filter(|node| *node != old).collect();
        cluster.leader(&others).await;
        write(&cluster.nodes[&old].replica, 1).await;
        // A node that does not lead has no leadership to transfer.
        cluster.nodes[&old].replica.transfer_leadership().await;
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
