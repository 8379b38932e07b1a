//! Conversions between the reports of `conclave-core` and the wire messages.

use conclave_core::report::{
    Blocker, Breaking, Change, ClusterStatus, FileResult, FileStat, Holder, LockInfo, LockReport,
    MemberStatus, QueuePosition, SessionInfo, Waiter, WatchEvent,
};
use conclave_core::{Claim, Code, Error, Fence, FilePath, LockName, Version};

use super::claim_from_wire;
use crate::v1;

/// The claim of a grant or a hold. An exclusive claim is the default and is left out.
pub fn claim_to_wire(claim: Claim) -> Option<v1::Claim> {
    (claim != Claim::Exclusive).then(|| claim.into())
}

/// Implements both conversions between a report and a message with the same fields. The fields after `or` are
/// numbers that may be absent.
macro_rules! same_fields {
    ($($report:ident = $message:ident { $($field:ident),* $(or $number:ident)? })*) => {$(
        impl From<&$report> for v1::$message {
            fn from(report: &$report) -> Self {
                Self { $($field: report.$field.clone().into(),)* $($number: report.$number.map(Into::into))? }
            }
        }

        impl From<v1::$message> for $report {
            fn from(message: v1::$message) -> Self {
                let mut report = Self::default();
                $(report.$field = message.$field.into();)*
                $(report.$number = message.$number.map(Into::into);)?
                report
            }
        }
    )*};
}

same_fields! {
    Waiter = Waiter { session, owner, request, names, priority, since_ms, waits_for, stuck }
    Breaking = Breaking { at_ms, reason }
    SessionInfo = SessionSummary { session, label, ttl_ms, grants, waits, since_ms }
    MemberStatus = Member { node, address, voter or matched }
    FileStat = Stat {
        version, children_version, created, modified, children_modified, bytes, children or ephemeral
    }
}

impl From<&LockReport> for v1::Report {
    fn from(report: &LockReport) -> Self {
        Self {
            name: report.name.as_str().into(),
            limit: report.limit,
            holders: report.holders.iter().map(|held| holder(&report.name, held)).collect(),
            holders_total: report.holders_total,
            waiters: report.waiters.iter().map(Into::into).collect(),
            waiters_total: report.waiters_total,
            value: report.value.clone(),
            permits_held: report.permits_held,
            deadlocks: report.deadlocks.iter().map(Into::into).collect(),
            breakings: report.breakings.iter().map(Into::into).collect(),
            index: report.index,
            known: report.known,
        }
    }
}

impl TryFrom<v1::Report> for LockReport {
    type Error = Error;

    fn try_from(report: v1::Report) -> Result<Self, Error> {
        let mut read = Self::new(name(&report.name)?, report.index);
        read.limit = report.limit;
        read.permits_held = report.permits_held;
        read.value = report.value;
        read.holders = report.holders.into_iter().map(Into::into).collect();
        read.holders_total = report.holders_total;
        read.waiters = report.waiters.into_iter().map(Into::into).collect();
        read.waiters_total = report.waiters_total;
        read.deadlocks = report.deadlocks.iter().map(Into::into).collect();
        read.breakings = report.breakings.into_iter().map(Into::into).collect();
        read.known = report.known;
        Ok(read)
    }
}

impl From<&LockInfo> for v1::LockSummary {
    fn from(lock: &LockInfo) -> Self {
        Self {
            name: lock.name.as_str().into(),
            limit: lock.limit,
            holders: lock.holders_total,
            waiters: lock.waiters_total,
            first: lock.holders.iter().map(|held| holder(&lock.name, held)).collect(),
        }
    }
}

impl TryFrom<v1::LockSummary> for LockInfo {
    type Error = Error;

    fn try_from(lock: v1::LockSummary) -> Result<Self, Error> {
        let mut read = Self::new(name(&lock.name)?);
        read.limit = lock.limit;
        read.holders = lock.first.into_iter().map(Into::into).collect();
        read.holders_total = lock.holders;
        read.waiters_total = lock.waiters;
        Ok(read)
    }
}

impl From<v1::Holder> for Holder {
    fn from(holder: v1::Holder) -> Self {
        let mut read = Self::default();
        read.session = holder.session.into();
        read.owner = holder.owner;
        read.fence = holder.fence.into();
        read.since_ms = holder.since_ms;
        read.claim = claim_from_wire(holder.claim.as_ref());
        read
    }
}

/// Every holder carries the name that it holds.
fn holder(name: &LockName, holder: &Holder) -> v1::Holder {
    v1::Holder {
        name: name.as_str().into(),
        session: holder.session.0,
        owner: holder.owner.clone(),
        fence: holder.fence.0,
        since_ms: holder.since_ms,
        claim: claim_to_wire(holder.claim),
    }
}

impl From<&QueuePosition> for v1::Queued {
    fn from(position: &QueuePosition) -> Self {
        let holders = position.holders.iter().map(|blocker| holder(&blocker.name, &blocker.holder));
        Self { ahead: position.ahead, holders: holders.collect() }
    }
}

/// Holders of invalid names are left out; no server sends them.
impl From<v1::Queued> for QueuePosition {
    fn from(queued: v1::Queued) -> Self {
        let blocker =
            |holder: v1::Holder| Some(Blocker::new(LockName::new(&holder.name).ok()?, holder.into()));
        let mut read = Self::default();
        read.ahead = queued.ahead;
        read.holders = queued.holders.into_iter().filter_map(blocker).collect();
        read
    }
}

/// An index that is absent becomes 0.
impl From<&ClusterStatus> for v1::Cluster {
    fn from(status: &ClusterStatus) -> Self {
        Self {
            node: status.node,
            leader: status.leader,
            term: status.term,
            applied: status.applied.unwrap_or(0),
            members: status.members.iter().map(Into::into).collect(),
            version: status.version.clone(),
            cluster: status.cluster.clone(),
            last: status.last.unwrap_or(0),
            snapshot: status.snapshot.unwrap_or(0),
        }
    }
}

/// An index of 0 is read as absent. Only the first entry of a log has index 0.
impl From<v1::Cluster> for ClusterStatus {
    fn from(cluster: v1::Cluster) -> Self {
        let index = |index: u64| Some(index).filter(|index| *index > 0);
        let mut read = Self::default();
        read.node = cluster.node;
        read.leader = cluster.leader;
        read.term = cluster.term;
        read.applied = index(cluster.applied);
        read.members = cluster.members.into_iter().map(Into::into).collect();
        read.version = cluster.version;
        read.cluster = cluster.cluster;
        read.last = index(cluster.last);
        read.snapshot = index(cluster.snapshot);
        read
    }
}

/// A result of a later version becomes a message without content.
impl From<&FileResult> for v1::FileDone {
    fn from(result: &FileResult) -> Self {
        use v1::file_done::Done as Wire;
        let done = match result {
            FileResult::Created(path) => Some(Wire::Created(path.as_str().into())),
            FileResult::Written(version) => Some(Wire::Written(version.0)),
            FileResult::Deleted => Some(Wire::Deleted(v1::Done {})),
            FileResult::Checked => Some(Wire::Checked(v1::Done {})),
            _ => None,
        };
        Self { done }
    }
}

impl TryFrom<v1::FileDone> for FileResult {
    type Error = Error;

    fn try_from(done: v1::FileDone) -> Result<Self, Error> {
        use v1::file_done::Done as Wire;
        Ok(match done.done.ok_or_else(|| malformed("a file result without content"))? {
            Wire::Created(path) => {
                Self::Created(FilePath::new(&path).map_err(|error| malformed(&error.message))?)
            }
            Wire::Written(version) => Self::Written(Version(version)),
            Wire::Deleted(_) => Self::Deleted,
            Wire::Checked(_) => Self::Checked,
        })
    }
}

/// An event as a message to the watch with this number.
pub fn event_to_wire(id: u64, event: &WatchEvent) -> v1::ServerMessage {
    use v1::event::Change as Wire;
    let WatchEvent::Changed { index, name, change } = event else {
        return v1::Resync { id, index: event.index() }.into();
    };
    let change = match *change {
        Change::Created => Some(Wire::Created(v1::Done {})),
        Change::Written(version) => Some(Wire::Written(version.0)),
        Change::Deleted => Some(Wire::Deleted(v1::Done {})),
        Change::Taken(fence) => Some(Wire::Taken(fence.0)),
        Change::Released => Some(Wire::Released(v1::Done {})),
        Change::Proclaimed => Some(Wire::Proclaimed(v1::Done {})),
        Change::Limited(permits) => Some(Wire::Limited(permits)),
        // `Unknown`, or a change of a later version.
        _ => None,
    };
    v1::Event { id, index: *index, name: name.clone(), change }.into()
}

impl From<v1::Event> for WatchEvent {
    fn from(event: v1::Event) -> Self {
        use v1::event::Change as Wire;
        let change = match event.change {
            Some(Wire::Created(_)) => Change::Created,
            Some(Wire::Written(version)) => Change::Written(Version(version)),
            Some(Wire::Deleted(_)) => Change::Deleted,
            Some(Wire::Taken(fence)) => Change::Taken(Fence(fence)),
            Some(Wire::Released(_)) => Change::Released,
            Some(Wire::Proclaimed(_)) => Change::Proclaimed,
            Some(Wire::Limited(permits)) => Change::Limited(permits),
            None => Change::Unknown,
        };
        Self::Changed { index: event.index, name: event.name, change }
    }
}

fn name(text: &str) -> Result<LockName, Error> {
    LockName::new(text).map_err(|error| malformed(&error.to_string()))
}

fn malformed(why: &str) -> Error {
    Error::new(Code::Internal, format!("the server sent a reply that is not valid: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_core::{Deadlock, Priority, RequestId, SessionId, WaitsFor};

    fn lock_name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn held(claim: Claim) -> Holder {
        let mut holder = Holder::default();
        (holder.session, holder.owner) = (SessionId(1), "a of session 1".into());
        (holder.fence, holder.since_ms, holder.claim) = (Fence(2), 3, claim);
        holder
    }

    #[test]
    fn a_report_survives_the_wire() {
        let mut waiter = Waiter::default();
        (waiter.session, waiter.request, waiter.owner) =
            (SessionId(4), RequestId(5), "b of session 4".into());
        waiter.names = vec!["x".into(), "y:shared".into()];
        waiter.priority = Priority(-6);
        waiter.since_ms = 7;
        waiter.waits_for = vec!["a of session 1".into()];
        waiter.stuck = true;
        let edge = WaitsFor { waiter: "p".into(), name: lock_name("x"), holder: "q".into() };
        let mut report = LockReport::new(lock_name("x"), 8);
        report.limit = Some(9);
        report.permits_held = 10;
        report.value = Some(vec![0xff]);
        report.holders = [Claim::Exclusive, Claim::Shared, Claim::Permits(3)].map(held).into();
        report.holders_total = 11;
        report.waiters = vec![waiter];
        report.waiters_total = 12;
        report.deadlocks = vec![Deadlock { cycle: vec![edge], victim: Some("p".into()) }];
        report.breakings = vec![v1::Breaking { at_ms: 13, reason: "stuck".into() }.into()];
        report.known = true;
        assert_eq!(LockReport::try_from(v1::Report::from(&report)), Ok(report.clone()));
        let mut lock = LockInfo::new(report.name);
        lock.limit = report.limit;
        lock.holders = report.holders;
        lock.holders_total = 14;
        lock.waiters_total = 15;
        assert_eq!(LockInfo::try_from(v1::LockSummary::from(&lock)), Ok(lock));
    }

    #[test]
    fn positions_and_sessions_survive_the_wire() {
        let mut position = QueuePosition::default();
        position.ahead = 1;
        position.holders = vec![Blocker::new(lock_name("a b"), held(Claim::Shared))];
        assert_eq!(QueuePosition::from(v1::Queued::from(&position)), position);
        let mut session = SessionInfo::default();
        (session.session, session.label, session.ttl_ms) = (SessionId(2), "host:7".into(), 3);
        (session.grants, session.waits, session.since_ms) = (4, 5, 6);
        assert_eq!(SessionInfo::from(v1::SessionSummary::from(&session)), session);
    }

    #[test]
    fn the_status_of_a_cluster_survives_the_wire() {
        let mut member = MemberStatus::default();
        (member.node, member.address, member.voter, member.matched) = (1, "n1:7411".into(), true, Some(2));
        let mut status = ClusterStatus::default();
        assert_eq!(ClusterStatus::from(v1::Cluster::from(&status)), status);
        (status.node, status.leader, status.term) = (3, Some(1), 4);
        (status.applied, status.last, status.snapshot) = (Some(5), Some(6), Some(7));
        status.members = vec![member];
        (status.version, status.cluster) = ("0.1.0".into(), "00".repeat(16));
        assert_eq!(ClusterStatus::from(v1::Cluster::from(&status)), status);
    }

    #[test]
    fn files_and_changes_survive_the_wire() {
        let mut stat = FileStat::default();
        (stat.version, stat.children_version, stat.created) = (Version(1), 2, 3);
        (stat.modified, stat.children_modified, stat.bytes, stat.children) = (4, 5, 6, 7);
        stat.ephemeral = Some(SessionId(8));
        assert_eq!(FileStat::from(v1::Stat::from(&stat)), stat);
        let created = FileResult::Created(FilePath::new("/a").unwrap());
        for result in [created, FileResult::Written(Version(2)), FileResult::Deleted, FileResult::Checked] {
            assert_eq!(FileResult::try_from(v1::FileDone::from(&result)), Ok(result));
        }
        for change in [
            Change::Created,
            Change::Written(Version(2)),
            Change::Deleted,
            Change::Taken(Fence(3)),
            Change::Released,
            Change::Proclaimed,
            Change::Limited(4),
            Change::Unknown,
        ] {
            let event = WatchEvent::Changed { index: 9, name: "x".into(), change };
            let Some(v1::server_message::Message::Event(sent)) = event_to_wire(1, &event).message else {
                panic!("no event")
            };
            assert_eq!((sent.id, WatchEvent::from(sent)), (1, event));
        }
    }

    #[test]
    fn a_reply_with_an_invalid_name_is_an_error() {
        let report = v1::Report { name: "a//b".into(), ..Default::default() };
        assert_eq!(LockReport::try_from(report).unwrap_err().code, Code::Internal);
        let done = v1::FileDone { done: Some(v1::file_done::Done::Created("relative".into())) };
        assert_eq!(FileResult::try_from(done).unwrap_err().code, Code::Internal);
        assert_eq!(FileResult::try_from(v1::FileDone { done: None }).unwrap_err().code, Code::Internal);
    }
}
