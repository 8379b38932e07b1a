//! Whether looking again is better than sleeping.
//!
//! A thread that sleeps is woken in some 30 us on a virtual machine, where an idle processor was given back to the host; a
//! request of a client that was just answered, or the end of a sync, is often there sooner. So threads on the path of a
//! request look for a while before they sleep, and let others run between two looks.
//!
//! **The trap.** On a single processor there is nobody who could bring what is looked for meanwhile.

use std::sync::LazyLock;
use std::thread;

/// Whether there is another processor on which something may happen meanwhile.
pub(crate) fn is_worth_it() -> bool {
    static SEVERAL: LazyLock<bool> =
        LazyLock::new(|| thread::available_parallelism().is_ok_and(|processors| processors.get() > 1));
    *SEVERAL
}
