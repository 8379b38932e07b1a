//! The frontends: each speaks one protocol, translates, and does nothing else.
//!
//! - `native`: length-prefixed protobuf frames, for the Rust client: as fast as it gets.
//! - `grpc`: the same messages as a gRPC stream, for every other language; with health and reflection.
//! - `http`: health, metrics and read-only JSON, for people and their tools.
//!
//! Behind the first two stands the `hub`: one task that owns connections, sessions, watches and the [lease
//! keeper](conclave_node::leases), and proposes what clients ask. `http` reads the replica itself and proposes nothing. The
//! codec of `conclave-node` translates, an `outbox` holds what waits for one connection, `query` answers reads, `metrics` counts.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod hub;
pub(crate) mod metrics;
pub(crate) mod native;
mod outbox;
mod query;

pub use hub::{MAX_IN_FLIGHT, MAX_PARKED, MAX_WAITING};
pub use outbox::OUTBOX_BYTES;

use crate::peers::Peers;
