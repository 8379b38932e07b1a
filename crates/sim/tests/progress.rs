//! Runs without progress end as bounded; runs with progress may be as long as they need.

use std::time::Duration;

use conclave_kernel::{Cx, Never, NodeId, Protocol};
use conclave_sim::{Delay, Desk, Director, End, Fault, Limits, Outcome, Setup, World};
use serde::{Deserialize, Serialize};

/// Two sites that send one message to and fro, at most `left` times. With a large number this is a livelock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Echo {
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Ball;

impl Protocol for Echo {
    type Message = Ball;
    type Timer = Never;
    type Command = Never;
    type Event = Ball;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        if cx.me() == NodeId(0) {
            cx.send(NodeId(1), Ball);
        }
    }

    fn on_message(&mut self, from: NodeId, ball: Ball, cx: &mut Cx<'_, Self>) {
        cx.emit(ball);
        if self.left > 0 {
            self.left -= 1;
            cx.send(from, ball);
        }
    }
}

/// Reports progress for the first arrivals.
struct Umpire {
    progress_left: u64,
}

impl Director<Echo> for Umpire {
    type Note = ();
    fn on_begin(&mut self, _: &mut Desk<'_, Echo, ()>) {}
    fn on_event(&mut self, _: NodeId, _: &Ball, desk: &mut Desk<'_, Echo, ()>) {
        if self.progress_left > 0 {
            self.progress_left -= 1;
            desk.progress();
        }
    }
    fn on_send(&mut self, _: NodeId, _: NodeId, _: &Ball) {}
    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}

const MS: Duration = Duration::from_millis(1);

/// Runs two sites with a delay of 1 ms.
fn run(left: u64, progress_left: u64, limits: Limits, faults: Vec<Fault>) -> Outcome {
    let setup = Setup { nodes: 2, faults, ..Setup::default() };
    World::new(setup, Umpire { progress_left }, move |_| Echo { left }).run(limits)
}

#[test]
fn a_livelock_ends_as_bounded_after_its_budget() {
    let outcome = run(u64::MAX, 0, Limits { events: 500, ..Limits::default() }, Vec::new());
    assert_eq!((outcome.end, outcome.events, outcome.idle_events), (End::Bounded, 500, 500));
    assert_eq!(outcome.idle_time, 500 * MS);
}

#[test]
fn each_progress_starts_the_budget_again() {
    let outcome = run(u64::MAX, 1_200, Limits { events: 500, ..Limits::default() }, Vec::new());
    // The progress of an arrival is reported within its own step, which is counted already.
    assert_eq!((outcome.end, outcome.events, outcome.idle_events), (End::Bounded, 1_700, 500));
}

#[test]
fn a_run_that_makes_progress_may_be_longer_than_its_budget() {
    let outcome =
        run(1_000, u64::MAX, Limits { events: 5, patience: 5 * MS, ..Limits::default() }, Vec::new());
    assert_eq!((outcome.end, outcome.events), (End::Quiet, 2_001));
}

#[test]
fn a_livelock_ends_as_bounded_when_the_time_without_progress_is_over() {
    let limits = Limits { patience: 50 * MS, ..Limits::default() };
    let outcome = run(u64::MAX, 20, limits, Vec::new());
    assert_eq!((outcome.end, outcome.events, outcome.idle_time), (End::Bounded, 70, 50 * MS));
}

#[test]
fn a_limit_on_time_that_comes_first_is_no_livelock() {
    let limits = Limits { patience: 50 * MS, time: 30 * MS, ..Limits::default() };
    assert_eq!(run(u64::MAX, 0, limits, Vec::new()).end, End::OutOfTime);
}

#[test]
fn the_beginning_and_the_end_of_a_fault_are_progress() {
    let pause = Fault::parse_pause("1@30.5ms..40.5ms").expect("well formed");
    let limits = Limits { events: 35, ..Limits::default() };
    let outcome = run(u64::MAX, 0, limits, vec![pause]);
    assert_eq!((outcome.end, outcome.idle_events), (End::Bounded, 35));
    assert!(outcome.events > 60, "{} events", outcome.events);
}

#[test]
fn an_event_after_the_end_of_simulated_time_ends_the_run() {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    let setup = Setup { nodes: 2, delay: Delay::Constant(2 * CENTURY), ..Setup::default() };
    let outcome = World::new(setup, Umpire { progress_left: 0 }, |_| Echo { left: 9 }).run(Limits::default());
    assert_eq!((outcome.end, outcome.events), (End::Overflow, 2), "2^64 ns are 584 years");
}
