//! Errors of a replica, and whether their outcome is certain.

use std::fmt;
use std::io;

use super::log;
use conclave_node::cluster::NodeId;

/// The reason why a replica cannot be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The log cannot be opened.
    Log(log::OpenError),
    /// The data folder cannot be read or written, or its snapshot is damaged.
    Io(io::Error),
    /// The parts of the data folder, or the options, contradict each other.
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

/// The reason why the membership did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipError {
    /// This node does not lead; `Some` names the node that does.
    NotLeader(Option<NodeId>),
    /// Another change is in progress, or this change is not valid.
    Refused(String),
    /// The node has stopped or lost the leadership during the change, so the outcome is unknown.
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
