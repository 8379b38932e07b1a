//! The integration tests of the command line, in one binary, because each further binary takes another link.

mod clock;
mod service;
mod tour;

#[cfg(feature = "lab")]
mod cli;
#[cfg(feature = "lab")]
mod deadlock;
#[cfg(feature = "lab")]
mod explore;
#[cfg(feature = "lab")]
mod help;
#[cfg(feature = "lab")]
mod readme;
#[cfg(feature = "lab")]
mod sites;
#[cfg(feature = "lab")]
mod trace;
