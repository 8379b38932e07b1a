//! The frontends. Each serves one protocol: it reads bytes, decodes them, and passes requests to the node. It
//! decides nothing.
//!
//! - `native`: length-prefixed protobuf frames, for the Rust client.
//! - `grpc`: the same messages as a gRPC stream, for other languages; with health and reflection.
//! - `http`: health, metrics and read-only JSON, for people and tools. It reads the replica and proposes
//!   nothing.
//! - `metrics`: the counters as text.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod native;

pub use conclave_node::node::{MAX_IN_FLIGHT, MAX_QUEUED, MAX_WAITING};

pub use crate::driver::OUTBOX_BYTES;
