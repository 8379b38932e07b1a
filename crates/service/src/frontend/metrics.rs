//! What is counted, as Prometheus reads it.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::replica::Status;
use conclave_node::state::query::Totals;

macro_rules! counters {
    ($($field:ident: $kind:literal, $help:literal;)*) => {
        /// What the frontends of this node count. Gauges are set, counters only grow.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $(#[doc = $help] pub(crate) $field: AtomicU64,)*
        }

        impl Metrics {
            fn write(&self, out: &mut String) {
                $(line(out, stringify!($field), $kind, $help, self.$field.load(Ordering::Relaxed));)*
            }
        }
    };
}

counters! {
    connections: "gauge", "Client connections open now";
    connections_total: "counter", "Client connections accepted";
    local_connections_total: "counter", "Client connections accepted by the Unix socket";
    connections_refused_total: "counter", "Connections refused because there were too many";
    sessions_here: "gauge", "Sessions connected to this node";
    requests_total: "counter", "Requests taken from clients";
    requests_refused_total: "counter", "Requests refused without being proposed";
    proposals_failed_total: "counter", "Proposals that were not applied, or nobody knows";
    replies_total: "counter", "Replies sent to clients of this node";
    handovers_total: "counter", "Grants told to clients of this node ahead of the disk, which had decided them already";
    keep_alives_total: "counter", "Keep-alives answered";
    queries_total: "counter", "Reads answered";
    expiries_total: "counter", "Leases, waits and lock-delays that this node proposed to end";
    in_flight: "gauge", "Proposals on their way";
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Sets a gauge.
pub(crate) fn set(gauge: &AtomicU64, value: usize) {
    gauge.store(value as u64, Ordering::Relaxed);
}

/// Everything, in the text format.
pub(crate) fn render(metrics: &Metrics, totals: Totals, status: &Status) -> String {
    let mut out = String::with_capacity(4096);
    metrics.write(&mut out);
    line(&mut out, "sessions", "gauge", "Sessions", totals.sessions);
    line(&mut out, "names", "gauge", "Names in use", totals.names);
    line(&mut out, "grants", "gauge", "Acquires held", totals.grants);
    line(&mut out, "waiting", "gauge", "Acquires that wait", totals.waiting);
    line(&mut out, "files", "gauge", "Files", totals.files);
    line(&mut out, "file_bytes", "gauge", "Bytes in files", totals.file_bytes);
    line(&mut out, "deadlocks_total", "counter", "Deadlocks found", totals.deadlocks);
    let help = "Acquires in deadlocks that were left standing";
    line(&mut out, "deadlocked", "gauge", help, totals.deadlocked);
    line(&mut out, "term", "gauge", "The current term", status.term);
    line(&mut out, "leads", "gauge", "Whether this node leads", u64::from(status.leads()));
    line(&mut out, "has_leader", "gauge", "Whether a leader is known", u64::from(status.leader.is_some()));
    let applied = status.applied.map_or(0, |id| id.index);
    line(&mut out, "applied_index", "gauge", "The last entry applied", applied);
    line(&mut out, "log_index", "gauge", "The last entry in the log", status.last.unwrap_or(0));
    out
}

fn line(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    let written = writeln!(
        out,
        "# HELP conclave_{name} {help}.\n# TYPE conclave_{name} {kind}\nconclave_{name} {value}"
    );
    written.expect("writing to a string does not fail");
}
