//! The membership of the cluster, and its changes.

pub mod join;
