//! An algorithm of another crate: this test crate adds one, and the laboratory knows it like its own.

use std::collections::VecDeque;

use conclave_algorithms::mutants::flawed::Fallible;
use conclave_algorithms::mutex::{Bill, Command, Door, Event, Fence, Group, Mutex};
use conclave_check::{Options, Verdict};
use conclave_kernel::{Card, Cx, Needs, Never, NodeId, Protocol};
use conclave_lab::added;
use conclave_lab::case::{Case as _, unwatched};
use conclave_lab::compare::{self, Request};
use conclave_lab::experiment::{Run, Space};
use conclave_lab::problem::{self, run};
use conclave_lab::problems::mutex::{self, check};
use serde::{Deserialize, Serialize};

/// The first site grants the requests in the order of receipt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Coordinator {
    door: Door,
    queue: VecDeque<NodeId>,
    is_granted: bool,
    fence: Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Message {
    Request,
    Grant(Fence),
    Release,
}

const COORDINATOR: NodeId = NodeId(0);

impl Protocol for Coordinator {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request => self.queue.push_back(from),
            Message::Grant(fence) => self.door.enter(fence, cx),
            Message::Release => self.is_granted = false,
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => cx.send(COORDINATOR, Message::Release),
            Command::Release | Command::Witness(_) => {}
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            cx.send(COORDINATOR, Message::Request);
        }
        if !self.is_granted
            && let Some(next) = self.queue.pop_front()
        {
            self.is_granted = true;
            self.fence = self.fence.next();
            cx.send(next, Message::Grant(self.fence));
        }
    }
}

impl Mutex for Coordinator {
    const CARD: Card = Card {
        problem: "mutex",
        name: "coordinator",
        title: "Coordinator of a test",
        summary: "the first site grants the requests in the order of receipt",
        papers: &[],
        needs: Needs::RELIABLE,
        promises: &["ME1", "ME2", "fences"],
        costs: &[],
        survives: "",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(_: NodeId, _: &Group) -> Self {
        Self::default()
    }

    fn bill(message: &Message, _: NodeId, _: NodeId) -> Bill {
        Bill::shared(match message {
            Message::Request => "REQUEST",
            Message::Grant(_) => "GRANT",
            Message::Release => "RELEASE",
        })
    }
}

impl Fallible for Coordinator {}

#[test]
fn an_algorithm_of_another_crate_is_simulated_compared_and_explored() {
    added::add(vec![mutex::entry::<Coordinator>()]).expect("the name is new");
    assert!(added::add(Vec::new()).is_err(), "a second call would be lost");
    assert!(added::cards().any(|card| card.name == "coordinator"));

    let high = Run::of("coordinator").with(|work: &mut mutex::Work| work.load = mutex::Workload::High);
    let report = run(&high).expect("the scenario is valid");
    assert!(report.facts.passed() && report.entries == 100, "{:?}", report.facts.violations);

    let mut cards = problem::compared::<mutex::Work>();
    let card = cards.find(|card| card.name == "coordinator").expect("it is compared");
    let base = Run::<mutex::Work>::default();
    let request = Request { base, sizes: vec![3], cards: vec![card], is_given: &|_| false };
    let compared = compare::compare(&request, |_| {}, || {}).expect("it is compared");
    assert_eq!(compared.verdicts, [compare::Verdict::Holds]);

    let world = Space::of(card, 3);
    let case = check::Case { algorithm: card.name.into(), flaw: None, work: check::Work::default(), world };
    let report = case.explore(&Options::default(), &mut unwatched).expect("it is explored");
    assert_eq!((report.verdict, report.states > 100), (Verdict::Holds, true));
}

#[test]
fn an_algorithm_with_a_known_name_is_refused() {
    let central = mutex::entry::<conclave_algorithms::mutex::Central>();
    assert!(added::add(vec![central]).expect_err("the name is taken").contains("mutex/central"));
}
