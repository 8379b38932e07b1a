//! The client's side of the conversation, without a socket: what was asked, what is held, what is to be sent.
//!
//! **Rules** (docs/service.md 7).
//! - Requests are numbered upwards and stay in the table until their final answer. After a lost connection the session is
//!   resumed and everything in the table is sent again under its number: it takes effect once, a wait keeps its place.
//! - A session is opened by the first request that needs one, in the same write; who only reads has none. A watch needs one:
//!   it asks nothing, and only the answers to keep-alives tell that its server is there, and belongs to a majority.
//! - A server that has no majority, too much to do, or stops, has not taken the request: it is sent again after
//!   [`RETRY_AFTER`], until the client's patience is over, counted from the first refusal. What is queued was taken.
//!
//! **The trap.** If the connection breaks while a session is being opened, nobody knows its number: it cannot be resumed, and
//! what was sent behind the opening may have been done. An acquire is then asked again in a new session, for the old
//! one ends by itself; one that was given up is not, for its cancel is lost too. Anything else is reported as
//! `disconnected`, which is not definite. Never sent twice. A server that refuses the opening has done nothing of it: then
//! everything is asked again.
//!
//! **A node that is of no use.** A connection is of use if a session was opened or resumed on it, or something answered. If not,
//! it has refused all that was asked: what is of a session fails when the lease is past its deadline, anything else when
//! there is no session and the client's patience is over. It says the last reason. A node that is asked something and
//! says nothing is left: with a session as the lease says, otherwise after [`SILENCE`], twice as long each time, up to
//! [`MAX_SILENCE_DOUBLED`], until a connection is of use.
//!
//! **Bounds.** At most [`MAX_UNANSWERED`] requests and queries without an answer: then `too-many-unanswered`. What lets go of
//! something is always taken in, and is offered for as long as the session lives: there is no more of it than was had.

mod answers;
mod sending;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_api::proto::frame::MAX_FRAME_BYTES;
use conclave_api::proto::v1;
use conclave_api::{Code, Error};
use tokio::sync::{oneshot, watch};

use crate::guard::Loss;
use crate::lease::{Lease, Life, Now, Standing};
use crate::watch::{Notice, Queue};

/// Requests and queries that may be without an answer.
pub(crate) const MAX_UNANSWERED: usize = 1024;
/// A request that the server has not taken is sent again after this.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A server that says nothing for so long is left: one that has not even greeted, and one that was asked something. A server
/// without a majority refuses an opening before; a read it keeps for longer, and meanwhile another server may know better.
const SILENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
/// How often that is doubled: slow is not silent, but nobody is slow for minutes.
const MAX_SILENCE_DOUBLED: u32 = 3;

/// Where a final answer will be.
pub(crate) type AnswerToCome = oneshot::Receiver<Result<v1::answer::Result, Error>>;

/// What a final answer is handed to.
pub(crate) enum Reply {
    Once(oneshot::Sender<Result<v1::answer::Result, Error>>),
    Acquire {
        done: oneshot::Sender<Result<v1::Granted, Error>>,
        queued: Option<oneshot::Sender<v1::Queued>>,
    },
    /// Nobody waits for it.
    Forget,
}

impl Reply {
    /// Whoever waits for it may be gone: then it is of no interest.
    fn fail(self, error: Error) {
        match self {
            Self::Once(reply) => drop(reply.send(Err(error))),
            Self::Acquire { done, .. } => drop(done.send(Err(error))),
            Self::Forget => {}
        }
    }
}

/// How a session is opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    pub(crate) ttl_ms: u64,
    pub(crate) lock_delay_ms: Option<u64>,
    pub(crate) label: String,
}

/// See the module.
pub(crate) struct Core {
    opening: Opening,
    patience: Duration,
    connected: bool,
    connection: Connection,
    /// How often in a row a silent server was left.
    left: u32,
    session: Session,
    next_id: u64,
    /// Boxed: a tree shifts its neighbours at every change.
    pending: BTreeMap<u64, Box<Pending>>,
    /// Those of them that are not even queued: the first is the lowest number the server must remember.
    unanswered: BTreeSet<u64>,
    /// How many requests were asked since none was unanswered.
    together: usize,
    /// How many it had been before.
    usually_together: usize,
    held: HashMap<u64, Held>,
    /// Grants that came when the lease was past its deadline: handed out when it is confirmed again.
    late: Vec<(u64, v1::Granted)>,
    watches: BTreeMap<u64, Watched>,
    out: VecDeque<Out>,
    /// What was sent behind an opening that is not answered.
    behind: usize,
    retry_at: Option<Now>,
    standing: Standing,
    /// Counts changes of how things held stand.
    changes: watch::Sender<u64>,
    nodes: Vec<String>,
    closing: bool,
    /// Nobody sends anything any more.
    stopped: bool,
    /// The bug that a test has planted.
    #[cfg(feature = "testing")]
    pub(crate) flaw: Option<crate::testing::Flaw>,
}

/// What is known of the connection, or the last one.
#[derive(Default)]
struct Connection {
    is_greeted: bool,
    /// See the module.
    is_of_use: bool,
    /// The server has refused whatever it was to do, and done nothing of it.
    is_refused: bool,
    goodbye: Option<Error>,
    /// Since when nothing was heard, if something is waited for.
    quiet_since: Now,
    /// When to look whether it is silent. Not moved by what is heard meanwhile: that would set an alarm for every answer.
    look_at: Option<Now>,
}

enum Session {
    None,
    /// Sent then; the answer will tell its number.
    Opening(Now),
    Open {
        id: u64,
        secret: Vec<u8>,
        lease: Lease,
        /// The server has confirmed it on this connection.
        attached: bool,
    },
}

struct Pending {
    what: What,
    reply: Reply,
    /// Since when servers do not take it.
    refused_since: Option<Now>,
    sent: bool,
    /// Sent, and possibly done, without an answer that tells.
    uncertain: bool,
    retry: bool,
}

impl Pending {
    fn is_acquire(&self) -> bool {
        matches!(self.what, What::Request(v1::request::Op::Acquire(_)))
    }

    /// Whether it gives something back: were it given up, that would stay held for as long as the session lives.
    fn lets_go(&self) -> bool {
        lets_go(&self.what)
    }

    /// Whether it may be in effect although the session, and with it the memory of what was answered, has ended: it was sent
    /// twice, the first time perhaps in time, and what it does does not end with the session.
    fn may_outlive(&self, why: Code) -> bool {
        use v1::request::Op;
        let outlives = matches!(
            &self.what,
            What::Request(Op::Files(_) | Op::Limit(_) | Op::Break(_) | Op::EndSession(_))
        );
        why == Code::SessionEnded && self.uncertain && outlives
    }
}

enum What {
    Request(v1::request::Op),
    Query(v1::query::What),
}

struct Held {
    life: Life,
    loss: Option<Loss>,
    /// Its session has ended.
    ended: bool,
}

impl Held {
    /// Whether its end is to be told. What was lost by the deadline was given back then; of what was broken, other names are
    /// still held, for whoever needs a moment to stop.
    fn is_to_be_given_back(&self) -> bool {
        !self.ended && self.loss != Some(Loss::Deadline)
    }
}

struct Watched {
    target: v1::watch::Target,
    after: Option<u64>,
    /// The index of the last event, and how many of that index were told: one entry may change many things.
    last: Option<(u64, usize)>,
    /// So many events of that index are told again.
    to_skip: usize,
    begun: Option<oneshot::Sender<Result<u64, Error>>>,
    queue: Arc<Queue>,
    /// Since when there is no server for it.
    refused_since: Option<Now>,
    retry: bool,
}

impl Watched {
    /// What to ask for, from where it was left: of the last index some may not have been told.
    fn ask(&mut self, id: u64) -> v1::Watch {
        let (after, seen) = match self.last {
            Some((index, seen)) => (Some(index.saturating_sub(1)), seen),
            None => (self.after, 0),
        };
        self.to_skip = seen;
        v1::Watch { id, after, target: Some(self.target.clone()) }
    }

    fn on_event(&mut self, event: v1::Event) {
        match &mut self.last {
            Some((index, _)) if *index == event.index && self.to_skip > 0 => {
                self.to_skip -= 1;
                return;
            }
            Some((index, seen)) if *index == event.index => *seen += 1,
            last => *last = Some((event.index, 1)),
        }
        self.queue.push(Notice::Changed(event));
    }

    fn on_resync(&mut self, index: u64) {
        self.after = Some(index);
        self.last = None;
        self.to_skip = 0;
        self.queue.push(Notice::Resync { index });
    }

    fn fail(self, error: Error) {
        match self.begun {
            // Whoever asked may have stopped waiting.
            Some(begun) => drop(begun.send(Err(error))),
            None => self.queue.end(error),
        }
    }
}

enum Out {
    Message(v1::ClientMessage),
    Pending(u64),
    Watch(u64),
}

impl Core {
    pub(crate) fn new(opening: Opening, patience: Duration) -> Self {
        Self {
            opening,
            patience,
            connected: false,
            connection: Connection::default(),
            left: 0,
            session: Session::None,
            next_id: 1,
            pending: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            together: 0,
            usually_together: 0,
            held: HashMap::new(),
            late: Vec::new(),
            watches: BTreeMap::new(),
            out: VecDeque::new(),
            behind: 0,
            retry_at: None,
            standing: Standing::Valid,
            changes: watch::Sender::new(0),
            nodes: Vec::new(),
            closing: false,
            stopped: false,
            #[cfg(feature = "testing")]
            flaw: None,
        }
    }

    /// Asks for a change.
    pub(crate) fn request(&mut self, now: Now, op: v1::request::Op, reply: Reply) -> Result<u64, Error> {
        self.submit(now, What::Request(op), reply)
    }

    /// Reads.
    pub(crate) fn query(&mut self, now: Now, what: v1::query::What, reply: Reply) -> Result<u64, Error> {
        self.submit(now, What::Query(what), reply)
    }

    /// Gives up an acquire that nobody waits for any more.
    pub(crate) fn abandon(&mut self, now: Now, id: u64) {
        self.late.retain(|(late, _)| *late != id);
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.reply = Reply::Forget;
            if pending.sent {
                self.request_quietly(now, v1::request::Op::Cancel(v1::Cancel { request: id }));
            } else {
                self.forget(id);
            }
        } else if self.held.remove(&id).is_some_and(|held| held.is_to_be_given_back()) {
            self.request_quietly(now, v1::request::Op::Release(v1::Release { grant: id }));
        }
    }

    /// As [`Core::abandon`], with an answer: only when it has come is the acquire known not to hold anything. `None` if that is
    /// known already.
    pub(crate) fn cancel(&mut self, now: Now, id: u64) -> Result<Option<AnswerToCome>, Error> {
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

    /// Gives back what is held. [`Code::NotHeld`] if it was lost before.
    pub(crate) fn release(&mut self, now: Now, id: u64) -> Result<AnswerToCome, Error> {
        let release = v1::request::Op::Release(v1::Release { grant: id });
        let not_held = |loss: &Loss| Error::new(Code::NotHeld, loss.to_string());
        let Some(held) = self.held.remove(&id) else { return Err(not_held(&Loss::Deadline)) };
        if let Some(loss) = &held.loss {
            if held.is_to_be_given_back() {
                self.request_quietly(now, release);
            }
            return Err(not_held(loss));
        }
        let (sender, receiver) = oneshot::channel();
        self.request(now, release, Reply::Once(sender))?;
        Ok(receiver)
    }

    /// How a grant stands, and if it is lost, why.
    pub(crate) fn standing(&self, now: Now, id: u64) -> (Standing, Option<Loss>) {
        match (self.held.get(&id), &self.session) {
            (Some(Held { loss: Some(loss), .. }), _) => (Standing::Lost, Some(loss.clone())),
            (Some(Held { life, .. }), Session::Open { lease, .. }) => match lease.standing_of(*life, now) {
                Standing::Lost => (Standing::Lost, Some(Loss::Deadline)),
                standing => (standing, None),
            },
            _ => (Standing::Lost, Some(Loss::Deadline)),
        }
    }

    /// Until when what is held is to be believed.
    pub(crate) fn deadline(&self) -> Option<Now> {
        match &self.session {
            Session::Open { lease, .. } => Some(lease.deadline()),
            _ => None,
        }
    }

    /// How long nothing changes by itself in how things held stand.
    pub(crate) fn changes_in(&self, now: Now) -> Duration {
        match &self.session {
            Session::Open { lease, .. } => lease.changes_in(now),
            _ => Duration::MAX,
        }
    }

    /// The number of the session, once it is known.
    pub(crate) fn session(&self) -> Option<u64> {
        match &self.session {
            Session::Open { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Whether there is a session, or will be: its number may not be known yet, and what needs one may not be sent yet.
    pub(crate) fn has_session(&self) -> bool {
        !matches!(self.session, Session::None) || self.asks_for_session()
    }

    /// Whether something is held that can still be lost.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.values().any(|held| held.loss.is_none())
    }

    /// Told whenever something held may stand differently.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The nodes that the server has told of.
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Watches something; the queue gets what happens to it.
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

    /// Nobody answers: everything asked fails, the session is given up and ends by itself.
    pub(crate) fn give_up(&mut self, error: &Error) {
        self.end(&Loss::Session(error.message.clone()), error);
        self.fail_all(error);
    }

    /// The client's task is gone: nothing is sent or heard any more.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.connected = false;
        self.out.clear();
        self.give_up(&stopped());
    }

    /// The last handle is gone: what is to be said is said, then the session is closed.
    pub(crate) fn close(&mut self, now: Now) {
        self.closing = true;
        if !matches!(self.session, Session::None) {
            self.request_quietly(now, v1::request::Op::Close(v1::Close {}));
        }
    }

    /// Whether nobody is there any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Whether nobody is there any more, and everything was said.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing && self.out.is_empty()
    }

    fn submit(&mut self, now: Now, what: What, reply: Reply) -> Result<u64, Error> {
        if self.stopped {
            return Err(stopped());
        }
        if self.unanswered.len() >= MAX_UNANSWERED && !lets_go(&what) {
            let text = format!("{MAX_UNANSWERED} requests have no answer yet");
            return Err(Error::new(Code::TooManyUnanswered, text));
        }
        check_fits(sending::encoded_len(&what))?;
        let id = self.number();
        let pending =
            Pending { what, reply, refused_since: None, sent: false, uncertain: false, retry: false };
        if self.unanswered.is_empty() {
            self.connection.quiet_since = now;
            self.usually_together = std::mem::take(&mut self.together);
        }
        self.together += 1;
        let is_request = matches!(pending.what, What::Request(_));
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
        // A release or a cancel fits every frame, and is not counted.
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

    /// Whether it was asked already, and is not answered.
    fn is_asked(&self, op: &v1::request::Op) -> bool {
        self.pending.values().any(|pending| matches!(&pending.what, What::Request(asked) if asked == op))
    }

    /// The session is over: nothing of it is held, nothing of it waits.
    fn end(&mut self, loss: &Loss, error: &Error) {
        if matches!(self.session, Session::None) {
            return;
        }
        self.session = Session::None;
        self.behind = 0;
        self.late.clear();
        for held in self.held.values_mut() {
            held.ended = true;
            held.loss.get_or_insert_with(|| loss.clone());
        }
        let requests = self.pending.iter().filter(|(_, pending)| matches!(pending.what, What::Request(_)));
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
        self.changes.send_modify(|count| *count += 1);
    }
}

/// The client's task is gone, with its runtime or by a panic.
pub(crate) fn stopped() -> Error {
    Error::new(Code::Disconnected, "the task of the client was stopped")
}

fn lets_go(what: &What) -> bool {
    use v1::request::Op;
    matches!(what, What::Request(Op::Release(_) | Op::Cancel(_) | Op::Close(_)))
}

/// Refuses what no frame can carry. A frame has numbers, tags and lengths around what it says.
fn check_fits(bytes: usize) -> Result<(), Error> {
    if bytes + 128 > MAX_FRAME_BYTES {
        return Err(Error::new(Code::TooLarge, format!("a request has at most {MAX_FRAME_BYTES} bytes")));
    }
    Ok(())
}
