//! What goes into the replicated state and what comes out of it.
//!
//! A [`Command`] is one change; an entry of the log carries several. An [`Effect`] is what a node does about it; every
//! node computes the same ones. Effects are addressed to *sessions*, not to nodes: each frontend carries out those of
//! the sessions connected to it and drops the rest. Timers are for the leader alone: it starts them, and proposes
//! [`Command::Expire`] when one runs out.

use conclave_api::{
    Claim, Error, Expr, Fence, LockName, Owner, Priority, RequestId, SessionId, VictimPolicy, Wait,
};
use serde::{Deserialize, Serialize};

use super::rank::Ticket;
use super::session::Broken;
use super::tree::{FileDone, FileOp};
use super::watch::Change;

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// Its number: how many commands were applied, this one included.
    pub index: u64,
    /// The term of the leader that appended it.
    pub term: u64,
    /// The wall time of the node that proposed it, in milliseconds; shown to people, never compared.
    pub wall_ms: u64,
}

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Begins a session. Answered by [`Effect::SessionOpened`].
    OpenSession(OpenSession),
    /// A session asks for something. Answered by [`Effect::Reply`].
    Request(Request),
    /// A timer ran out at the leader of `term`.
    Expire {
        /// Which timer, and which generation of it.
        timer: TimerId,
        /// The term in which the leader counted; a lease ends only in the same one.
        term: u64,
    },
    /// A node that is alone has started again: it may have handed over what its log does not say (see
    /// [`super::handover`]).
    Restarted {
        /// By how much the next fence is larger than it would be.
        fences: u64,
    },
}

/// How a session is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// Known to the client alone: the session is resumed with it. Random; also tells the client's answer from
    /// others'.
    pub secret: u128,
    /// The lease.
    pub ttl_ms: u64,
    /// How long names stay untaken after an unclean end.
    pub lock_delay_ms: u64,
    /// What people see.
    pub label: String,
}

/// A request of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Whose.
    pub session: SessionId,
    /// Its number: a retry has the same.
    pub id: RequestId,
    /// The lowest number whose answer the client does not have: older answers may be forgotten.
    pub lowest: RequestId,
    /// What is asked.
    pub op: Op,
}

/// What a session can ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// A lock expression; or, with a value, leadership.
    Acquire(Acquire),
    /// Gives back what that acquire was granted. To resign is to release.
    Release {
        /// The number of the acquire.
        grant: RequestId,
    },
    /// Gives up that acquire: ends its wait, or releases it if it was granted meanwhile.
    Cancel {
        /// The number of the acquire.
        request: RequestId,
    },
    /// Turns what that acquire holds exclusively into shared.
    Downgrade {
        /// The number of the acquire.
        grant: RequestId,
    },
    /// Changes what the leader proclaims.
    Proclaim {
        /// The number of the campaign.
        grant: RequestId,
        /// The new value.
        value: Vec<u8>,
    },
    /// Makes or changes a semaphore.
    Limit {
        /// Its name.
        name: LockName,
        /// The permits it has; 0 makes an unused one a plain name again.
        permits: u32,
    },
    /// Takes a name away from everybody who holds it.
    Break {
        /// The name.
        name: LockName,
        /// Why; told to the holders and recorded.
        reason: String,
    },
    /// Ends another session, as if it had expired.
    EndSession {
        /// Which.
        session: SessionId,
    },
    /// Ends this session cleanly: no lock-delay.
    Close,
    /// Changes the lease of this session.
    SetTtl {
        /// The new lease.
        ttl_ms: u64,
    },
    /// Changes files: all of them or none.
    Files(Vec<FileOp>),
}

impl Op {
    /// Returns whether the operation only releases resources. Such operations are admitted even over a limit in bytes.
    pub fn only_releases(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::Cancel { .. } | Self::Close | Self::EndSession { .. })
    }
}

/// An acquire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acquire {
    /// What is wanted.
    pub expr: Expr,
    /// Whose it will be.
    pub owner: Owner,
    /// How long to wait for it.
    pub wait: Wait,
    /// Who goes first.
    pub priority: Priority,
    /// Whose request is refused if this one closes a deadlock.
    pub policy: VictimPolicy,
    /// What the winner proclaims, if this is a campaign: then the expression is a single exclusive name.
    pub value: Option<Vec<u8>>,
}

/// What a request is answered. All but [`Answer::Queued`] are final and remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Done; nothing to add.
    Done,
    /// The acquire waits; [`Answer::Granted`] or [`Answer::Refused`] follows under the same number.
    Queued(Queued),
    /// The acquire is granted.
    Granted(Granted),
    /// The acquire no longer waits, or its grant was given back.
    Cancelled {
        /// There was a grant, and it was released.
        released: bool,
    },
    /// The files were changed.
    Files(Vec<FileDone>),
    /// Refused, definitely.
    Refused(Error),
    /// The limit of a semaphore is set.
    Limited {
        /// The permits before; `None` if the name was not a semaphore.
        before: Option<u32>,
    },
}

/// The place of an acquire that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// How many wait before it, on the name where most do.
    pub ahead: u64,
    /// Who holds what it waits for; the first few.
    pub holders: Vec<Holder>,
}

/// Who holds a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What is held.
    pub name: LockName,
    /// Whose session.
    pub session: SessionId,
    /// The owner, for people.
    pub owner: String,
    /// How it is held.
    pub claim: Claim,
    /// The fence it holds it by.
    pub fence: Fence,
    /// The wall time since when, in milliseconds; for display.
    pub since_ms: u64,
}

/// What an acquire was granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The names chosen, in canonical order.
    pub names: Vec<GrantedName>,
}

/// One name of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedName {
    /// The name.
    pub name: LockName,
    /// How it is held.
    pub claim: Claim,
    /// The token to send to the store that guards it.
    pub fence: Fence,
}

impl Granted {
    /// The largest fence over the names.
    pub fn fence(&self) -> Fence {
        self.names.iter().map(|name| name.fence).max().unwrap_or_default()
    }
}

/// What a node does about a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// A session begins. Whoever waits with this secret is told its id.
    SessionOpened {
        /// Its id from now on.
        session: SessionId,
        /// The secret it was opened with.
        secret: u128,
    },
    /// A session could not be opened.
    SessionRefused {
        /// The secret it was to be opened with.
        secret: u128,
        /// Why.
        error: Error,
    },
    /// A request is answered, at once or, for an acquire, later once more.
    Reply {
        /// Whose request.
        session: SessionId,
        /// Which.
        request: RequestId,
        /// The answer.
        answer: Answer,
        /// The number of the command that must be durable before this is told: the one that is applied, or for a foregone
        /// grant ([`super::handover`]) an earlier one.
        after: u64,
    },
    /// A name was taken away from its holder.
    Broken {
        /// Whose grant.
        session: SessionId,
        /// The number of the acquire.
        grant: RequestId,
        /// What was taken away.
        name: LockName,
        /// Why.
        reason: String,
    },
    /// A session is over: nothing of it waits, and what it held is free, or will be when its lock-delay is over.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// Why.
        cause: EndCause,
    },
    /// The leader starts this timer. Nodes that do not lead ignore it; a new leader asks for all of them.
    StartTimer {
        /// Which.
        timer: TimerId,
        /// When it runs out.
        after_ms: u64,
    },
    /// The leader forgets this timer.
    StopTimer {
        /// Which.
        timer: TimerId,
    },
    /// Something watchable changed: for [`crate::node::watches::Watches`].
    Changed(Change),
}

impl Effect {
    pub(super) fn broken(session: SessionId, Broken { grant, name, reason }: Broken) -> Self {
        Self::Broken { session, grant, name, reason }
    }
}

/// A timer of the leader: what ends, and which generation of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TimerId {
    /// The lease of a session: restarted by its keep-alives.
    Lease {
        /// Whose.
        session: SessionId,
        /// Raised when the lease is changed.
        generation: u64,
    },
    /// The end of a wait-at-most.
    Wait {
        /// Whose.
        session: SessionId,
        /// The number of the acquire.
        request: RequestId,
        /// The number of the acquire's command: never used twice.
        ticket: Ticket,
    },
    /// The end of the lock-delay after an unclean end.
    LockDelay {
        /// The session that ended.
        session: SessionId,
        /// The command that ended it.
        generation: u64,
    },
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// It was closed by its client.
    Closed,
    /// Its lease ran out.
    Expired,
    /// An operator ended it.
    Ended,
}
