//! The cost of a detection, one test per claim. An exact claim must hold exactly, and a bound must never be
//! exceeded.

use alloc::vec;

use conclave_kernel::Prng;

use super::*;

/// The waits of all processes, in the order in which they block. The last one starts the detection that is
/// counted.
struct Waits {
    nodes: u32,
    blocks: Vec<(u32, u32, Vec<u32>)>,
}

/// The part of a graph that can be reached from the process that closes it.
struct Reached {
    /// The number of processes; `leaves` counts those that run.
    nodes: u32,
    leaves: u32,
    edges: u32,
    /// Whether the first process is stuck.
    is_stuck: bool,
}

impl Waits {
    /// Returns random waits of all processes except a few. No process waits for itself.
    fn random(dice: &mut Prng, nodes: u32, need: fn(&mut Prng, u32) -> u32, mutual: bool) -> Self {
        let mut waits = Self { nodes, blocks: Vec::new() };
        let running = dice.below(3) as u32;
        for process in running..nodes {
            let mut of = Vec::new();
            for other in (0..nodes).filter(|other| *other != process) {
                let is_back = waits.blocks.iter().any(|(by, _, of)| *by == other && of.contains(&process));
                if dice.below(3) == 0 && (mutual || !is_back) {
                    of.push(other);
                }
            }
            if !of.is_empty() {
                let need = need(dice, of.len() as u32);
                waits.blocks.push((process, need, of));
            }
        }
        waits
    }

    /// Lets all processes block. Counts only the detection of the last one.
    fn run<D: Detection>(&self) -> ByHand<D> {
        let mut group = ByHand::<D>::new(self.nodes, false);
        for (process, need, of) in &self.blocks {
            group.settle();
            group.sent.clear();
            group.declared.clear();
            group.ask(*process, *need, of);
        }
        group.settle();
        group
    }

    fn reached(&self) -> Reached {
        let wait = |process: u32| self.blocks.iter().find(|(by, ..)| *by == process);
        let (first, ..) = self.blocks.last().expect("at least one process blocks");
        let mut seen = vec![*first];
        let (mut at, mut edges, mut leaves) = (0, 0, 0);
        while let Some(process) = seen.get(at).copied() {
            at += 1;
            let Some((_, _, of)) = wait(process) else {
                leaves += 1;
                continue;
            };
            edges += of.len() as u32;
            for next in of {
                if !seen.contains(next) {
                    seen.push(*next);
                }
            }
        }
        let mut running: Vec<u32> = (0..self.nodes).filter(|process| wait(*process).is_none()).collect();
        loop {
            let proceeds = |(by, need, of): &&(u32, u32, Vec<u32>)| {
                let helps = of.iter().filter(|of| running.contains(of)).count();
                !running.contains(by) && helps >= *need as usize
            };
            let Some((next, ..)) = self.blocks.iter().find(proceeds) else { break };
            running.push(*next);
        }
        Reached { nodes: seen.len() as u32, leaves, edges, is_stuck: !running.contains(first) }
    }
}

fn sent<D: Detection>(group: &ByHand<D>, kind: &str) -> u32 {
    group.sent.get(kind).copied().unwrap_or(0)
}

/// [CMH83 §3]: one probe on every edge that is reached, whatever the graph is.
#[test]
fn edge_chasing_sends_one_probe_an_edge() {
    let mut dice = Prng::new(1);
    for _ in 0..300 {
        let nodes = 2 + dice.below(7) as u32;
        let waits = Waits::random(&mut dice, nodes, |_, all| all, true);
        if waits.blocks.is_empty() {
            continue;
        }
        assert_eq!(waits.run::<EdgeChasing>().messages(), waits.reached().edges, "{:?}", waits.blocks);
    }
}

/// [CMH83 §3]: at most m(n-1)/2 for m processes on n sites (here m = n), if no two processes wait for each
/// other. A tournament needs all of them.
#[test]
fn edge_chasing_sends_at_most_half_of_all_pairs() {
    for n in [2, 3, 5, 8, 13] {
        let closes = n - 1;
        let mut blocks: Vec<_> = (0..closes)
            .map(|process| {
                let of: Vec<u32> = (process + 1..n).filter(|of| (process, *of) != (0, closes)).collect();
                (process, of.len() as u32, of)
            })
            .filter(|(_, need, _)| *need > 0)
            .collect();
        blocks.push((closes, 1, vec![0]));
        let group = Waits { nodes: n, blocks }.run::<EdgeChasing>();
        assert_eq!(group.messages(), n * (n - 1) / 2, "{n}");
        assert_eq!(group.declared, if n == 2 { vec![] } else { vec![closes] });
    }
    let mut dice = Prng::new(2);
    for _ in 0..300 {
        let n = 2 + dice.below(7) as u32;
        let waits = Waits::random(&mut dice, n, |_, all| all, false);
        if !waits.blocks.is_empty() {
            assert!(waits.run::<EdgeChasing>().messages() <= n * (n - 1) / 2, "{:?}", waits.blocks);
        }
    }
}

/// The limit of the m(n-1)/2 of the literature: all processes wait for all others, and each of the n(n-1)
/// edges has its probe.
#[test]
fn edge_chasing_needs_twice_as_many_where_all_wait_for_each_other() {
    let n = 5;
    let all_others = |process| (0..n).filter(|of| *of != process).collect();
    let blocks = (0..n).map(|process| (process, n - 1, all_others(process))).collect();
    assert_eq!(Waits { nodes: n, blocks }.run::<EdgeChasing>().messages(), n * (n - 1));
}

/// [CMH83 §4]: e queries and e replies in case of a deadlock, otherwise no more than that.
#[test]
fn diffusion_sends_a_query_and_a_reply_an_edge() {
    let mut dice = Prng::new(3);
    let mut deadlocks = 0;
    for _ in 0..400 {
        let nodes = 2 + dice.below(7) as u32;
        let waits = Waits::random(&mut dice, nodes, |_, _| 1, true);
        if waits.blocks.is_empty() {
            continue;
        }
        let (group, reached) = (waits.run::<Diffusion>(), waits.reached());
        assert_eq!(sent(&group, "QUERY"), reached.edges, "{:?}", waits.blocks);
        assert!(sent(&group, "REPLY") <= reached.edges, "{:?}", waits.blocks);
        if reached.is_stuck {
            deadlocks += 1;
            assert_eq!(sent(&group, "REPLY"), reached.edges, "{:?}", waits.blocks);
            assert_eq!(group.declared.len(), 1);
        }
    }
    assert!(deadlocks > 50, "{deadlocks}");
}

/// [MM84 §3]: at most s(s-1)/2 labels are transmitted on a cycle of s. All of them are needed if all block at
/// once and labels grow along the waits; s - 1 if one blocks after the other. In addition, a label answers
/// each request, and each process that blocks sends its new label. Exactly one process finds the cycle.
#[test]
fn mitchell_merritt_transmits_at_most_half_of_all_pairs_on_a_cycle() {
    for s in [2, 3, 5, 8] {
        let mut at_once = ByHand::<MitchellMerritt>::new(s, false);
        (0..s).for_each(|site| at_once.ask(site, 1, &[(site + 1) % s]));
        (0..s).for_each(|site| at_once.deliver(site, (site + 1) % s));
        at_once.settle();
        assert_eq!((at_once.messages(), at_once.declared.len()), (2 * s + s * (s - 1) / 2, 1));
        let mut in_turn = ByHand::<MitchellMerritt>::new(s, false);
        in_turn.ring(s);
        assert_eq!((in_turn.messages(), in_turn.declared.len()), (1 + 1 + (s - 1), 1));
    }
    let mut dice = Prng::new(4);
    for _ in 0..300 {
        let s = 2 + dice.below(7) as u32;
        let mut order: Vec<u32> = (0..s).collect();
        (1..s as usize).for_each(|at| order.swap(at, dice.below(at as u64 + 1) as usize));
        let mut group = ByHand::<MitchellMerritt>::new(s, false);
        for site in order {
            group.ask(site, 1, &[(site + 1) % s]);
            for _ in 0..dice.below(2 * u64::from(s)) {
                group.deliver_any(&mut dice);
            }
        }
        while group.deliver_any(&mut dice) {}
        assert!(group.messages() <= 2 * s + s * (s - 1) / 2, "{s}: {}", group.messages());
        assert_eq!(group.declared.len(), 1);
    }
}

/// [KS94 §5]: at most 4e - 2n + 2l messages, with one FLOOD per edge.
#[test]
fn a_flood_costs_no_more_than_its_bound() {
    let mut dice = Prng::new(5);
    let (mut deadlocks, mut tight) = (0, 0);
    for _ in 0..600 {
        let nodes = 2 + dice.below(8) as u32;
        let need = |dice: &mut Prng, all: u32| dice.between(1, u64::from(all)) as u32;
        let waits = Waits::random(&mut dice, nodes, need, true);
        if waits.blocks.is_empty() {
            continue;
        }
        let (group, reached) = (waits.run::<POutOfQ>(), waits.reached());
        let most = 4 * reached.edges + 2 * reached.leaves - 2 * reached.nodes;
        assert!(group.messages() <= most, "{:?}: {:?}, not {most}", waits.blocks, group.sent);
        assert_eq!(sent(&group, "FLOOD"), reached.edges);
        assert_eq!(!group.declared.is_empty(), reached.is_stuck, "{:?}", waits.blocks);
        deadlocks += u32::from(reached.is_stuck);
        tight += u32::from(group.messages() == most);
    }
    assert!(deadlocks > 100 && tight > 10, "{deadlocks} deadlocks, {tight} times as many as allowed");
}

/// [HR82 §3]: a wake-up, and two messages per site and report. The second report is needed only if the first
/// shows a cycle.
#[test]
fn two_reports_cost_two_messages_a_site_each() {
    for n in [2, 3, 5, 8] {
        let mut group = ByHand::<TwoReport>::new(n, false);
        group.ask(n - 1, 1, &[0]);
        group.settle();
        assert_eq!(group.messages(), 1 + 2 * (n - 1));
        let mut group = ByHand::<TwoReport>::new(n, false);
        group.ring(n);
        assert_eq!(group.messages(), 1 + 4 * (n - 1));
    }
}

/// [HR82 §4]: a wake-up, and two messages per site. There are no messages while no waiting process receives a
/// request.
#[test]
fn one_report_costs_two_messages_a_site() {
    for n in [2, 3, 5, 8] {
        let mut group = ByHand::<OneReport>::new(n, false);
        group.ask(n - 1, 1, &[0]);
        group.settle();
        assert_eq!(group.messages(), 0, "0 runs, so no deadlock can have formed");
        let mut group = ByHand::<OneReport>::new(n, false);
        group.ring(n);
        assert_eq!(group.messages(), 2 * (n - 1), "the coordinator receives the request, and wakes itself");
        let mut group = ByHand::<OneReport>::new(n, false);
        group.ask(0, 1, &[1]);
        group.settle();
        group.ask(1, 1, &[0]);
        group.settle();
        group.sent.clear();
        if n > 2 {
            group.ask(2, 1, &[1]);
            group.settle();
            assert_eq!(group.messages(), 1 + 2 * (n - 1), "1 receives the request");
        }
    }
}

/// [HR82 §5]: a cycle within a cluster of c costs its leader 2(c-1) and a wake-up. A cycle between clusters
/// costs the root a wake-up and 2(N-1) more.
#[test]
fn the_hierarchy_costs_little_within_and_a_report_of_all_between() {
    let cost = |ring: [u32; 2]| {
        let mut group = ByHand::<Hierarchical>::new(9, false);
        group.ask(ring[0], 1, &[ring[1]]);
        group.settle();
        assert_eq!(group.messages(), 0, "no waiting process receives a request");
        group.ask(ring[1], 1, &[ring[0]]);
        group.settle();
        assert_eq!(group.declared.len(), 1);
        group.messages()
    };
    let (c, n) = (3, 9);
    assert_eq!(cost([4, 5]), 1 + 2 * (c - 1));
    assert_eq!(cost([3, 5]), 2 * (c - 1), "the leader receives the request, and wakes itself");
    assert_eq!(cost([4, 7]), 1 + 2 * (c - 1) + 1 + 2 * (n - 1));
}

/// [CL85]: a marker on every channel, and a state from every other site.
#[test]
fn a_snapshot_costs_a_marker_a_channel_and_a_state_a_site() {
    for n in [2, 3, 5, 8] {
        let mut group = ByHand::<Stable>::new(n, false);
        group.ring(n);
        assert_eq!((sent(&group, "MARKER"), sent(&group, "STATE")), (n * (n - 1), n - 1));
    }
}

/// [HR82 §2]: one report per wait, and one per grant. Reports of the coordinator to itself do not count.
#[test]
fn the_naive_coordinator_is_told_once_of_each_change() {
    let mut group = ByHand::<Central>::new(4, false);
    group.ask(3, 2, &[1, 2]);
    group.settle();
    group.grant(1, 3);
    group.grant(2, 3);
    group.settle();
    assert_eq!(group.messages(), 3, "BLOCKED, LEFT, RUNS: {:?}", group.sent);
}
