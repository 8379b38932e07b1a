//! The content of a client's message, in no protocol's encoding.

use conclave_core::{Error, FilePath, LockName, RequestId, SessionId};

use crate::state::Op;
use crate::state::watch::WatchTarget;

/// One message of a client.
#[derive(Debug)]
pub enum ClientRequest {
    /// A request that changes the state.
    Request {
        /// The number of the request in its session.
        id: RequestId,
        /// The lowest number that the client still waits for. The state forgets older answers.
        lowest: RequestId,
        /// The operation.
        op: Op,
    },
    /// Extends the lease of the session.
    KeepAlive {
        /// A number that the reply repeats.
        token: u64,
    },
    /// Opens a session.
    Open {
        /// The length of the lease, in milliseconds.
        ttl_ms: u64,
        /// The lock-delay after an unclean end, in milliseconds.
        lock_delay_ms: u64,
        /// The label that people see in lists.
        label: String,
    },
    /// Continues a session on this connection.
    Resume {
        /// The session.
        session: SessionId,
        /// The secret that `Opened` contained.
        secret: u128,
    },
    /// Reads something.
    Query {
        /// The number of the reply.
        id: u64,
        /// Whether the reply may be read from this node's state, without a quorum round.
        stale: bool,
        /// The subject of the query.
        query: Query,
    },
    /// Starts a watch.
    Watch {
        /// The number of the watch.
        id: u64,
        /// The index after which changes are sent; without it, changes from now on.
        after: Option<u64>,
        /// The subject of the watch.
        target: WatchTarget,
    },
    /// Ends a watch.
    Unwatch {
        /// The number of the watch.
        id: u64,
    },
    /// An invalid request that has a number: the reply with that number is the error.
    Invalid {
        /// The number.
        id: u64,
        /// The reason.
        error: Error,
    },
    /// An invalid message without a number: the connection is closed with the error.
    Malformed(Error),
}

/// The subject of a query.
#[derive(Debug)]
pub enum Query {
    /// A file and its metadata.
    File(FilePath),
    /// The names of the children of a file.
    Children {
        /// The file.
        path: FilePath,
        /// The name after which the page begins.
        after: String,
    },
    /// The names in use.
    Locks {
        /// The prefix of the names.
        prefix: String,
        /// The name after which the page begins.
        after: Option<LockName>,
    },
    /// The holders, the queue and the deadlocks of one name.
    Why(LockName),
    /// The sessions.
    Sessions {
        /// The session after which the page begins.
        after: Option<SessionId>,
    },
    /// The nodes of the cluster.
    Cluster,
}
