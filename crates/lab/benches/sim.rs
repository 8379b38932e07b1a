//! The speed of the simulator in inputs per second, with properties and metrics on. Run it with `cargo bench
//! -p conclave-lab --bench sim`. The same figure comes with every run: `conclave sim mutex/token-ring --nodes
//! 1000 --entries 20000 --json` reports `events_per_s`.

use std::hint::black_box;
use std::time::Duration;

use conclave_algorithms::election::{ChangRoberts, Election, HirschbergSinclair};
use conclave_algorithms::mutex::{Maekawa, Mutex, NaimiTrehel, Raymond, RicartAgrawala, TokenRing};
use conclave_kernel::{Cx, Never, NodeId, Protocol};
use conclave_lab::problems::election as elections;
use conclave_lab::problems::mutex::{Scenario, Workload, run_algorithm};
use conclave_sim::{Delay, Desk, Director, Limits, Setup, World};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde::{Deserialize, Serialize};

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = yardsticks, pending_events, large_groups, large_elections
}
criterion_main!(benches);

fn scenario(nodes: u32, load: Workload, entries: u64) -> Scenario {
    Scenario { world: Setup { nodes, ..Setup::default() }, ..Scenario::default() }.with(|work| {
        work.load = load;
        work.entries = entries;
    })
}

fn bench<P: Mutex>(c: &mut Criterion, name: &str, mut scenario: Scenario, record: bool) {
    P::CARD.name.clone_into(&mut scenario.algorithm);
    let (report, _) = run_algorithm::<P>(&scenario, false).expect("a valid scenario");
    assert!(
        report.facts.passed() && report.entries == scenario.work.entries,
        "{name}: {:?}",
        report.facts.violations
    );
    let mut group = c.benchmark_group("events");
    group.throughput(Throughput::Elements(report.facts.events));
    group.bench_function(name, |b| {
        b.iter(|| black_box(run_algorithm::<P>(black_box(&scenario), record).expect("a valid scenario")));
    });
    group.finish();
}

/// The two figures that the simulator is judged by, without and with a trace.
fn yardsticks(c: &mut Criterion) {
    for (record, suffix) in [(false, ""), (true, ", traced")] {
        let ring = scenario(1_000, Workload::Low, 2_000);
        bench::<TokenRing>(c, &format!("token ring, N = 1000{suffix}"), ring, record);
        let saturated = scenario(100, Workload::High, 5_000);
        bench::<RicartAgrawala>(
            c,
            &format!("ricart-agrawala, N = 100, saturated{suffix}"),
            saturated,
            record,
        );
        let saturated = scenario(57, Workload::High, 20_000);
        bench::<Maekawa>(c, &format!("maekawa, N = 57, saturated{suffix}"), saturated, record);
    }
}

/// How the cost of an event grows with how many are pending. With a constant delay they are in a lane, with
/// random ones in a radix heap.
fn pending_events(c: &mut Criterion) {
    const EVENTS: u64 = 2_000_000;
    let mut group = c.benchmark_group("pending");
    group.throughput(Throughput::Elements(EVENTS));
    let delay = Duration::from_millis(1);
    for (name, delay) in [("constant", Delay::Constant(delay)), ("exponential", Delay::Exponential(delay))] {
        for balls in [1, 10, 100, 1_000] {
            let setup = Setup { nodes: JUGGLERS, delay, ..Setup::default() };
            group.bench_function(format!("{} pending, {name} delay", JUGGLERS * balls), |b| {
                b.iter(|| {
                    let mut world = World::new(setup.clone(), Audience, move |_| Juggler { balls });
                    black_box(world.run(Limits { events: EVENTS, ..Limits::default() }))
                });
            });
        }
    }
    group.finish();
}

const JUGGLERS: u32 = 1_000;

/// A site that forwards every message. So the number of messages in transit stays as it was at the start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Juggler {
    balls: u32,
}

impl Protocol for Juggler {
    type Message = u32;
    type Timer = Never;
    type Command = Never;
    type Event = Never;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        (0..self.balls).for_each(|ball| cx.send(cx.members().after(cx.me()), ball));
    }

    fn on_message(&mut self, _from: NodeId, ball: u32, cx: &mut Cx<'_, Self>) {
        cx.send(cx.members().after(cx.me()), ball);
    }
}

/// Watches, and does nothing.
struct Audience;

impl Director<Juggler> for Audience {
    type Note = ();
    fn on_begin(&mut self, _: &mut Desk<'_, Juggler, ()>) {}
    fn on_event(&mut self, _: NodeId, event: &Never, _: &mut Desk<'_, Juggler, ()>) {
        match *event {}
    }
    fn on_send(&mut self, _: NodeId, _: NodeId, _: &u32) {}
    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}

/// A hundred thousand sites.
fn large_groups(c: &mut Criterion) {
    const MANY: u32 = 100_000;
    bench::<Raymond>(c, "raymond, N = 100000, saturated", scenario(MANY, Workload::High, 200_000), false);
    bench::<NaimiTrehel>(
        c,
        "naimi-trehel, N = 100000, saturated",
        scenario(MANY, Workload::High, 200_000),
        false,
    );
    bench::<TokenRing>(c, "token ring, N = 100000", scenario(MANY, Workload::Low, 20), false);
}

/// The cost of an event must not grow with the number of sites: the time of an election is linear in its events.
fn large_elections(c: &mut Criterion) {
    for nodes in [1_000, 10_000, 100_000] {
        election::<ChangRoberts>(c, nodes);
        election::<HirschbergSinclair>(c, nodes);
    }
}

fn election<P: Election>(c: &mut Criterion, nodes: u32) {
    let mut scenario = elections::Scenario::of(P::CARD.name);
    scenario.world.nodes = nodes;
    let run = || elections::run_algorithm::<P>(black_box(&scenario), false).expect("a valid scenario").0;
    let facts = run().facts;
    assert!(facts.passed(), "{}: {:?}", P::CARD.name, facts.violations);
    let mut group = c.benchmark_group("election");
    group.throughput(Throughput::Elements(facts.events));
    group.bench_function(format!("{}, N = {nodes}", P::CARD.name), |b| b.iter(|| black_box(run())));
    group.finish();
}
