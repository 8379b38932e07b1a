//! Channels better than the network gives: each is a protocol around any other, which notices nothing.
//!
//! | layer | what it gives | what it costs | over a network that |
//! |---|---|---|---|
//! | [`fifo`] | messages of a link in the order sent | a number a message | reorders |
//! | [`retransmit`] | every message, once | an acknowledgement a message, and what is sent again | loses and duplicates |
//! | [`causal`] | broadcasts in an order that causality allows | N numbers a message | reorders |
//! | [`causal`] | every message in such an order | N² numbers a message | reorders |
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

/// What mutual exclusion over a layer promises. Not ME3: a message is taken in later than it arrives, and what the
/// layer itself says is not heard by the algorithm inside, so that its clock does not see all causality.
const PROMISES: &[&str] = &["ME1", "ME1-causal", "ME2", "fences"];

/// At most so many messages wait at a site for those that must come first. A link that is further behind is
/// broken: what comes then is dropped, as if the network had lost it.
pub const MOST_HELD: usize = 1 << 16;
