//! Read-only queries: holders, waiters, sessions, files, timers and totals.
//!
//! Nothing here changes the state. Lists are cut to the requested length and to [`PAGE_BYTES`]. Deadlocks are
//! searched only from the waiters that are shown. So neither a queue of 100,000 waiters nor names of the
//! largest length can make a report slow.

use conclave_algorithms::deadlock::Demand;
use conclave_core::{Claim, Code, Deadlock, Error, LockName, Priority, RequestId, SessionId, WaitsFor};
use serde::{Deserialize, Serialize};

use super::command::{Granted, GrantedName, Holder, Queued, TimerId};
use super::lock::{Lock, LockId, Locks, OwnerId, Waiter};
use super::path::FilePath;
use super::rank::Ticket;
use super::session::{Broken, Session};
use super::tree::Stat;
use super::{Delay, State, WaitLimit};

/// The largest number of holders in a `queued` reply, and for each name in a list. Further holders are left
/// out.
const HOLDERS_TOLD: usize = 8;
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

/// The report about one name in use.
#[derive(Clone, Debug, PartialEq)]
pub struct LockInfo {
    /// The name.
    pub name: LockName,
    /// The limit of permits, if the name is a semaphore.
    pub limit: Option<u32>,
    /// The permits held, if the name is a semaphore.
    pub permits_held: u64,
    /// `true` if one owner holds the name exclusively.
    pub exclusive: bool,
    /// The first holders: at most 8 in a list of names, at most 100 in a report about one name.
    pub holders: Vec<Holder>,
    /// The number of all holders.
    pub holders_total: u64,
    /// The number of waiters.
    pub waiting: u64,
    /// The proclaimed value, if the name is an election. Left out in lists.
    pub value: Option<Vec<u8>>,
}

/// The complete report about one name: the answer to `conclave why NAME`.
#[derive(Clone, Debug, PartialEq)]
pub struct WhyInfo {
    /// The lock and its holders.
    pub lock: LockInfo,
    /// The first 100 waiters, in order.
    pub queue: Vec<WaiterInfo>,
    /// The recent deadlocks that involve the name.
    pub deadlocks: Vec<DeadlockInfo>,
    /// The recent breaks of the name, with their reasons.
    pub breaks: Vec<BreakInfo>,
}

/// The report about one waiting request.
#[derive(Clone, Debug, PartialEq)]
pub struct WaiterInfo {
    /// The session.
    pub session: SessionId,
    /// The number of the acquire.
    pub request: RequestId,
    /// The owner, for display.
    pub owner: String,
    /// The wall time at which the wait began, in milliseconds.
    pub since_ms: u64,
    /// The priority of the request.
    pub priority: Priority,
    /// All names that the request waits for, with its claim on each.
    pub names: Vec<(LockName, Claim)>,
    /// The first few owners that hold these names.
    pub waits_for: Vec<String>,
    /// `true` if the request belongs to a deadlock that policy `none` left standing, or waits for such a
    /// deadlock.
    pub stuck: bool,
}

/// A deadlock that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlockInfo {
    /// The number of the command that closed it.
    pub index: u64,
    /// The wall time in milliseconds.
    pub wall_ms: u64,
    /// The cycle of waits, and the victim.
    pub deadlock: Deadlock,
}

/// A break: a name was taken away from its holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakInfo {
    /// The number of the command.
    pub index: u64,
    /// The wall time in milliseconds.
    pub wall_ms: u64,
    /// The reason.
    pub reason: String,
}

/// The report about one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The id of the session.
    pub session: SessionId,
    /// The label that its client gave it.
    pub label: String,
    /// The length of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// The lock-delay, in milliseconds.
    pub lock_delay_ms: u64,
    /// The wall time at which the session was opened, in milliseconds.
    pub since_ms: u64,
    /// The generation of its lease.
    pub generation: u64,
    /// The number of its granted acquires.
    pub held: u64,
    /// The number of its waiting acquires.
    pub waiting: u64,
    /// The number of answers that its client has not acknowledged.
    pub unanswered: u64,
    /// The number of its ephemeral files.
    pub ephemerals: u64,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The holder of the name.
    pub holder: Holder,
    /// The proclaimed value; `None` if the name is held as a plain lock.
    pub value: Option<Vec<u8>>,
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
        let waiting = session.waiting.len() as u64;
        Some(SessionInfo {
            session: id,
            label: session.open.label.clone(),
            ttl_ms: session.open.ttl_ms,
            lock_delay_ms: session.open.lock_delay_ms,
            since_ms: session.since_ms,
            generation: session.generation,
            held: (session.live.len() as u64).saturating_sub(waiting),
            waiting,
            unanswered: session.unanswered() as u64,
            ephemerals: session.ephemerals.len() as u64,
        })
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
        page(locks.map(|lock| self.locks.info(lock, HOLDERS_TOLD)), limit, LockInfo::bytes)
    }

    /// Returns the holders, the waiting requests and the recent incidents of a name. Each list is cut to one
    /// page. Returns `None` if the state has no record of the name: then it has no holder and no waiter. The
    /// records of an unused name end with the history.
    pub fn why(&self, name: &LockName) -> Option<WhyInfo> {
        let has_part = |deadlock: &Deadlock| deadlock.cycle.iter().any(|edge| edge.name == *name);
        let deadlocks = self.incidents.deadlocks.iter().filter(|(_, _, deadlock)| has_part(deadlock));
        let deadlocks = deadlocks.map(|(index, wall_ms, deadlock)| DeadlockInfo {
            index: *index,
            wall_ms: *wall_ms,
            deadlock: deadlock.clone(),
        });
        let deadlocks = page(deadlocks, SHOWN, |found| deadlock_bytes(&found.deadlock)).items;
        let breaks = self.incidents.breaks.iter().filter(|(_, _, broken, _)| broken == name);
        let breaks: Vec<BreakInfo> = breaks
            .map(|(index, wall_ms, _, reason)| BreakInfo {
                index: *index,
                wall_ms: *wall_ms,
                reason: reason.clone(),
            })
            .collect();
        let Some(id) = self.locks.find(name) else {
            let lock = LockInfo::unused(name.clone());
            let is_known = !deadlocks.is_empty() || !breaks.is_empty() || self.history.mentions(name);
            return is_known.then_some(WhyInfo { lock, queue: Vec::new(), deadlocks, breaks });
        };
        let lock = self.locks.lock(id);
        let first = || lock.queue.keys().take(SHOWN).map(|rank| self.locks.waiter(rank.ticket));
        let stuck = self.locks.stuck(first());
        let queue =
            first().map(|waiter| self.locks.waiter_info(waiter, stuck.binary_search(&waiter.owner).is_ok()));
        let queue = page(queue, SHOWN, WaiterInfo::bytes).items;
        let lock = LockInfo { value: lock.value.clone(), ..self.locks.info(lock, SHOWN) };
        Some(WhyInfo { queue, lock, deadlocks, breaks })
    }

    /// Returns the recent deadlocks.
    pub fn deadlocks(&self) -> Vec<DeadlockInfo> {
        let info = |(index, wall_ms, deadlock): &(u64, u64, Deadlock)| DeadlockInfo {
            index: *index,
            wall_ms: *wall_ms,
            deadlock: deadlock.clone(),
        };
        self.incidents.deadlocks.iter().map(info).collect()
    }

    /// Returns the number of requests that wait for ever, found by a search from all waiters.
    #[cfg(test)]
    pub(super) fn stuck(&self) -> usize {
        self.locks.stuck(self.locks.waiters.values()).len()
    }

    /// Returns the leader of an election.
    pub fn leader(&self, name: &LockName) -> Option<Leader> {
        let lock = self.locks.lock(self.locks.find(name)?);
        let holder = self.locks.holders(lock).next().filter(|_| lock.is_exclusive())?;
        Some(Leader { holder, value: lock.value.clone() })
    }

    /// Returns the contents and the metadata of a file.
    pub fn file(&self, path: &FilePath) -> Option<(&[u8], Stat)> {
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
    pub(super) fn queued(&self, ticket: Ticket) -> Queued {
        let waiter = self.waiter(ticket);
        let ahead = waiter.claims.iter().map(|claim| self.ahead(claim.resource, waiter)).max();
        let held = waiter.claims.iter().flat_map(|claim| self.holders(self.lock(claim.resource)));
        Queued { ahead: ahead.unwrap_or(0), holders: held.take(HOLDERS_TOLD).collect() }
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
        lock.holds.iter().map(|(owner, hold)| Holder {
            name: lock.name.clone(),
            session: self.owner(*owner).session,
            owner: self.owner_name(*owner),
            claim: claim(hold.demand()),
            fence: hold.fence,
            since_ms: hold.since_ms,
        })
    }

    fn info(&self, lock: &Lock, holders: usize) -> LockInfo {
        LockInfo {
            limit: lock.limit,
            permits_held: lock.permits_held,
            exclusive: lock.is_exclusive(),
            holders: self.holders(lock).take(holders).collect(),
            holders_total: lock.holds.len() as u64,
            waiting: lock.queue.len() as u64,
            value: None,
            name: lock.name.clone(),
        }
    }

    fn waiter_info(&self, waiter: &Waiter, stuck: bool) -> WaiterInfo {
        let holders = waiter.claims.iter().flat_map(|claim| self.lock(claim.resource).holds.keys());
        let mut waits_for: Vec<OwnerId> =
            holders.filter(|owner| **owner != waiter.owner).copied().take(64).collect();
        waits_for.sort_unstable();
        waits_for.dedup();
        let names = waiter.claims.iter();
        WaiterInfo {
            session: waiter.session,
            request: waiter.request,
            owner: self.owner_name(waiter.owner),
            since_ms: waiter.since_ms,
            priority: waiter.rank.priority(),
            names: names.map(|asked| (self.lock(asked.resource).name.clone(), claim(asked.demand))).collect(),
            waits_for: waits_for.into_iter().take(HOLDERS_TOLD).map(|owner| self.owner_name(owner)).collect(),
            stuck,
        }
    }
}

impl LockInfo {
    fn unused(name: LockName) -> Self {
        Self {
            name,
            limit: None,
            permits_held: 0,
            exclusive: false,
            holders: Vec::new(),
            holders_total: 0,
            waiting: 0,
            value: None,
        }
    }
}

impl LockInfo {
    fn bytes(&self) -> usize {
        let holder = |holder: &Holder| holder.name.as_str().len() + holder.owner.len() + NUMBERS_BYTES;
        self.name.as_str().len() + self.holders.iter().map(holder).sum::<usize>() + NUMBERS_BYTES
    }
}

impl WaiterInfo {
    fn bytes(&self) -> usize {
        let names = self.names.iter().map(|(name, _)| name.as_str().len() + NUMBERS_BYTES);
        let waits_for = self.waits_for.iter().map(String::len);
        self.owner.len() + names.chain(waits_for).sum::<usize>() + NUMBERS_BYTES
    }
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
