//! Converts one message of a client into a command, a read, a watch or an error.

use conclave_core::{Code, Error, RequestId, SessionId};

use super::batches::Origin;
use super::budget::{Class, overloaded, request_cost};
use super::clients::{ConnectionSession, MAX_QUEUED};
use super::query;
use super::rounds::{PendingKeepAlive, Read, RoundRequest};
use super::watches::WatcherId;
use super::{ClientRequest, Query};
use super::{ConnectionId, Cx, MAX_PER_TURN, Node, Outbox, Reply, View, metrics, read_state};
use crate::state::{Command, OpenSession, Request};

impl<O: Outbox> Node<O> {
    /// Handles a message of a client.
    pub(super) fn on_request(&mut self, connection: ConnectionId, request: ClientRequest, cx: &mut Cx<'_>) {
        let Some(known) = self.clients.get(connection) else { return };
        match (request, known.session) {
            (request, ConnectionSession::Pending) => self.wait_for_session(connection, request),
            (ClientRequest::Request { id, lowest, op }, ConnectionSession::Bound(session)) => {
                self.propose(connection, Request { session, id, lowest, op });
            }
            (ClientRequest::KeepAlive { token }, ConnectionSession::Bound(session)) => {
                self.keep_alive(PendingKeepAlive { connection, session, token, term: None }, cx);
            }
            (ClientRequest::Request { id: RequestId(id), .. }, _) => {
                self.refuse(connection, id, no_session());
            }
            // The keep-alive has crossed the end of its session, which was sent to the client.
            (ClientRequest::KeepAlive { .. }, ConnectionSession::Ended) => {}
            (ClientRequest::KeepAlive { .. }, _) => self.clients.close(connection, &no_session()),
            (
                ClientRequest::Open { .. } | ClientRequest::Resume { .. },
                ConnectionSession::Bound(session),
            ) => {
                let text = format!("this connection already has session {session}");
                self.clients.close(connection, &Error::new(Code::InvalidArgument, text));
            }
            (ClientRequest::Open { ttl_ms, lock_delay_ms, label }, _) => {
                let open = OpenSession { secret: 0, ttl_ms, lock_delay_ms, label };
                self.open(connection, open, cx);
            }
            (ClientRequest::Resume { session, secret }, _) => {
                if let Some(known) = self.clients.get_mut(connection) {
                    known.session = ConnectionSession::Pending;
                }
                self.wait(RoundRequest::Read(Read::Resume { connection, session, secret }), cx);
            }
            // The status of the cluster is needed above all when no majority answers.
            (
                ClientRequest::Query { id, stale: true, query }
                | ClientRequest::Query { id, query: query @ Query::Cluster, .. },
                _,
            ) => self.answer_query(connection, id, query, cx),
            (ClientRequest::Query { id, stale: false, query }, _) => {
                self.wait(RoundRequest::Read(Read::Query { connection, id, query }), cx);
            }
            (ClientRequest::Watch { id, after, target }, _) => {
                self.wait(RoundRequest::Read(Read::Watch { connection, id, after, target }), cx);
            }
            // The watch may still wait for its round. The unwatch must come after it, so it waits for a round
            // too.
            (ClientRequest::Unwatch { id }, _) => {
                self.wait(RoundRequest::Read(Read::Unwatch { connection, id }), cx);
            }
            (ClientRequest::Invalid { id, error }, _) => self.refuse(connection, id, error),
            (ClientRequest::Malformed(error), _) => self.clients.close(connection, &error),
        }
    }

    /// Keeps a message until the session of its connection exists.
    fn wait_for_session(&mut self, connection: ConnectionId, request: ClientRequest) {
        let Some(known) = self.clients.get_mut(connection) else { return };
        if known.inbox.len() >= MAX_QUEUED {
            let text = format!("the client sent more than {MAX_QUEUED} requests before its session was open");
            return self.clients.close(connection, &Error::new(Code::Overloaded, text));
        }
        let (bytes, class) = request_cost(&request);
        match self.batches.budget.admit_queued(bytes, class) {
            Ok(()) => known.enqueue(request, bytes),
            Err(error) => self.clients.close(connection, &error),
        }
    }

    /// Adds a request to the next batch.
    fn propose(&mut self, connection: ConnectionId, request: Request) {
        metrics::add(&self.metrics.requests_total, 1);
        let Request { session, id, .. } = request;
        let class = Class::of(&request.op);
        let origin = Origin::Request { session, id };
        let again = has_flaw!(self, ProposesWhatItRejects).then(|| Command::Request(request.clone()));
        if let Err(error) = self.batches.add(origin, Command::Request(request), class) {
            if let Some(again) = again {
                drop(self.batches.add(origin, again, Class::Expiry));
            }
            return self.refuse(connection, id.0, error);
        }
        if let Some(known) = self.clients.get_mut(connection) {
            self.batches.policy.on_request(&mut known.activity);
            known.on_request(id);
        }
    }

    fn open(&mut self, connection: ConnectionId, open: OpenSession, cx: &mut Cx<'_>) {
        let Some(secret) = (cx.secret)() else {
            let error = Error::new(Code::Internal, "the operating system returns no random numbers");
            return self.clients.close(connection, &error);
        };
        let command = Command::OpenSession(OpenSession { secret, ..open });
        if let Err(error) = self.batches.add(Origin::Open { secret }, command, Class::Request) {
            return self.clients.close(connection, &error);
        }
        if let Some(known) = self.clients.get_mut(connection) {
            known.session = ConnectionSession::Pending;
        }
        self.clients.begin_opening(secret, connection, cx.now);
    }

    /// Binds a session to a connection: sends the reply, then handles the messages that waited for the
    /// session.
    pub(super) fn bind(
        &mut self,
        connection: ConnectionId,
        session: SessionId,
        reply: &Reply,
        cx: &mut Cx<'_>,
    ) {
        if self.clients.get(connection).is_none() {
            return;
        }
        match self.clients.of_session(session) {
            Some(_) if has_flaw!(self, KeepsOldConnection) => {
                let known = self.clients.get_mut(connection);
                known.into_iter().for_each(|known| known.session = ConnectionSession::Bound(session));
            }
            _ => self.clients.bind(connection, session),
        }
        metrics::set(&self.metrics.sessions_here, self.clients.sessions_len());
        self.push(connection, reply);
        let Some(known) = self.clients.get_mut(connection) else { return };
        let (waiting, bytes) = known.take_inbox();
        self.batches.budget.give_back_queued(bytes);
        waiting.into_iter().for_each(|request| self.on_request(connection, request, cx));
    }

    /// Takes the first message that waits on a connection, and gives its bytes back to the budget.
    fn dequeue(&mut self, connection: ConnectionId) -> Option<ClientRequest> {
        let (request, bytes) = self.clients.get_mut(connection)?.dequeue()?;
        self.batches.budget.give_back_queued(bytes);
        Some(request)
    }

    /// Answers a query. It waits while the client has much to read, while older queries wait, and while the
    /// state may contain entries that are not on disk.
    pub(super) fn answer_query(&mut self, connection: ConnectionId, id: u64, query: Query, cx: &mut Cx<'_>) {
        // The status of the cluster is not part of the state.
        let may_read = self.may_read(cx.view) || matches!(query, Query::Cluster);
        let Some(known) = self.clients.get_mut(connection) else { return };
        if may_read && !known.is_full && known.inbox.is_empty() {
            return self.answer_now(connection, id, &query, cx);
        }
        // `stale`: a query that needed a round has had it.
        let request = ClientRequest::Query { id, stale: true, query };
        let (bytes, class) = request_cost(&request);
        let admitted = match known.inbox.len() < MAX_QUEUED {
            true => self.batches.budget.admit_queued(bytes, class),
            false => Err(overloaded()),
        };
        match admitted {
            Ok(()) => known.enqueue(request, bytes),
            Err(error) => return self.refuse(connection, id, error),
        }
        // The next sending looks whether there is room.
        self.clients.touch(connection);
    }

    fn answer_now(&mut self, connection: ConnectionId, id: u64, query: &Query, cx: &mut Cx<'_>) {
        metrics::add(&self.metrics.queries_total, 1);
        let answer = query::answer(cx.view, query);
        if !has_flaw!(self, ReadsAheadOfEvents) {
            // The state may grow between the two reads of it. The events are read last, so they cover the
            // answer.
            let watches = &mut self.watches;
            let events = read_state(cx.view, |state| watches.catch_up(state, WatcherId(connection)));
            self.send_watcher_events(events);
        }
        self.push(connection, &Reply::Read { id, answer });
    }

    /// Answers queries that waited, of some connections, until each has none or its outbox is full.
    pub(super) fn serve_waiting(&mut self, cx: &mut Cx<'_>) {
        for _ in 0..self.clients.writable_len().min(MAX_PER_TURN) {
            let Some(connection) = self.clients.take_writable() else { return };
            let Some(known) = self.clients.get_mut(connection) else { continue };
            known.is_full = false;
            while self
                .clients
                .get(connection)
                .is_some_and(|known| !known.is_full && known.session != ConnectionSession::Pending)
            {
                match self.dequeue(connection) {
                    Some(ClientRequest::Query { id, query, .. }) => {
                        self.answer_now(connection, id, &query, cx);
                    }
                    Some(other) => self.on_request(connection, other, cx),
                    None => break,
                }
            }
        }
    }

    /// Handles the end of a connection.
    pub(super) fn on_detached(&mut self, connection: ConnectionId) {
        let Some(mut known) = self.clients.detach(connection) else { return };
        let (_, bytes) = known.take_inbox();
        self.batches.budget.give_back_queued(bytes);
        self.batches.policy.on_detached(known.activity);
        self.watches.end(WatcherId(connection));
        metrics::set(&self.metrics.connections, self.clients.connections_len());
        metrics::set(&self.metrics.sessions_here, self.clients.sessions_len());
    }

    pub(super) fn push(&mut self, connection: ConnectionId, reply: &Reply) {
        self.clients.push(connection, reply);
    }

    pub(super) fn refuse(&mut self, connection: ConnectionId, id: u64, error: Error) {
        metrics::add(&self.metrics.requests_refused_total, 1);
        self.push(connection, &Reply::Refused { id, error });
    }

    /// Returns whether the state may be read now.
    pub(super) fn may_read(&self, view: &dyn View) -> bool {
        has_flaw!(self, ServesUnsyncedReads)
            || super::FlushPolicy::may_serve_reads(self.batches.in_flight(), view.may_be_unsynced())
    }
}

fn no_session() -> Error {
    Error::new(Code::SessionEnded, "this connection has no session: open or resume one")
}
