//! The reports of the service: locks, sessions, files, nodes and changes.
//!
//! Each type has the same form everywhere. The state creates it, the wire protocol carries it, and the client
//! returns it. It serialises to the JSON that HTTP and `--json` of the command line print.
//!
//! All types are `#[non_exhaustive]`, because later versions report more. The service creates one with
//! `default` or `new` and then sets the fields. Times are wall times in milliseconds since 1970, from the
//! clock of the leader. They are for display.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::{Claim, Deadlock, Fence, FilePath, LockName, Priority, RequestId, SessionId, Version};

/// The report about one name: its holders, its queue, and the recent incidents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockReport {
    /// The name.
    pub name: LockName,
    /// The limit of permits; `None` if the name is not a semaphore.
    pub limit: Option<u32>,
    /// The permits that are held, if the name is a semaphore.
    pub permits_held: u64,
    /// The value that the leader proclaims; `None` if the name is not an election. In JSON, bytes that are
    /// not UTF-8 are replaced.
    #[serde(serialize_with = "as_text")]
    pub value: Option<Vec<u8>>,
    /// The first 100 holders.
    pub holders: Vec<Holder>,
    /// The number of all holders.
    pub holders_total: u64,
    /// The waiting requests in order: the first 100, or as many as fit into about 256 KiB.
    pub waiters: Vec<Waiter>,
    /// The number of all waiting requests.
    pub waiters_total: u64,
    /// The recent deadlocks that involve the name.
    pub deadlocks: Vec<Deadlock>,
    /// The recent cases in which an operator took the name away from its holders.
    pub breakings: Vec<Breaking>,
    /// The index of the state that was read.
    pub index: u64,
    /// `true` if the service has a record of the name: a holder, a waiting request, a limit, or one of the
    /// latest changes or incidents. A name without a record has no holder and no waiting request.
    pub known: bool,
}

impl LockReport {
    /// Creates the report about a name without a record.
    pub fn new(name: LockName, index: u64) -> Self {
        Self {
            name,
            limit: None,
            permits_held: 0,
            value: None,
            holders: Vec::new(),
            holders_total: 0,
            waiters: Vec::new(),
            waiters_total: 0,
            deadlocks: Vec::new(),
            breakings: Vec::new(),
            index,
            known: false,
        }
    }
}

/// A name in the list of names in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockInfo {
    /// The name.
    pub name: LockName,
    /// The limit of permits; `None` if the name is not a semaphore.
    pub limit: Option<u32>,
    /// The first 8 holders.
    pub holders: Vec<Holder>,
    /// The number of all holders.
    pub holders_total: u64,
    /// The number of waiting requests.
    pub waiters_total: u64,
}

impl LockInfo {
    /// Creates the entry of a name without holders and waiting requests.
    pub fn new(name: LockName) -> Self {
        Self { name, limit: None, holders: Vec::new(), holders_total: 0, waiters_total: 0 }
    }
}

/// A holder of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// The session of the holder.
    pub session: SessionId,
    /// The text that describes the owner.
    pub owner: String,
    /// The fence of the hold.
    pub fence: Fence,
    /// The time of the grant.
    pub since_ms: u64,
    /// The mode of the hold, or its permits. In JSON it is the two fields `shared` and `permits`.
    #[serde(flatten, serialize_with = "as_shared_and_permits")]
    pub claim: Claim,
}

/// A request that waits for a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Waiter {
    /// The session of the request.
    pub session: SessionId,
    /// The text that describes the owner.
    pub owner: String,
    /// The number of the request.
    pub request: RequestId,
    /// All names that the request waits for, each with its claim, as in an expression: `a`, `b:shared`,
    /// `pool*3`.
    pub names: Vec<String>,
    /// The priority. Larger numbers are granted first.
    pub priority: Priority,
    /// The time at which the wait began.
    pub since_ms: u64,
    /// The owners that hold these names: the first 8.
    pub waits_for: Vec<String>,
    /// `true` if the request belongs to a deadlock that was left in place, or waits for such a deadlock.
    pub stuck: bool,
}

/// A case in which an operator took a name away from its holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Breaking {
    /// The time.
    pub at_ms: u64,
    /// The reason that the operator gave.
    pub reason: String,
}

/// The position of a request that waits, at the moment when the state queued it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueuePosition {
    /// The number of requests before this one, in the queue where it is largest. In the middle of a queue of
    /// more than 2,048 it is 1,024.
    pub ahead: u64,
    /// The holders of the names that the request waits for: the first 8.
    pub holders: Vec<Blocker>,
}

/// A name that a request waits for, with one of its holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocker {
    /// The name.
    pub name: LockName,
    /// The holder.
    #[serde(flatten)]
    pub holder: Holder,
}

impl Blocker {
    /// Joins a name and one of its holders.
    pub fn new(name: LockName, holder: Holder) -> Self {
        Self { name, holder }
    }
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The number of the session.
    pub session: SessionId,
    /// The label that its client chose.
    pub label: String,
    /// The length of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// The number of its grants.
    pub grants: u64,
    /// The number of its waiting requests.
    pub waits: u64,
    /// The time at which the session was opened.
    pub since_ms: u64,
}

/// The nodes of the cluster, as the node that answers sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClusterStatus {
    /// The number of the node that answers.
    pub node: u64,
    /// The number of the leader, if one is known.
    pub leader: Option<u64>,
    /// The term of the leader.
    pub term: u64,
    /// The index of the last entry that this node has applied; `None` before the first one.
    pub applied: Option<u64>,
    /// All nodes.
    pub members: Vec<MemberStatus>,
    /// The version of the server.
    pub version: String,
    /// The identity of the cluster: 32 hexadecimal digits.
    pub cluster: String,
    /// The index of the last entry in the log of this node; `None` if the log is empty.
    pub last: Option<u64>,
    /// The index of the last entry that the snapshot of this node covers; `None` without a snapshot.
    pub snapshot: Option<u64>,
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The number of the node.
    pub node: u64,
    /// The address for clients and for other nodes.
    pub address: String,
    /// `true` if the node votes; otherwise it is a learner.
    pub voter: bool,
    /// The index up to which the log of the node is known to match that of the leader. Only the leader
    /// reports it, for nodes that have replied to it.
    pub matched: Option<u64>,
}

/// The state of a file, without its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileStat {
    /// The version.
    pub version: Version,
    /// The version of the list of children: one more with each creation or deletion of a child.
    pub children_version: u64,
    /// The index of the creation.
    pub created: u64,
    /// The index of the last write.
    pub modified: u64,
    /// The index of the latest creation or deletion of a child.
    pub children_modified: u64,
    /// The session with which the file ends; `None` for a permanent file.
    pub ephemeral: Option<SessionId>,
    /// The size of the content, in bytes.
    pub bytes: u64,
    /// The number of children.
    pub children: u64,
}

/// The result of one file operation.
///
/// Snapshots contain it, so the order of the variants is part of their format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FileResult {
    /// The file was created at this path.
    Created(FilePath),
    /// The file was written and has this version now.
    Written(Version),
    /// The file was deleted.
    Deleted,
    /// The file has the expected version.
    Checked,
}

/// A change of a file, or of a lock, semaphore or election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The file was created.
    Created,
    /// The file was written and has this version now.
    Written(Version),
    /// The file was deleted.
    Deleted,
    /// The name was granted with this fence. For an election: a leader was elected.
    Taken(Fence),
    /// A hold of the name ended. For an election: the leader resigned or was lost.
    Released,
    /// The leader proclaims another value.
    Proclaimed,
    /// The number of permits of the name from now on.
    Limited(u32),
    /// A kind of change that this version does not know. Read the file or the lock again.
    Unknown,
}

impl Change {
    /// The kind of the change, as JSON and the command line name it.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Written(_) => "written",
            Self::Deleted => "deleted",
            Self::Taken(_) => "taken",
            Self::Released => "released",
            Self::Proclaimed => "proclaimed",
            Self::Limited(_) => "limited",
            Self::Unknown => "changed",
        }
    }

    /// The version, the fence or the limit, if the change has one.
    pub fn number(self) -> Option<u64> {
        match self {
            Self::Written(Version(number)) | Self::Taken(Fence(number)) => Some(number),
            Self::Limited(permits) => Some(permits.into()),
            Self::Created | Self::Deleted | Self::Released | Self::Proclaimed | Self::Unknown => None,
        }
    }
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// The watched object changed.
    Changed {
        /// The index of the entry that made the change. Several events may have the same index.
        index: u64,
        /// The path of the file or the name of the lock that changed.
        name: String,
        /// The change.
        change: Change,
    },
    /// Events were lost. Read the object again; the watch delivers every change after `index`.
    Resync {
        /// The index after which no event is missing.
        index: u64,
    },
}

impl WatchEvent {
    /// The index of the state to which the event leads.
    pub fn index(&self) -> u64 {
        match self {
            Self::Changed { index, .. } | Self::Resync { index } => *index,
        }
    }
}

/// The fields `index`, `name`, `change` and `number`. A resync has no name and no number.
impl Serialize for WatchEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (kind, name, number) = match self {
            Self::Changed { name, change, .. } => (change.kind(), Some(name), change.number()),
            Self::Resync { .. } => ("resync", None, None),
        };
        let mut fields = serializer.serialize_struct("WatchEvent", 4)?;
        fields.serialize_field("index", &self.index())?;
        fields.serialize_field("name", &name)?;
        fields.serialize_field("change", kind)?;
        fields.serialize_field("number", &number)?;
        fields.end()
    }
}

fn as_text<S: Serializer>(value: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_deref().map(String::from_utf8_lossy).serialize(serializer)
}

fn as_shared_and_permits<S: Serializer>(claim: &Claim, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_struct("Claim", 2)?;
    fields.serialize_field("shared", &(*claim == Claim::Shared))?;
    let permits = if let Claim::Permits(permits) = claim { Some(permits) } else { None };
    fields.serialize_field("permits", &permits)?;
    fields.end()
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn a_position_shows_the_names_and_how_each_is_held() {
        let held =
            |claim| Holder { session: SessionId(1), owner: "a".into(), fence: Fence(2), since_ms: 3, claim };
        let blocker = |name, claim| Blocker::new(LockName::new(name).unwrap(), held(claim));
        let position = QueuePosition {
            ahead: 4,
            holders: vec![blocker("a b", Claim::Shared), blocker("pool", Claim::Permits(5))],
        };
        let expected = json!({ "ahead": 4, "holders": [
            { "name": "a b", "session": 1, "owner": "a", "fence": 2, "since_ms": 3, "shared": true, "permits": null },
            { "name": "pool", "session": 1, "owner": "a", "fence": 2, "since_ms": 3, "shared": false, "permits": 5 },
        ]});
        assert_eq!(to_value(position).unwrap(), expected);
    }

    #[test]
    fn bytes_of_a_leader_that_are_no_text_are_replaced() {
        let mut report = LockReport::new(LockName::new("x").unwrap(), 1);
        assert_eq!(to_value(&report).unwrap()["value"], json!(null));
        report.value = Some(vec![b'a', 0xff]);
        assert_eq!(to_value(&report).unwrap()["value"], "a\u{fffd}");
    }

    #[test]
    fn every_event_of_a_watch_has_the_same_fields() {
        let changed =
            WatchEvent::Changed { index: 1, name: "/f".into(), change: Change::Written(Version(2)) };
        let expected = json!({ "index": 1, "name": "/f", "change": "written", "number": 2 });
        assert_eq!(to_value(changed).unwrap(), expected);
        let expected = json!({ "index": 3, "name": null, "change": "resync", "number": null });
        assert_eq!(to_value(WatchEvent::Resync { index: 3 }).unwrap(), expected);
    }

    #[test]
    fn a_file_result_keeps_its_place_in_snapshots() {
        let path = FilePath::new("/f").unwrap();
        let results = [
            FileResult::Created(path),
            FileResult::Written(Version(7)),
            FileResult::Deleted,
            FileResult::Checked,
        ];
        let bytes = results.map(|result| postcard::to_allocvec(&result).unwrap());
        assert_eq!(bytes, [vec![0, 2, b'/', b'f'], vec![1, 7], vec![2], vec![3]]);
    }
}
