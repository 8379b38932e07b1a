//! Quorums.
