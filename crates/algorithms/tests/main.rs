//! The integration tests of this crate, in one binary: each further binary would link all dependencies again.

mod allocations;
mod central_rings_maekawa;
mod election_scenarios;
mod scenarios;
mod snapshot_scenarios;
mod stamps_and_tokens;
mod support;
mod timesync_scenarios;
