//! The integration tests of this crate, in one binary: each further binary would be linked separately.

mod blocked_runtime;
mod blocking;
mod examples;
mod fence_store;
mod requests;
mod service;
mod source;
mod support;
mod testing;
