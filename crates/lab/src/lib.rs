//! The laboratory: rooms meet worlds, and everything is measured.

pub mod diagram;
pub mod log;
