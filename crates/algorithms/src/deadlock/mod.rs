//! Deadlock: who waits for whom, and who waits for ever.
//!
//! | request model | a process proceeds when it has | deadlock shows as |
//! |---|---|---|
//! | single, AND | all it asked for | a cycle |
//! | OR | any one of them | a knot: nobody in it can reach a process that runs |
//! | AND-OR, p-out-of-q | enough, gate by gate | what graph reduction leaves over |
//!
//! - [`request`]: one [`Request`] type for all the models, with modes and counts.

pub mod request;

pub use request::{Claim, Demand, Limits, Request, RequestError};
