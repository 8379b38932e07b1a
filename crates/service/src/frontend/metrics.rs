//! The metrics of a node in the text format of Prometheus.

use std::fmt::Write;

use conclave_node::node::metrics::Metrics;
use conclave_node::state::query::Totals;

use crate::replica::Status;

/// Returns the counters of the node and the size of the state as text.
pub(crate) fn render(metrics: &Metrics, totals: Totals, status: &Status) -> String {
    let mut out = String::with_capacity(4096);
    metrics.each(|name, kind, help, value| line(&mut out, name, kind, help, value));
    line(&mut out, "sessions", "gauge", "Sessions", totals.sessions);
    line(&mut out, "names", "gauge", "Names in use", totals.names);
    line(&mut out, "grants", "gauge", "Acquires held", totals.grants);
    line(&mut out, "waiting", "gauge", "Acquires that wait", totals.waiting);
    line(&mut out, "files", "gauge", "Files", totals.files);
    line(&mut out, "file_bytes", "gauge", "Bytes in files", totals.file_bytes);
    line(&mut out, "deadlocks_total", "counter", "Deadlocks found", totals.deadlocks);
    let help = "Acquires in deadlocks that the policy `none` left unresolved";
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
