//! The clock that measures leases.
//!
//! **Trap.** The usual monotonic clock stops while the machine is suspended; the server's clock goes on. A
//! laptop wakes up after an hour, and its client would still believe in a lease that ended long ago. So this
//! module uses a clock that counts suspension, if the system has one.

#[cfg(target_os = "linux")]
mod linux;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::lease::Now;
#[cfg(target_os = "linux")]
use linux::since_boot;

/// The clock of a client. [`crate::Connector::clock`] chooses it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The clock of the system. It counts the time of a suspension, if the system has such a clock.
    #[default]
    System,
    /// The clock of a server in memory, which a test may pause.
    #[cfg(feature = "testing")]
    Memory(crate::testing::Link),
}

impl Clock {
    /// Returns whether this is the clock of the system.
    pub(crate) fn is_system(&self) -> bool {
        matches!(self, Self::System)
    }

    /// The time since an arbitrary start.
    pub(crate) fn now(&self) -> Now {
        match self {
            Self::System => system(),
            #[cfg(feature = "testing")]
            Self::Memory(link) => link.now(),
        }
    }

    /// The present time as an instant that the program can compare. With a server in memory it is on the clock
    /// of tokio.
    pub(crate) fn instant(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            #[cfg(feature = "testing")]
            Self::Memory(link) => link.instant(),
        }
    }
}

/// The time since the first call in this process.
fn system() -> Now {
    static BEGAN: OnceLock<Duration> = OnceLock::new();
    let time = since_boot();
    time.saturating_sub(*BEGAN.get_or_init(|| time))
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}
