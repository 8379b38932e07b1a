//! Whether polling is better than sleeping.
//!
//! Waking a thread takes some 30 us on a virtual machine, where an idle processor was given back to the host. The next request of
//! a client that just got a reply, or the end of a sync, often arrives sooner. So threads on the path of a request poll for a
//! while before they sleep, and let others run between two polls.
//!
//! **Trap.** With a single processor nothing can arrive while a thread polls.

use std::sync::LazyLock;
use std::thread;

/// Returns whether there is another processor on which something may happen meanwhile.
pub(crate) fn is_multi_core() -> bool {
    static SEVERAL: LazyLock<bool> =
        LazyLock::new(|| thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));
    *SEVERAL
}
