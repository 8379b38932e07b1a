//! The thread that keeps sessions alive while their programs block the runtime.
//!
//! **Intuition.** The task of a client sends keep-alives, but a task runs only when its runtime does. A
//! program with one thread that computes for longer than its TTL would lose its locks. So one thread of the
//! process checks all sessions. It does nothing while the tasks run. If the answer to a keep-alive is
//! overdue, it does the work of the task. It writes the messages of the core, and reads the bytes that have
//! arrived.
//!
//! **Rules.**
//! - The task registers its client when the first session is open. Without a session the client leaves the
//!   schedule.
//! - The thread steps in when 5/12 of the TTL have passed since the latest answered keep-alive was sent. A
//!   task that runs has sent the next one at 1/3, and jeopardy begins at 1/2.
//! - The thread has no connection of its own and does not reconnect. A program that blocks its runtime while
//!   the connection is lost loses its session at the deadline. `Guard::state` is then `Lost`.
//!
//! **Trap.** The thread reads the socket without the runtime. Afterwards the runtime may still regard the
//! socket as readable, so the task makes one read without a result. The reverse cannot happen: the thread
//! never marks a socket as empty.
//!
//! **Bounds.** The thread starts with the first session and lives as long as the process. The schedule has
//! one entry for each client with a session. If the system refuses the thread, the tasks keep the sessions
//! alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::Shared;
use crate::clock::Clock;
use crate::lease::Now;

/// The schedule of the process.
static SCHEDULE: Mutex<Schedule> =
    Mutex::new(Schedule { checks: BTreeMap::new(), registered: 0, is_running: false });
/// Wakes the thread when an earlier check is scheduled.
static EARLIER: Condvar = Condvar::new();

struct Schedule {
    /// The clients by the time of their next check. The number makes the key unique.
    checks: BTreeMap<(Now, u64), Weak<Shared>>,
    registered: u64,
    is_running: bool,
}

/// Registers a client with an open session, for a check at `at`. Returns `false` if there is no thread.
pub(super) fn register(client: &Arc<Shared>, at: Now) -> bool {
    let mut schedule = schedule();
    if !schedule.is_running {
        let thread = thread::Builder::new().name("conclave-keep-alive".into()).spawn(run);
        schedule.is_running = thread.is_ok();
    }
    if schedule.is_running {
        schedule.registered += 1;
        let number = schedule.registered;
        schedule.checks.insert((at, number), Arc::downgrade(client));
        EARLIER.notify_one();
    }
    schedule.is_running
}

fn run() {
    let mut schedule = schedule();
    loop {
        let now = Clock::System.now();
        let (at, number) = match schedule.checks.first_key_value() {
            Some((key, _)) => *key,
            None => (now + Duration::from_secs(3600), 0),
        };
        if at > now {
            schedule = EARLIER.wait_timeout(schedule, at - now).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let Some(client) = schedule.checks.remove(&(at, number)) else { continue };
        drop(schedule);
        let next = client.upgrade().and_then(|client| client.keep_alive());
        schedule = self::schedule();
        if let Some(next) = next {
            schedule.checks.insert((next, number), client);
        }
    }
}

fn schedule() -> MutexGuard<'static, Schedule> {
    SCHEDULE.lock().unwrap_or_else(PoisonError::into_inner)
}
