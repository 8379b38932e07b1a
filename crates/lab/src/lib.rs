//! The laboratory: problems meet worlds, and everything is measured.

pub mod added;
pub mod case;
pub mod compare;
pub mod deepen;
pub mod diagram;
pub mod experiment;
pub mod flaws;
pub mod log;
pub mod matrix;
pub mod mutants;
pub mod problem;
pub mod problems;
pub mod sampling;
pub mod sites;
pub mod sweep;
