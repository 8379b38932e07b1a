//! The laboratory: rooms meet worlds, and everything is measured.

pub mod case;
pub mod diagram;
pub mod log;
pub mod matrix;
pub mod room;
pub mod rooms;
pub mod suggest;
pub mod sweep;
pub mod zoo;
