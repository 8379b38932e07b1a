//! A planted bug that a swarm finds, and that shrinking reduces to its explanation.
//!
//! The keeper of a lock takes it back after 5 ms without waiting for the holder. While messages are fast, the
//! holder has left by then. A pause, a partition or a slow link lets two sites in together.

use std::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol};
use conclave_sim::{Candidate, Desk, Director, Limits, Profile, Setup, World, shrink, swarm};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct HastyKeeper {
    /// At the keeper only: the holder of the lock, and `queue`, the sites that wait for it.
    holder: Option<NodeId>,
    queue: Vec<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Message {
    Ask,
    Grant,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Timer {
    TakeBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Command {
    Ask,
    Leave,
}

const KEEPER: NodeId = NodeId(0);

impl Protocol for HastyKeeper {
    type Message = Message;
    type Timer = Timer;
    type Command = Command;
    type Event = ();

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Ask => self.queue.push(from),
            Message::Done if self.holder == Some(from) => self.holder = None,
            Message::Done => {}
            Message::Grant => cx.emit(()),
        }
    }
    fn on_timer(&mut self, _: Timer, _: &mut Cx<'_, Self>) {
        self.holder = None; // the planted bug
    }
    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        cx.send(KEEPER, if command == Command::Ask { Message::Ask } else { Message::Done });
    }
    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.holder.is_none() && !self.queue.is_empty() {
            let next = self.queue.remove(0);
            self.holder = Some(next);
            cx.send(next, Message::Grant);
            cx.arm(Timer::TakeBack, Duration::from_millis(5)..=Duration::from_millis(5));
        }
    }
}

/// Lets every site acquire the lock repeatedly until the work is done. Records whether two sites were ever
/// inside together.
struct Judge {
    nodes: u32,
    left: u64,
    inside: Vec<NodeId>,
    overlapped: bool,
}

impl Director<HastyKeeper> for Judge {
    type Note = ();
    fn on_begin(&mut self, desk: &mut Desk<'_, HastyKeeper, ()>) {
        for node in (0..self.nodes).map(NodeId).take(self.left as usize) {
            self.left -= 1;
            desk.command(node, Command::Ask);
        }
    }
    fn on_event(&mut self, node: NodeId, (): &(), desk: &mut Desk<'_, HastyKeeper, ()>) {
        self.overlapped |= !self.inside.is_empty();
        self.inside.push(node);
        desk.wake_in(Duration::from_millis(1), u64::from(node.0));
    }
    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, HastyKeeper, ()>) {
        let node = NodeId(key as u32);
        self.inside.retain(|other| *other != node);
        desk.command(node, Command::Leave);
        if self.left > 0 {
            self.left -= 1;
            desk.command(node, Command::Ask);
        }
    }
    fn on_send(&mut self, _: NodeId, _: NodeId, _: &Message) {}
    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}

fn overlaps(run: &Candidate) -> bool {
    let judge = Judge { nodes: run.setup.nodes, left: run.work, inside: Vec::new(), overlapped: false };
    let mut world = World::new(run.setup.clone(), judge, |_| HastyKeeper::default());
    world.run(Limits { events: 100_000, time: Duration::from_secs(10), ..Limits::default() });
    world.director().overlapped
}

fn wild(seed: u64) -> Candidate {
    let base = Setup { nodes: 7, ..Setup::default() };
    let length = Duration::from_millis(150);
    let profile = Profile { delays: false, clocks: false, ..Profile::asynchronous(length) };
    Candidate { setup: swarm(seed, &base, &profile), work: 50 }
}

#[test]
fn without_faults_the_planted_bug_stays_hidden() {
    for nodes in 1..10 {
        let setup = Setup { nodes, ..Setup::default() };
        assert!(!overlaps(&Candidate { setup, work: 50 }), "{nodes} sites");
    }
}

#[test]
fn a_planted_bug_found_by_a_swarm_is_shrunk_to_one_fault_and_a_few_entries() {
    let failing: Vec<_> = (0..100).map(wild).filter(overlaps).collect();
    assert!(failing.len() >= 20, "the swarm finds it in {} of 100 worlds", failing.len());
    let several = failing.iter().filter(|run| run.setup.faults.len() > 3).count();
    assert!(several >= 10, "{several} of them have more than three faults");
    let mut explained = 0;
    for start in &failing {
        let shrunk = shrink(start.clone(), 5000, &mut overlaps).expect("it failed a moment ago");
        let Candidate { setup, work } = &shrunk.candidate;
        assert!(shrunk.minimal, "after {} trials", shrunk.trials);
        assert!(overlaps(&shrunk.candidate), "what is handed back fails");
        assert!(setup.faults.len() == 1 && setup.nodes <= 5 && *work <= 7, "{shrunk:?}");
        explained += usize::from(setup.nodes <= 3 && *work <= 4);
    }
    // A local minimum need not be the smallest run, but nearly always it is as small as one made by hand.
    assert!(explained * 10 >= failing.len() * 9, "{explained} of {}", failing.len());
}
