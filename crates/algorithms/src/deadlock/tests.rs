//! Detectors tested with hand-made schedules: the message counts of the papers ([`counts`]), and the traps
//! one by one.

mod counts;
mod walks;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use conclave_kernel::{Buffer, Cx, Effect, Env, Input, NodeId, NodeSet, Prng, Protocol};

use super::site::{Message, Part};
use super::spec::{Breach, Judge};
use super::*;

/// Sites, their FIFO links, and the history so far.
struct ByHand<D: Detection> {
    sites: Vec<Site<D>>,
    links: BTreeMap<(u32, u32), VecDeque<Message<D>>>,
    /// The number of detector messages of each type.
    sent: BTreeMap<&'static str, u32>,
    declared: Vec<u32>,
    aborted: Vec<u32>,
    judge: Judge,
    breaches: Vec<Breach>,
}

fn set(ids: &[u32]) -> NodeSet {
    ids.iter().copied().map(NodeId).collect()
}

impl<D: Detection> ByHand<D> {
    fn new(nodes: u32, resolves: bool) -> Self {
        let group = Group::new(nodes, resolves);
        Self {
            sites: (0..nodes).map(|id| Site::new(NodeId(id), &group)).collect(),
            links: BTreeMap::new(),
            sent: BTreeMap::new(),
            declared: Vec::new(),
            aborted: Vec::new(),
            judge: Judge::new(nodes),
            breaches: Vec::new(),
        }
    }

    fn ask(&mut self, site: u32, need: u32, of: &[u32]) {
        self.step(site, Input::Command(Command::Ask { need, of: set(of) }));
    }

    fn grant(&mut self, site: u32, to: u32) {
        self.step(site, Input::Command(Command::Grant(NodeId(to))));
    }

    fn withdraw(&mut self, site: u32) {
        self.step(site, Input::Command(Command::Withdraw));
    }

    fn step(&mut self, site: u32, input: Input<Site<D>>) {
        let me = NodeId(site);
        match &input {
            Input::Command(Command::Ask { need, of }) => {
                self.judge.asks(me, *need, of.clone());
            }
            Input::Command(Command::Grant(to)) => {
                let number = self.sites[site as usize].process().pending().get(*to);
                self.judge.grants(me, *to, number.expect("only a received request is granted"));
            }
            _ => {}
        }
        let env = Env::new(me, self.sites.len() as u32);
        let mut buffer = Buffer::default();
        self.sites[site as usize].step(input, &mut Cx::new(env, &mut buffer));
        for effect in buffer.effects {
            match effect {
                Effect::Send { to, message } => {
                    let (kind, part) = Site::<D>::kind(&message);
                    if part == Part::Detection {
                        *self.sent.entry(kind).or_default() += 1;
                    }
                    self.links.entry((site, to.0)).or_default().push_back(message);
                }
                Effect::Emit { event: Event::Declared { process, number } } => {
                    self.declared.push(process.0);
                    self.breaches.extend(self.judge.declares(process, number));
                }
                Effect::Emit { event: Event::Aborted { .. } } => {
                    self.aborted.push(site);
                    self.breaches.extend(self.judge.aborts(me));
                }
                Effect::Emit { event: Event::Proceeds { .. } } => self.judge.runs(me),
                Effect::Emit { event: Event::Refused } => panic!("{site} received an impossible command"),
                Effect::Emit { .. } => {}
                other => panic!("not expected by hand: {other:?}"),
            }
        }
    }

    /// Delivers the oldest message of a link.
    fn deliver(&mut self, from: u32, to: u32) {
        let link = self.links.get_mut(&(from, to)).expect("something was sent on this link");
        let message = link.pop_front().expect("something is under way on this link");
        self.step(to, Input::Message { from: NodeId(from), message });
    }

    /// Delivers until no message is in transit.
    fn settle(&mut self) {
        while let Some((&(from, to), _)) = self.links.iter().find(|(_, link)| !link.is_empty()) {
            self.deliver(from, to);
        }
    }

    /// Delivers the oldest message of a random link. Returns false if no message is in transit.
    fn deliver_any(&mut self, dice: &mut Prng) -> bool {
        let busy: Vec<_> =
            self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(link, _)| *link).collect();
        let Some(&(from, to)) = busy.get(dice.below(busy.len().max(1) as u64) as usize) else { return false };
        self.deliver(from, to);
        true
    }

    /// Builds a ring: each process waits for the next one, and the last one closes the cycle. Counts only the
    /// messages of the last detection.
    fn ring(&mut self, nodes: u32) {
        for site in 0..nodes - 1 {
            self.ask(site, 1, &[site + 1]);
            self.settle();
        }
        assert_eq!(self.declared, [0; 0], "no cycle yet");
        self.sent.clear();
        self.ask(nodes - 1, 1, &[0]);
        self.settle();
    }

    fn messages(&self) -> u32 {
        self.sent.values().sum()
    }
}

/// Every algorithm finds a ring of any size and chooses one victim. The victim is informed.
#[test]
fn a_ring_is_found_once_and_has_one_victim() {
    fn finds_a_ring<D: Detection>() {
        for nodes in [2, 3, 5, 8] {
            let mut found = ByHand::<D>::new(nodes, false);
            found.ring(nodes);
            assert_eq!(found.declared.len(), 1, "{}: {:?}", D::CARD.name, found.declared);
            let mut resolved = ByHand::<D>::new(nodes, true);
            resolved.ring(nodes);
            assert_eq!(resolved.aborted.len(), 1, "{}", D::CARD.name);
            assert_eq!(resolved.aborted, resolved.declared);
            let victim = resolved.aborted[0];
            assert!(resolved.sites[victim as usize].process().wait().is_none(), "the victim knows, and runs");
            let remembers = |site: &Site<D>| site.process().pending().get(NodeId(victim)).is_some();
            assert!(!resolved.sites.iter().any(remembers), "its edge is removed at once");
        }
    }
    finds_a_ring::<Central>();
    finds_a_ring::<TwoReport>();
    finds_a_ring::<OneReport>();
    finds_a_ring::<MitchellMerritt>();
    finds_a_ring::<EdgeChasing>();
    finds_a_ring::<Diffusion>();
    finds_a_ring::<POutOfQ>();
    finds_a_ring::<Hierarchical>();
    finds_a_ring::<Stable>();
}

#[test]
fn to_wait_for_oneself_is_found_without_a_message() {
    fn alone<D: Detection>(nodes: u32, most: u32) {
        let mut group = ByHand::<D>::new(nodes, true);
        group.ask(1, 1, &[1]);
        group.settle();
        assert_eq!((&group.declared[..], &group.aborted[..]), (&[1][..], &[1][..]), "{}", D::CARD.name);
        assert!(group.messages() <= most, "{}", D::CARD.name);
    }
    alone::<EdgeChasing>(3, 0);
    alone::<Diffusion>(3, 0);
    alone::<POutOfQ>(3, 0);
    alone::<MitchellMerritt>(3, 0);
    alone::<OneReport>(3, 5);
    alone::<Hierarchical>(3, 5);
    alone::<Stable>(3, 8);
}

/// Builds the golden graph of the theory. P11 P21 P24 P32 P33 P44 P54 are 0 to 6, and P54 closes the cycle.
fn golden<D: Detection>(model: fn(usize) -> u32) -> ByHand<D> {
    let mut group = ByHand::<D>::new(7, false);
    let edges: [(u32, &[u32]); 6] = [(0, &[1, 3]), (3, &[4]), (1, &[2]), (2, &[6]), (5, &[2]), (6, &[0])];
    for (site, of) in edges {
        group.ask(site, model(of.len()), of);
        group.settle();
    }
    group
}

#[test]
fn golden_and_only_who_closes_the_cycle_declares() {
    assert_eq!(golden::<EdgeChasing>(|all| all as u32).declared, [6]);
    assert_eq!(golden::<POutOfQ>(|all| all as u32).declared, [6]);
    assert_eq!(golden::<Stable>(|all| all as u32).declared, [6]);
    assert_eq!(golden::<OneReport>(|all| all as u32).declared.len(), 1);
    assert_eq!(golden::<Hierarchical>(|all| all as u32).declared.len(), 1);
}

#[test]
fn golden_or_the_knot_is_found_when_the_way_out_closes() {
    fn knot<D: Detection>() {
        let mut group = golden::<D>(|_| 1);
        assert_eq!(group.declared, [0; 0], "{}: P33 can finish", D::CARD.name);
        group.ask(4, 1, &[2]);
        group.settle();
        assert_eq!(group.declared.len(), 1, "{}", D::CARD.name);
        assert_ne!(group.declared, [5], "P44 is stuck outside the knot");
    }
    knot::<Diffusion>();
    knot::<POutOfQ>();
    knot::<Stable>();
    knot::<OneReport>();
    knot::<Hierarchical>();
}

/// [HR82 §2]: the report of q's wait arrives before the report that p's wait has ended.
#[test]
fn the_naive_coordinator_sees_a_cycle_that_never_was() {
    let mut group = ByHand::<Central>::new(3, false);
    group.ask(1, 1, &[2]);
    group.settle();
    group.grant(2, 1);
    group.deliver(2, 1); // 1 runs; its report of this is in transit to 0
    group.ask(2, 1, &[1]);
    group.deliver(2, 0);
    assert_eq!(group.declared, [2], "a phantom: 1 runs");
    let mut group = ByHand::<OneReport>::new(3, false);
    group.ask(1, 1, &[2]);
    group.settle();
    group.grant(2, 1);
    group.deliver(2, 1);
    group.ask(2, 1, &[1]);
    group.settle();
    assert_eq!(group.declared, [0; 0], "both ends of 1 -> 2 are gone");
}

/// A probe passes an edge that was granted. The edge no longer exists, although its waiter still waits.
#[test]
fn a_probe_from_whom_was_granted_means_nothing() {
    let mut group = ByHand::<EdgeChasing>::new(2, false);
    group.ask(0, 1, &[1]);
    group.deliver(0, 1); // the request; the probe is still in transit
    group.grant(1, 0);
    group.ask(1, 1, &[0]); // 1 is blocked when the probe arrives
    group.deliver(0, 1);
    assert_eq!(group.sent["PROBE"], 2, "the probe of 0 stops here");
    group.settle();
    assert_eq!(group.declared, [0; 0]);
}

/// [CMH83 §3]: 0 waits for 1 and 2. Its probe passes 2 while 2 waits for 1, which runs. Then 1 grants 2 and
/// waits for it, and 2 closes the cycle. The probe of 0 comes to 2 again, by way of 1. It passed 2 in an
/// earlier wait, and this must not stop it.
#[test]
fn a_probe_that_passed_in_an_earlier_wait_passes_again() {
    let mut group = ByHand::<EdgeChasing>::new(3, false);
    group.ask(2, 1, &[1]);
    group.settle();
    group.ask(0, 2, &[1, 2]);
    group.deliver(0, 2);
    group.deliver(0, 2); // the probe, on the direct way
    group.deliver(2, 1); // 1 runs
    group.deliver(0, 1); // the request; the other probe is still in transit
    group.grant(1, 2);
    group.deliver(1, 2);
    group.ask(1, 1, &[2]);
    group.deliver(1, 2);
    group.ask(2, 1, &[0]);
    group.deliver(0, 1); // the other probe
    group.deliver(1, 2); // the probe of 1
    let before = group.messages();
    group.deliver(1, 2); // the probe of 0, again
    assert_eq!(group.messages(), before + 1, "it goes on to 0");
    (0..4).for_each(|_| group.deliver(2, 0)); // the request, the probes of 2, 1 and 0
    assert_eq!(group.declared, [0], "before the probe of 2, which closed the cycle, returns");
    group.settle();
    assert!(group.declared.contains(&2), "{:?}", group.declared);
    assert_eq!(group.breaches, []);
}

/// [MM84 §2]: 1 withdraws its request while its label is on the way back to it. 1 must ignore the label, and
/// also in its next wait.
#[test]
fn a_label_that_comes_home_after_the_wait_declares_nobody() {
    for asks_again in [false, true] {
        let mut group = ByHand::<MitchellMerritt>::new(3, false);
        group.ask(0, 1, &[1]);
        group.settle();
        group.ask(1, 1, &[0]);
        group.deliver(1, 0);
        group.deliver(0, 1); // the label of 0; that of 1 is larger
        group.deliver(1, 0); // 0 takes it over
        group.withdraw(1);
        if asks_again {
            group.ask(1, 1, &[2]);
        }
        group.deliver(0, 1); // the label returns to 1
        assert_eq!(group.declared, [0; 0]);
        group.settle();
        assert_eq!((&group.declared[..], &group.breaches[..]), (&[][..], &[][..]), "2 runs");
    }
}

/// Two processes of one cycle find it at the same time, and one is aborted.
#[test]
fn two_that_declare_at_once_make_one_victim() {
    let mut group = ByHand::<EdgeChasing>::new(4, true);
    for (site, of) in [(1, 2), (2, 3), (3, 1)] {
        group.ask(site, 1, &[of]);
    }
    group.settle();
    assert!(group.declared.len() > 1, "{:?}", group.declared);
    assert_eq!(group.aborted.len(), 1);
}

#[test]
fn cycles_within_between_and_across_the_root_are_found_by_the_hierarchy() {
    // There are nine sites, with the clusters 0-2, 3-5 and 6-8.
    for (ring, needs_root) in [(&[4, 5][..], false), (&[4, 7], true), (&[1, 4, 8, 0], true), (&[0, 1], false)]
    {
        let mut group = ByHand::<Hierarchical>::new(9, false);
        for (at, site) in ring.iter().enumerate() {
            group.ask(*site, 1, &[ring[(at + 1) % ring.len()]]);
            group.settle();
        }
        assert_eq!(group.declared.len(), 1, "{ring:?}");
        assert_eq!(group.sent.contains_key("ASK CLUSTER"), needs_root, "{ring:?}");
    }
}

/// [MM79]: a process that waits for the deadlock of another cluster is freed by the victim of that deadlock.
#[test]
fn a_cluster_that_is_only_waited_for_does_not_wake_the_root() {
    // There are four sites, with the clusters 0-1 and 2-3.
    let mut group = ByHand::<Hierarchical>::new(4, false);
    for (site, of) in [(2, 3), (3, 2), (1, 2)] {
        group.ask(site, 1, &[of]);
        group.settle();
    }
    assert_eq!(group.declared, [3]);
    assert_eq!(group.sent.get("WAKE ROOT"), None, "{:?}", group.sent);
    assert_eq!(group.judge.rests(), None);
}

/// The root calls while leader 2 runs its own round. That round concerns an edge that the root's cluster did
/// not have when it answered. So leader 2 must run its round once more.
#[test]
fn a_question_of_the_root_does_not_answer_for_the_round_that_it_interrupts() {
    let mut group = ByHand::<Hierarchical>::new(4, false);
    for (site, of) in [(1, 0), (2, 1)] {
        group.ask(site, 1, &[of]);
        group.settle();
    }
    group.ask(3, 1, &[2]); // 2 is blocked, and is a leader
    group.deliver(3, 2);
    group.deliver(2, 3); // ASK
    group.deliver(3, 2); // TABLE: 2 waits for a process of another cluster
    group.deliver(2, 0); // WAKE ROOT; ASK CLUSTER is in transit
    group.deliver(0, 1);
    group.deliver(1, 0); // the root's cluster has answered that 0 runs
    group.ask(0, 1, &[3]); // closes the cycle
    group.deliver(0, 3);
    group.deliver(3, 2); // WAKE: leader 2 sends ASK
    group.deliver(0, 2); // ASK CLUSTER
    group.settle();
    assert_eq!(group.declared, [3]);
    assert_eq!((group.judge.rests(), &group.breaches[..]), (None, &[][..]));
}

/// An accused process was freed by the abort of another one before its turn. It still waits with the same
/// request, and gets into another deadlock. The earlier accusation must not hide this deadlock.
#[test]
fn who_was_accused_once_can_be_accused_again() {
    use super::reports::victims;
    use super::underlying::Wait;
    use conclave_kernel::NodeMap;

    let wait = |number, of: &[u32]| Wait { number, need: 1, of: set(of) };
    let mut accused = NodeMap::new(4);
    accused.insert(NodeId(2), 7);
    let waits = BTreeMap::from([(NodeId(1), wait(5, &[2])), (NodeId(2), wait(7, &[1]))]);
    assert_eq!(victims(&waits, &accused), [(NodeId(2), 7)], "2 is declared again");
    // Now 2 waits for the cycle 0, 1, which needs a victim. 3, which waits for 2, must not count as freed.
    let waits = BTreeMap::from([
        (NodeId(0), wait(1, &[1])),
        (NodeId(1), wait(6, &[0])),
        (NodeId(2), wait(7, &[1])),
        (NodeId(3), wait(2, &[2])),
    ]);
    assert_eq!(victims(&waits, &accused), [(NodeId(1), 6)]);
}
