//! A model of consensus, and bugs that tests plant in the node.
//!
//! The model has no network, no disk and no clock. A test decides when an entry arrives, when a leader is
//! elected, and which proposals are lost. [`Consensus`] is the log on which the cluster has agreed;
//! [`Replica`] is the part of one node that applies it. [`SimLog`] is the log of a single node, whose end a
//! power cut can remove.

mod consensus;
mod flaw;
mod replica;
mod sim_log;

pub use consensus::{Consensus, Entry};
pub use flaw::Flaw;
pub use replica::Replica;
pub use sim_log::SimLog;
