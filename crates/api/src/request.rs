//! The plain words of the service: ids, fences, and how a request wishes to be treated.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::LockName;

/// A session: the number of the command that opened it, so never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// A request within its session, numbered by the client and never reused: a retry carries the same number and
/// gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// A fencing token. Of two conflicting grants of a name the later has the strictly larger fence, for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence(pub u64);

/// The version of a file: 1 when created, one more with every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u64);

/// Who goes first: the larger number; equal ones by entry. A busy high priority may starve the lower ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Priority(pub i32);

/// How long an acquire is willing to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Wait {
    /// Now or not at all. Obeys the claims of those who wait already.
    Try,
    /// This many milliseconds, counted by the leader.
    AtMost(u64),
    /// Until granted, cancelled or refused.
    #[default]
    Forever,
}

/// Whose waiting request is refused when a request closes a deadlock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VictimPolicy {
    /// The request that closes it.
    #[default]
    Requester,
    /// That of the owner who came last.
    Youngest,
    /// That with the lowest priority; of equal ones the youngest owner's.
    LowestPriority,
    /// That of the owner who holds the fewest names; of equal ones the youngest.
    FewestLocks,
    /// Nobody's: the deadlock stands and is shown.
    None,
}

/// Whose the lock will be: the unit of re-entrancy and of deadlock detection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// The request itself: it excludes every other request.
    #[default]
    Request,
    /// All requests of the session under this label.
    Label(OwnerLabel),
    /// The owner of an earlier grant of the session: this is how a guard is upgraded.
    OfGrant(RequestId),
}

/// The longest label of a session, in bytes.
pub const MAX_SESSION_LABEL_BYTES: usize = 256;

/// The label of an owner, unique within its session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerLabel(String);

impl OwnerLabel {
    /// The longest label, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks a label.
    ///
    /// # Errors
    /// Empty, longer than [`OwnerLabel::MAX_BYTES`], or with control characters.
    pub fn new(text: impl Into<String>) -> Result<Self, LabelError> {
        let text = text.into();
        if text.is_empty() || text.len() > Self::MAX_BYTES || text.chars().any(char::is_control) {
            return Err(LabelError);
        }
        Ok(Self(text))
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A label that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelError;

/// A deadlock as it was found: who waits for whom, and whose request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    /// Edges `waiter -> name -> holder`. Of a cycle the holder is the next waiter; of a knot, where each waits for any of
    /// several, they are those among its members. The first few, if there are many.
    pub cycle: Vec<WaitsFor>,
    /// The owner whose waiting request was refused; `None` when the policy was to leave the deadlock
    /// standing.
    pub victim: Option<String>,
}

/// One edge of the wait-for graph, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// Who waits.
    pub waiter: String,
    /// For what.
    pub name: LockName,
    /// Who holds it.
    pub holder: String,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, edge) in self.cycle.iter().enumerate() {
            let sep = if i == 0 { "" } else { "; " };
            write!(f, "{sep}{} waits for {}, held by {}", edge.waiter, edge.name, edge.holder)?;
        }
        Ok(())
    }
}

impl fmt::Display for LabelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an owner label has 1 to {} bytes and no control characters", OwnerLabel::MAX_BYTES)
    }
}

impl std::error::Error for LabelError {}

impl TryFrom<String> for OwnerLabel {
    type Error = LabelError;

    fn try_from(text: String) -> Result<Self, LabelError> {
        Self::new(text)
    }
}

impl From<OwnerLabel> for String {
    fn from(label: OwnerLabel) -> Self {
        label.0
    }
}

impl fmt::Display for OwnerLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! display_number {
    ($($type:ident),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

display_number!(SessionId, RequestId, Fence, Version, Priority);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_bounds_also_when_it_comes_from_outside() {
        assert!(OwnerLabel::new("").is_err());
        assert!(OwnerLabel::new("a\tb").is_err());
        assert!(OwnerLabel::new("x".repeat(129)).is_err());
        let long = postcard::to_allocvec(&"x".repeat(129)).unwrap();
        assert!(postcard::from_bytes::<OwnerLabel>(&long).is_err());
        let fine = postcard::to_allocvec("job 7").unwrap();
        assert_eq!(postcard::from_bytes::<OwnerLabel>(&fine).unwrap().as_str(), "job 7");
    }

    #[test]
    fn a_deadlock_reads_as_a_sentence() {
        let name = |text: &str| LockName::new(text).unwrap();
        let edge = |waiter: &str, on: &str, holder: &str| WaitsFor {
            waiter: waiter.into(),
            name: name(on),
            holder: holder.into(),
        };
        let deadlock =
            Deadlock { cycle: vec![edge("p", "b", "q"), edge("q", "a", "p")], victim: Some("p".into()) };
        assert_eq!(deadlock.to_string(), "p waits for b, held by q; q waits for a, held by p");
    }
}
