//! The members of the cluster, and the ways in which they change.

pub mod join;
