//! The JSON types that `--json` of the command line and HTTP share, made from wire messages.

use std::borrow::Cow;

use conclave_core::Claim;
use serde::Serialize;

use crate::convert::claim_from_wire;
use crate::v1;

/// A name in a list of locks.
#[derive(Clone, Debug, Serialize)]
pub struct Lock<'a> {
    name: &'a str,
    limit: Option<u32>,
    /// At most the first few holders.
    holders: Vec<Holder<'a>>,
    holders_total: u64,
    waiters_total: u64,
}

/// The report about one name.
#[derive(Clone, Debug, Serialize)]
pub struct Report<'a> {
    name: &'a str,
    limit: Option<u32>,
    permits_held: u64,
    /// The value of an election. Bytes that are not UTF-8 are replaced.
    value: Option<Cow<'a, str>>,
    holders: Vec<Holder<'a>>,
    holders_total: u64,
    waiters: Vec<Waiter<'a>>,
    waiters_total: u64,
    deadlocks: Vec<Deadlock<'a>>,
    breakings: Vec<Breaking<'a>>,
    index: u64,
    /// True if the service has a record of the name.
    known: bool,
}

/// A session in a list.
#[derive(Clone, Debug, Serialize)]
pub struct Session<'a> {
    session: u64,
    label: &'a str,
    ttl_ms: u64,
    grants: u64,
    waits: u64,
    since_ms: u64,
}

/// A holder of a name.
#[derive(Clone, Debug, Serialize)]
pub struct Holder<'a> {
    session: u64,
    owner: &'a str,
    fence: u64,
    since_ms: u64,
    shared: bool,
    permits: Option<u32>,
}

/// A request that waits for a name.
#[derive(Clone, Debug, Serialize)]
pub struct Waiter<'a> {
    session: u64,
    owner: &'a str,
    request: u64,
    names: &'a [String],
    priority: i32,
    since_ms: u64,
    waits_for: &'a [String],
    stuck: bool,
}

/// A present or recent deadlock.
#[derive(Clone, Debug, Serialize)]
pub struct Deadlock<'a> {
    cycle: Vec<WaitsFor<'a>>,
    victim: Option<&'a str>,
}

/// One edge of a deadlock.
#[derive(Clone, Debug, Serialize)]
pub struct WaitsFor<'a> {
    waiter: &'a str,
    name: &'a str,
    holder: &'a str,
}

/// The time and the reason when an operator took a name away.
#[derive(Clone, Debug, Serialize)]
pub struct Breaking<'a> {
    at_ms: u64,
    reason: &'a str,
}

impl<'a> From<&'a v1::LockSummary> for Lock<'a> {
    fn from(lock: &'a v1::LockSummary) -> Self {
        Self {
            name: &lock.name,
            limit: lock.limit,
            holders: lock.first.iter().map(Holder::from).collect(),
            holders_total: lock.holders,
            waiters_total: lock.waiters,
        }
    }
}

impl<'a> From<&'a v1::Report> for Report<'a> {
    fn from(report: &'a v1::Report) -> Self {
        Self {
            name: &report.name,
            limit: report.limit,
            permits_held: report.permits_held,
            value: report.value.as_deref().map(String::from_utf8_lossy),
            holders: report.holders.iter().map(Holder::from).collect(),
            holders_total: report.holders_total,
            waiters: report.waiters.iter().map(Waiter::from).collect(),
            waiters_total: report.waiters_total,
            deadlocks: report.deadlocks.iter().map(Deadlock::from).collect(),
            breakings: report.breakings.iter().map(Breaking::from).collect(),
            index: report.index,
            known: report.known,
        }
    }
}

impl<'a> From<&'a v1::SessionSummary> for Session<'a> {
    fn from(session: &'a v1::SessionSummary) -> Self {
        let v1::SessionSummary { session, label, ttl_ms, grants, waits, since_ms } = session;
        let (session, ttl_ms, grants, waits, since_ms) = (*session, *ttl_ms, *grants, *waits, *since_ms);
        Self { session, label, ttl_ms, grants, waits, since_ms }
    }
}

impl<'a> From<&'a v1::Holder> for Holder<'a> {
    fn from(holder: &'a v1::Holder) -> Self {
        let claim = claim_from_wire(holder.claim.as_ref());
        Self {
            session: holder.session,
            owner: &holder.owner,
            fence: holder.fence,
            since_ms: holder.since_ms,
            shared: claim == Claim::Shared,
            permits: if let Claim::Permits(permits) = claim { Some(permits) } else { None },
        }
    }
}

impl<'a> From<&'a v1::Waiter> for Waiter<'a> {
    fn from(waiter: &'a v1::Waiter) -> Self {
        Self {
            session: waiter.session,
            owner: &waiter.owner,
            request: waiter.request,
            names: &waiter.names,
            priority: waiter.priority,
            since_ms: waiter.since_ms,
            waits_for: &waiter.waits_for,
            stuck: waiter.stuck,
        }
    }
}

impl<'a> From<&'a v1::Deadlock> for Deadlock<'a> {
    fn from(deadlock: &'a v1::Deadlock) -> Self {
        let edge = |edge: &'a v1::WaitsFor| WaitsFor {
            waiter: &edge.waiter,
            name: &edge.name,
            holder: &edge.holder,
        };
        Self { cycle: deadlock.cycle.iter().map(edge).collect(), victim: deadlock.victim.as_deref() }
    }
}

impl<'a> From<&'a v1::Breaking> for Breaking<'a> {
    fn from(breaking: &'a v1::Breaking) -> Self {
        Self { at_ms: breaking.at_ms, reason: &breaking.reason }
    }
}
