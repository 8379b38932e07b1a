//! One file a command.

pub mod compare;
pub mod list;
pub mod replay;
pub mod report;
pub mod sim;
pub mod world;
