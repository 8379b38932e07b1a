//! The laboratory: problems meet worlds, and everything is measured.

pub mod case;
pub mod diagram;
pub mod log;
pub mod matrix;
pub mod problem;
pub mod problems;
pub mod sites;
pub mod sweep;
pub mod zoo;
