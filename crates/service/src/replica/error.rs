//! Why something was not done, and whether that is certain.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::log;
use super::types::NodeId;

/// Why a replica cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The log cannot be opened.
    Log(log::OpenError),
    /// The data folder cannot be read or written, or its snapshot is damaged.
    Io(io::Error),
    /// The parts of the data folder, or what is asked, do not belong together.
    Invalid(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => error.fmt(f),
            Self::Io(error) => write!(f, "cannot open the data folder: {error}"),
            Self::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<log::OpenError> for OpenError {
    fn from(error: log::OpenError) -> Self {
        Self::Log(error)
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Why a command was not applied, as far as one knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProposeError {
    /// Definite: it is not in the log. There is no leader, or it has just changed; try again, here.
    Retry,
    /// Indefinite: it may have been applied, or may still be. Safe to retry only with the same request id.
    Unknown,
    /// Definite: the node has stopped and did not take it.
    Stopped,
    /// Definite: it is larger than an entry may be.
    TooLarge,
}

impl fmt::Display for ProposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "the command was not proposed: there is no leader, or a new one",
            Self::Unknown => "the outcome is unknown: the leader changed or did not reply",
            Self::Stopped => "the command was not proposed: the node has stopped",
            Self::TooLarge => "the command was not proposed: it is larger than an entry of the log",
        })
    }
}

impl std::error::Error for ProposeError {}

/// Why a read was not confirmed. A read changes nothing, so it may always be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadError {
    /// No leader confirmed by a quorum; try again, here.
    Retry,
    /// The node has stopped.
    Stopped,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "no majority confirms a leader",
            Self::Stopped => "the node has stopped",
        })
    }
}

impl std::error::Error for ReadError {}

/// Why the membership did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipError {
    /// This node does not lead; `Some` names the node that does.
    NotLeader(Option<NodeId>),
    /// Another change is under way, or this one makes no sense.
    Refused(String),
    /// The node has stopped, or lost the leadership on the way.
    Unknown(String),
}

impl fmt::Display for MembershipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader(Some(node)) => write!(f, "the membership was not changed: node {node} leads"),
            Self::NotLeader(None) => f.write_str("the membership was not changed: there is no leader"),
            Self::Refused(why) => write!(f, "the membership was not changed: {why}"),
            Self::Unknown(why) => write!(f, "the outcome is unknown: {why}"),
        }
    }
}

impl std::error::Error for MembershipError {}
