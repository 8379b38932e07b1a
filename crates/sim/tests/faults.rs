//! Each fault has its documented effect, and no other.

use std::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol, Ratio};
use conclave_sim::{Desk, Director, End, Fault, Limits, Order, Outcome, Setup, World};
use serde::{Deserialize, Serialize};

/// A site that executes simple commands and emits an event for everything that happens to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Witness {
    heard: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Timer {
    Bell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Command {
    /// Send a number to a site.
    Send(NodeId, u32),
    /// Set the timer to this number of milliseconds.
    Arm(u64),
    /// Emit the number of messages received.
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Event {
    Started { incarnation: u32 },
    Recovered { incarnation: u32, heard: u32 },
    Heard(u32),
    Rang,
    Counted(u32),
}

impl Protocol for Witness {
    type Message = u32;
    type Timer = Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Started { incarnation: cx.incarnation() });
    }
    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Recovered { incarnation: cx.incarnation(), heard: self.heard });
    }
    fn on_message(&mut self, _from: NodeId, number: u32, cx: &mut Cx<'_, Self>) {
        self.heard += 1;
        cx.emit(Event::Heard(number));
    }
    fn on_timer(&mut self, _: Timer, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Rang);
    }
    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Send(to, number) => cx.send(to, number),
            Command::Arm(ms) => cx.arm(Timer::Bell, Duration::from_millis(ms)..=Duration::from_millis(ms)),
            Command::Count => cx.emit(Event::Counted(self.heard)),
        }
    }
}

/// Gives commands at fixed moments. Records the events after the start, with their time in milliseconds.
struct Plan {
    commands: Vec<(u64, NodeId, Command)>,
    said: Vec<(u64, NodeId, Event)>,
    stop_after: Option<Event>,
}

impl Director<Witness> for Plan {
    type Note = ();
    fn on_begin(&mut self, desk: &mut Desk<'_, Witness, ()>) {
        self.said.clear();
        for (ms, node, command) in &self.commands {
            desk.command_in(Duration::from_millis(*ms), *node, *command);
        }
    }
    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, Witness, ()>) {
        self.said.push((desk.now().0 / 1_000_000, node, *event));
        if self.stop_after == Some(*event) {
            desk.stop();
        }
    }
    fn on_send(&mut self, _: NodeId, _: NodeId, _: &u32) {}
    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);

fn setup(faults: &[Result<Fault, String>]) -> Setup {
    Setup {
        nodes: 3,
        faults: faults.iter().map(|fault| fault.clone().expect("well formed")).collect(),
        ..Setup::default()
    }
}

fn play(setup: Setup, commands: &[(u64, NodeId, Command)]) -> (Vec<(u64, NodeId, Event)>, Outcome) {
    play_until(setup, commands, None)
}

fn play_until(
    setup: Setup,
    commands: &[(u64, NodeId, Command)],
    stop_after: Option<Event>,
) -> (Vec<(u64, NodeId, Event)>, Outcome) {
    setup.validate().expect("a valid world");
    let plan = Plan { commands: commands.to_vec(), said: Vec::new(), stop_after };
    let mut world = World::new(setup, plan, |_| Witness::default());
    let outcome = world.run(Limits::default());
    (world.into_parts().0.said, outcome)
}

#[test]
fn a_crash_loses_the_reminders() {
    let commands = [(1, B, Command::Arm(9)), (1, C, Command::Arm(9))];
    let (said, outcome) = play(setup(&[Fault::parse_crash("1@5ms..7ms")]), &commands);
    assert_eq!(said, [(7, B, Event::Recovered { incarnation: 1, heard: 0 }), (10, C, Event::Rang)]);
    assert_eq!((outcome.ledger.crashes, outcome.ledger.recoveries), (1, 1));
}

#[test]
fn a_reminder_armed_in_the_new_life_rings_once_although_an_old_one_was_pending() {
    let commands = [(1, B, Command::Arm(9)), (8, B, Command::Arm(9))];
    let (said, _) = play(setup(&[Fault::parse_crash("1@5ms..7ms,amnesia")]), &commands);
    assert_eq!(said, [(7, B, Event::Started { incarnation: 1 }), (17, B, Event::Rang)]);
}

#[test]
fn a_crash_loses_what_arrives_while_the_site_is_down_and_nothing_else() {
    let commands = [
        (3, A, Command::Send(B, 1)), // arrives before the crash
        (5, A, Command::Send(B, 2)), // arrives while B is down
        (6, B, Command::Count),      // arrives while B is down
        (7, A, Command::Send(B, 3)), // sent while B is down, arrives after the recovery
        (9, B, Command::Count),
    ];
    let (said, outcome) = play(setup(&[Fault::parse_crash("1@5500us..7500us")]), &commands);
    let recovered = Event::Recovered { incarnation: 1, heard: 1 };
    let expected =
        [(4, B, Event::Heard(1)), (7, B, recovered), (8, B, Event::Heard(3)), (9, B, Event::Counted(2))];
    assert_eq!(said, expected);
    assert_eq!(outcome.ledger.missed, 2);
    assert_eq!(outcome.messages, 3, "a message that finds nobody was sent all the same");
}

#[test]
fn amnesia_forgets_what_stable_storage_keeps() {
    let commands = [(1, A, Command::Send(B, 1)), (9, B, Command::Count)];
    let (stable, _) = play(setup(&[Fault::parse_crash("1@5ms..7ms")]), &commands);
    assert_eq!(
        stable[1..],
        [(7, B, Event::Recovered { incarnation: 1, heard: 1 }), (9, B, Event::Counted(1))]
    );
    let (amnesia, _) = play(setup(&[Fault::parse_crash("1@5ms..7ms,amnesia")]), &commands);
    assert_eq!(amnesia[1..], [(7, B, Event::Started { incarnation: 1 }), (9, B, Event::Counted(0))]);
}

#[test]
fn a_site_that_crashes_for_ever_is_silent_and_the_run_ends() {
    let commands = [(1, B, Command::Arm(9)), (6, A, Command::Send(B, 1)), (6, A, Command::Send(C, 2))];
    let (said, outcome) = play(setup(&[Fault::parse_crash("1@5ms")]), &commands);
    assert_eq!(said, [(7, C, Event::Heard(2))]);
    assert_eq!((outcome.end, outcome.ledger.recoveries, outcome.ledger.missed), (End::Quiet, 0, 1));
}

#[test]
fn a_paused_site_loses_nothing_and_does_it_all_when_it_goes_on() {
    let commands = [
        (1, B, Command::Arm(7)),     // fires at 8
        (4, A, Command::Send(B, 1)), // arrives at 5
        (5, C, Command::Send(B, 2)), // arrives at 6
        (7, B, Command::Count),
        (12, B, Command::Count),
    ];
    let (mut said, outcome) = play(setup(&[Fault::parse_pause("1@3ms..10ms")]), &commands);
    assert_eq!(said.pop(), Some((12, B, Event::Counted(2))));
    assert_eq!(said.len(), 4);
    assert!(said.iter().all(|(ms, node, _)| (*ms, *node) == (10, B)), "{said:?}");
    for event in [Event::Heard(1), Event::Heard(2), Event::Rang] {
        assert!(said.iter().any(|(_, _, other)| *other == event), "{event:?}");
    }
    assert_eq!((outcome.ledger.pauses, outcome.ledger.missed), (1, 0));
}

#[test]
fn a_holding_partition_delivers_after_the_heal_in_the_order_of_the_link() {
    for order in [Order::Fifo, Order::Any, Order::Causal] {
        let cut = setup(&[Fault::parse_partition("0@3ms..20ms")]);
        let delay = "uniform:100us..900us".parse().unwrap();
        let sends: Vec<_> = (0..10).map(|number| (4, A, Command::Send(B, number))).collect();
        let (said, outcome) = play(Setup { order, delay, ..cut }, &sends);
        let expected: Vec<_> = (0..10).map(|number| (20, B, Event::Heard(number))).collect();
        assert_eq!(said, expected, "{order}");
        assert_eq!((outcome.ledger.partitions, outcome.ledger.cut, outcome.ledger.held_for_ever), (1, 0, 0));
    }
}

#[test]
fn a_partition_holds_what_is_under_way_when_it_begins() {
    let (said, _) = play(setup(&[Fault::parse_partition("0@3ms..20ms")]), &[(2, A, Command::Send(B, 1))]);
    assert_eq!(said, [(20, B, Event::Heard(1))], "sent at 2 ms, due at 3 ms, which is cut already");
    let (said, _) = play(setup(&[Fault::parse_partition("0@3001us..20ms")]), &[(2, A, Command::Send(B, 1))]);
    assert_eq!(said, [(3, B, Event::Heard(1))]);
}

#[test]
fn a_partition_cuts_both_ways_between_the_groups_and_nothing_within_them() {
    let commands = [
        (4, A, Command::Send(B, 1)), // within the group
        (4, A, Command::Send(C, 2)), // between the groups
        (4, C, Command::Send(A, 3)), // and in the opposite direction
    ];
    let (said, outcome) = play(setup(&[Fault::parse_partition("0+1@3ms..20ms,drop")]), &commands);
    assert_eq!(said, [(5, B, Event::Heard(1))]);
    assert_eq!((outcome.ledger.cut, outcome.messages), (2, 3));
}

#[test]
fn a_dropping_partition_loses_what_was_sent_before_the_heal_too() {
    let cut = setup(&[Fault::parse_partition("0@3ms..20ms,drop")]);
    let delay = "constant:5ms".parse().unwrap();
    let commands = [
        (1, A, Command::Send(B, 1)),  // arrives at 6, during the cut
        (18, A, Command::Send(B, 2)), // sent during the cut, would arrive after it
        (20, A, Command::Send(B, 3)),
    ];
    let (said, outcome) = play(Setup { delay, ..cut }, &commands);
    assert_eq!(said, [(25, B, Event::Heard(3))]);
    assert_eq!(outcome.ledger.cut, 2);
}

#[test]
fn a_partition_that_never_heals_is_in_the_ledger() {
    let (said, outcome) = play(setup(&[Fault::parse_partition("0@3ms")]), &[(4, A, Command::Send(B, 1))]);
    assert_eq!(said, []);
    assert_eq!((outcome.end, outcome.ledger.held_for_ever), (End::Quiet, 1));
}

#[test]
fn rates_of_one_lose_damage_and_double_everything() {
    let sends: Vec<_> = (0..20).map(|number| (1, A, Command::Send(B, number))).collect();
    let world = |change: fn(&mut Setup)| {
        let mut setup = setup(&[]);
        change(&mut setup);
        play(setup, &sends)
    };
    let (said, outcome) = world(|setup| setup.loss = Ratio::ONE);
    assert_eq!((said.len(), outcome.ledger.lost), (0, 20));
    let (said, outcome) = world(|setup| setup.corrupt = Ratio::ONE);
    assert_eq!((said.len(), outcome.ledger.corrupted), (0, 20));
    let (said, outcome) = world(|setup| setup.duplicate = Ratio::ONE);
    assert_eq!((said.len(), outcome.ledger.duplicated, outcome.messages), (40, 20, 20));
}

#[test]
fn a_demanded_fault_that_never_struck_is_in_the_ledger_and_a_drawn_one_is_not() {
    let mut setup = setup(&[
        Fault::parse_crash("2@1ms..2ms"),
        Fault::parse_crash("1@50ms..60ms,amnesia"),
        Fault::parse_partition("0+2@70ms..80ms,drop"),
        Fault::parse_pause("0@50ms..60ms"),
    ]);
    setup.faults[3].demanded = false;
    let commands = [(3, A, Command::Send(B, 1))];
    let (_, outcome) = play_until(setup.clone(), &commands, Some(Event::Heard(1)));
    assert_eq!(outcome.end, End::Stopped);
    assert_eq!(
        outcome.ledger.unfired,
        ["--crash 1@50ms..60ms,amnesia", "--partition 0+2@70ms..80ms,drop"],
        "as the command line takes them"
    );
    let (_, outcome) = play(setup, &commands);
    assert_eq!(
        (outcome.end, outcome.ledger.unfired.len()),
        (End::Quiet, 0),
        "a run left alone meets them all"
    );
}
