//! One file a command.

pub mod check;
pub mod clock;
pub mod compare;
pub mod deadlock;
pub mod list;
pub mod matrix;
pub mod mutants;
pub mod problems;
pub mod replay;
pub mod report;
pub mod service;
pub mod sim;
pub mod trace;
pub mod world;
