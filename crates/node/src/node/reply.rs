//! The content of a reply to a client, in no protocol's encoding.

use conclave_core::report::WatchEvent;
use conclave_core::{Error, SessionId};

use super::query::QueryAnswer;
use crate::state::session::Broken;
use crate::state::watch::WatchId;
use crate::state::{Answer, EndCause};

/// A reply or a message to a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A session was opened.
    Opened {
        /// The session.
        session: SessionId,
        /// The secret with which the client can resume it.
        secret: u128,
        /// The lease and the nodes.
        terms: SessionTerms,
    },
    /// A session was resumed on this connection.
    Resumed {
        /// The session.
        session: SessionId,
        /// The lease and the nodes.
        terms: SessionTerms,
    },
    /// A quorum has confirmed the lease.
    KeptAlive {
        /// The number that the keep-alive carried.
        token: u64,
    },
    /// The answer of the state to a request.
    Answered {
        /// The number of the request.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// The answer to a query.
    Read {
        /// The number of the query.
        id: u64,
        /// The answer.
        answer: QueryAnswer,
    },
    /// A watch has started.
    Watching {
        /// The number of the watch.
        id: u64,
        /// The index from which on it sends changes.
        index: u64,
    },
    /// A request, a query or a watch was rejected.
    Refused {
        /// Its number.
        id: u64,
        /// The reason.
        error: Error,
    },
    /// An event of a watch.
    Event {
        /// The number of the watch.
        watch: WatchId,
        /// The event.
        event: WatchEvent,
    },
    /// A grant was taken away by an operator.
    Broken(Broken),
    /// The session has ended.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// The cause.
        cause: EndCause,
    },
}

/// The conditions of a session, as the client learns them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionTerms {
    /// The length of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// The assumed drift between two clocks, in millionths.
    pub drift_ppm: u32,
    /// The addresses of all nodes.
    pub nodes: Vec<String>,
}

/// Returns the approximate size of an event, in bytes.
pub(super) fn event_size(event: &WatchEvent) -> usize {
    let name = match event {
        WatchEvent::Changed { name, .. } => name.len(),
        _ => 0,
    };
    name + 32
}
