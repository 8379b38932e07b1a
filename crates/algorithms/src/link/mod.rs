//! Channels better than the network gives.

pub(crate) mod tap;
