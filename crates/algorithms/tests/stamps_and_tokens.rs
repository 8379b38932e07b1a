//! The algorithms that order requests by stamps or pass a token, run in the simulator. The promises of their
//! cards must hold for all delays, on the channels that they need. Properties that they do not promise must
//! fail in some run.

use std::collections::VecDeque;
use std::time::Duration;

use conclave_algorithms::mutex::spec::{Judge, Note};
use conclave_algorithms::mutex::{
    Command, Event, Group, Lamport, LamportOmission, Mutex, NaimiTrehel, Raymond, RicartAgrawala,
    RoucairolCarvalho, SuzukiKasami,
};
use conclave_kernel::{NodeId, Prng, Ratio, Time};
use conclave_sim::{Delay, Desk, Director, Limits, Order, Outcome, Setup, World};

const SIZES: [u32; 6] = [1, 2, 3, 5, 7, 13];

#[test]
fn what_lamport_promises_holds_on_fifo_channels() {
    sweep::<Lamport>(&[Order::Fifo, Order::Causal], Ratio::ZERO);
    sweep::<LamportOmission>(&[Order::Fifo, Order::Causal], Ratio::ZERO);
}

#[test]
fn what_permissions_promise_holds_in_any_order_and_with_late_copies() {
    for duplicate in [Ratio::ZERO, Ratio::percent(20)] {
        sweep::<RicartAgrawala>(&[Order::Fifo, Order::Any], duplicate);
        sweep::<RoucairolCarvalho>(&[Order::Fifo, Order::Any], duplicate);
    }
}

#[test]
fn what_suzuki_kasami_promises_holds_in_any_order_and_with_late_copies() {
    sweep::<SuzukiKasami>(&[Order::Fifo, Order::Any], Ratio::ZERO);
    sweep::<SuzukiKasami>(&[Order::Fifo, Order::Any], Ratio::percent(20));
}

#[test]
fn what_the_trees_promise_holds_in_any_order() {
    sweep::<Raymond>(&[Order::Fifo, Order::Any], Ratio::ZERO);
    sweep::<NaimiTrehel>(&[Order::Fifo, Order::Any], Ratio::ZERO);
}

#[test]
fn a_lone_request_costs_what_the_card_says() {
    for nodes in [3, 7, 9, 13, 21, 31, 57] {
        let n = u64::from(nodes);
        assert_eq!(in_turn::<Lamport>(nodes), 3 * (n - 1) * 2 * n);
        assert_eq!(in_turn::<LamportOmission>(nodes), 3 * (n - 1) * 2 * n);
        assert_eq!(in_turn::<RicartAgrawala>(nodes), 2 * (n - 1) * 2 * n);
        // Site 0 has the token at the start. Every later requester must request it.
        assert_eq!(in_turn::<SuzukiKasami>(nodes), n * (2 * n - 1));
        // In the first turn, site i misses the permissions of the sites before it; in the second turn, of all
        // sites.
        assert_eq!(in_turn::<RoucairolCarvalho>(nodes), n * (n - 1) + 2 * (n - 1) * n);
    }
}

#[test]
fn of_requests_made_at_once_half_the_replies_are_omitted() {
    for nodes in [2, 3, 7, 13] {
        // The stamps have equal times, so the ids decide: each site needs a reply only from the sites before
        // it.
        let n = u64::from(nodes);
        assert_eq!(saturated::<Lamport>(nodes, 1), n * 3 * (n - 1));
        assert_eq!(saturated::<LamportOmission>(nodes, 1), n * 2 * (n - 1) + n * (n - 1) / 2);
    }
}

#[test]
fn under_load_the_exact_formulas_stay_exact() {
    for nodes in [2, 3, 7, 13] {
        let (n, entries) = (u64::from(nodes), 20 * u64::from(nodes));
        assert_eq!(saturated::<Lamport>(nodes, 20), entries * 3 * (n - 1));
        assert_eq!(saturated::<RicartAgrawala>(nodes, 20), entries * 2 * (n - 1));
        assert_eq!(saturated::<SuzukiKasami>(nodes, 20), (entries - 1) * n, "the first has the token");
    }
}

/// \[R89\]: about 4 messages per entry if every site waits, because the token goes round the tree.
#[test]
fn under_load_raymonds_token_goes_round_the_tree() {
    for nodes in [3, 7, 15, 31] {
        let rounds = 20 * 4 * u64::from(nodes - 1);
        assert!(
            (rounds - 4 * u64::from(nodes)..=rounds).contains(&saturated::<Raymond>(nodes, 20)),
            "{nodes} sites"
        );
    }
}

#[test]
fn me3_fails_where_it_is_not_promised() {
    assert!(inversion::<RoucairolCarvalho>());
    assert!(inversion::<SuzukiKasami>());
    assert!(inversion::<Raymond>());
    assert!(inversion::<NaimiTrehel>());
}

#[test]
fn lamport_without_fifo_lets_two_in_and_gets_stuck() {
    let runs: Vec<_> = (0..400).map(|seed| run::<Lamport>(&wild(3, seed, Order::Any), 4)).collect();
    assert!(runs.iter().any(|(work, _)| work.breaches.contains(&"ME1")), "two inside");
    assert!(runs.iter().any(|(work, _)| !work.everybody_was_served()), "a ghost");
}

#[test]
fn a_hundred_thousand_sites_are_served_in_a_tree() {
    let depth = 100_000_f64.log2();
    for messages in [large::<Raymond>(), large::<NaimiTrehel>()] {
        assert!(messages as f64 <= 100.0 * 4.0 * depth, "{messages}");
    }
}

/// Runs every size with several seeds and widely spread delays. Every request must be served, and no promise
/// may be broken.
fn sweep<M: Mutex>(orders: &[Order], duplicate: Ratio) {
    let mut copies = 0;
    for (order, nodes) in orders.iter().flat_map(|order| SIZES.map(|nodes| (*order, nodes))) {
        for seed in 0..20 {
            let setup = Setup { duplicate, ..wild(nodes, seed, order) };
            let (work, outcome) = run::<M>(&setup, 6);
            copies += outcome.ledger.duplicated;
            let broken: Vec<_> = work.breaches.iter().filter(|name| M::CARD.promises(name)).collect();
            let name = M::CARD.name;
            assert!(broken.is_empty(), "{name}: {broken:?} with {nodes} sites, {order}, seed {seed}");
            assert!(work.everybody_was_served(), "{name}: {nodes} sites, {order}, seed {seed}");
        }
    }
    assert_eq!(copies > 0, duplicate > Ratio::ZERO);
}

/// Returns whether some run grants requests against their causal order.
fn inversion<M: Mutex>() -> bool {
    assert!(!M::CARD.promises("ME3"));
    (0..200).any(|seed| run::<M>(&wild(5, seed, Order::Any), 6).0.breaches.contains(&"ME3"))
}

/// Runs two turns with one request at a time, and returns the number of messages.
fn in_turn<M: Mutex>(nodes: u32) -> u64 {
    let setup = Setup { nodes, ..Setup::default() };
    let turns = (0..nodes).chain(0..nodes).map(NodeId).collect();
    let (_, outcome) = go::<M>(&setup, Work::new(&setup, Load::InTurn(turns)));
    outcome.messages
}

/// Lets every site request at once, and again on exit, `each` times, at constant delay. Returns the number of
/// messages.
fn saturated<M: Mutex>(nodes: u32, each: u32) -> u64 {
    let setup = Setup { nodes, ..Setup::default() };
    let (work, outcome) =
        go::<M>(&setup, Work::new(&setup, Load::Each { left: vec![each; nodes as usize], pause: 0 }));
    assert!(work.everybody_was_served());
    outcome.messages
}

/// Lets 100 of 100,000 sites request one after the other, and returns the number of messages.
fn large<M: Mutex>() -> u64 {
    let setup = Setup { nodes: 100_000, ..Setup::default() };
    let mut dice = Prng::new(7);
    let turns = (0..100).map(|_| NodeId(dice.below(100_000) as u32)).collect();
    let (work, outcome) = go::<M>(&setup, Work::new(&setup, Load::InTurn(turns)));
    assert_eq!(work.judge.entries(), 100);
    outcome.messages
}

/// Returns a network whose delays spread over three orders of magnitude.
fn wild(nodes: u32, seed: u64, order: Order) -> Setup {
    Setup { nodes, seed, order, delay: Delay::LogNormal(Duration::from_millis(1), 1.5), ..Setup::default() }
}

fn run<M: Mutex>(setup: &Setup, each: u32) -> (Work, Outcome) {
    let left = vec![each; setup.nodes as usize];
    go::<M>(setup, Work::new(setup, Load::Each { left, pause: 4_000 }))
}

fn go<M: Mutex>(setup: &Setup, work: Work) -> (Work, Outcome) {
    let group = Group::new(setup.nodes);
    let mut world = World::new(setup.clone(), work, move |me| M::new(me, &group));
    let outcome = world.run(Limits { events: 10_000_000, ..Limits::default() });
    (world.into_parts().0, outcome)
}

/// Generates the requests and passes everything to the judge.
struct Work {
    judge: Judge,
    load: Load,
    dice: Prng,
    breaches: Vec<&'static str>,
}

enum Load {
    /// The sites request one after the other, each when no message is in flight.
    InTurn(VecDeque<NodeId>),
    /// Every site makes that many more requests, with a random pause of at most `pause` microseconds before
    /// each.
    Each { left: Vec<u32>, pause: u64 },
}

impl Work {
    fn new(setup: &Setup, load: Load) -> Self {
        Self { judge: Judge::new(setup.nodes), load, dice: Prng::new(setup.seed), breaches: Vec::new() }
    }

    fn everybody_was_served(&self) -> bool {
        let done = match &self.load {
            Load::InTurn(turns) => turns.is_empty(),
            Load::Each { left, .. } => left.iter().all(|left| *left == 0),
        };
        done && self.judge.waiting().next().is_none()
    }

    fn ask<M: Mutex>(&mut self, node: NodeId, desk: &mut Desk<'_, M, Note>) {
        if let Load::Each { left, pause } = &mut self.load
            && let Some(fewer) = left[node.index()].checked_sub(1)
        {
            left[node.index()] = fewer;
            desk.command_in(Duration::from_micros(self.dice.below(*pause + 1)), node, Command::Acquire);
        }
    }
}

impl<M: Mutex> Director<M> for Work {
    type Note = Note;

    fn on_begin(&mut self, desk: &mut Desk<'_, M, Note>) {
        match &self.load {
            Load::InTurn(_) => self.on_quiet(desk),
            Load::Each { left, .. } => (0..left.len() as u32).for_each(|node| self.ask(NodeId(node), desk)),
        }
    }

    fn on_quiet(&mut self, desk: &mut Desk<'_, M, Note>) {
        if let Load::InTurn(turns) = &mut self.load
            && let Some(next) = turns.pop_front()
        {
            desk.command(next, Command::Acquire);
        }
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _now: Time) {
        match command {
            Command::Acquire => self.judge.asks(node),
            Command::Release => self.judge.leaves(node),
            Command::Witness(_) => {}
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, M, Note>) {
        match event {
            Event::Granted { fence } => {
                self.judge.enters(node, *fence, |breach| self.breaches.push(breach.property.name));
                desk.command_in(Duration::from_millis(1), node, Command::Release);
            }
            Event::Released => self.ask(node, desk),
            Event::Refused(refusal) => panic!("{node} was refused: {refusal:?}"),
        }
    }

    fn on_send(&mut self, from: NodeId, _to: NodeId, _message: &M::Message) -> Note {
        self.judge.sends(from)
    }

    fn on_deliver(&mut self, _from: NodeId, to: NodeId, note: &Note) {
        self.judge.receives(to, note);
    }
}
