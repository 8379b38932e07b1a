//! The client's protocol state without a socket: unanswered requests, grants, watches, and the messages to
//! send.
//!
//! **Rules** (docs/service.md 7).
//! - Requests have increasing numbers, and stay in the table until their final answer. After a lost
//!   connection the client resumes the session, and sends every request of the table again under its number.
//!   Each takes effect once, and a waiting acquire keeps its place.
//! - The first request that needs a session opens it, in the same write. Queries need no session. A watch
//!   needs one. The client sends nothing for a running watch, so only the answers to keep-alives show that
//!   the server is alive and has a majority.
//! - A server that has no majority, is overloaded or is shutting down rejects a request without accepting
//!   it. The client sends it again after [`RETRY_AFTER`]. It stops when the `retry_timeout` of the client has
//!   passed since the first rejection. A queued acquire was accepted, so it is retried without that limit.
//!
//! **Trap.** The connection breaks while a session is being opened. The client does not know the number of
//! the session, so it cannot resume it. The requests sent after `Open` may have been applied.
//! - An acquire is sent again in a new session: the old session ends by itself, and its grants with it. An
//!   acquire that was abandoned is not sent again, because its cancel is lost too.
//! - Every other request fails with `disconnected`, which is not definite. The client never sends it twice.
//! - If the server rejected the opening, it applied none of these requests. The client sends all of them
//!   again.
//!
//! **Productive connections.** A connection is productive if a session was opened or resumed on it, or if a
//! request was answered. Otherwise it counts as a failed attempt:
//! - Requests of a session fail when the deadline of the lease has passed. Queries, watches and requests
//!   without a session fail when `retry_timeout` has passed. The error is that of the last attempt.
//! - The client leaves a node that is silent although an answer is due. If the server has confirmed the
//!   session on this connection, the lease decides when. Otherwise there is also the limit [`SILENCE`], but
//!   at most a quarter (before the greeting) or half (after it) of `retry_timeout`. It doubles after each
//!   silent node, at most [`MAX_SILENCE_DOUBLED`] times. A productive connection resets it.
//!
//! **Bounds.** At most [`MAX_UNANSWERED`] requests and queries have no answer; one more is rejected with
//! `too-many-unanswered`. Releases, cancels and closes are always accepted, and retried for as long as the
//! session lives. Their number is bounded by the number of grants and acquires.

mod answers;
mod sending;
#[cfg(test)]
mod tests;
mod watched;
mod write_policy;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_core::{Code, Error};
use conclave_wire::frame::MAX_FRAME_BYTES;
use conclave_wire::v1;
use tokio::sync::{Notify, oneshot};

use self::watched::Watched;
use self::write_policy::WritePolicy;
use crate::guard::LossReason;
use crate::lease::{Epoch, Lease, LeaseState, Now};
use crate::watch::Queue;

/// The maximum number of requests and queries without an answer. One more is rejected with
/// `too-many-unanswered`.
pub(crate) const MAX_UNANSWERED: usize = 1024;
/// The delay before the client sends a rejected request again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The silence after which the client leaves a server: before the server's greeting, and after it if an
/// answer is due. A server without a majority rejects `Open` within this time. It may delay a read for
/// longer, but then another server may answer faster.
const SILENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
/// The maximum number of doublings of [`SILENCE`]. A slow server gets more time, but not minutes.
const MAX_SILENCE_DOUBLED: u32 = 3;

/// The receiver of the final answer to a request.
pub(crate) type PendingAnswer = oneshot::Receiver<Result<v1::answer::Result, Error>>;

/// The receiver of an answer, on the side of the core.
pub(crate) enum Reply {
    Once(oneshot::Sender<Result<v1::answer::Result, Error>>),
    Acquire {
        done: oneshot::Sender<Result<v1::Granted, Error>>,
        queued: Option<oneshot::Sender<v1::Queued>>,
    },
    /// The answer is ignored.
    Forget,
}

impl Reply {
    /// Sends the error to the receiver, if it still exists.
    fn fail(self, error: Error) {
        match self {
            Self::Once(reply) => drop(reply.send(Err(error))),
            Self::Acquire { done, .. } => drop(done.send(Err(error))),
            Self::Forget => {}
        }
    }
}

/// The parameters of `Open`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    pub(crate) ttl_ms: u64,
    pub(crate) lock_delay_ms: Option<u64>,
    pub(crate) label: String,
}

/// The state of the client. The caller holds a lock around it, passes in every event with the time, and sends
/// the messages that [`Core::drain`] returns.
pub(crate) struct Core {
    opening: Opening,
    retry_timeout: Duration,
    connected: bool,
    connection: Connection,
    /// The number of silent servers that the client left in a row.
    silent_servers: u32,
    session: Session,
    next_id: u64,
    /// The requests and queries without a final answer, by number. Boxed, because the tree moves its entries
    /// at every change.
    pending: BTreeMap<u64, Box<Pending>>,
    /// The entries of `pending` without any answer; `Queued` counts as an answer. The first is the lowest
    /// number that the server must remember.
    unanswered: BTreeSet<u64>,
    write_policy: WritePolicy,
    held: HashMap<u64, Held>,
    /// Grants that arrived after the deadline of the lease. They are delivered when a keep-alive confirms the
    /// lease.
    late: Vec<(u64, v1::Granted)>,
    watches: BTreeMap<u64, Watched>,
    out: VecDeque<Out>,
    /// The number of messages sent since `Open`, itself included; at most `MAX_SENT_BEFORE_OPEN`. It is 0
    /// before `Open` is sent and after its answer.
    sent_before_open: usize,
    retry_at: Option<Now>,
    lease_state: LeaseState,
    /// Wakes the callers that wait for a change of the state of grants, in the order in which they began to
    /// wait. The order makes a run with a seed repeatable.
    changes: Arc<Notify>,
    nodes: Vec<String>,
    closing: bool,
    /// The client's task has ended: nothing is sent any more.
    stopped: bool,
    /// The bug that a test has planted.
    #[cfg(feature = "testing")]
    pub(crate) flaw: Option<crate::testing::Flaw>,
}

/// The state of the present connection, or of the last one.
#[derive(Default)]
struct Connection {
    is_greeted: bool,
    /// A session was opened or resumed on the connection, or a request was answered.
    is_productive: bool,
    /// The server rejected the connection, and applied none of the requests sent on it.
    is_refused: bool,
    /// The reason that the server has sent for the end of the connection.
    goodbye: Option<Error>,
    /// The time of the latest message from the server, or of the first request that waits for an answer.
    quiet_since: Now,
    /// The time of the next check for silence. A message does not change it. Otherwise the task would reset
    /// its timer for each reply.
    check_at: Option<Now>,
}

enum Session {
    None,
    /// `Open` was sent at this time. The answer contains the number of the session.
    Opening(Now),
    Open {
        id: u64,
        secret: Vec<u8>,
        lease: Lease,
        /// The server has confirmed the session on this connection.
        attached: bool,
    },
}

struct Pending {
    body: Body,
    reply: Reply,
    /// The time of the first rejection in a row; `None` if the last sending was not rejected.
    refused_since: Option<Now>,
    sent: bool,
    /// An earlier sending may have been applied, but its answer was lost.
    uncertain: bool,
    /// The server rejected the request; it is sent again at `retry_at`.
    retry: bool,
}

impl Pending {
    fn is_acquire(&self) -> bool {
        matches!(self.body, Body::Request(v1::request::Op::Acquire(_)))
    }

    /// Returns whether the request only releases resources. If it were dropped, they would stay held for as
    /// long as the session lives.
    fn only_releases(&self) -> bool {
        only_releases(&self.body)
    }

    /// Returns whether an effect of the request may exist although the session has ended. That is so if an
    /// earlier sending may have been applied, and the effect outlives the session.
    fn may_outlive(&self, why: Code) -> bool {
        use v1::request::Op;
        let outlives = matches!(
            &self.body,
            Body::Request(Op::Files(_) | Op::Limit(_) | Op::Break(_) | Op::EndSession(_))
        );
        why == Code::SessionEnded && self.uncertain && outlives
    }
}

enum Body {
    Request(v1::request::Op),
    Query(v1::query::Kind),
}

struct Held {
    epoch: Epoch,
    loss: Option<LossReason>,
    /// The session of the grant has ended.
    ended: bool,
}

impl Held {
    /// Returns whether the server must get a release. A grant that was lost at the deadline was released at
    /// that time. A grant with a broken name still holds its other names.
    fn must_be_released(&self) -> bool {
        !self.ended && self.loss != Some(LossReason::Deadline)
    }
}

enum Out {
    Message(v1::ClientMessage),
    Pending(u64),
    Watch(u64),
}

impl Core {
    pub(crate) fn new(opening: Opening, retry_timeout: Duration) -> Self {
        Self {
            opening,
            retry_timeout,
            connected: false,
            connection: Connection::default(),
            silent_servers: 0,
            session: Session::None,
            next_id: 1,
            pending: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            write_policy: WritePolicy::default(),
            held: HashMap::new(),
            late: Vec::new(),
            watches: BTreeMap::new(),
            out: VecDeque::new(),
            sent_before_open: 0,
            retry_at: None,
            lease_state: LeaseState::Valid,
            changes: Arc::default(),
            nodes: Vec::new(),
            closing: false,
            stopped: false,
            #[cfg(feature = "testing")]
            flaw: None,
        }
    }

    /// Submits a request that changes the state.
    pub(crate) fn request(&mut self, now: Now, op: v1::request::Op, reply: Reply) -> Result<u64, Error> {
        self.submit(now, Body::Request(op), reply)
    }

    /// Submits a read.
    pub(crate) fn query(&mut self, now: Now, query: v1::query::Kind, reply: Reply) -> Result<u64, Error> {
        self.submit(now, Body::Query(query), reply)
    }

    /// Drops an acquire or a grant in the background: cancels or releases it.
    pub(crate) fn abandon(&mut self, now: Now, id: u64) {
        self.late.retain(|(late, _)| *late != id);
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.reply = Reply::Forget;
            if pending.sent {
                self.request_quietly(now, v1::request::Op::Cancel(v1::Cancel { request: id }));
            } else {
                self.forget(id);
            }
        } else if self.held.remove(&id).is_some_and(|held| held.must_be_released()) {
            self.request_quietly(now, v1::request::Op::Release(v1::Release { grant: id }));
        }
    }

    /// Cancels an acquire like [`Core::abandon`], and returns the receiver of the answer. After the answer
    /// the acquire holds nothing. Returns `None` if it certainly holds nothing now.
    pub(crate) fn cancel(&mut self, now: Now, id: u64) -> Result<Option<PendingAnswer>, Error> {
        self.late.retain(|(late, _)| *late != id);
        match self.pending.get_mut(&id) {
            Some(pending) if !pending.sent => {
                self.forget(id);
                return Ok(None);
            }
            Some(pending) => pending.reply = Reply::Forget,
            None => match self.held.remove(&id) {
                None | Some(Held { ended: true, .. }) => return Ok(None),
                Some(_) => {}
            },
        }
        let (sender, receiver) = oneshot::channel();
        self.request(now, v1::request::Op::Cancel(v1::Cancel { request: id }), Reply::Once(sender))?;
        Ok(Some(receiver))
    }

    /// Releases a grant. Returns [`Code::NotHeld`] if it was lost before.
    pub(crate) fn release(&mut self, now: Now, id: u64) -> Result<PendingAnswer, Error> {
        let release = v1::request::Op::Release(v1::Release { grant: id });
        let not_held = |loss: &LossReason| Error::new(Code::NotHeld, loss.to_string());
        let Some(held) = self.held.remove(&id) else { return Err(not_held(&LossReason::Deadline)) };
        if let Some(loss) = &held.loss {
            if held.must_be_released() {
                self.request_quietly(now, release);
            }
            return Err(not_held(loss));
        }
        let (sender, receiver) = oneshot::channel();
        self.request(now, release, Reply::Once(sender))?;
        Ok(receiver)
    }

    /// The state of a grant, and the reason if it is lost.
    pub(crate) fn grant_state(&self, now: Now, id: u64) -> (LeaseState, Option<LossReason>) {
        match (self.held.get(&id), &self.session) {
            (Some(Held { loss: Some(loss), .. }), _) => (LeaseState::Lost, Some(loss.clone())),
            (Some(Held { epoch, .. }), Session::Open { lease, .. }) => match lease.state_of(*epoch, now) {
                LeaseState::Lost => (LeaseState::Lost, Some(LossReason::Deadline)),
                state => (state, None),
            },
            _ => (LeaseState::Lost, Some(LossReason::Deadline)),
        }
    }

    /// The deadline of the lease, if a session is open.
    pub(crate) fn deadline(&self) -> Option<Now> {
        match &self.session {
            Session::Open { lease, .. } => Some(lease.deadline()),
            _ => None,
        }
    }

    /// Returns whether the answer to a keep-alive is overdue. Another thread should then do the work of the
    /// task.
    pub(crate) fn is_overdue(&self, now: Now) -> bool {
        matches!(&self.session, Session::Open { lease, .. } if lease.overdue_at() <= now)
    }

    /// The time of the next check for an overdue answer by another thread, if a session is open.
    pub(crate) fn next_check(&self, now: Now) -> Option<Now> {
        match &self.session {
            Session::Open { lease, .. } => Some(lease.next_check(now)),
            _ => None,
        }
    }

    /// The time at which work under a grant must be cancelled, if a session is open.
    pub(crate) fn work_until(&self) -> Option<Now> {
        match &self.session {
            Session::Open { lease, .. } => Some(lease.work_until()),
            _ => None,
        }
    }

    /// The time for which the state of the grants stays the same without input.
    pub(crate) fn changes_in(&self, now: Now) -> Duration {
        match &self.session {
            Session::Open { lease, .. } => lease.changes_in(now),
            _ => Duration::MAX,
        }
    }

    /// The number of the session, if it is open.
    pub(crate) fn session(&self) -> Option<u64> {
        match &self.session {
            Session::Open { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Returns whether a session exists, or a submitted request will open one.
    pub(crate) fn has_session(&self) -> bool {
        !matches!(self.session, Session::None) || self.needs_session()
    }

    /// Returns whether a grant exists that can still be lost.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.values().any(|held| held.loss.is_none())
    }

    /// Returns the notifier of all changes of the state of grants. A caller must create its future before it
    /// reads the state; otherwise it may miss a change.
    pub(crate) fn changes(&self) -> Arc<Notify> {
        self.changes.clone()
    }

    /// The addresses of the nodes, as the server sent them.
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Starts a watch; `queue` receives its events.
    pub(crate) fn watch(
        &mut self,
        now: Now,
        target: v1::watch::Target,
        after: Option<u64>,
        queue: Arc<Queue>,
    ) -> Result<(u64, oneshot::Receiver<Result<u64, Error>>), Error> {
        if self.stopped {
            return Err(stopped());
        }
        check_fits(target.encoded_len())?;
        let (begun, begins) = oneshot::channel();
        if !self.is_waiting() {
            self.connection.quiet_since = now;
        }
        let id = self.number();
        let watched = Watched {
            target,
            after,
            last: None,
            to_skip: 0,
            begun: Some(begun),
            queue,
            refused_since: None,
            retry: false,
        };
        self.watches.insert(id, watched);
        if self.connected {
            self.open_if_needed(now);
            self.out.push_back(Out::Watch(id));
        }
        Ok((id, begins))
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&mut self, id: u64) {
        if self.watches.remove(&id).is_some() && self.connected {
            self.out.push_back(Out::Message(v1::Unwatch { id }.into()));
        }
    }

    /// Fails all requests and watches with `error`, and drops the session. The session ends on the server
    /// when its lease expires.
    pub(crate) fn give_up(&mut self, error: &Error) {
        self.end(&LossReason::Session(error.message.clone()), error);
        self.fail_all(error);
    }

    /// Fails all present and future requests and watches, because the client's task has ended.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.connected = false;
        self.out.clear();
        self.give_up(&stopped());
    }

    /// Closes the session, after everything that is still to be sent. The last handle was dropped.
    pub(crate) fn close(&mut self, now: Now) {
        self.closing = true;
        if !matches!(self.session, Session::None) {
            self.request_quietly(now, v1::request::Op::Close(v1::Close {}));
        }
    }

    /// Returns whether the last handle was dropped.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether the last handle was dropped and everything was sent.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing && self.out.is_empty()
    }

    fn submit(&mut self, now: Now, body: Body, reply: Reply) -> Result<u64, Error> {
        if self.stopped {
            return Err(stopped());
        }
        if self.unanswered.len() >= MAX_UNANSWERED && !only_releases(&body) {
            let text = format!("{MAX_UNANSWERED} requests have no answer yet");
            return Err(Error::new(Code::TooManyUnanswered, text));
        }
        check_fits(sending::encoded_len(&body))?;
        let id = self.number();
        let pending =
            Pending { body, reply, refused_since: None, sent: false, uncertain: false, retry: false };
        if self.unanswered.is_empty() {
            self.connection.quiet_since = now;
        }
        self.write_policy.on_submitted(self.unanswered.is_empty());
        let is_request = matches!(pending.body, Body::Request(_));
        self.pending.insert(id, Box::new(pending));
        self.unanswered.insert(id);
        if self.connected {
            if is_request {
                self.open_if_needed(now);
            }
            self.out.push_back(Out::Pending(id));
        }
        Ok(id)
    }

    fn request_quietly(&mut self, now: Now, op: v1::request::Op) {
        // Cannot fail while the client runs: a release or a cancel fits into a frame, and no bound applies to
        // it.
        drop(self.request(now, op, Reply::Forget));
    }

    fn number(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn forget(&mut self, id: u64) -> Option<Box<Pending>> {
        self.unanswered.remove(&id);
        self.pending.remove(&id)
    }

    /// Returns whether the same operation has been submitted and has no final answer.
    fn is_submitted(&self, op: &v1::request::Op) -> bool {
        self.pending.values().any(|pending| matches!(&pending.body, Body::Request(sent) if sent == op))
    }

    /// Ends the session in the client: all its grants are lost, and all its requests fail.
    fn end(&mut self, loss: &LossReason, error: &Error) {
        if matches!(self.session, Session::None) {
            return;
        }
        self.session = Session::None;
        self.sent_before_open = 0;
        self.late.clear();
        for held in self.held.values_mut() {
            held.ended = true;
            held.loss.get_or_insert_with(|| loss.clone());
        }
        let requests = self.pending.iter().filter(|(_, pending)| matches!(pending.body, Body::Request(_)));
        let ids: Vec<u64> = requests.map(|(id, _)| *id).collect();
        for id in ids {
            self.fail(id, error.clone());
        }
        self.changed();
    }

    fn fail_all(&mut self, error: &Error) {
        let ids: Vec<u64> = self.pending.keys().copied().collect();
        ids.into_iter().for_each(|id| self.fail(id, error.clone()));
        std::mem::take(&mut self.watches).into_values().for_each(|watched| watched.fail(error.clone()));
    }

    fn fail(&mut self, id: u64, error: Error) {
        let Some(pending) = self.forget(id) else { return };
        let error = if pending.may_outlive(error.code) {
            Error::new(
                Code::NoAnswer,
                format!("{}; earlier requests may have had their effect", error.message),
            )
        } else {
            error
        };
        pending.reply.fail(error);
    }

    fn changed(&mut self) {
        self.changes.notify_waiters();
    }
}

/// The error of a client whose task has ended with its runtime or by a panic.
pub(crate) fn stopped() -> Error {
    Error::new(Code::Disconnected, "the task of the client was stopped")
}

fn only_releases(body: &Body) -> bool {
    use v1::request::Op;
    matches!(body, Body::Request(Op::Release(_) | Op::Cancel(_) | Op::Close(_)))
}

/// Rejects a message that no frame can carry. Numbers, tags and lengths take at most 128 bytes more.
fn check_fits(bytes: usize) -> Result<(), Error> {
    if bytes + 128 > MAX_FRAME_BYTES {
        return Err(Error::new(Code::TooLarge, format!("a request has at most {MAX_FRAME_BYTES} bytes")));
    }
    Ok(())
}
