//! The frontends of a node in this process, spoken to as strangers would.

#![allow(
    clippy::unwrap_used,
    reason = "in a test a failure is a panic; clippy knows this only of test functions"
)]

mod backups;
mod doors;
mod native;
mod peers;
mod support;
