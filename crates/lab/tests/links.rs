//! Links as layers: what an algorithm needs of the network, a layer gives it.

use std::collections::BTreeSet;

use conclave_algorithms::link::{CausalBroadcast, CausalLinks, Fifo, Retransmit};
use conclave_algorithms::mutex::{Lamport, Mutex, RicartAgrawala};
use conclave_algorithms::snapshot::ChandyLamport;
use conclave_algorithms::snapshot::bank::Bank;
use conclave_check::{Bounds, Options, Order as CheckOrder, Verdict, check};
use conclave_kernel::{Cx, Never, NodeId, Protocol, Ratio};
use conclave_lab::problems::mutex::check::{Entries, Judged};
use conclave_lab::problems::mutex::{Scenario, Workload, run_algorithm};
use conclave_lab::problems::snapshot::Transfers;
use conclave_sim::{Delay, Desk, Director, Limits, Order, Setup, World};
use serde::{Deserialize, Serialize};

fn contended(nodes: u32, seed: u64, setup: Setup) -> Scenario {
    let setup = Setup { nodes, seed, delay: "exponential:1ms".parse().expect("a delay"), ..setup };
    Scenario { world: setup, ..Scenario::default() }.with(|work| {
        work.load = Workload::High;
        work.entries = 30;
    })
}

/// How many of the seeds break a promise.
fn broken<P: Mutex>(seeds: u64, setup: &Setup) -> u64 {
    let run =
        |seed| run_algorithm::<P>(&contended(4, seed, setup.clone()), false).expect("a valid scenario").0;
    (0..seeds).map(run).filter(|report| !report.facts.violations.is_empty()).count() as u64
}

#[test]
fn lamport_over_fifo_links_is_right_on_a_network_that_reorders() {
    let any = Setup { order: Order::Any, ..Setup::default() };
    assert!(broken::<Lamport>(40, &any) > 0, "without them it is not");
    assert_eq!(broken::<Fifo<Lamport>>(40, &any), 0);
    let copies = Setup { duplicate: Ratio::percent(20), ..any };
    assert_eq!(broken::<Fifo<Lamport>>(40, &copies), 0);
}

#[test]
fn lamport_over_fifo_links_is_right_in_every_execution() {
    let options = Options { order: CheckOrder::Any, ..Options::default() };
    let report = check(&Entries::<Lamport>::new(3, 1).judging(Judged::Fences), &options).unwrap();
    assert_eq!(report.verdict, Verdict::Violated);
    let report = check(&Entries::<Fifo<Lamport>>::new(2, 2).judging(Judged::Fences), &options).unwrap();
    assert_eq!((report.verdict, report.property), (Verdict::Holds, None));
}

#[test]
fn ricart_agrawala_over_retransmission_is_live_on_a_network_that_loses() {
    let lossy = Setup { loss: Ratio::percent(20), ..Setup::default() };
    assert_eq!(broken::<RicartAgrawala>(10, &lossy), 10, "without it everybody waits for ever");
    assert_eq!(broken::<Retransmit<RicartAgrawala>>(40, &lossy), 0);
}

#[test]
fn layers_nest() {
    let worst = Setup {
        loss: Ratio::percent(10),
        duplicate: Ratio::percent(10),
        order: Order::Any,
        ..Setup::default()
    };
    assert_eq!(broken::<Retransmit<Fifo<Lamport>>>(20, &worst), 0);
}

#[test]
fn chandy_lamport_over_fifo_links_is_right_in_every_execution() {
    let options = Options { order: CheckOrder::Any, ..Options::default() };
    let report = check(&Transfers::<ChandyLamport<Bank>>::new(2, 1), &options).unwrap();
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("conserved")));
    let report = check(&Transfers::<Fifo<ChandyLamport<Bank>>>::new(2, 1), &options).unwrap();
    assert_eq!((report.verdict, report.property), (Verdict::Holds, None));
    assert!(report.sometimes.iter().all(|it| it.seen), "{:?}", report.sometimes);
}

/// The test above reached no bound: a search that does has the verdict `Bounded`.
#[test]
fn a_search_that_is_cut_short_does_not_hold() {
    let bounds = Bounds { states: 50, ..Bounds::default() };
    let options = Options { order: CheckOrder::Any, bounds, ..Options::default() };
    let report = check(&Transfers::<Fifo<ChandyLamport<Bank>>>::new(2, 1), &options).unwrap();
    assert_eq!(report.verdict, Verdict::Bounded);
}

/// A test protocol. It sends numbered words to all sites or to one, each with all words sent or received
/// before. So the receiver can check the order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Gossip {
    me: NodeId,
    said: u32,
    /// Everything in the past, as (speaker, number, listener); the listener is 1 << 20 if everybody.
    past: BTreeSet<(u32, u32, u32)>,
    taken: BTreeSet<(u32, u32, u32)>,
    answers: bool,
}

const ALL: u32 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Word {
    id: (u32, u32, u32),
    past: BTreeSet<(u32, u32, u32)>,
}

/// The event of a word that was received before an earlier word.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct OutOfOrder;

impl Gossip {
    fn say(&mut self, to: Option<NodeId>, cx: &mut Cx<'_, Self>) {
        let id = (self.me.0, self.said, to.map_or(ALL, |to| to.0));
        self.said += 1;
        let word = Word { id, past: self.past.clone() };
        self.past.insert(id);
        match to {
            Some(to) => cx.send(to, word),
            None => cx.broadcast(word),
        }
    }
}

impl Protocol for Gossip {
    type Message = Word;
    type Timer = Never;
    /// To whom; everybody if not given.
    type Command = Option<NodeId>;
    type Event = OutOfOrder;

    fn on_message(&mut self, _from: NodeId, word: Word, cx: &mut Cx<'_, Self>) {
        let for_me = |id: &&(u32, u32, u32)| (id.2 == self.me.0 || id.2 == ALL) && id.0 != self.me.0;
        if word.past.iter().filter(for_me).any(|id| !self.taken.contains(id)) {
            cx.emit(OutOfOrder);
        }
        self.taken.insert(word.id);
        self.past.extend(word.past);
        self.past.insert(word.id);
        if self.answers && self.said < 6 {
            let to = (word.id.2 != ALL).then(|| cx.peers().iter().one_by_number(self.me, word.id.1));
            self.say(to, cx);
        }
    }

    fn on_command(&mut self, to: Option<NodeId>, cx: &mut Cx<'_, Self>) {
        if self.said < 6 {
            self.say(to, cx);
        }
    }
}

trait Pick: Iterator<Item = NodeId> + Sized + Clone {
    /// One of them, by number.
    fn one_by_number(self, fallback: NodeId, number: u32) -> NodeId {
        let count = self.clone().count().max(1);
        self.clone().nth(number as usize % count).unwrap_or(fallback)
    }
}

impl<T: Iterator<Item = NodeId> + Clone> Pick for T {}

/// Lets sites talk at random moments and counts what came out of order.
struct Talk {
    nodes: u32,
    to_all: bool,
    out_of_order: u32,
}

impl<P: Protocol<Command = Option<NodeId>, Event = OutOfOrder>> Director<P> for Talk {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, P, ()>) {
        for site in 0..self.nodes {
            let to = (!self.to_all).then_some(NodeId((site + 1) % self.nodes));
            desk.command(NodeId(site), to);
            let to = (!self.to_all).then_some(NodeId((site + 2) % self.nodes));
            desk.command_in(std::time::Duration::from_millis(1), NodeId(site), to);
        }
    }

    fn on_event(&mut self, _: NodeId, OutOfOrder: &OutOfOrder, _: &mut Desk<'_, P, ()>) {
        self.out_of_order += 1;
    }

    fn on_send(&mut self, _: NodeId, _: NodeId, _: &P::Message) {}
    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}

fn talk<P>(seed: u64, order: Order, to_all: bool, wrap: fn(Gossip, u32) -> P) -> (u32, usize)
where
    P: Protocol<Command = Option<NodeId>, Event = OutOfOrder>,
{
    const NODES: u32 = 4;
    let delay: Delay = "exponential:2ms".parse().expect("a delay");
    let setup = Setup { nodes: NODES, seed, delay, order, ..Setup::default() };
    let director = Talk { nodes: NODES, to_all, out_of_order: 0 };
    let make = move |me| wrap(Gossip { me, answers: true, ..Gossip::default() }, NODES);
    let mut world = World::new(setup, director, make);
    let outcome = world.run(Limits::default());
    (world.director().out_of_order, outcome.messages as usize)
}

#[test]
fn broadcasts_come_in_causal_order() {
    let bare: u32 = (0..40).map(|seed| talk(seed, Order::Fifo, true, |inner, _| inner).0).sum();
    assert!(bare > 0, "FIFO links are not enough");
    for seed in 0..40 {
        let (wrong, messages) = talk(seed, Order::Any, true, CausalBroadcast::new);
        assert_eq!(wrong, 0, "seed {seed}");
        // Every site receives every word, so every site sends all its replies.
        assert_eq!(messages, 4 * 6 * 3, "seed {seed}");
    }
}

#[test]
fn messages_from_one_to_one_come_in_causal_order() {
    let bare: u32 = (0..40).map(|seed| talk(seed, Order::Fifo, false, |inner, _| inner).0).sum();
    assert!(bare > 0, "FIFO links are not enough");
    for seed in 0..40 {
        let (wrong, messages) = talk(seed, Order::Any, false, CausalLinks::new);
        assert_eq!(wrong, 0, "seed {seed}");
        let (_, without) = talk(seed, Order::Causal, false, |inner, _| inner);
        assert!(messages > 8 && without > 8, "seed {seed}: nobody answered");
        let (wrong, _) = talk(seed, Order::Any, true, CausalLinks::new);
        assert_eq!(wrong, 0, "seed {seed}");
    }
}
