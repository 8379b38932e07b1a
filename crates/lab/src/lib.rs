//! The laboratory: problems meet worlds, and everything is measured.

pub mod case;
pub mod deepen;
pub mod diagram;
pub mod flaws;
pub mod log;
pub mod matrix;
pub mod problem;
pub mod problems;
pub mod sampling;
pub mod sweep;
pub mod zoo;
