//! The replicated lock service: a pure state machine, replicated by a log, behind frontends.

pub mod config;
mod driver;
pub mod frontend;
pub mod joining;
mod machine;
pub mod peers;
pub mod replica;
pub mod server;
