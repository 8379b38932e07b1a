//! The integration tests of the command line, in one binary, because each further binary takes another link.

mod clock;
#[cfg(feature = "service")]
mod service;
#[cfg(feature = "service")]
mod tour;

#[cfg(feature = "lab")]
mod cli;
#[cfg(feature = "lab")]
mod deadlock;
#[cfg(feature = "lab")]
mod experiment;
#[cfg(feature = "lab")]
mod explore;
#[cfg(feature = "lab")]
mod help;
#[cfg(all(feature = "lab", feature = "service"))]
mod readme;
#[cfg(feature = "lab")]
mod trace;
