//! Benchmarks of deadlock detection: a whole graph of a million processes in every model, and a single wait
//! in a large graph.

use std::hint::black_box;

use conclave_deadlock::batch::Snapshot;
use conclave_deadlock::{Claim, Demand, Request, Turn, WaitGraph};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

const MILLION: u32 = 1_000_000;
const CROWD: u32 = 100_000;

type Graph = WaitGraph<u32, u32>;

/// A small xorshift generator. A benchmark needs the same graph in every run, not good random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// Builds a graph of a million processes in blocks of a thousand, with one to two and a half million waits.
/// In each block, processes wait for lower ones, down to a running process. In every third block the lowest
/// process waits for a higher one, so all of that block are deadlocked. The names are shuffled, so that the
/// accesses spread over the whole memory.
fn snapshot(model: &str) -> Snapshot {
    const BLOCK: u32 = 1_000;
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut names: Vec<u32> = (0..MILLION).collect();
    for last in (1..MILLION).rev() {
        names.swap(last as usize, dice.below(last + 1) as usize);
    }
    let mut snapshot = Snapshot::new(MILLION);
    for process in 0..MILLION {
        let (block, height) = (process - process % BLOCK, process % BLOCK);
        if height == 0 && !(block / BLOCK).is_multiple_of(3) {
            continue;
        }
        let below = if height == 0 { BLOCK } else { height };
        let [a, b, c, d] = [(); 4].map(|()| names[(block + dice.below(below)) as usize]);
        let name = names[process as usize];
        let wait = match model {
            "single" => snapshot.wait_for_all(name, &[a]),
            "and" => snapshot.wait_for_all(name, &[a, b]),
            "or" => snapshot.wait_for_any(name, &[a, b]),
            // Every other process has four waits, the rest one: two and a half million in all.
            "and-or" if height % 2 == 0 => {
                let either = snapshot.gate(1, &[b, c]).expect("known nodes");
                snapshot.wait_for_all(name, &[a, either])
            }
            "p-of-q" if height % 2 == 0 => snapshot.wait_for(name, 3, &[a, b, c, d]),
            _ => snapshot.wait_for_all(name, &[a]),
        };
        wait.expect("known nodes, each waiting once");
    }
    snapshot
}

fn whole_graph(c: &mut Criterion) {
    let mut group = c.benchmark_group("deadlock/batch 1M processes");
    group.sample_size(10);
    for model in ["single", "and", "or", "and-or", "p-of-q"] {
        let snapshot = snapshot(model);
        let stuck = snapshot.analyse().stuck().count();
        println!("{model}: {stuck} stuck");
        group.bench_function(model, |b| {
            b.iter(|| {
                let analysis = snapshot.analyse();
                let why = analysis.stuck().next().map(|first| analysis.why(first));
                black_box((analysis.stuck().count(), why))
            });
        });
    }
    group.finish();
}

/// A million waiting processes, each of which waits for two random ones. With both needed, it measures the
/// choice of victims in one large deadlock. With one of the two enough, it measures the analysis and the
/// explanation, which is one knot.
fn tangle(c: &mut Criterion) {
    let mut group = c.benchmark_group("deadlock/tangle of 1M processes");
    group.sample_size(10);
    let snapshot = |need| {
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
        let mut snapshot = Snapshot::new(MILLION);
        for process in 0..MILLION {
            let of = [dice.below(MILLION), dice.below(MILLION)];
            snapshot.wait_for(process, need, &of).expect("known nodes, each waiting once");
        }
        snapshot
    };
    let all = snapshot(2);
    let analysis = all.analyse();
    println!("{} victims", analysis.victims(|process| process).len());
    group.bench_function("victims", |b| b.iter(|| black_box(analysis.victims(|process| process))));
    let any = snapshot(1);
    group.bench_function("analysis and knot", |b| {
        b.iter(|| {
            let analysis = any.analyse();
            black_box(analysis.why(0))
        });
    });
    group.finish();
}

fn exclusive(resource: u32) -> Claim<u32> {
    Claim { resource, demand: Demand::Exclusive }
}

fn turn(entry: u32) -> Turn {
    Turn { class: 0, entry: u64::from(entry) }
}

/// A hundred thousand blocked processes in chains of ten. A running process at the end of a chain then waits
/// for the head of another chain, or of its own.
fn one_wait(c: &mut Criterion) {
    const CHAIN: u32 = 10;
    let mut graph = Graph::new();
    for process in 0..CROWD + CROWD / CHAIN {
        graph.hold(process, exclusive(process)).expect("free");
    }
    for process in 0..CROWD {
        let next = if process % CHAIN == CHAIN - 1 { CROWD + process / CHAIN } else { process + 1 };
        graph.enqueue(process, turn(process), Request::exclusive(next)).expect("waits once");
    }
    let mut group = c.benchmark_group("deadlock/one wait among 100k");
    for (name, is_own) in [("joins another chain", false), ("closes its own cycle of 11", true)] {
        let mut graph = graph.clone();
        let target = if is_own { 0 } else { CHAIN };
        graph.enqueue(CROWD, turn(CROWD), Request::exclusive(target)).expect("runs");
        group.bench_function(name, |b| {
            b.iter(|| assert_eq!(graph.resolution(CROWD).find().is_some(), is_own));
        });
    }
    group.finish();
}

/// A hundred thousand waiters on one resource, which arrive one by one, each with a search for a deadlock.
fn one_resource(c: &mut Criterion) {
    let mut group = c.benchmark_group("deadlock/100k waiters on one resource");
    group.sample_size(10);
    let held = || {
        let mut graph = Graph::new();
        for process in 0..=CROWD {
            graph.hold(process, exclusive(process)).expect("free");
        }
        graph
    };
    let come = |mut graph: Graph| {
        for process in 1..=CROWD {
            graph.enqueue(process, turn(process), Request::exclusive(0)).expect("waits once");
            assert!(graph.resolution(process).find().is_none());
        }
        graph
    };
    group.bench_function("come", |b| b.iter_batched(held, come, BatchSize::PerIteration));
    group.finish();
}

criterion_group!(benches, whole_graph, tangle, one_wait, one_resource);
criterion_main!(benches);
