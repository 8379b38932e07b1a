//! A node that belongs to no cluster: nothing is applied and no node leads unless a test says so.

mod bounds;
mod ends;
mod sending;

use std::cell::{Cell, RefCell};

use conclave_core::report::{QueuePosition, WatchEvent};
use conclave_core::{FilePath, RequestId};

use super::rounds::no_majority;
use super::*;
use crate::cluster::Membership;
use crate::state::tree::FileChange;
use crate::state::watch::{Change, ChangedObject, WatchTarget};
use crate::state::{Answer, EndCause, Granted, Op, TimerId};
use watches::{WatcherEvent, WatcherId};

/// An outbox that records what it gets. Its client reads when the test calls [`Recorder::read`].
#[derive(Debug, Default)]
struct Recorder {
    connection: ConnectionId,
    replies: RefCell<Vec<Reply>>,
    bytes: Cell<usize>,
    closed: RefCell<Option<Error>>,
    is_paused: Cell<bool>,
    is_room_awaited: Cell<bool>,
}

impl Recorder {
    /// Returns the replies since the last call, as a client that reads all of them.
    fn read(&self) -> Vec<Reply> {
        self.bytes.set(0);
        self.replies.take()
    }

    /// Returns whether the node waits for the room that reading has made.
    fn takes_drained(&self) -> bool {
        self.bytes.get() < FULL_BYTES && self.is_room_awaited.replace(false)
    }

    fn close_reason(&self) -> Option<Code> {
        self.closed.borrow().as_ref().map(|why| why.code)
    }
}

impl Outbox for Recorder {
    fn push(&self, reply: &Reply) -> Capacity {
        if self.closed.borrow().is_some() {
            return Capacity::Free;
        }
        self.bytes.set(self.bytes.get() + format!("{reply:?}").len());
        self.replies.borrow_mut().push(reply.clone());
        if self.bytes.get() >= FULL_BYTES { Capacity::Full } else { Capacity::Free }
    }

    fn close(&self, why: &Error) {
        self.closed.borrow_mut().get_or_insert_with(|| why.clone());
    }

    fn pause_reading(&self, pause: bool) {
        self.is_paused.set(pause);
    }

    fn capacity(&self) -> Capacity {
        let is_full = self.bytes.get() >= FULL_BYTES;
        self.is_room_awaited.set(is_full);
        if is_full { Capacity::Full } else { Capacity::Free }
    }
}

/// The environment of the node: an empty state, and a cluster without members.
struct World {
    state: State,
    status: Status,
    may_be_unsynced: bool,
}

impl View for World {
    fn read(&self, read: &mut dyn FnMut(&State)) {
        read(&self.state);
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn cluster_id(&self) -> u128 {
        7
    }

    fn may_be_unsynced(&self) -> bool {
        self.may_be_unsynced
    }
}

/// A node, its world, and the outputs that no test has taken yet.
struct Fixture {
    node: Node<Rc<Recorder>>,
    world: World,
    now: Now,
    out: Vec<Output>,
    outboxes: Vec<Rc<Recorder>>,
}

impl Fixture {
    /// Creates a node on a machine with several processors, and attaches connections, numbered from 1.
    fn attached(connections: u64) -> Self {
        Self::with(Timing::default(), connections)
    }

    fn with(timing: Timing, connections: u64) -> Self {
        let status = Status {
            node: 1,
            term: 0,
            leader: None,
            last: None,
            applied: None,
            snapshot: None,
            purged: None,
            membership: Membership::default(),
            matched: [].into(),
            running: true,
        };
        let mut fixture = Self {
            node: Node::new(timing, true, Arc::new(Metrics::default())),
            world: World { state: State::default(), status, may_be_unsynced: true },
            now: Now::ZERO,
            out: Vec::new(),
            outboxes: Vec::new(),
        };
        for connection in 1..=connections {
            let outbox = Rc::new(Recorder { connection, ..Recorder::default() });
            fixture.outboxes.push(outbox.clone());
            fixture.handle(Input::Attached { connection, outbox, half_close: true });
        }
        fixture
    }

    fn cx<R>(&mut self, call: impl FnOnce(&mut Node<Rc<Recorder>>, &mut Cx<'_>) -> R) -> R {
        let mut cx =
            Cx { now: self.now, view: &self.world, out: &mut self.out, secret: &mut || Some(0x5ec_2e7) };
        call(&mut self.node, &mut cx)
    }

    fn handle(&mut self, input: Input<Rc<Recorder>>) {
        self.cx(|node, cx| node.handle(input, cx));
    }

    /// Handles one message of a connection.
    fn request(&mut self, connection: ConnectionId, request: ClientRequest) {
        self.handle(Input::Requests { connection, requests: vec![request] });
    }

    /// Binds a session of the same number to a connection; its client reads the reply.
    fn bind(&mut self, connection: ConnectionId) {
        let session = SessionId(connection);
        let reply = Reply::Resumed { session, terms: SessionTerms::default() };
        self.cx(|node, cx| node.bind(connection, session, &reply, cx));
        self.outbox(connection).read();
    }

    /// Makes the node the leader of a term, with these leases.
    fn lead(&mut self, term: u64, leases: impl IntoIterator<Item = TimerId>) {
        (self.world.status.leader, self.world.status.term) = (Some(1), term);
        self.node.leases.on_applied_term(term);
        self.node.leases.on_leading(self.now, term, leases.into_iter().map(|timer| (timer, 10_000)));
    }

    fn outbox(&self, connection: ConnectionId) -> &Recorder {
        &self.outboxes[usize::try_from(connection).expect("few connections") - 1]
    }

    fn end_turn(&mut self, cause: Cause) -> Turn {
        self.cx(|node, cx| node.end_turn(cause, cx))
    }

    /// Sends replies, and returns the connections in the order in which they were sent to.
    fn send(&mut self) -> Vec<ConnectionId> {
        let mut sent = Vec::new();
        self.node.take_sends(|outbox| sent.push(outbox.connection));
        sent
    }

    fn has_work(&self) -> bool {
        self.node.has_work(&self.world)
    }

    /// Ends a turn, and takes the batches that it proposed.
    fn proposed(&mut self) -> Vec<BatchId> {
        self.end_turn(Cause::Other);
        let batch = |output: &Output| match output {
            Output::Propose { batch, .. } => Some(*batch),
            _ => None,
        };
        let batches = self.out.iter().filter_map(batch).collect();
        self.out.retain(|output| batch(output).is_none());
        batches
    }

    /// All commands of a batch were applied.
    fn applied(&mut self, batch: BatchId) {
        let id = LogId { term: 1, index: 1 };
        self.handle(Input::Proposed { batch, results: vec![Ok(id); 1024] });
    }

    /// Ends a turn, and takes the round that has started.
    fn round(&mut self) -> Option<RoundId> {
        self.end_turn(Cause::Other);
        let round = |output: &Output| match output {
            Output::Confirm { round, .. } => Some(*round),
            _ => None,
        };
        let started = self.out.iter().find_map(round);
        self.out.retain(|output| round(output).is_none());
        started
    }

    /// Starts a round and ends it with this result.
    fn run_round(&mut self, result: Result<LogId, ReadError>) {
        let round = self.round().expect("a request waits");
        self.handle(Input::Confirmed { round, result });
    }

    /// The state answers a request of a session.
    fn reply(&mut self, session: u64, request: u64, answer: Answer) {
        let (session, request) = (SessionId(session), RequestId(request));
        let effects = vec![Effect::Reply { session, request, answer, after: 0 }];
        self.handle(Input::Applied { id: LogId { term: 0, index: 1 }, effects });
    }
}

fn granted() -> Answer {
    Answer::Granted(Granted { names: Vec::new() })
}

fn release(id: u64) -> ClientRequest {
    let (id, op) = (RequestId(id), Op::Release { grant: RequestId(0) });
    ClientRequest::Request { id, lowest: id, op }
}

fn cluster_query(id: u64) -> ClientRequest {
    ClientRequest::Query { id, stale: true, query: Query::Cluster }
}

fn target() -> WatchTarget {
    WatchTarget::File(FilePath::new("/").unwrap())
}

fn watch(id: u64) -> ClientRequest {
    ClientRequest::Watch { id, after: None, target: target() }
}

fn lease(session: u64, generation: u64) -> TimerId {
    TimerId::Lease { session: SessionId(session), generation }
}

fn large() -> Reply {
    let reason = "x".repeat(FULL_BYTES / 2);
    let name = conclave_core::LockName::new("x").unwrap();
    Reply::Broken(crate::state::session::Broken { grant: RequestId(1), name, reason })
}

/// Returns the number of an answer, and the error if it is one.
fn answered(reply: &Reply) -> (u64, Option<Code>) {
    match reply {
        Reply::Refused { id, error } => (*id, Some(error.code)),
        Reply::Answered { id, .. } | Reply::Read { id, .. } | Reply::Watching { id, .. } => (*id, None),
        other => panic!("not an answer: {other:?}"),
    }
}

/// A connection without a session in time is closed, although every turn has something else to do.
#[test]
fn timers_run_even_if_every_turn_has_work() {
    // A beat of no length: it is always due, and every opening is late.
    let mut fixture = Fixture::with(Timing { heartbeat: Duration::ZERO, ..Timing::default() }, 2);
    let open = ClientRequest::Open { ttl_ms: 10_000, lock_delay_ms: 0, label: String::new() };
    fixture.request(1, open);
    fixture.request(2, ClientRequest::KeepAlive { token: 1 });
    fixture.end_turn(Cause::Work);
    assert_eq!(fixture.outbox(1).closed.borrow().as_ref(), Some(&no_majority()));
}

#[test]
fn a_slow_reader_gets_answers_as_fast_as_it_reads() {
    let mut fixture = Fixture::attached(1);
    (0..2).for_each(|_| fixture.node.push(1, &large()));
    let too_much = MAX_QUEUED as u64 + 1;
    (1..=too_much).for_each(|id| fixture.request(1, cluster_query(id)));
    fixture.send();
    let outbox = fixture.outbox(1);
    assert!(outbox.is_paused.get(), "nothing more is read");
    assert!(!outbox.takes_drained());
    let first = outbox.read();
    assert_eq!(first.len(), 3);
    assert_eq!(answered(&first[2]), (too_much, Some(Code::Overloaded)), "but the connection stays open");
    // The client has read all of it.
    assert!(outbox.takes_drained());
    assert!(!fixture.has_work());
    fixture.handle(Input::Writable(1));
    assert!(fixture.has_work());
    fixture.end_turn(Cause::Other);
    fixture.send();
    let answers: Vec<u64> = fixture.outbox(1).read().iter().map(|reply| answered(reply).0).collect();
    assert_eq!(answers, (1..too_much).collect::<Vec<_>>());
    assert!(!fixture.outbox(1).is_paused.get());
}

#[test]
fn a_watch_that_missed_too_much_gets_a_resync() {
    let mut fixture = Fixture::attached(1);
    let path = FilePath::new(&format!("/{}", "x".repeat(1000))).unwrap();
    let missed = |count: usize| -> Vec<WatcherEvent> {
        let object = ChangedObject::File { path: path.clone(), change: FileChange::Deleted };
        let event = Change { index: 3, object }.to_event();
        vec![WatcherEvent { watcher: WatcherId(1), watch: 5, event }; count]
    };
    fixture.node.send_missed(1, 5, 9, missed(100));
    assert_eq!(fixture.outbox(1).read().len(), 100);
    fixture.node.send_missed(1, 5, 9, missed(FULL_BYTES / 1000));
    assert_eq!(fixture.outbox(1).read(), [Reply::Event { watch: 5, event: WatchEvent::Resync { index: 9 } }]);
    fixture.node.send_missed(1, 5, 9, missed(0));
    assert_eq!(fixture.outbox(1).read(), []);
}

#[test]
fn of_keep_alives_only_the_newest_waits() {
    let mut fixture = Fixture::attached(2);
    fixture.lead(7, [lease(1, 0), lease(2, 0)]);
    (1..=2).for_each(|connection| fixture.bind(connection));
    (0..1000).for_each(|token| fixture.request(1, ClientRequest::KeepAlive { token }));
    fixture.request(2, ClientRequest::KeepAlive { token: 7 });
    let round = fixture.round().expect("two keep-alives wait");
    // A round in progress does not serve what arrives now.
    fixture.request(1, ClientRequest::KeepAlive { token: 1000 });
    fixture.handle(Input::Confirmed { round, result: Err(ReadError::Retry) });
    assert_eq!(fixture.round(), None, "not before the next heartbeat");
    fixture.now += Timing::default().heartbeat;
    fixture.run_round(Ok(LogId { term: 7, index: 0 }));
    let kept = |token| vec![Reply::KeptAlive { token }];
    assert_eq!((fixture.outbox(1).read(), fixture.outbox(2).read()), (kept(1000), kept(7)), "one of each");
}

#[test]
fn a_connection_has_a_bounded_share_of_a_round() {
    let mut fixture = Fixture::attached(2);
    (1..=MAX_WAITING_EACH as u64 + 1).for_each(|id| fixture.request(1, watch(id)));
    fixture.request(2, watch(1));
    let refused = fixture.outbox(1).read();
    assert_eq!(answered(&refused[0]), (MAX_WAITING_EACH as u64 + 1, Some(Code::Overloaded)));
    assert_eq!((refused.len(), fixture.outbox(2).read().len()), (1, 0));
    fixture.run_round(Err(ReadError::Stopped));
    assert_eq!(fixture.outbox(1).read().len(), MAX_WAITING_EACH);
    fixture.request(1, watch(1));
    assert_eq!(fixture.outbox(1).read(), [], "its share is free again");
}

#[test]
fn a_keep_alive_that_crosses_the_end_of_its_session_ends_nothing() {
    let mut fixture = Fixture::attached(2);
    fixture.bind(1);
    let effects = vec![Effect::SessionEnded { session: SessionId(1), cause: EndCause::Expired }];
    fixture.handle(Input::Applied { id: LogId::default(), effects });
    (1..=2).for_each(|connection| fixture.request(connection, ClientRequest::KeepAlive { token: 5 }));
    assert_eq!(fixture.outbox(1).close_reason(), None);
    assert_eq!(fixture.outbox(2).close_reason(), Some(Code::SessionEnded), "there never was one");
}

#[test]
fn a_half_closed_connection_gets_all_its_replies() {
    let mut fixture = Fixture::attached(1);
    fixture.bind(1);
    (1..=2).for_each(|id| fixture.request(1, release(id)));
    fixture.request(1, watch(3));
    fixture.handle(Input::HalfClosed(1));
    fixture.send();
    fixture.reply(1, 1, Answer::Done);
    fixture.send();
    assert_eq!((fixture.outbox(1).read().len(), fixture.outbox(1).close_reason()), (1, None));
    // A client that waits for a grant does not close its half.
    fixture.reply(1, 2, Answer::Queued(QueuePosition::default()));
    fixture.send();
    assert_eq!((fixture.outbox(1).read().len(), fixture.outbox(1).close_reason()), (1, None));
    fixture.run_round(Err(ReadError::Stopped));
    fixture.send();
    let last = fixture.outbox(1).read();
    assert_eq!(answered(&last[0]).0, 3);
    assert_eq!(fixture.outbox(1).close_reason(), Some(Code::Disconnected));
}

#[test]
fn a_session_that_is_resumed_elsewhere_leaves_its_connection() {
    let mut fixture = Fixture::attached(2);
    fixture.bind(1);
    let reply = Reply::Resumed { session: SessionId(1), terms: SessionTerms::default() };
    fixture.cx(|node, cx| node.bind(2, SessionId(1), &reply, cx));
    assert_eq!(fixture.outbox(1).close_reason(), Some(Code::Disconnected));
    fixture.reply(1, 1, Answer::Done);
    assert_eq!((fixture.outbox(1).read().len(), fixture.outbox(2).read().len()), (0, 2));
}

/// A node of which it is not known that others belong to its cluster may have applied entries that its disk
/// still writes.
#[test]
fn during_a_sync_reads_wait_and_keep_alives_do_not() {
    let mut fixture = Fixture::attached(2);
    fixture.lead(7, [lease(1, 0)]);
    fixture.bind(1);
    fixture.request(1, release(1));
    let batch = fixture.proposed()[0];
    let sessions = |id, stale| ClientRequest::Query { id, stale, query: Query::Sessions { after: None } };
    for query in [sessions(1, true), sessions(2, false), cluster_query(3)] {
        fixture.request(2, query);
    }
    fixture.request(1, ClientRequest::KeepAlive { token: 5 });
    fixture.run_round(Ok(LogId { term: 7, index: 0 }));
    fixture.end_turn(Cause::Other);
    fixture.send();
    assert_eq!(fixture.outbox(1).read(), [Reply::KeptAlive { token: 5 }]);
    assert_eq!(fixture.outbox(2).read(), []);
    assert!(!fixture.has_work(), "the end of the batch wakes it");
    fixture.applied(batch);
    fixture.end_turn(Cause::Work);
    fixture.send();
    let mut answers: Vec<u64> = fixture.outbox(2).read().iter().map(|reply| answered(reply).0).collect();
    answers.sort_unstable();
    assert_eq!(answers, [1, 2, 3]);
}
