//! The choice between polling and sleeping.
//!
//! **Intuition.** Waking a thread takes about 30 us on a virtual machine whose idle processor was given back
//! to the host. The next request of a client, or the end of a sync, often arrives sooner. So threads that
//! handle requests poll for a while before they sleep, and yield between two polls.
//!
//! **Trap.** With a single processor, the polling thread keeps the processor from the thread that it waits
//! for.

use std::sync::LazyLock;
use std::thread;

/// Returns whether the process may use more than one processor.
pub(crate) fn is_multi_core() -> bool {
    static SEVERAL: LazyLock<bool> =
        LazyLock::new(|| thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));
    *SEVERAL
}
