//! Channels with stronger guarantees than those of the network. Each is a layer around another protocol,
//! which needs no change.
//!
//! | layer | guarantee | cost | for a network that |
//! |---|---|---|---|
//! | [`fifo`] | messages of a link are delivered in the order sent | a number per message | reorders |
//! | [`retransmit`] | every message arrives once | an acknowledgement each, resends | loses, duplicates |
//! | [`causal`] | broadcasts are delivered in causal order | N numbers per message | reorders |
//! | [`causal`] | all messages are delivered in causal order | N² numbers per message | reorders |
//!
//! Layers nest: `Retransmit<Fifo<Lamport>>` is Lamport's mutual exclusion on a network that loses, duplicates
//! and reorders.

pub mod causal;
pub mod fifo;
pub mod retransmit;
pub(crate) mod tap;

pub use causal::{CausalBroadcast, CausalLinks};
pub use fifo::Fifo;
pub use retransmit::Retransmit;

/// The promises of mutual exclusion over a layer. ME3 is missing: a layer may deliver a message later than it
/// arrives, and the algorithm inside does not see the layer's own messages. So its clock misses some
/// causality.
const PROMISES: &[&str] = &["ME1", "ME1-causal", "ME2", "fences"];

/// The limit of messages that a site holds back until earlier ones arrive. Further messages are dropped, as
/// if the network had lost them.
pub const MOST_HELD: usize = 1 << 16;
