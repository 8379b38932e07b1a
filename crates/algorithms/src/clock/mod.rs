//! What happened before what: clocks that count events instead of seconds.

pub mod lamport;

pub use lamport::{LamportClock, Stamp};
