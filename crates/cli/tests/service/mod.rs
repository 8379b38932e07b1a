//! Tests of the command line with a real server: processes, signals, exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod backup;
mod cluster;
mod deadlock;
mod errors;
mod files;
mod json;
mod local;
#[cfg(target_os = "linux")]
mod lock;
mod run;
mod run_options;
mod silence;
pub mod support;
#[cfg(target_os = "linux")]
mod terminal;
mod views;
