//! The states explored each second, and the bytes of each state: `cargo bench -p conclave-lab --bench states`.
//!
//! Arguments choose rows by a part of their name; `threads=1` and `depth` change how they are explored.

use conclave_algorithms::mutex::{Lamport, Maekawa, Mutex, RicartAgrawala, SuzukiKasami};
use conclave_check::{Options, Order, Search, check};
use conclave_lab::problems::mutex::check::Entries as Problem;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    println!(
        "{:<28} {:>10} {:>11} {:>5} {:>7} {:>7} {:>9} {:>6}",
        "model", "states", "edges", "depth", "s", "CPU-s", "states/CPU-s", "B/state"
    );
    row::<RicartAgrawala>(&arguments, 3, 2, Order::Any);
    row::<RicartAgrawala>(&arguments, 3, 2, Order::Fifo);
    row::<Lamport>(&arguments, 3, 2, Order::Fifo);
    row::<Maekawa>(&arguments, 3, 2, Order::Any);
    row::<SuzukiKasami>(&arguments, 3, 2, Order::Any);
    row::<RicartAgrawala>(&arguments, 4, 1, Order::Any);
}

fn row<P: Mutex>(arguments: &[String], nodes: u32, entries: u8, order: Order) {
    let name = format!("{} {nodes}x{entries} {order:?}", P::CARD.name).to_lowercase();
    let mut options = Options { order, liveness_states: 0, ..Options::default() };
    let mut wanted: Vec<&str> = Vec::new();
    for argument in arguments {
        match argument.split_once('=') {
            Some(("threads", number)) => options.threads = number.parse().unwrap_or(1),
            _ if argument == "depth" => options.search = Search::Depth,
            _ => wanted.push(argument),
        }
    }
    if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part)) {
        return;
    }
    let before = cpu_seconds();
    let report = check(&Problem::<P>::new(nodes, entries), &options).expect("the model is small");
    let cpu = cpu_seconds() - before;
    println!(
        "{name:<28} {:>10} {:>11} {:>5} {:>7.2} {:>7.2} {:>12.0} {:>7.1} {}",
        report.states,
        report.edges,
        report.depth,
        report.seconds,
        cpu,
        report.states as f64 / cpu,
        report.bytes as f64 / report.states as f64,
        report.verdict,
    );
}

/// User and system time of this process so far; the wall's where the system does not say.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // After the name come the state, which is no number, and ten numbers; then the two times, in hundredths.
    fields.get(10..12).map_or(0.0, |times| times.iter().sum::<f64>() / 100.0)
}
