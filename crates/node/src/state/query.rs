//! Read-only queries: holders, waiters, sessions, files, timers and totals.
//!
//! Nothing here changes the state. Lists are cut to the requested length and to [`PAGE_BYTES`]. Deadlocks are
//! searched only from the waiters that are shown. So neither a queue of 100,000 waiters nor names of the
//! largest length can make a report slow.

use conclave_core::report::{
    Blocker, Breaking, FileStat, Holder, LockInfo, LockReport, QueuePosition, SessionInfo,
    Waiter as WaiterInfo,
};
use conclave_core::{Claim, Code, Deadlock, Error, FilePath, LockName, RequestId, SessionId, WaitsFor};
use conclave_deadlock::{Claim as LockClaim, Demand};

use super::command::{Granted, GrantedName, TimerId};
use super::lock::{Lock, LockId, Locks, OwnerId, Waiter};
use super::rank::Ticket;
use super::session::{Broken, Session};
use super::{Delay, State, WaitLimit};

/// The largest number of holders in a `queued` reply, and for each name in a list. Further holders are left
/// out.
const HOLDERS_SENT: usize = 8;
/// The largest number of holders, waiters and deadlocks in a report about one name. Further ones are left
/// out.
const SHOWN: usize = 100;
/// The approximate size of one page of a list, in bytes on the wire. A longer list is cut, and [`Page::more`]
/// is set.
pub const PAGE_BYTES: usize = 256 * 1024;
/// The approximate bytes of the numbers and the framing of each item in a list.
const NUMBERS_BYTES: usize = 64;
/// The number of waiters counted from either end of a queue. A position further from both ends is an
/// estimate.
const COUNTED: usize = 1024;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The items in order. Not empty unless the list is empty or the limit is 0.
    pub items: Vec<T>,
    /// `true` if there are more items after the last one.
    pub more: bool,
}

/// Returns the first items, at most `limit`, with at most about [`PAGE_BYTES`] bytes.
pub fn page<T>(items: impl Iterator<Item = T>, limit: usize, bytes: impl Fn(&T) -> usize) -> Page<T> {
    let (mut page, mut left) = (Page { items: Vec::new(), more: false }, PAGE_BYTES);
    for item in items {
        let bytes = bytes(&item);
        if page.items.len() >= limit || (bytes > left && !page.items.is_empty()) {
            page.more = true;
            break;
        }
        left = left.saturating_sub(bytes);
        page.items.push(item);
    }
    page
}

/// The sizes of the tables, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of sessions.
    pub sessions: u64,
    /// The number of names in use.
    pub names: u64,
    /// The number of granted acquires.
    pub grants: u64,
    /// The number of waiting acquires.
    pub waiting: u64,
    /// The number of files, the root included.
    pub files: u64,
    /// The bytes of data in all files.
    pub file_bytes: u64,
    /// The number of deadlocks found so far.
    pub deadlocks: u64,
    /// The number of owners in deadlocks that were left standing.
    pub deadlocked: u64,
}

impl State {
    /// Checks the secret with which a client resumes a session. Returns the session if the secret is right.
    ///
    /// # Errors
    /// [`Code::SessionEnded`] or [`Code::WrongSecret`].
    pub fn authenticate(&self, session: SessionId, secret: u128) -> Result<SessionInfo, Error> {
        let info = self.session(session).ok_or_else(|| super::session_ended(session))?;
        if self.sessions[&session].open.secret != secret {
            return Err(Error::new(
                Code::WrongSecret,
                format!("this is not the secret of session {session}"),
            ));
        }
        Ok(info)
    }

    /// Returns the report about one session.
    pub fn session(&self, id: SessionId) -> Option<SessionInfo> {
        let session = self.sessions.get(&id)?;
        let mut info = SessionInfo::default();
        info.session = id;
        info.label = session.open.label.clone();
        info.ttl_ms = session.open.ttl_ms;
        info.waits = session.waiting.len() as u64;
        info.grants = (session.live.len() as u64).saturating_sub(info.waits);
        info.since_ms = session.since_ms;
        Some(info)
    }

    /// Returns the sessions after `after`, at most `limit`.
    pub fn sessions(&self, after: Option<SessionId>, limit: usize) -> Page<SessionInfo> {
        let from = after.map_or(SessionId(0), |SessionId(id)| SessionId(id.saturating_add(1)));
        let sessions = self.sessions.range(from..).filter_map(|(id, _)| self.session(*id));
        page(sessions, limit, |session| session.label.len() + NUMBERS_BYTES)
    }

    /// Returns the grants of a session, by the number of the acquire.
    pub fn grants(&self, session: SessionId) -> Vec<(RequestId, Granted)> {
        let live = self.sessions.get(&session).into_iter().flat_map(|session| &session.live);
        let held = live.filter(|(_, ticket)| self.locks.grants.contains_key(ticket));
        held.map(|(request, ticket)| (*request, self.locks.granted(*ticket))).collect()
    }

    /// Returns the names taken away from a session that its client has not released yet, the oldest first.
    pub fn broken(&self, session: SessionId) -> impl Iterator<Item = &Broken> {
        self.sessions.get(&session).into_iter().flat_map(Session::broken)
    }

    /// Returns the names in use that begin with `prefix` and come after `after`, in order, at most `limit`.
    /// Each has its first few holders.
    pub fn locks(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Page<LockInfo> {
        let locks = self.locks.beginning_with(prefix, after);
        page(locks.map(|lock| self.locks.info(lock)), limit, lock_bytes)
    }

    /// Returns the holders, the waiting requests and the recent incidents of a name. Each list is cut to one
    /// page. The records of an unused name end with the history.
    pub fn why(&self, name: &LockName) -> LockReport {
        let mut report = LockReport::new(name.clone(), self.applied());
        let has_part = |deadlock: &&Deadlock| deadlock.cycle.iter().any(|edge| edge.name == *name);
        let deadlocks = self.incidents.deadlocks.iter().map(|(_, _, deadlock)| deadlock).filter(has_part);
        report.deadlocks = page(deadlocks.cloned(), SHOWN, deadlock_bytes).items;
        let breaks = self.incidents.breaks.iter().filter(|(_, _, broken, _)| broken == name);
        let breaking = |(_, at_ms, _, reason): &(u64, u64, LockName, String)| {
            let mut breaking = Breaking::default();
            (breaking.at_ms, breaking.reason) = (*at_ms, reason.clone());
            breaking
        };
        report.breakings = breaks.map(breaking).collect();
        let Some(id) = self.locks.find(name) else {
            let has_incidents = !report.deadlocks.is_empty() || !report.breakings.is_empty();
            report.known = has_incidents || self.history.mentions(name);
            return report;
        };
        let lock = self.locks.lock(id);
        let first = || lock.queue.keys().take(SHOWN).map(|rank| self.locks.waiter(rank.ticket));
        let stuck = self.locks.stuck(first());
        let waiters =
            first().map(|waiter| self.locks.waiter_info(waiter, stuck.binary_search(&waiter.owner).is_ok()));
        report.waiters = page(waiters, SHOWN, waiter_bytes).items;
        report.waiters_total = lock.queue.len() as u64;
        report.limit = lock.limit;
        report.permits_held = lock.permits_held;
        report.value = lock.value.clone();
        report.holders = self.locks.holders(lock).take(SHOWN).collect();
        report.holders_total = lock.holds.len() as u64;
        report.known = true;
        report
    }

    /// Returns the number of requests that wait for ever, found by a search from all waiters.
    #[cfg(test)]
    pub(super) fn stuck(&self) -> usize {
        self.locks.stuck(self.locks.waiters.values()).len()
    }

    /// Returns the contents and the metadata of a file.
    pub fn file(&self, path: &FilePath) -> Option<(&[u8], FileStat)> {
        self.tree.read(path)
    }

    /// Returns the names of the files in a directory, in order.
    pub fn list(&self, path: &FilePath) -> Option<impl Iterator<Item = &str>> {
        self.list_after(path, "")
    }

    /// Returns the names of the files in a directory that come after `after`, in order. The first one is
    /// found by a search in the ordered set, not by a scan.
    pub fn list_after(&self, path: &FilePath, after: &str) -> Option<impl Iterator<Item = &str>> {
        self.tree.list_after(path, after)
    }

    /// Returns every timer that must run, with its full length in milliseconds. A new leader starts all of
    /// them.
    pub fn timers(&self) -> Vec<(TimerId, u64)> {
        let leases = self.sessions.iter().map(|(id, session)| {
            (TimerId::Lease { session: *id, generation: session.generation }, session.lease_ms())
        });
        let waits = self.waits.iter().map(|(ticket, WaitLimit { session, request, after_ms })| {
            (TimerId::Wait { session: *session, request: *request, ticket: *ticket }, *after_ms)
        });
        let delays = self.delays.iter().map(|(session, Delay { generation, after_ms, .. })| {
            (TimerId::LockDelay { session: *session, generation: *generation }, *after_ms)
        });
        leases.chain(waits).chain(delays).collect()
    }

    /// Returns the sizes of the tables.
    pub fn totals(&self) -> Totals {
        Totals {
            sessions: self.sessions.len() as u64,
            names: self.locks.len() as u64,
            grants: self.locks.grants.len() as u64,
            waiting: self.locks.waiters.len() as u64,
            files: self.tree.len() as u64,
            file_bytes: self.tree.bytes(),
            deadlocks: self.incidents.deadlocks_total,
            deadlocked: self.locks.left_standing() as u64,
        }
    }

    /// Returns the number that is added to every fence.
    pub fn fence_base(&self) -> u64 {
        self.locks.fence_base
    }
}

impl Locks {
    /// Returns the names and fences of a grant, in canonical order.
    pub(super) fn granted(&self, ticket: Ticket) -> Granted {
        let items = self.grants.get(&ticket).map_or(&[][..], |grant| &grant.items);
        let name = |item: &super::lock::Item| GrantedName {
            name: self.lock(item.lock).name.clone(),
            claim: claim(item.demand),
            fence: item.fence,
        };
        let mut names: Vec<GrantedName> = items.iter().map(name).collect();
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Granted { names }
    }

    /// Returns the position of a waiter, and the holders that it waits for.
    pub(super) fn queued(&self, ticket: Ticket) -> QueuePosition {
        let waiter = self.waiter(ticket);
        let ahead = waiter.claims.iter().map(|claim| self.ahead(claim.resource, waiter)).max();
        let locks = waiter.claims.iter().map(|claim| self.lock(claim.resource));
        let blockers =
            locks.flat_map(|lock| self.holders(lock).map(|holder| Blocker::new(lock.name.clone(), holder)));
        let mut position = QueuePosition::default();
        position.ahead = ahead.unwrap_or(0);
        position.holders = blockers.take(HOLDERS_SENT).collect();
        position
    }

    /// Returns the number of waiters before this one. It is counted from the nearer end, and estimated in the
    /// middle of a long queue.
    fn ahead(&self, id: LockId, waiter: &Waiter) -> u64 {
        use std::ops::Bound::{Excluded, Unbounded};
        let queue = &self.lock(id).queue;
        let behind = queue.range((Excluded(waiter.rank), Unbounded)).take(COUNTED).count();
        let ahead = if behind < COUNTED {
            queue.len() - behind - 1
        } else {
            queue.range(..waiter.rank).take(COUNTED).count()
        };
        ahead as u64
    }

    /// Returns the reason why a request that must not wait was rejected.
    pub(super) fn obstacle(&self, waiter: &Waiter) -> String {
        let locks = || waiter.claims.iter().map(|claim| self.lock(claim.resource));
        let held = locks().find_map(|lock| {
            let owner = lock.holds.keys().find(|owner| **owner != waiter.owner)?;
            Some(format!("{} is held by {}", lock.name, self.owner_name(*owner)))
        });
        let claimed = || {
            let lock = locks().find(|lock| !lock.queue.is_empty())?;
            Some(format!("others wait for {}", lock.name))
        };
        held.or_else(claimed).unwrap_or_else(|| "not enough permits".into())
    }

    /// Returns the description of an owner for display.
    pub(super) fn owner_name(&self, id: OwnerId) -> String {
        let owner = self.owner(id);
        if let Some(label) = &owner.label {
            return format!("{label} of session {}", owner.session);
        }
        let ticket = Ticket(id.0);
        let waiting = self.waiters.get(&ticket).map(|waiter| waiter.request);
        let granted = || self.grants.get(&ticket).map(|grant| grant.request);
        match waiting.or_else(granted) {
            Some(request) => format!("request {request} of session {}", owner.session),
            None => format!("owner {} of session {}", id.0, owner.session),
        }
    }

    fn holders(&self, lock: &Lock) -> impl Iterator<Item = Holder> {
        lock.holds.iter().map(|(id, hold)| {
            let mut holder = Holder::default();
            holder.session = self.owner(*id).session;
            holder.owner = self.owner_name(*id);
            holder.fence = hold.fence;
            holder.since_ms = hold.since_ms;
            holder.claim = claim(hold.demand());
            holder
        })
    }

    fn info(&self, lock: &Lock) -> LockInfo {
        let mut info = LockInfo::new(lock.name.clone());
        info.limit = lock.limit;
        info.holders = self.holders(lock).take(HOLDERS_SENT).collect();
        info.holders_total = lock.holds.len() as u64;
        info.waiters_total = lock.queue.len() as u64;
        info
    }

    fn waiter_info(&self, waiter: &Waiter, stuck: bool) -> WaiterInfo {
        let holders = waiter.claims.iter().flat_map(|claim| self.lock(claim.resource).holds.keys());
        let mut waits_for: Vec<OwnerId> =
            holders.filter(|owner| **owner != waiter.owner).copied().take(64).collect();
        waits_for.sort_unstable();
        waits_for.dedup();
        let mut info = WaiterInfo::default();
        info.session = waiter.session;
        info.owner = self.owner_name(waiter.owner);
        info.request = waiter.request;
        let names = waiter.claims.iter();
        let name = |wanted: &LockClaim<LockId>| {
            format!("{}{}", self.lock(wanted.resource).name, claim(wanted.demand))
        };
        info.names = names.map(name).collect();
        info.priority = waiter.rank.priority();
        info.since_ms = waiter.since_ms;
        info.waits_for =
            waits_for.into_iter().take(HOLDERS_SENT).map(|owner| self.owner_name(owner)).collect();
        info.stuck = stuck;
        info
    }
}

fn lock_bytes(lock: &LockInfo) -> usize {
    let name = lock.name.as_str().len();
    let holder = |holder: &Holder| name + holder.owner.len() + NUMBERS_BYTES;
    name + lock.holders.iter().map(holder).sum::<usize>() + NUMBERS_BYTES
}

fn waiter_bytes(waiter: &WaiterInfo) -> usize {
    let names = waiter.names.iter().map(|name| name.len() + NUMBERS_BYTES);
    let waits_for = waiter.waits_for.iter().map(String::len);
    waiter.owner.len() + names.chain(waits_for).sum::<usize>() + NUMBERS_BYTES
}

fn deadlock_bytes(deadlock: &Deadlock) -> usize {
    let edge =
        |edge: &WaitsFor| edge.waiter.len() + edge.name.as_str().len() + edge.holder.len() + NUMBERS_BYTES;
    deadlock.cycle.iter().map(edge).sum()
}

fn claim(demand: Demand) -> Claim {
    match demand {
        Demand::Shared => Claim::Shared,
        Demand::Exclusive => Claim::Exclusive,
        Demand::Permits(count) => Claim::Permits(count),
    }
}
