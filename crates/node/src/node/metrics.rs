//! The counters of a node.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($field:ident: $kind:literal, $help:literal;)*) => {
        /// The counters of a node. Gauges are set; counters only grow. The node writes them and never reads
        /// them.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $help] pub $field: AtomicU64,)*
        }

        impl Metrics {
            /// Calls `write` with the name, the kind, the description and the value of each counter.
            pub fn each(&self, mut write: impl FnMut(&str, &str, &str, u64)) {
                $(write(stringify!($field), $kind, $help, self.$field.load(Ordering::Relaxed));)*
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
    proposals_failed_total: "counter", "Proposals that were not applied, or whose outcome is unknown";
    replies_total: "counter", "Replies sent to clients of this node";
    early_grants_total: "counter", "Grants sent to clients of this node before the sync";
    keep_alives_total: "counter", "Keep-alives answered";
    queries_total: "counter", "Reads answered";
    expiries_total: "counter", "Leases, waits and lock-delays that this node proposed to end";
    in_flight: "gauge", "Commands gathered or in flight";
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Sets a gauge.
pub(super) fn set(gauge: &AtomicU64, value: usize) {
    gauge.store(value as u64, Ordering::Relaxed);
}
