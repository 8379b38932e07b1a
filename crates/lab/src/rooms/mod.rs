//! What each room is given to do, and what is measured of it.

pub mod mutex;
pub mod timesync;
