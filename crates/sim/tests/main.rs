//! The integration tests of this crate in one binary, because each further binary would link all dependencies
//! again.

mod determinism;
mod faults;
mod progress;
mod shrinking;
