//! What people and frontends ask: who holds, who waits, for whom, since when.
//!
//! Nothing here changes anything. Lists are cut to what was asked for and to [`PAGE_BYTES`], and deadlocks are looked for
//! only from those who are shown, so that a status page cannot be made slow by a queue of a hundred thousand, nor by names
//! that are all as long as may be.

use conclave_algorithms::deadlock::Demand;
use conclave_api::{Claim, Code, Deadlock, Error, LockName, Priority, RequestId, SessionId, WaitsFor};
use serde::{Deserialize, Serialize};

use super::command::{Granted, GrantedName, Holder, Queued, TimerId};
use super::lock::{Lock, LockId, Locks, OwnerId, Waiter};
use super::path::FilePath;
use super::rank::Ticket;
use super::session::{Broken, Session};
use super::tree::Stat;
use super::{Delay, State, WaitLimit};

/// The holders told to somebody who is queued, and of each name in a list.
const HOLDERS_TOLD: usize = 8;
/// The holders and waiters of a name that somebody asks about.
const SHOWN: usize = 100;
/// About how much is told at once, as it travels: the larger is cut, with a word that there is more.
pub const PAGE_BYTES: usize = 256 * 1024;
/// About what numbers and the frame around them add to each thing in a list.
const NUMBERS_BYTES: usize = 64;
/// How far a queue is counted from either end before the position is an estimate.
const COUNTED: usize = 1024;

/// The beginning of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// In order; one at least, if there is one.
    pub items: Vec<T>,
    /// There are more after the last.
    pub more: bool,
}

/// As many as were asked for, and as fit.
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

/// One name in use.
#[derive(Clone, Debug, PartialEq)]
pub struct LockInfo {
    /// The name.
    pub name: LockName,
    /// The permits there are, if it is a semaphore.
    pub limit: Option<u32>,
    /// The permits held, if it is a semaphore.
    pub permits_held: u64,
    /// Whether it is held alone.
    pub exclusive: bool,
    /// Who holds it: in a list the first few, alone the first hundred.
    pub holders: Vec<Holder>,
    /// How many hold it.
    pub holders_total: u64,
    /// How many wait for it.
    pub waiting: u64,
    /// What the leader proclaims, if it is an election; not told in lists.
    pub value: Option<Vec<u8>>,
}

/// Everything about one name: the answer to `conclave why NAME`.
#[derive(Clone, Debug, PartialEq)]
pub struct WhyInfo {
    /// Who holds it.
    pub lock: LockInfo,
    /// Who waits for it, in order; the first hundred.
    pub queue: Vec<WaiterInfo>,
    /// Deadlocks lately in which it had a part.
    pub deadlocks: Vec<DeadlockInfo>,
    /// When it was lately taken away from its holders, and why.
    pub breaks: Vec<BreakInfo>,
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq)]
pub struct WaiterInfo {
    /// Whose session.
    pub session: SessionId,
    /// The number of the acquire.
    pub request: RequestId,
    /// The owner, for people.
    pub owner: String,
    /// Since when, wall time in milliseconds.
    pub since_ms: u64,
    /// Its priority.
    pub priority: Priority,
    /// All names it waits for, with what it claims of each.
    pub names: Vec<(LockName, Claim)>,
    /// The owners that hold what it waits for; the first few.
    pub waits_for: Vec<String>,
    /// It is part of a deadlock that was left standing, or waits for one.
    pub stuck: bool,
}

/// A deadlock that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlockInfo {
    /// The command that closed it.
    pub index: u64,
    /// When, wall time in milliseconds.
    pub wall_ms: u64,
    /// Who waited for whom, and who was refused.
    pub deadlock: Deadlock,
}

/// A name that was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakInfo {
    /// The command.
    pub index: u64,
    /// When, wall time in milliseconds.
    pub wall_ms: u64,
    /// Why.
    pub reason: String,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its id.
    pub session: SessionId,
    /// What its client calls it.
    pub label: String,
    /// Its lease.
    pub ttl_ms: u64,
    /// How long its names stay untaken after an unclean end.
    pub lock_delay_ms: u64,
    /// Since when, wall time in milliseconds.
    pub since_ms: u64,
    /// The generation of its lease.
    pub generation: u64,
    /// Acquires held.
    pub held: u64,
    /// Acquires that wait.
    pub waiting: u64,
    /// Requests that its client has not acknowledged.
    pub unanswered: u64,
    /// Ephemeral files.
    pub ephemerals: u64,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Who.
    pub holder: Holder,
    /// What it proclaims; nothing if it took the name as a plain lock.
    pub value: Option<Vec<u8>>,
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sessions.
    pub sessions: u64,
    /// Names in use.
    pub names: u64,
    /// Acquires held.
    pub grants: u64,
    /// Acquires that wait.
    pub waiting: u64,
    /// Files, the root included.
    pub files: u64,
    /// Bytes in files.
    pub file_bytes: u64,
    /// Deadlocks found since the beginning.
    pub deadlocks: u64,
    /// Acquires in deadlocks that were left standing.
    pub deadlocked: u64,
}

impl State {
    /// Whether a session may be resumed with this secret.
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

    /// One session.
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

    /// The sessions after `after`, at most `limit`.
    pub fn sessions(&self, after: Option<SessionId>, limit: usize) -> Page<SessionInfo> {
        let from = after.map_or(SessionId(0), |SessionId(id)| SessionId(id.saturating_add(1)));
        let sessions = self.sessions.range(from..).filter_map(|(id, _)| self.session(*id));
        page(sessions, limit, |session| session.label.len() + NUMBERS_BYTES)
    }

    /// What a session holds, by the number of the acquire.
    pub fn grants(&self, session: SessionId) -> Vec<(RequestId, Granted)> {
        let live = self.sessions.get(&session).into_iter().flat_map(|session| &session.live);
        let held = live.filter(|(_, ticket)| self.locks.grants.contains_key(ticket));
        held.map(|(request, ticket)| (*request, self.locks.granted(*ticket))).collect()
    }

    /// What was taken away from a session and its client has not released, the oldest first.
    pub fn broken(&self, session: SessionId) -> impl Iterator<Item = &Broken> {
        self.sessions.get(&session).into_iter().flat_map(Session::broken)
    }

    /// The names in use that begin with `prefix`, those after `after`, in order, at most `limit`; of each the
    /// first few holders.
    pub fn locks(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Page<LockInfo> {
        let locks = self.locks.beginning_with(prefix, after);
        page(locks.map(|lock| self.locks.info(lock, HOLDERS_TOLD)), limit, LockInfo::bytes)
    }

    /// The holders, the waiting requests and the recent incidents of a name; of each list what fits. `None`
    /// if the state has no record of the name: then nobody holds it or waits for it. The records of an unused
    /// name end with the history.
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

    /// The deadlocks found lately.
    pub fn deadlocks(&self) -> Vec<DeadlockInfo> {
        let info = |(index, wall_ms, deadlock): &(u64, u64, Deadlock)| DeadlockInfo {
            index: *index,
            wall_ms: *wall_ms,
            deadlock: deadlock.clone(),
        };
        self.incidents.deadlocks.iter().map(info).collect()
    }

    /// How many will wait for ever, found by looking at all who wait.
    #[cfg(test)]
    pub(super) fn stuck(&self) -> usize {
        self.locks.stuck(self.locks.waiters.values()).len()
    }

    /// Who leads an election.
    pub fn leader(&self, name: &LockName) -> Option<Leader> {
        let lock = self.locks.lock(self.locks.find(name)?);
        let holder = self.locks.holders(lock).next().filter(|_| lock.is_exclusive())?;
        Some(Leader { holder, value: lock.value.clone() })
    }

    /// What a file contains, and what is known of it.
    pub fn file(&self, path: &FilePath) -> Option<(&[u8], Stat)> {
        self.tree.read(path)
    }

    /// The names of the files in a directory, in order.
    pub fn list(&self, path: &FilePath) -> Option<impl Iterator<Item = &str>> {
        self.list_after(path, "")
    }

    /// The names of the files in a directory that come after `after`, in order: a page is found, not counted off.
    pub fn list_after(&self, path: &FilePath, after: &str) -> Option<impl Iterator<Item = &str>> {
        self.tree.list_after(path, after)
    }

    /// Every timer that must run: a new leader starts them all, in full.
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

    /// How much there is of everything.
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

    /// What fences are counted from.
    pub fn fence_base(&self) -> u64 {
        self.locks.fence_base
    }
}

impl Locks {
    /// What a grant holds, in canonical order.
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

    /// Where a waiter stands, and whom it waits for.
    pub(super) fn queued(&self, ticket: Ticket) -> Queued {
        let waiter = self.waiter(ticket);
        let ahead = waiter.claims.iter().map(|claim| self.ahead(claim.resource, waiter)).max();
        let held = waiter.claims.iter().flat_map(|claim| self.holders(self.lock(claim.resource)));
        Queued { ahead: ahead.unwrap_or(0), holders: held.take(HOLDERS_TOLD).collect() }
    }

    /// How many wait before a waiter: counted from the nearer end, estimated in the middle of a long queue.
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

    /// Why a try did not succeed.
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

    /// An owner, for people.
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
