//! The commands: the lock service, the laboratory (a default feature), this machine's clock, and the tour.

pub mod clock;
#[cfg(feature = "lab")]
pub mod lab;
pub mod man;
pub mod service;
pub mod tour;

use std::time::Duration;

use conclave_kernel::time;

/// Reads a duration with its unit, for every flag that takes one.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("a duration is at least 0".into());
    }
    time::parse(text).map_err(Into::into)
}
