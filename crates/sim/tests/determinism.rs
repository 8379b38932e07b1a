//! The same seed gives the same run, step by step, and another seed gives another run. The tests compare the
//! digest of everything that happened and the trace itself. Their world has all kinds of faults at once.

use std::collections::BTreeSet;
use std::time::Duration;

use conclave_kernel::trace::{FORMAT, What, WorldKind};
use conclave_kernel::{Cx, Header, NodeId, Protocol, Ratio, Recording};
use conclave_sim::{Clocks, Desk, Director, Fault, Limits, Order, Outcome, Profile, Setup, World, swarm};
use serde::{Deserialize, Serialize};

/// Sends a rumour to a random peer now and then. A site that receives one may send another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Gossip {
    told: u32,
    heard: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Timer {
    Tell,
}

impl Gossip {
    fn tell(&mut self, cx: &mut Cx<'_, Self>) {
        self.told += 1;
        let others = cx.peers().len() as u32;
        let chosen = cx.choose(others) as usize;
        let peer = cx.peers().iter().nth(chosen);
        if let Some(peer) = peer {
            cx.send(peer, self.told);
        }
    }
}

impl Protocol for Gossip {
    type Message = u32;
    type Timer = Timer;
    type Command = ();
    type Event = u32;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        cx.arm(Timer::Tell, Duration::from_micros(500)..=Duration::from_millis(3));
    }
    fn on_message(&mut self, _from: NodeId, _rumour: u32, cx: &mut Cx<'_, Self>) {
        self.heard += 1;
        cx.emit(self.heard);
        if cx.choose(3) == 0 {
            self.tell(cx);
        }
    }
    fn on_timer(&mut self, _: Timer, cx: &mut Cx<'_, Self>) {
        self.tell(cx);
        self.on_start(cx);
    }
    fn on_command(&mut self, (): (), cx: &mut Cx<'_, Self>) {
        cx.broadcast(0);
    }
}

struct Editor;

impl Director<Gossip> for Editor {
    type Note = ();
    fn on_begin(&mut self, desk: &mut Desk<'_, Gossip, ()>) {
        for node in 0..5 {
            for ms in (node..100).step_by(10) {
                desk.command_in(Duration::from_millis(ms), NodeId(node as u32), ());
            }
        }
    }
    fn on_event(&mut self, _: NodeId, _: &u32, _: &mut Desk<'_, Gossip, ()>) {}
    fn on_send(&mut self, _: NodeId, _: NodeId, _: &u32) {}
    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}

fn storm(seed: u64) -> Setup {
    Setup {
        seed,
        delay: "lognormal:1ms,1".parse().expect("well formed"),
        links: vec!["0>3=uniform:5ms..20ms".parse().expect("well formed")],
        order: Order::Any,
        loss: Ratio::percent(5),
        duplicate: Ratio::percent(5),
        corrupt: Ratio::percent(5),
        clocks: Clocks { skew: Duration::from_secs(1), drift_ppm: 100_000, exact: 0 },
        faults: vec![
            Fault::parse_crash("1@20ms..40ms").expect("well formed"),
            Fault::parse_crash("2@30ms..45ms,amnesia").expect("well formed"),
            Fault::parse_pause("3@10ms..25ms").expect("well formed"),
            Fault::parse_partition("0+4@50ms..60ms").expect("well formed"),
            Fault::parse_partition("1@55ms..75ms,drop").expect("well formed"),
        ],
        ..Setup::default()
    }
}

const LIMITS: Limits = Limits { events: 100_000, patience: Duration::MAX, time: Duration::from_millis(100) };

fn run(setup: Setup) -> Outcome {
    World::new(setup, Editor, |_| Gossip::default()).run(LIMITS)
}

fn record(setup: Setup) -> (Outcome, Recording) {
    let header = Header {
        format: FORMAT,
        code: "test".into(),
        algorithm: "test/gossip".into(),
        nodes: setup.nodes,
        seed: setup.seed,
        world: WorldKind::Sim,
        scenario: String::new(),
    };
    let mut world = World::new(setup, Editor, |_| Gossip::default()).recording(header);
    let outcome = world.run(LIMITS);
    (outcome, world.into_parts().1.expect("a trace was asked for"))
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..30 {
        let (outcome, trace) = record(storm(seed));
        let (again, trace_again) = record(storm(seed));
        assert_eq!(outcome, again);
        assert!(trace.records().eq(trace_again.records()), "seed {seed}: equal digests of different traces");
        assert_eq!(run(storm(seed)), outcome, "recording changed the run");
    }
}

#[test]
fn another_seed_gives_another_run() {
    let digests: BTreeSet<u64> = (0..300).map(|seed| run(storm(seed)).digest).collect();
    assert_eq!(digests.len(), 300);
}

#[test]
fn swarmed_worlds_are_deterministic_too() {
    let length = LIMITS.time;
    let profile = Profile { loss: true, duplication: true, crashes: 2, ..Profile::asynchronous(length) };
    let digest = |seed| run(swarm(seed, &Setup::default(), &profile)).digest;
    let digests: Vec<u64> = (0..100).map(digest).collect();
    assert_eq!(digests, (0..100).map(digest).collect::<Vec<_>>());
    assert_eq!(digests.iter().collect::<BTreeSet<_>>().len(), 100);
}

/// Each part of the storm changes the digest: a run without it has another digest.
#[test]
fn every_part_of_the_storm_is_in_the_digest() {
    let all = run(storm(1)).digest;
    let mut calmer = vec![
        Setup { delay: Setup::default().delay, ..storm(1) },
        Setup { links: Vec::new(), ..storm(1) },
        Setup { order: Order::Fifo, ..storm(1) },
        Setup { loss: Ratio::ZERO, ..storm(1) },
        Setup { duplicate: Ratio::ZERO, ..storm(1) },
        Setup { corrupt: Ratio::ZERO, ..storm(1) },
        Setup { clocks: Clocks::default(), ..storm(1) },
    ];
    for index in 0..storm(1).faults.len() {
        let mut setup = storm(1);
        setup.faults.remove(index);
        calmer.push(setup);
    }
    for setup in calmer {
        assert_ne!(run(setup.clone()).digest, all, "{setup:?}");
    }
}

/// All faults of the storm really happen, and the ledger agrees with the marks of the trace.
#[test]
fn everything_goes_wrong_in_the_storm_and_is_written_down() {
    let (outcome, trace) = record(storm(1));
    let ledger = outcome.ledger;
    let counts = [ledger.lost, ledger.duplicated, ledger.corrupted, ledger.cut, ledger.missed];
    assert!(counts.iter().all(|count| *count > 0), "{ledger:?}");
    let planned = [ledger.crashes, ledger.recoveries, ledger.pauses, ledger.partitions];
    assert_eq!(planned, [2, 2, 1, 2]);
    assert_eq!(ledger.unfired, [""; 0]);

    let count =
        |wanted: fn(&What) -> bool| trace.marks.iter().filter(|mark| wanted(&mark.what)).count() as u64;
    assert_eq!(count(|what| matches!(what, What::Crash(_))), ledger.crashes);
    assert_eq!(count(|what| matches!(what, What::Heal(_))), ledger.partitions);
    assert_eq!(count(|what| matches!(what, What::Duplicate(_))), ledger.duplicated);
    assert!(trace.steps.len() as u64 > outcome.events, "starts and recoveries are steps, though not events");
}
