//! The input and the output of the replicated state.
//!
//! A [`Command`] is one change; an entry of the log contains several. An [`Effect`] is an action that follows
//! from a command. Every node computes the same effects. Effects are addressed to *sessions*, not to nodes.
//! Each node carries out the effects for the sessions connected to it and drops the others. Timers concern
//! the leader only: it starts them, and proposes [`Command::Expire`] when one runs out.

use conclave_core::report::{FileResult, QueuePosition};
use conclave_core::{
    Claim, Error, Expr, Fence, LockName, Owner, Priority, RequestId, SessionId, VictimPolicy, Wait,
};
use serde::{Deserialize, Serialize};

use super::rank::Ticket;
use super::session::Broken;
use super::tree::FileOp;
use super::watch::Change;

/// The position of a command, and the time of its proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of the command: the count of applied commands, this one included.
    pub index: u64,
    /// The term of the leader that appended the command.
    pub term: u64,
    /// The wall time of the node that proposed the command, in milliseconds. For display only, never
    /// compared.
    pub wall_ms: u64,
}

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session. The reply is [`Effect::SessionOpened`] or [`Effect::SessionRefused`].
    OpenSession(OpenSession),
    /// Executes a request of a session. The reply is [`Effect::Reply`].
    Request(Request),
    /// Ends a lease, a wait or a lock-delay, after a timer ran out at the leader of `term`.
    Expire {
        /// The timer, with its generation.
        timer: TimerId,
        /// The term in which the leader ran the timer. A lease ends only if the entry has the same term.
        term: u64,
    },
    /// Records that a single node has restarted. It may have sent early grants that its log lost (see
    /// [`super::early_grant`]).
    SingleNodeRestarted {
        /// The number that is added to all later fences.
        fences: u64,
    },
}

/// The parameters of a new session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// A random number that only the client knows; it resumes the session with it. The node that proposed the
    /// command also matches the reply to the client by it.
    pub secret: u128,
    /// The length of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// The lock-delay in milliseconds: the time for which nobody gets the names after an unclean end.
    pub lock_delay_ms: u64,
    /// The label of the session, for display.
    pub label: String,
}

/// A request of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The session that sends the request.
    pub session: SessionId,
    /// The number of the request. A retry has the same number.
    pub id: RequestId,
    /// The lowest number whose answer the client has not received. The service may forget older answers.
    pub lowest: RequestId,
    /// The operation.
    pub op: Op,
}

/// An operation of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Acquires a lock expression, or campaigns for leadership if there is a value.
    Acquire(Acquire),
    /// Releases the grant of an acquire. A leader resigns by releasing.
    Release {
        /// The number of the acquire.
        grant: RequestId,
    },
    /// Cancels an acquire: ends its wait, or releases its grant if it was granted meanwhile.
    Cancel {
        /// The number of the acquire.
        request: RequestId,
    },
    /// Turns the exclusive locks of a grant into shared locks.
    Downgrade {
        /// The number of the acquire.
        grant: RequestId,
    },
    /// Replaces the value that the leader proclaims.
    Proclaim {
        /// The number of the campaign.
        grant: RequestId,
        /// The new value.
        value: Vec<u8>,
    },
    /// Creates a semaphore or changes its limit.
    Limit {
        /// The name of the semaphore.
        name: LockName,
        /// The limit: the number of permits. 0 turns an unused semaphore into a plain name.
        permits: u32,
    },
    /// Takes a name away from all its holders.
    Break {
        /// The name.
        name: LockName,
        /// The reason. It is recorded and sent to the holders.
        reason: String,
    },
    /// Ends another session, as if its lease had expired.
    EndSession {
        /// The session to end.
        session: SessionId,
    },
    /// Ends this session cleanly, without a lock-delay.
    Close,
    /// Changes the length of this session's lease.
    SetTtl {
        /// The new length, in milliseconds.
        ttl_ms: u64,
    },
    /// Executes file operations: all of them or none.
    Files(Vec<FileOp>),
}

impl Op {
    /// Returns whether the operation only releases resources. Such operations are admitted even over a limit
    /// in bytes.
    pub fn only_releases(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::Cancel { .. } | Self::Close | Self::EndSession { .. })
    }
}

/// A request for names, given as a lock expression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acquire {
    /// The lock expression.
    pub expr: Expr,
    /// The owner of the request.
    pub owner: Owner,
    /// The time that the request may wait.
    pub wait: Wait,
    /// The priority in the queue.
    pub priority: Priority,
    /// The policy that chooses the victim if this request closes a deadlock.
    pub policy: VictimPolicy,
    /// The value to proclaim, if this is a campaign. The expression is then a single exclusive name.
    pub value: Option<Vec<u8>>,
}

/// The answer to a request. All answers except [`Answer::Queued`] are final, and the state remembers them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The request was done. There is no result.
    Done,
    /// The acquire waits. [`Answer::Granted`] or [`Answer::Refused`] follows under the same number. The
    /// position is not serialised, because only final answers are stored.
    Queued(#[serde(skip)] QueuePosition),
    /// The acquire is granted.
    Granted(Granted),
    /// The acquire no longer waits, or its grant was released.
    Cancelled {
        /// `true` if a grant existed and was released.
        released: bool,
    },
    /// The files were changed. Contains one result for each operation.
    Files(Vec<FileResult>),
    /// The request was rejected and had no effect.
    Refused(Error),
    /// The limit of a semaphore was set.
    Limited {
        /// The limit before the change; `None` if the name was not a semaphore.
        before: Option<u32>,
    },
}

/// The names and fences that an acquire was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The chosen names, in canonical order.
    pub names: Vec<GrantedName>,
}

/// One name of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedName {
    /// The name.
    pub name: LockName,
    /// The mode of the hold, or its permits.
    pub claim: Claim,
    /// The fencing token for the store that the name guards.
    pub fence: Fence,
}

impl Granted {
    /// Returns the largest fence of the names.
    pub fn fence(&self) -> Fence {
        self.names.iter().map(|name| name.fence).max().unwrap_or_default()
    }
}

/// An action that follows from a command. Every node computes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// A session was opened. The node that opened it with this secret sends the id to its client.
    SessionOpened {
        /// The id of the session.
        session: SessionId,
        /// The secret of the session.
        secret: u128,
    },
    /// A session could not be opened.
    SessionRefused {
        /// The secret in the rejected command.
        secret: u128,
        /// The reason.
        error: Error,
    },
    /// The reply to a request. An acquire that waits gets a second reply when the wait ends.
    Reply {
        /// The session of the request.
        session: SessionId,
        /// The number of the request.
        request: RequestId,
        /// The answer.
        answer: Answer,
        /// The number of the command that must be durable before the reply is sent. It is the applied command
        /// itself, or an earlier one for an early grant ([`super::early_grant`]).
        after: u64,
    },
    /// A name was taken away from its holder.
    Broken {
        /// The session that held the name.
        session: SessionId,
        /// The number of the acquire.
        grant: RequestId,
        /// The name.
        name: LockName,
        /// The reason.
        reason: String,
    },
    /// A session has ended. None of its requests waits. Its names are free, or will be when its lock-delay is
    /// over.
    SessionEnded {
        /// The session that ended.
        session: SessionId,
        /// The cause.
        cause: EndCause,
    },
    /// The leader starts this timer. Other nodes ignore the effect; a new leader starts all of
    /// [`super::State::timers`].
    StartTimer {
        /// The timer.
        timer: TimerId,
        /// The time until it runs out, in milliseconds.
        after_ms: u64,
    },
    /// The leader stops this timer.
    StopTimer {
        /// The timer.
        timer: TimerId,
    },
    /// A file or a lock changed. Watches are served from this effect by [`crate::node::watches::Watches`].
    Changed(Change),
}

impl Effect {
    pub(super) fn broken(session: SessionId, Broken { grant, name, reason }: Broken) -> Self {
        Self::Broken { session, grant, name, reason }
    }
}

/// The identity of a timer of the leader: the thing that it ends, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TimerId {
    /// The lease of a session. Each keep-alive restarts it.
    Lease {
        /// The session.
        session: SessionId,
        /// A number that grows with each change of the lease.
        generation: u64,
    },
    /// The limit of a wait.
    Wait {
        /// The session.
        session: SessionId,
        /// The number of the acquire.
        request: RequestId,
        /// The number of the acquire's command. It is never used twice.
        ticket: Ticket,
    },
    /// The end of a lock-delay.
    LockDelay {
        /// The session that ended.
        session: SessionId,
        /// The number of the command that ended the session.
        generation: u64,
    },
}

/// The cause of the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// The client closed the session.
    Closed,
    /// The lease expired.
    Expired,
    /// An operator ended the session.
    Ended,
}
