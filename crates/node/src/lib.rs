//! The lock service without I/O: everything that decides, and nothing that waits for a socket, a disk or a
//! clock.
//!
//! - [`node`]: the connections, sessions, leases and watches of one node, and the next log entry.
//! - [`state`]: the replicated state, a pure function of the log.
//! - [`entry`]: the contents of a log entry, a batch of commands, and their sizes.
//! - [`leases`]: the timers of the leader. They turn time into commands.
//! - [`codec`]: the conversion between protobuf messages and the types of this crate.
//! - [`cluster`]: the identifiers, members and errors that the node and its replica share.
//!
//! With the feature `testing` there is also `testing`: a model of consensus, and bugs that tests plant.
//!
//! The crate `conclave-service` adds the I/O: sockets, timers, the log on disk, and consensus.

#[macro_use]
mod planted;

pub mod cluster;
pub mod codec;
pub mod entry;
pub mod leases;
pub mod node;
pub mod state;
#[cfg(feature = "testing")]
pub mod testing;
