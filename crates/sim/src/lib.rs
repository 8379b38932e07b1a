//! A deterministic simulator: any [`Protocol`](conclave_kernel::Protocol), any number of sites, one seed.
//!
//! The simulator knows no algorithm and no problem. It is given sites, a [`Setup`] (network, clocks, faults) and
//! a [`Director`] (the work, the judge, the meters), and runs them: the same seed gives the same run, step by
//! step, which is proven on the digest of everything that happened.
//!
//! | file | what it holds |
//! |---|---|
//! | `setup` | [`Setup`]: everything a run is a function of |
//! | `fault` | [`Fault`]: crashes, pauses, partitions, planned before the run |
//! | `network` | what becomes of a message |
//! | `clock` | local clocks with skew and drift |
//! | `queue` | the order of what will happen |
//! | `world` | [`World`]: the run itself |
//! | `director` | [`Director`] and its [`Desk`]: what stands above the algorithm |
//! | `swarm` | [`swarm()`]: a [`Setup`] whose faults are drawn from a seed |
//! | `shrink` | [`shrink()`]: the smallest run that still fails |
//! | [`script`] | golden scenario scripts: sites stepped by hand |
//! | [`text`] | how a scenario is written in a file |
//! | `report` | [`Outcome`] and the [`Ledger`] of what went wrong |

mod clock;
mod director;
mod fault;
mod network;
mod queue;
mod report;
pub mod script;
mod setup;
mod shrink;
mod swarm;
pub mod text;
mod world;

pub use clock::Clocks;
pub use director::{Desk, Director};
pub use fault::{CutLoss, Fault, FaultKind, Recovery, exact};
pub use report::{End, Ledger, Outcome};
pub use setup::{Delay, Link, Order, Setup};
pub use shrink::{Candidate, Shrunk, shrink};
pub use swarm::{Profile, swarm};
pub use world::{Limits, World};
