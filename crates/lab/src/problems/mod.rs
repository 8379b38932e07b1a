//! What each problem is given to do, and what is measured of it.

pub mod deadlock;
pub mod detector;
pub mod election;
pub mod mutex;
pub mod snapshot;
pub mod timesync;
