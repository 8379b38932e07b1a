//! What happened before what: clocks that count events instead of seconds.

pub mod lamport;
pub mod vector;

pub use lamport::{LamportClock, Stamp};
pub use vector::{Causal, VectorClock};
