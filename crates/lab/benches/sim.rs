//! What the simulator costs, in inputs handled a second, with properties and metrics on: `cargo bench -p
//! conclave-lab --bench sim`. The same figure comes with every run: `conclave sim mutex/token-ring --nodes 1000
//! --entries 20000 --json` reports `events_per_s`.

use std::hint::black_box;
use std::time::Duration;

use conclave_algorithms::mutex::{Maekawa, Mutex, NaimiTrehel, Raymond, RicartAgrawala, TokenRing};
use conclave_lab::rooms::mutex::{Scenario, Work, run_tenant};
use conclave_sim::{Delay, Setup};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = yardsticks, pending_events, large_groups
}
criterion_main!(benches);

fn scenario(nodes: u32, load: Work, entries: u64) -> Scenario {
    Scenario { setup: Setup { nodes, ..Setup::default() }, load, entries, ..Scenario::default() }
}

fn bench<P: Mutex>(c: &mut Criterion, name: &str, mut scenario: Scenario, record: bool) {
    P::CARD.name.clone_into(&mut scenario.algorithm);
    let (report, _) = run_tenant::<P>(&scenario, false).expect("a valid scenario");
    assert!(
        report.facts.passed() && report.entries == scenario.entries,
        "{name}: {:?}",
        report.facts.violations
    );
    let mut group = c.benchmark_group("events");
    group.throughput(Throughput::Elements(report.facts.events));
    group.bench_function(name, |b| {
        b.iter(|| black_box(run_tenant::<P>(black_box(&scenario), record).expect("a valid scenario")));
    });
    group.finish();
}

/// The two figures that the simulator is judged by, without and with a trace.
fn yardsticks(c: &mut Criterion) {
    for (record, suffix) in [(false, ""), (true, ", traced")] {
        let ring = scenario(1_000, Work::Low, 2_000);
        bench::<TokenRing>(c, &format!("token ring, N = 1000{suffix}"), ring, record);
        let saturated = scenario(100, Work::High, 5_000);
        bench::<RicartAgrawala>(
            c,
            &format!("ricart-agrawala, N = 100, saturated{suffix}"),
            saturated,
            record,
        );
        let saturated = scenario(57, Work::High, 20_000);
        bench::<Maekawa>(c, &format!("maekawa, N = 57, saturated{suffix}"), saturated, record);
    }
}

/// How the cost of an event grows with how many are pending: saturated Ricart-Agrawala has about N² under way.
/// With random delays they are in a heap, not in lanes.
fn pending_events(c: &mut Criterion) {
    for nodes in [10, 32, 100, 316] {
        let entries = 4_000_000 / u64::from(nodes * nodes);
        let constant = scenario(nodes, Work::High, entries.max(2 * u64::from(nodes)));
        let mut random = constant.clone();
        random.setup.delay = Delay::Exponential(Duration::from_millis(1));
        bench::<RicartAgrawala>(c, &format!("pending, N = {nodes}, constant delay"), constant, false);
        bench::<RicartAgrawala>(c, &format!("pending, N = {nodes}, exponential delay"), random, false);
    }
}

/// A hundred thousand sites.
fn large_groups(c: &mut Criterion) {
    const MANY: u32 = 100_000;
    bench::<Raymond>(c, "raymond, N = 100000, saturated", scenario(MANY, Work::High, 200_000), false);
    bench::<NaimiTrehel>(
        c,
        "naimi-trehel, N = 100000, saturated",
        scenario(MANY, Work::High, 200_000),
        false,
    );
    bench::<TokenRing>(c, "token ring, N = 100000", scenario(MANY, Work::Low, 20), false);
}
