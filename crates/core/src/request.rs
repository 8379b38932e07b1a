//! Basic types of the service: numbers, fences, owners, and the options of a request.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::LockName;

/// The number of a session: the number of the command that opened it. It is never used twice, and never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// The number of a request within its session. The client chooses it and never reuses it. A retry has the
/// same number and gets the same answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// A fencing token. Of two conflicting grants of a name, the later one has the strictly larger fence, for
/// ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence(pub u64);

/// The version of a file: 1 after its creation, and one more with each write. No file has version 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u64);

/// The priority of a request. Larger numbers are granted first, equal ones in the order of the log. Frequent
/// requests of a high priority may starve lower ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Priority(pub i32);

/// The time that an acquire may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Wait {
    /// No wait: granted at once or rejected. The claims of waiting requests apply.
    Try,
    /// At most this many milliseconds, measured by the leader.
    AtMost(u64),
    /// Until the request is granted, cancelled or rejected.
    #[default]
    Forever,
}

/// The choice of the waiting request to reject when a request completes a deadlock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VictimPolicy {
    /// The request that completes the deadlock.
    #[default]
    Requester,
    /// The request of the owner that is the youngest.
    Youngest,
    /// The request with the lowest priority; if equal, that of the youngest owner.
    LowestPriority,
    /// The request of the owner that holds the fewest names; if equal, that of the youngest owner.
    FewestLocks,
    /// No request: the deadlock stays, and reports show it.
    None,
}

/// The owner of a lock: the unit of re-entrancy and of deadlock detection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// The request itself, which excludes every other request.
    #[default]
    Request,
    /// One owner for all requests of the session with this label.
    Label(OwnerLabel),
    /// The owner of an earlier grant of the session; used to upgrade a grant.
    OfGrant(RequestId),
}

/// The longest label of a session, in bytes. A longer one is rejected.
pub const MAX_SESSION_LABEL_BYTES: usize = 256;

/// The label of an owner, unique within its session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OwnerLabel(String);

impl OwnerLabel {
    /// The longest label, in bytes. A longer one is rejected.
    pub const MAX_BYTES: usize = 128;

    /// Checks a label.
    ///
    /// # Errors
    /// The text is empty, longer than [`OwnerLabel::MAX_BYTES`], or contains control characters.
    pub fn new(text: impl Into<String>) -> Result<Self, LabelError> {
        let text = text.into();
        if text.is_empty() || text.len() > Self::MAX_BYTES || text.chars().any(char::is_control) {
            return Err(LabelError);
        }
        Ok(Self(text))
    }

    /// The text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The error for a text that is not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelError;

/// A deadlock at its detection: the waits between its owners, and the owner whose request was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    /// Edges `waiter -> name -> holder`. In a cycle each holder is the next waiter. In a knot each member
    /// waits for any of several, and the edges are those among the members. Only the first few, if there are
    /// many.
    pub cycle: Vec<WaitsFor>,
    /// The owner whose waiting request was rejected; `None` if the policy left the deadlock in place.
    pub victim: Option<String>,
}

/// One edge of the wait-for graph, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsFor {
    /// The owner that waits.
    pub waiter: String,
    /// The name that it waits for.
    pub name: LockName,
    /// The owner that holds the name.
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

macro_rules! number {
    ($($type:ident($number:ident)),*) => {$(
        impl From<$number> for $type {
            fn from(number: $number) -> Self {
                Self(number)
            }
        }

        impl From<$type> for $number {
            fn from(number: $type) -> Self {
                number.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

number!(SessionId(u64), RequestId(u64), Fence(u64), Version(u64), Priority(i32));

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
