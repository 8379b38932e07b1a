//! Deadlock: who waits for whom, and who waits for ever.
//!
//! | request model | a process proceeds when it has | deadlock shows as |
//! |---|---|---|
//! | single, AND | all it asked for | a cycle |
//! | OR | any one of them | a knot: nobody in it can reach a process that runs |
//! | AND-OR, p-out-of-q | enough, gate by gate | what graph reduction leaves over |
//!
//! In all of them the exact answer is *reduction* (let whoever can proceed finish and give back; the rest is stuck); a
//! cycle or a knot is only how it is explained.
//!
//! - [`request`]: one [`Request`] type for all the models, with modes and counts.
//! - [`graph`]: the wait-for graph a service lives on, decided at every wait.
//! - [`batch`]: a whole graph at once, a million processes in a fraction of a second.

pub mod batch;
pub mod graph;
pub mod request;
mod scc;

pub use graph::{Deadlock, GraphError, Link, Turn, Verdict, WaitGraph, Why};
pub use request::{Claim, Demand, Limits, Request, RequestError};
