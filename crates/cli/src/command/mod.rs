//! One file a command.

pub mod check;
pub mod clock;
pub mod compare;
pub mod list;
pub mod replay;
pub mod report;
pub mod rooms;
pub mod service;
pub mod sim;
pub mod world;
