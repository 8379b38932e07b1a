//! Logical clocks: they count events instead of seconds, and show which event happened before which.

pub mod lamport;
pub mod vector;

pub use lamport::{LamportClock, Stamp};
pub use vector::{Causal, VectorClock};
