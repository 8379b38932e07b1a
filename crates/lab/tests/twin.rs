//! The checker against a naive twin: states cloned as they are, kept in a set, no numbers and no fingerprints.

use std::collections::{HashSet, VecDeque};

use conclave_algorithms::mutex::{
    Central, Command, Event, Group, Lamport, Maekawa, Mutex, NaimiTrehel, RicartAgrawala, RoucairolCarvalho,
    SuzukiKasami,
};
use conclave_check::{Faults, Model, Options, Order, check};
use conclave_kernel::{Buffer, Cx, Effect, Env, Input, NodeId, Protocol};
use conclave_lab::problems::mutex::check::{Desk, Entries as Problem, Instruction, Talking};

#[derive(Clone, PartialEq, Eq, Hash)]
struct State<P: Protocol> {
    sites: Vec<P>,
    /// In the order sent; in any order, sorted by what they look like.
    flying: Vec<(NodeId, NodeId, P::Message)>,
    /// 0 outside, 1 asking, 2 inside; and the entries left.
    places: Vec<(u8, u8)>,
    losses: u8,
}

struct Twin {
    nodes: u32,
    order: Order,
}

impl Twin {
    fn step<P: Mutex>(&self, state: &mut State<P>, me: NodeId, input: Input<P>) {
        let mut world = Buffer::default();
        state.sites[me.index()].step(input, &mut Cx::new(Env::new(me, self.nodes), &mut world));
        for effect in world.effects {
            match effect {
                Effect::Send { to, message } => state.flying.push((me, to, message)),
                Effect::Broadcast { message } => {
                    let peers = (0..self.nodes).map(NodeId).filter(|to| *to != me);
                    state.flying.extend(peers.map(|to| (me, to, message.clone())));
                }
                Effect::Emit { event: Event::Granted { .. } } => state.places[me.index()].0 = 2,
                Effect::Emit { event: Event::Released } => state.places[me.index()].0 = 0,
                other => panic!("the twin does not know {other:?}"),
            }
        }
        match self.order {
            Order::Any => state.flying.sort_by_key(|flying| format!("{flying:?}")),
            // Only the order within a link counts.
            Order::Fifo => state.flying.sort_by_key(|(from, to, _)| (*from, *to)),
        }
    }

    /// Every state that one step leads to; more than once if several steps do.
    fn next<P: Mutex>(&self, state: &State<P>) -> Vec<State<P>> {
        let mut all = Vec::new();
        for (index, place) in state.places.iter().enumerate() {
            let command = match place {
                (0, 1..) => Command::Acquire,
                (2, _) => Command::Release,
                _ => continue,
            };
            let mut next = state.clone();
            if command == Command::Acquire {
                next.places[index] = (1, place.1 - 1);
            }
            self.step(&mut next, NodeId(index as u32), Input::Command(command));
            all.push(next);
        }
        for (index, (from, to, message)) in state.flying.iter().enumerate() {
            let before = &state.flying[..index];
            let hidden = match self.order {
                Order::Any => before.contains(&state.flying[index]),
                Order::Fifo => before.iter().any(|(f, t, _)| (f, t) == (from, to)),
            };
            if hidden {
                continue;
            }
            let mut next = state.clone();
            next.flying.remove(index);
            if state.losses > 0 {
                all.push(State { losses: state.losses - 1, ..next.clone() });
            }
            self.step(&mut next, *to, Input::Message { from: *from, message: message.clone() });
            all.push(next);
        }
        all
    }

    /// States and steps between them.
    fn count<P: Mutex>(&self, entries: u8, losses: u8) -> (u64, u64) {
        let group = Group::new(self.nodes);
        let sites = (0..self.nodes).map(|me| P::new(NodeId(me), &group)).collect();
        let places = vec![(0, entries); self.nodes as usize];
        let mut first = State { sites, flying: Vec::new(), places, losses };
        for me in (0..self.nodes).map(NodeId) {
            self.step(&mut first, me, Input::Start);
        }
        let mut seen = HashSet::from([first.clone()]);
        let mut open = VecDeque::from([first]);
        let mut edges = 0;
        while let Some(state) = open.pop_front() {
            for next in self.next(&state) {
                edges += u64::from(next != state);
                if seen.insert(next.clone()) {
                    open.push_back(next);
                }
            }
        }
        (seen.len() as u64, edges)
    }
}

fn agree<P: Mutex>(nodes: u32, entries: u8) {
    for order in [Order::Fifo, Order::Any] {
        let options = Options { order, threads: 1, ..Options::default() };
        let report = check(&Problem::<P>::new(nodes, entries), &options).expect("the model is sound");
        // Where the checker stops at a failure, there is nothing to compare.
        if report.counterexample.is_none() {
            let twin = Twin { nodes, order }.count::<P>(entries, 0);
            assert_eq!((report.states, report.edges), twin, "{} {order:?}", P::CARD.name);
        }
    }
}

#[test]
fn the_checker_finds_the_states_that_the_twin_finds() {
    agree::<Central>(3, 2);
    agree::<Lamport>(2, 2);
    agree::<RicartAgrawala>(3, 1);
    agree::<RoucairolCarvalho>(3, 1);
    agree::<Maekawa>(3, 1);
    agree::<SuzukiKasami>(3, 1);
    agree::<NaimiTrehel>(3, 1);
}

/// Without obligations nothing is stuck, so that everything is explored although messages are lost.
#[test]
fn they_agree_on_lost_messages_too() {
    #[derive(Clone)]
    struct Unjudged(Problem<RicartAgrawala>);
    impl Model for Unjudged {
        type Protocol = Talking<RicartAgrawala>;
        type Monitor = Lenient;
        fn name(&self) -> String {
            self.0.name()
        }
        fn nodes(&self) -> u32 {
            self.0.nodes()
        }
        fn site(&self, me: NodeId) -> Talking<RicartAgrawala> {
            self.0.site(me)
        }
        fn monitor(&self) -> Lenient {
            Lenient(self.0.monitor())
        }
        fn liveness(&self) -> conclave_kernel::Property {
            self.0.liveness()
        }
        fn kind(&self, message: &<Talking<RicartAgrawala> as Protocol>::Message) -> &'static str {
            self.0.kind(message)
        }
    }
    use conclave_check::{Findings, Monitor, Offer};
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Lenient(Desk);
    impl Monitor<Talking<RicartAgrawala>> for Lenient {
        type Note = ();
        fn offers(&self, offer: &mut dyn FnMut(Offer<Instruction>)) {
            Monitor::<Talking<RicartAgrawala>>::offers(&self.0, offer);
        }
        fn pending(&self) -> u64 {
            0
        }
        fn on_command(&mut self, node: NodeId, command: &Instruction, findings: &mut Findings) {
            Monitor::<Talking<RicartAgrawala>>::on_command(&mut self.0, node, command, findings);
        }
        fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
            Monitor::<Talking<RicartAgrawala>>::on_event(&mut self.0, node, event, findings);
        }
    }
    for order in [Order::Fifo, Order::Any] {
        let faults = Faults { loss: 2, ..Faults::default() };
        let options = Options { order, faults, threads: 2, ..Options::default() };
        let report = check(&Unjudged(Problem::new(2, 2)), &options).unwrap();
        let twin = Twin { nodes: 2, order }.count::<RicartAgrawala>(2, 2);
        assert_eq!((report.states, report.edges), twin, "{order:?}");
    }
}
