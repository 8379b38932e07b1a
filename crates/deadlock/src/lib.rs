//! Deadlock detection on wait-for graphs, in every request model.
//!
//! - [`request`]: one type for the requests of every model: single, AND, OR, k-out-of-n, with modes and
//!   permits.
//! - [`graph`]: the wait-for graph of a lock service. It decides at every new wait whether the wait closes a
//!   deadlock.
//! - [`batch`]: the analysis of a whole graph with millions of processes.
//!
//! The lock service uses the first two, and the laboratory all three.
#![no_std]
#![cfg_attr(not(test), warn(clippy::std_instead_of_core))]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod batch;
pub mod graph;
pub mod request;
mod scc;

pub use graph::{GraphError, Link, Resolution, Turn, WaitGraph, Why};
pub use request::{Claim, Demand, Limits, Request, RequestError};
