//! Coordination algorithms, one module per problem.
//!
//! Every algorithm is a pure state machine that implements the [`conclave_kernel`] contract. The same code
//! runs in the simulator, in the model checker and on a real network.
#![no_std]
#![cfg_attr(not(test), warn(clippy::std_instead_of_core))]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod catalog;
pub mod clock;
pub mod deadlock;
pub mod detector;
pub mod election;
pub mod link;
pub mod mutants;
pub mod mutex;
pub mod quorum;
pub mod snapshot;
pub mod timesync;
