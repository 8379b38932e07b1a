//! A deterministic simulator: it runs any [`Protocol`](conclave_kernel::Protocol) with any number of sites
//! from one seed.
//!
//! The simulator contains no code of an algorithm or a problem. The caller gives it the sites, a [`Setup`]
//! (network, clocks, faults) and a [`Director`], which creates the work, judges the run and measures it. The
//! same seed gives the same run, step by step. Tests check this with a digest of everything that happened.
//!
//! | file | content |
//! |---|---|
//! | `setup` | [`Setup`]: all parameters of a run except the algorithm and its work |
//! | `fault` | [`Fault`]: crashes, pauses, partitions and clock steps, planned before the run |
//! | `network` | decides when a message arrives, or that it is lost |
//! | `clock` | local clocks with skew and drift |
//! | `queue` | future events in order of time |
//! | `progress` | [`Limits`]: when a run without progress ends |
//! | `world` | [`World`]: runs the sites |
//! | `director` | [`Director`]: the layer above the algorithm; [`Desk`]: its access to the run |
//! | `swarm` | [`swarm()`]: draws a [`Setup`] with faults from a seed |
//! | `shrink` | [`shrink()`]: reduces a failing run to a small one that still fails |
//! | [`script`] | golden scenario scripts: sites whose steps a text file gives |
//! | [`text`] | durations and probabilities in scenario files |
//! | `report` | [`Outcome`], and the [`Ledger`], which counts the faults |

mod clock;
mod director;
mod fault;
mod network;
mod progress;
mod queue;
mod report;
pub mod script;
mod setup;
mod shrink;
mod swarm;
pub mod text;
mod world;

pub use clock::Clocks;
pub use conclave_kernel::Recording;
pub use director::{Desk, Director};
pub use fault::{CutLoss, Fault, FaultKind, Recovery, exact};
pub use progress::Limits;
pub use report::{End, Ledger, Outcome};
pub use setup::{Delay, Link, Order, Setup};
pub use shrink::{Candidate, Shrunk, shrink};
pub use swarm::{Profile, swarm};
pub use world::World;
