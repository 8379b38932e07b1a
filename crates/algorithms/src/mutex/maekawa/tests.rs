//! Tests of the requester, and of requester and arbiter together.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use conclave_kernel::{Buffer, Digest, Effect, Env, Input, Prng, Ratio};

use super::*;
use crate::mutex::by_hand::ByHand;

fn group(nodes: u32, quorum: Quorum) -> ByHand<Maekawa> {
    let group = Group { nodes, quorums: quorum.quorums(nodes).unwrap() };
    ByHand::new(nodes, |me| Maekawa::new(me, &group))
}

fn standings(site: &Maekawa) -> Vec<Standing> {
    site.votes.iter().map(|vote| vote.standing).collect()
}

#[test]
fn a_lone_request_costs_three_messages_an_arbiter_but_oneself() {
    for (nodes, quorum) in [(3, 2), (7, 3), (13, 4), (21, 5), (31, 6), (57, 8)] {
        let mut group = group(nodes, Quorum::Plane);
        for site in 0..nodes {
            group.sent = 0;
            group.acquire(site);
            group.settle();
            assert_eq!(group.inside(), [site]);
            group.release(site);
            group.settle();
            assert_eq!(group.sent, 3 * (quorum - 1));
        }
        assert!(group.fences().is_sorted_by(|a, b| a < b));
    }
}

#[test]
fn a_lone_site_talks_to_itself_only() {
    let mut group = group(1, Quorum::Grid);
    for entry in 1..=3 {
        group.acquire(0);
        group.settle();
        assert_eq!(group.inside(), [0]);
        assert_eq!(group.fences().last(), Some(&entry));
        group.release(0);
        group.settle();
    }
    assert_eq!(group.sent, 0);
}

#[test]
fn the_triangle_does_not_deadlock() {
    // [CDK §15.2] V1 = {1,2}, V2 = {2,3}, V3 = {3,1}: each site has its own grant and waits for that of the
    // next.
    let mut group = group(3, Quorum::Plane);
    for site in 0..3 {
        group.acquire(site as u32);
        group.soliloquy(site as u32);
        assert!(
            standings(&group.nodes[site]).contains(&Standing::Granted),
            "each arbiter granted its own site"
        );
    }
    // The arbiter of 0 sends FAILED to 2, which then yields its own grant to 1.
    for expected in [1, 0, 2] {
        group.settle();
        assert_eq!(group.inside(), [expected]);
        group.release(expected);
    }
    group.settle();
    assert_eq!(group.fences(), [1, 2, 3]);
}

#[test]
fn an_inquire_that_crossed_the_release_is_ignored() {
    let mut group = group(3, Quorum::Plane); // 1 requests from {1,2}, 0 from {0,1}: both from arbiter 1
    group.acquire(1);
    group.settle();
    let inquiry =
        Message::Inquire { request: Stamp::new(1, NodeId(1)), round: 0, rival: Stamp::new(1, NodeId(0)) };
    group.release(1);
    group.acquire(1);
    let before = group.nodes.clone();
    group.inject(2, 1, inquiry);
    assert_eq!(group.nodes, before, "it is about the previous request");
}

#[test]
fn an_inquire_that_cannot_be_answered_is_remembered_until_somebody_fails_me() {
    let mut group = group(3, Quorum::All);
    group.acquire(2);
    group.soliloquy(2); // its own arbiter grants it
    group.deliver(2, 1); // and so does that of 1
    group.deliver(1, 2);
    group.acquire(0); // (1, n0) is older than (1, n2), and gets the grant of arbiter 0
    group.soliloquy(0);
    group.deliver(0, 1); // arbiter 1 then sends INQUIRE to 2
    group.deliver(1, 2);
    let mine = Stamp::new(1, NodeId(2));
    let row = group.nodes[2].votes[1];
    assert_eq!((row.standing, row.inquiry), (Standing::Granted, Some(Stamp::new(1, NodeId(0)))));
    group.deliver(2, 0); // arbiter 0 will reply FAILED to 2
    group.deliver(0, 2); // REQUEST of 0: arbiter 2 sends INQUIRE to its own site, which is not stuck yet
    group.soliloquy(2);
    assert_eq!(standings(&group.nodes[2]), [Standing::Asked, Standing::Granted, Standing::Granted]);
    group.deliver(0, 2); // FAILED: now 2 yields both grants
    assert_eq!(standings(&group.nodes[2]), [Standing::Failed, Standing::Yielded, Standing::Yielded]);
    assert!(matches!(group.peek(2, 1), Message::Yield { request, round: 0, .. } if request == mine));
    group.settle();
    assert_eq!(group.inside(), [0]);
    group.release(0);
    group.settle();
    assert_eq!(group.inside(), [2]);
}

#[test]
fn an_inquire_that_overtakes_its_grant_waits_for_it() {
    let mut group = group(3, Quorum::All);
    group.acquire(2);
    group.soliloquy(2);
    group.deliver(2, 1);
    let late = group.take(1, 2); // the GRANT of arbiter 1
    group.acquire(0);
    group.soliloquy(0);
    group.deliver(2, 0);
    group.deliver(0, 2); // REQUEST of 0
    group.soliloquy(2); // INQUIRE of its own arbiter
    group.deliver(0, 2); // FAILED: 2 is stuck, and yields its own grant
    group.deliver(0, 1);
    group.deliver(1, 2); // INQUIRE of arbiter 1, before its GRANT: a YIELD now would return nothing
    assert_eq!(group.nodes[2].votes[1].standing, Standing::Asked);
    group.inject(1, 2, late);
    assert_eq!(group.nodes[2].votes[1].standing, Standing::Yielded);
    group.settle();
    assert_eq!(group.inside(), [0]);
}

#[test]
fn a_grant_of_a_round_that_was_yielded_does_not_count() {
    let mut group = group(3, Quorum::All);
    group.acquire(2);
    group.deliver(2, 1);
    let copy = group.peek(1, 2);
    group.acquire(0);
    group.settle();
    assert_eq!(group.inside(), [0]);
    group.inject(1, 2, copy);
    assert_eq!(group.nodes[2].votes[1].standing, Standing::Yielded);
}

#[test]
fn a_request_that_comes_back_from_the_dead_blocks_nobody() {
    let mut group = group(3, Quorum::Plane);
    group.acquire(0);
    let ghost = group.peek(0, 1);
    group.settle();
    group.release(0);
    group.settle();
    group.inject(0, 1, ghost); // arbiter 1 grants it once more
    group.acquire(1);
    group.settle();
    assert_eq!(group.inside(), [1], "0 returned the grant");
}

#[test]
fn three_contenders_at_one_arbiter_never_deadlock() {
    // [S87] All three sites share all arbiters. With the rule of 1985 some of these orders deadlock.
    for seed in 0..2_000 {
        let mut dice = Prng::new(seed);
        let mut group = group(3, Quorum::All);
        for _ in 0..2 {
            (0..3).for_each(|site| group.acquire(site));
        }
        group.churn(&mut dice);
        assert_eq!(group.fences().len(), 6, "seed {seed}: a site waits for ever");
        assert!(group.fences().is_sorted_by(|a, b| a < b), "seed {seed}");
    }
}

#[test]
fn everybody_is_served_whatever_the_order_and_the_copies() {
    for seed in 0..600 {
        let mut dice = Prng::new(seed);
        let nodes = [2, 3, 4, 5, 7, 13][dice.below(6) as usize];
        let quorum = Quorum::EVERY[dice.below(4) as usize];
        let quorum = if quorum == Quorum::Plane { Quorum::default_for(nodes) } else { quorum };
        let copies = Ratio::percent([0, 20][dice.below(2) as usize]);
        let mut group = group(nodes, quorum);
        for _ in 0..3 {
            (0..nodes).for_each(|site| group.acquire(site));
        }
        group.churn_with_copies(&mut dice, copies);
        let context = alloc::format!("seed {seed}: {nodes} sites, {quorum}");
        assert_eq!(group.fences().len() as u32, 3 * nodes, "{context}: a site waits for ever");
        assert!(group.fences().is_sorted_by(|a, b| a < b), "{context}: {:?}", group.fences());
        assert!(group.nodes.iter().all(|site| site.wanted.is_none()), "{context}");
        assert!(group.nodes.iter().all(|site| site.arbiter.is_free()), "{context}: a grant was lost");
    }
}

#[test]
fn in_no_execution_of_three_sites_is_anybody_stuck() {
    // One entry per site, with messages in every order, also within a link. (The checker covers
    // `Quorum::All`: 18 to 31 messages.)
    assert_eq!(explore(Quorum::Plane), (9, 13));
}

/// Three sites, the messages in flight, the sites that have yet to request, and the site that is inside.
#[derive(Clone, Hash)]
struct Execution {
    sites: Vec<Maekawa>,
    under_way: Vec<(NodeId, NodeId, Message)>,
    unasked: NodeSet,
    inside: Option<NodeId>,
    sent: u64,
    fence: Fence,
}

/// Runs every execution in which each of three sites enters once. Returns the smallest and the largest number
/// of messages.
fn explore(quorum: Quorum) -> (u64, u64) {
    let group = Group { nodes: 3, quorums: quorum.quorums(3).unwrap() };
    let mut stack = alloc::vec![Execution {
        sites: (0..3).map(|site| Maekawa::new(NodeId(site), &group)).collect(),
        under_way: Vec::new(),
        unasked: NodeSet::full(3),
        inside: None,
        sent: 0,
        fence: Fence(0),
    }];
    let mut seen = BTreeSet::new();
    let (mut fewest, mut most) = (u64::MAX, 0);
    while let Some(now) = stack.pop() {
        let mut digest = Digest::new();
        digest.absorb(&now);
        if !seen.insert(digest.value()) {
            continue;
        }
        let before = stack.len();
        for site in now.unasked.iter() {
            let mut next = now.clone();
            next.unasked.remove(site);
            stack.push(next.after(site, Input::Command(Command::Acquire)));
        }
        if let Some(site) = now.inside {
            stack.push(now.clone().after(site, Input::Command(Command::Release)));
        }
        for index in 0..now.under_way.len() {
            let mut next = now.clone();
            let (from, to, message) = next.under_way.remove(index);
            stack.push(next.after(to, Input::Message { from, message }));
        }
        if stack.len() == before {
            assert!(now.sites.iter().all(|site| site.wanted.is_none()), "stuck: {:#?}", now.sites);
            assert!(now.sites.iter().all(|site| site.arbiter.is_free()), "not free: {:#?}", now.sites);
            (fewest, most) = (fewest.min(now.sent), most.max(now.sent));
        }
    }
    (fewest, most)
}

impl Execution {
    fn after(mut self, site: NodeId, input: Input<Maekawa>) -> Self {
        let mut buffer = Buffer::default();
        self.sites[site.index()].step(input, &mut Cx::new(Env::new(site, 3), &mut buffer));
        for effect in buffer.effects {
            match effect {
                Effect::Send { to, message } => {
                    self.sent += u64::from(to != site);
                    self.under_way.push((site, to, message));
                }
                Effect::Emit { event: Event::Granted { fence } } => {
                    assert_eq!(self.inside.replace(site), None, "two are inside");
                    assert!(core::mem::replace(&mut self.fence, fence) < fence, "the fence did not grow");
                }
                Effect::Emit { event: Event::Released } => self.inside = None,
                other => panic!("not expected: {other:?}"),
            }
        }
        self
    }
}
