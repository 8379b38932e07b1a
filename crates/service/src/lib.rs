//! The replicated lock service: the node of `conclave-node`, with sockets, a disk and consensus.

pub mod config;
mod driver;
pub mod frontend;
mod machine;
pub mod membership;
pub mod peers;
pub mod replica;
pub mod server;
