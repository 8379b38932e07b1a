//! Tests of the frontends, over sockets, against a node in this process.

#![allow(
    clippy::unwrap_used,
    reason = "in a test a failure is a panic; clippy knows this only of test functions"
)]

mod backups;
mod doors;
mod native;
mod peers;
mod support;
