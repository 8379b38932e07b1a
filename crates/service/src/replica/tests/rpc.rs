//! Replicas among peers that are slow or distant, or send invalid requests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use conclave_kernel::Prng;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::super::disk::{Disk, SimDisk};
use super::super::log::Vote;
use super::super::rpc_client::{AppendReply, Ballot, Piece, Reply, Request, WireEntry, seal_request};
use super::super::snapshot::Description;
use super::super::*;
use super::support::{Act, Hooked, NO_ELECTIONS, Notebook, SLOW, SLOW_RESTORE, member, quick, run, write};

const CLUSTER: u128 = 7;

/// Decides the fate of a request with this many bytes.
type Network = Arc<dyn Fn(usize) -> Fate + Send + Sync>;

enum Fate {
    /// The request arrives after this time.
    After(Duration),
    /// The request is not sent.
    Unsent(io::ErrorKind),
}

/// Group in one process, on a network whose behaviour the test defines.
struct Group {
    replicas: Arc<Mutex<BTreeMap<NodeId, Replica<Notebook>>>>,
    network: Network,
    options: Options,
}

struct TestTransport {
    replicas: Arc<Mutex<BTreeMap<NodeId, Replica<Notebook>>>>,
    network: Network,
}

impl Transport for TestTransport {
    fn call(&self, to: NodeId, _: &Member, request: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let (replicas, fate) = (self.replicas.clone(), (self.network)(request.len()));
        Box::pin(async move {
            match fate {
                Fate::After(time) if !time.is_zero() => tokio::time::sleep(time).await,
                Fate::After(_) => {}
                Fate::Unsent(kind) => return Err(kind.into()),
            }
            let replica = replicas.lock().unwrap().get(&to).cloned();
            Ok(replica.ok_or(io::ErrorKind::HostUnreachable)?.answer(&request).await)
        })
    }
}

impl Group {
    fn new(options: Options, network: impl Fn(usize) -> Fate + Send + Sync + 'static) -> Self {
        Self { replicas: Arc::default(), network: Arc::new(network), options }
    }

    async fn open(&self, node: NodeId, disk: Arc<dyn Disk>) -> Replica<Notebook> {
        let transport =
            Arc::new(TestTransport { replicas: self.replicas.clone(), network: self.network.clone() });
        let identity = Identity { cluster: CLUSTER, node };
        let opened = Replica::open(disk, identity, transport, Notebook::default(), self.options.clone());
        let (replica, mut deliveries) = opened.await.unwrap();
        tokio::spawn(async move { while deliveries.recv().await.is_some() {} });
        self.replicas.lock().unwrap().insert(node, replica.clone());
        replica
    }

    /// Opens the first nodes on these disks. The first one leads, and all vote.
    async fn create_cluster(&self, disks: Vec<Arc<dyn Disk>>) -> Vec<Replica<Notebook>> {
        let mut nodes = Vec::new();
        for (node, disk) in (1..).zip(disks) {
            nodes.push(self.open(node, disk).await);
        }
        nodes[0].bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
        nodes[0].wait_for(Status::leads).await.unwrap();
        for node in 2..=nodes.len() as u64 {
            nodes[0].add_learner(node, member(node)).await.unwrap();
        }
        let voters: BTreeSet<NodeId> = (1..=nodes.len() as u64).collect();
        nodes[0].set_voters(voters.clone()).await.unwrap();
        for node in &nodes {
            node.wait_for(|status| status.membership.voters == [voters.clone()]).await.unwrap();
        }
        nodes
    }
}

fn at_once(_: usize) -> Fate {
    Fate::After(Duration::ZERO)
}

fn sim(count: u64) -> Vec<Arc<dyn Disk>> {
    (1..=count).map(|seed| Arc::new(SimDisk::new(seed).handle()) as Arc<dyn Disk>).collect()
}

/// Options with segments that hold long entries.
fn roomy() -> Options {
    Options { log: log::Options { segment_bytes: 8 * 1024 * 1024, ..log::Options::default() }, ..quick() }
}

/// Options as [`roomy`], without elections, so the first leader stays the leader.
fn steady() -> Options {
    Options { election: NO_ELECTIONS, ..roomy() }
}

#[test]
fn disks_that_take_200_ms_to_sync_elect_a_leader() {
    const SYNC: Duration = Duration::from_millis(200);
    run(async {
        let slow = Arc::new(AtomicBool::new(false));
        let disk = |seed: u64| {
            let slow = slow.clone();
            let hook = move |act: Act, _: &str| {
                if act == Act::Sync && slow.load(Ordering::Relaxed) {
                    std::thread::sleep(SYNC);
                }
                Ok(())
            };
            Arc::new(Hooked::new(SimDisk::new(seed).handle(), hook)) as Arc<dyn Disk>
        };
        // The times are those of production.
        let log = quick().log;
        let group = Group::new(Options { log, ..Options::default() }, at_once);
        let nodes = group.create_cluster((1..=3).map(disk).collect()).await;
        slow.store(true, Ordering::Relaxed);
        group.replicas.lock().unwrap().remove(&1);
        nodes[0].shutdown().await;
        let led = nodes[1..].iter().map(|node| Box::pin(node.wait_for(Status::leads)));
        let (led, ..) = futures_util::future::select_all(led).await;
        assert!(led.is_some());
    });
}

#[test]
fn elections_are_held_within_the_times_promised() {
    let config = Options::default().config().unwrap();
    let ms = (config.election_timeout_max + config.election_timeout_min, 2 * config.election_timeout_max);
    assert!(ms.0 >= 800 && ms.1 <= 1400, "{ms:?}");
    assert!(ms.1 - ms.0 >= 300, "too close together, nodes vote for themselves all the time: {ms:?}");
    assert!(config.election_timeout_min >= 350, "for a vote to be made durable");
    assert!(quick().config().is_ok());
}

#[test]
fn a_leader_that_was_alone_gives_signs_of_life_to_whoever_comes() {
    run(async {
        let received = Arc::new(Notify::new());
        let signal = received.clone();
        // Without elections, every request comes from the leader.
        let group = Group::new(steady(), move |bytes| {
            signal.notify_one();
            at_once(bytes)
        });
        let leader = group.create_cluster(sim(1)).await.remove(0);
        write(&leader, 1).await;
        let _follower = group.open(2, Arc::new(SimDisk::new(2).handle())).await;
        leader.add_learner(2, member(2)).await.unwrap();
        for _ in 0..20 {
            received.notified().await;
        }
    });
}

#[test]
fn a_follower_behind_a_slow_link_catches_up() {
    run(async {
        // A megabyte takes a second and a half. A heartbeat takes less than a millisecond.
        let group = Group::new(roomy(), |bytes| Fate::After(Duration::from_nanos(1_500 * bytes as u64)));
        let leader = group.create_cluster(sim(1)).await.remove(0);
        for number in 0..4 {
            // Each entry has 400 KB, because the number takes ten bytes.
            leader.propose(vec![u64::MAX - number; 40_000]).await.unwrap();
        }
        let follower = group.open(2, Arc::new(SimDisk::new(2).handle())).await;
        leader.add_learner(2, member(2)).await.unwrap();
        let last = leader.status().last.unwrap();
        follower.applied(last).await;
        assert_eq!(follower.peek(|notebook| notebook.seen.len()), 4);
    });
}

#[test]
fn a_long_proposal_is_sent_in_several_requests_in_order() {
    /// The limit of one message between nodes. It is smaller than the limit in `peers`.
    const FRAME: usize = 9 * 1024 * 1024;
    run(async {
        let longest = Arc::new(AtomicUsize::new(0));
        let seen = longest.clone();
        let group = Group::new(steady(), move |bytes| {
            seen.fetch_max(bytes, Ordering::Relaxed);
            match bytes > FRAME {
                true => Fate::Unsent(io::ErrorKind::InvalidInput),
                false => at_once(bytes),
            }
        });
        let nodes = group.create_cluster(sim(2)).await;
        let commands = (0..20).map(|number| vec![u64::MAX - number; 100_000]).collect();
        let results = nodes[1].propose_all(commands).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert!(results.is_sorted_by_key(|result| result.unwrap()), "{results:?}");
        assert!(longest.load(Ordering::Relaxed) > 4 * 1024 * 1024, "in few questions");
        let seen = nodes[1].read(|notebook| notebook.seen.clone()).await.unwrap();
        assert_eq!(seen, (0..20).map(|number| u64::MAX - number).collect::<Vec<_>>());
    });
}

#[test]
fn a_proposal_that_was_not_sent_is_reported_as_not_done() {
    run(async {
        for (kind, expected) in [
            (io::ErrorKind::InvalidInput, ProposeError::TooLarge),
            (io::ErrorKind::WouldBlock, ProposeError::Retry),
            (io::ErrorKind::BrokenPipe, ProposeError::Unknown),
        ] {
            // No other request is this long.
            let group = Group::new(steady(), move |bytes| match bytes > 5_000_000 {
                true => Fate::Unsent(kind),
                false => at_once(bytes),
            });
            let nodes = group.create_cluster(sim(2)).await;
            let commands = (0..20).map(|number| vec![u64::MAX - number; 100_000]).collect();
            let results = nodes[1].propose_all(commands).await;
            let (first, rest) = results.split_at(8);
            assert!(first.iter().all(|result| *result == Err(expected)), "{results:?}");
            assert!(rest.iter().all(|result| *result == Err(ProposeError::Retry)), "{results:?}");
        }
    });
}

#[test]
fn a_proposal_without_a_leader_waits_for_the_next_one() {
    run(async {
        let group = Group::new(quick(), at_once);
        let nodes = group.create_cluster(sim(3)).await;
        write(&nodes[0], 1).await;
        group.replicas.lock().unwrap().remove(&1);
        nodes[0].shutdown().await;
        // The other nodes have not noticed. Both send requests that only the former leader could serve.
        assert!(nodes[1..].iter().all(|node| node.status().leader == Some(1)));
        let (proposed, read) =
            tokio::join!(nodes[1].propose_all(vec![vec![2]]), nodes[2].read(|notebook| notebook.seen[0]));
        assert!(matches!(proposed[..], [Ok(_)]), "{proposed:?}");
        assert_eq!(read, Ok(1));
        assert_eq!(nodes[2].read(|notebook| notebook.seen.clone()).await.unwrap(), [1, 2]);
    });
}

#[test]
fn a_leader_that_is_reachable_again_gets_waiting_proposals() {
    run(async {
        // Only three requests as long as this proposal are lost. Heartbeats arrive, so the leader stays the
        // leader.
        let in_vain = Arc::new(AtomicUsize::new(0));
        let tried = in_vain.clone();
        let group = Group::new(steady(), move |bytes| {
            match bytes > 100_000 && tried.fetch_add(1, Ordering::Relaxed) < 3 {
                true => Fate::Unsent(io::ErrorKind::HostUnreachable),
                false => at_once(bytes),
            }
        });
        let nodes = group.create_cluster(sim(2)).await;
        let proposed = nodes[1].propose_all(vec![vec![u64::MAX; 20_000]]).await;
        assert!(matches!(proposed[..], [Ok(_)]), "{proposed:?}");
        assert!(in_vain.load(Ordering::Relaxed) > 3);
        assert!(nodes[0].status().leads());
    });
}

#[test]
fn a_leader_whose_frontends_do_not_listen_refuses_changes_instead_of_waiting_for_ever() {
    run(async {
        let options = Options { deliveries: 1, answer_limit: Duration::from_millis(100), ..quick() };
        let group = Group::new(options.clone(), at_once);
        let transport =
            Arc::new(TestTransport { replicas: group.replicas.clone(), network: group.network.clone() });
        let (identity, disk) = (Identity { cluster: CLUSTER, node: 1 }, Arc::new(SimDisk::new(1).handle()));
        let opened = Replica::open(disk, identity, transport, Notebook::default(), options).await;
        let (leader, mut deliveries) = opened.unwrap();
        leader.bootstrap(BTreeMap::from([(1, member(1))])).await.unwrap();
        leader.wait_for(Status::leads).await.unwrap();
        let is_first =
            |delivery: &Delivery<_>| matches!(delivery, Delivery::Applied { id, .. } if id.index == 1);
        while !deliveries.recv().await.unwrap().iter().any(is_first) {}
        // The queue has one place. The next entry is applied, and its delivery waits.
        leader.propose(vec![1]).await.unwrap();
        let proposed = leader.propose_all(vec![vec![2]]);
        while !leader.peek(|notebook| notebook.seen.contains(&2)) {
            tokio::task::yield_now().await;
        }
        let refused = leader.add_learner(2, member(2)).await;
        assert!(
            matches!(&refused, Err(MembershipError::Refused(why)) if why.contains("try again")),
            "{refused:?}"
        );
        drop(deliveries);
        assert!(matches!(proposed.await[..], [Ok(_)]));
    });
}

/// A follower of a leader, node 2, with three entries from that leader.
struct Follower {
    replica: Replica<Notebook>,
}

const LEADER: Vote = Vote { term: 3, node: 2, committed: true };

impl Follower {
    async fn new() -> Self {
        let group = Group::new(quick(), at_once);
        let replica = group.open(1, Arc::new(SimDisk::new(1).handle())).await;
        let follower = Self { replica };
        let reply = follower.call(&append(LEADER)).await;
        assert!(matches!(reply, Reply::Append(AppendReply::Success)));
        follower
    }

    async fn call(&self, request: &Request) -> Reply {
        self.call_bytes(&seal_request(CLUSTER, 1, request).unwrap()).await
    }

    async fn call_bytes(&self, bytes: &[u8]) -> Reply {
        postcard::from_bytes(&self.replica.answer(bytes).await).unwrap()
    }

    async fn refuses(&self, request: &Request, why: &str) {
        match self.call(request).await {
            Reply::Refused(reason) => assert!(reason.contains(why), "{reason}"),
            _ => panic!("not refused: {why}"),
        }
        assert!(self.is_running().await, "{why}");
    }

    /// Returns whether openraft still replies. A pre-vote changes nothing, and the status does not show a
    /// panic.
    async fn is_running(&self) -> bool {
        let vote = Vote { term: 1, node: 2, committed: false };
        let reply = self.call(&Request::PreVote(Ballot { vote, last: None, transfer: false })).await;
        matches!(reply, Reply::Vote { .. })
    }
}

fn two_voters() -> Membership {
    let nodes = BTreeMap::from([(1, member(1)), (2, member(2))]);
    Membership { voters: vec![BTreeSet::from([1, 2])], nodes }
}

/// Returns entries of term 1. The first is a membership, the others are commands.
fn entries(indices: Range<u64>, numbers: usize) -> Vec<WireEntry> {
    let data = |index: u64| match index {
        0 => postcard::to_extend(&two_voters(), vec![2]).unwrap(),
        _ => Proposal::<Notebook>::new(vec![index; numbers]).unwrap().data().to_vec(),
    };
    let entry = |index| log::Entry { id: id(1, index), membership: index == 0, data: data(index).into() };
    indices.map(|index| entry(index).into()).collect()
}

/// Returns a request that appends the first three entries.
fn append(vote: Vote) -> Request {
    Request::Append { vote, previous: None, committed: Some(id(1, 1)), entries: entries(0..3, 1) }
}

fn snapshot(vote: Vote, last: LogId) -> Request {
    snapshot_of(vec![1, 2, 3, 4], vote, last)
}

fn snapshot_of(seen: Vec<u64>, vote: Vote, last: LogId) -> Request {
    let description =
        Description { last: Some(last), membership_id: Some(id(1, 0)), membership: two_voters() };
    let bytes = Notebook { seen }.snapshot();
    Request::Snapshot(Piece { vote, description, offset: 0, total: bytes.len() as u64, bytes })
}

fn id(term: u64, index: u64) -> LogId {
    LogId { term, index }
}

#[test]
fn invalid_messages_of_a_leader_are_rejected() {
    run(async {
        let follower = Follower::new().await;
        follower.refuses(&snapshot(LEADER, id(LEADER.term + 1, 9)), "no entry is").await;
        let after = |previous, entries| Request::Append { vote: LEADER, previous, committed: None, entries };
        follower.refuses(&after(Some(id(1, 2)), entries(3..4, 10_000)), "is the most").await;
        follower.refuses(&after(Some(id(2, 2)), entries(3..4, 1)), "must follow").await;
        for (vote, why) in [
            (Vote { node: 1, ..LEADER }, "own name"),
            (Vote { node: 1, term: 9, committed: true }, "own name"),
            (Vote { committed: false, term: 9, ..LEADER }, "not elected"),
        ] {
            follower.refuses(&append(vote), why).await;
            follower.refuses(&snapshot(vote, id(1, 9)), why).await;
            follower.refuses(&Request::Transfer { from: vote, to: 1, last: None }, why).await;
        }
        for vote in [LEADER, Vote { node: 1, term: 9, committed: false }] {
            let ballot = || Ballot { vote, last: None, transfer: true };
            follower.refuses(&Request::Vote(ballot()), "a request for a vote").await;
            follower.refuses(&Request::PreVote(ballot()), "a request for a vote").await;
        }
        // Entries 0 and 1 are committed and have term 1.
        follower.replica.wait_for(|status| status.applied >= Some(id(1, 1))).await.unwrap();
        follower.refuses(&after(Some(id(2, 1)), Vec::new()), "committed").await;
        follower.refuses(&snapshot(LEADER, id(2, 1)), "committed").await;
        let other = Request::Append {
            vote: LEADER,
            previous: Some(id(3, 2)),
            committed: Some(id(1, 2)),
            entries: Vec::new(),
        };
        follower.refuses(&other, "not of one log").await;
        assert!(matches!(follower.call(&append(LEADER)).await, Reply::Append(AppendReply::Success)));
        assert!(matches!(
            follower.call(&snapshot(LEADER, id(1, 9))).await,
            Reply::Snapshot { vote: Some(_) }
        ));
    });
}

/// A valid request with some bytes changed gets a reply, and the node continues to run. After a request that
/// was accepted, the test uses a new node, because the next request would contradict it.
#[test]
fn no_request_that_was_changed_on_its_way_stops_a_node() {
    run(async {
        let ballot = || Ballot {
            vote: Vote { term: 4, node: 2, committed: false },
            last: Some(id(1, 2)),
            transfer: true,
        };
        let after = |entries| Request::Append {
            vote: LEADER,
            previous: Some(id(1, 2)),
            committed: Some(id(1, 2)),
            entries,
        };
        let requests = [
            append(LEADER),
            after(entries(3..5, 2)),
            after(Vec::new()),
            snapshot(LEADER, id(1, 6)),
            Request::Vote(ballot()),
            Request::PreVote(ballot()),
            Request::Transfer { from: LEADER, to: 1, last: Some(id(1, 2)) },
        ];
        let head = seal_request(CLUSTER, 1, &Request::ReadIndex).unwrap().len() - 1;
        let mut follower = Follower::new().await;
        let (mut refused, mut believed) = (0, 0);
        for seed in 0..1_000 {
            let mut dice = Prng::stream(seed, 0xbad, 0);
            let mut draw = |below: usize| usize::try_from(dice.below(below as u64)).unwrap();
            let mut request = seal_request(CLUSTER, 1, &requests[draw(requests.len())]).unwrap();
            for _ in 0..=draw(3) {
                let at = head + draw(request.len() - head);
                // Most numbers are small and encoded as one byte.
                request[at] = u8::try_from(draw(130)).unwrap();
            }
            let reply = follower.call_bytes(&request).await;
            assert!(follower.is_running().await, "seed {seed}: stopped by {request:?}");
            if matches!(reply, Reply::Refused(_)) {
                refused += 1;
            } else {
                believed += 1;
                follower.replica.shutdown().await;
                follower = Follower::new().await;
            }
        }
        assert!(refused > 0 && believed > 0, "{refused} {believed}");
    });
}

#[test]
fn others_go_on_while_a_snapshot_is_read() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (identity, disk) = (Identity { cluster: CLUSTER, node: 1 }, Arc::new(SimDisk::new(1).handle()));
        let transport = Arc::new(TestTransport { replicas: Arc::default(), network: Arc::new(at_once) });
        let notebook = Notebook::default();
        let (replica, deliveries) =
            Replica::open(disk, identity, transport, notebook, quick()).await.unwrap();
        drop(deliveries);
        let request = seal_request(CLUSTER, 1, &snapshot_of(vec![SLOW], LEADER, id(1, 9))).unwrap();
        let answered = tokio::spawn(async move { replica.answer(&request).await });
        SLOW_RESTORE.begun().await;
        SLOW_RESTORE.finish();
        let reply = postcard::from_bytes(&answered.await.unwrap()).unwrap();
        assert!(matches!(reply, Reply::Snapshot { vote: Some(_) }));
    });
}

#[test]
fn a_follower_whose_last_batch_has_decayed_gets_it_again_from_the_same_leader() {
    run(async {
        let group = Group::new(quick(), at_once);
        let disk = SimDisk::new(2);
        let mut disks = sim(3);
        disks[1] = Arc::new(disk.handle());
        let nodes = group.create_cluster(disks).await;
        for number in 0..5 {
            write(&nodes[0], number).await;
        }
        let (last, term) = (nodes[0].status().last.unwrap(), nodes[0].status().term);
        nodes[1].applied(last).await;
        group.replicas.lock().unwrap().remove(&2);
        nodes[1].shutdown().await;
        let end = |name: &str| disk.content(name).unwrap().iter().rposition(|byte| *byte != 0).unwrap_or(0);
        // The segments after the last one with records were prepared in advance.
        let names = disk.handle().list().unwrap().into_iter();
        let last_one = names.filter(|name| log::is_segment(name) && end(name) >= 64).max().unwrap();
        disk.flip(&last_one, end(&last_one), 0);
        let decayed = group.open(2, Arc::new(disk.handle())).await;
        assert!(decayed.status().last < Some(last), "nothing has decayed");
        decayed.applied(last).await;
        assert_eq!(decayed.peek(|notebook| notebook.seen.clone()), [0, 1, 2, 3, 4]);
        // The leader that found the damage continues to lead.
        assert_eq!(nodes[0].propose(vec![5]).await.unwrap().term, term);
    });
}
