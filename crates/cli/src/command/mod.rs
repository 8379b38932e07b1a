//! The commands: the lock service and the laboratory (default features), the tour, which needs the service,
//! and tools.

pub mod clock;
pub mod completions;
#[cfg(feature = "lab")]
pub mod lab;
pub mod man;
#[cfg(feature = "service")]
pub mod service;
#[cfg(feature = "service")]
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
