//! The clock that measures leases.
//!
//! **Trap.** The usual monotonic clock stops while the machine is suspended; the server's clock goes on. A
//! laptop wakes up after an hour, and its client would still believe in a lease that ended long ago. So this
//! module uses a clock that counts suspension, if the system has one.

use std::sync::OnceLock;
use std::time::Duration;

use crate::lease::Now;

/// The time since the first call in this process.
pub(crate) fn now() -> Now {
    static BEGAN: OnceLock<Duration> = OnceLock::new();
    let time = since_boot();
    time.saturating_sub(*BEGAN.get_or_init(|| time))
}

#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    ORIGIN.get_or_init(std::time::Instant::now).elapsed()
}
