//! The judge of the bytes that clients send and read: replies, reads, and the order of events and replies.

use std::collections::{BTreeMap, BTreeSet};

use conclave_core::{Code, Error, FilePath};
use conclave_kernel::NodeId;
use conclave_node::node::ConnectionId;
use conclave_node::state::watch::WatchTarget;
use conclave_wire::v1;
use conclave_wire::v1::answer::Result as Wire;

use crate::coverage::{Coverage, Situation};
use crate::reference::{Reference, RequestKey, is_of_file};
use crate::scenario::Scenario;

/// The judge of all connections.
pub struct Wires {
    scenario: Scenario,
    connections: BTreeMap<ConnectionId, Connection>,
    /// The number of times that each client has sent each of its requests.
    sendings: BTreeMap<(NodeId, u64), u32>,
    /// The requests that were sent once and rejected: they are not in the log.
    refused: BTreeSet<RequestKey>,
}

/// A connection, as its client sees it.
#[derive(Default)]
struct Connection {
    session: Option<u64>,
    has_resumed: bool,
    /// The index of the last reply of the log.
    last_index: u64,
    /// The queries without a reply, each with the index that was committed when it was sent.
    queries: BTreeMap<u64, (v1::query::Kind, u64)>,
    watches: BTreeMap<u64, Watch>,
}

struct Watch {
    target: WatchTarget,
    after: Option<u64>,
    /// The index up to which all events have arrived; `None` before the watch has begun.
    covered: Option<u64>,
}

impl Wires {
    pub fn new(scenario: Scenario) -> Self {
        let (connections, sendings, refused) = Default::default();
        Self { scenario, connections, sendings, refused }
    }

    pub fn on_connected(&mut self, connection: ConnectionId) {
        self.connections.insert(connection, Connection::default());
    }

    /// A request has entered the log.
    ///
    /// # Errors
    /// It was rejected for good.
    pub fn on_committed(&mut self, key: RequestKey) -> Result<(), String> {
        if self.refused.contains(&key) {
            return Err(format!("request {key:?} was rejected as not done, and was applied"));
        }
        Ok(())
    }

    pub fn on_sent(
        &mut self,
        client: NodeId,
        connection: ConnectionId,
        message: v1::ClientMessage,
        log: &Reference,
    ) {
        use v1::client_message::Message;
        let Some(known) = self.connections.get_mut(&connection) else { return };
        match message.message {
            Some(Message::Request(v1::Request { id, .. })) => {
                *self.sendings.entry((client, id)).or_default() += 1;
                self.refused.retain(|(session, request)| (Some(*session), *request) != (known.session, id));
            }
            Some(Message::Query(v1::Query { id, kind: Some(query), .. })) => {
                known.queries.insert(id, (query, log.applied()));
            }
            Some(Message::Watch(v1::Watch { id, after, target: Some(target) })) => {
                let target = target_of(&target);
                known.watches.insert(id, Watch { target, after, covered: None });
            }
            Some(Message::Unwatch(v1::Unwatch { id })) => _ = known.watches.remove(&id),
            _ => {}
        }
    }

    /// A client has read a message.
    ///
    /// # Errors
    /// The message contradicts the log.
    pub fn on_received(
        &mut self,
        client: NodeId,
        connection: ConnectionId,
        message: v1::ServerMessage,
        log: &mut Reference,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        use v1::server_message::Message;
        let Some(known) = self.connections.get_mut(&connection) else { return Ok(()) };
        match message.message {
            Some(Message::Opened(v1::Opened { session, .. })) => known.begin_session(session, log),
            Some(Message::Resumed(v1::Resumed { session, .. })) => {
                coverage.see(Situation::Resumed);
                known.has_resumed = true;
                known.begin_session(session, log)
            }
            Some(Message::SessionEnded(v1::SessionEnded { session, .. })) if !log.has_ended(session) => {
                Err(format!("session {session} has not ended in the log, and its client got its end"))
            }
            Some(Message::Broken(v1::Broken { grant, name, .. })) => {
                let session = known.session.unwrap_or_default();
                if log.is_broken((session, grant), &name) {
                    return Ok(());
                }
                Err(format!("grant {grant} of session {session} was reported as broken, and is not"))
            }
            Some(Message::Event(event)) => {
                coverage.see(Situation::EventDelivered);
                known.cover(event.id, event.index, coverage);
                Ok(())
            }
            Some(Message::Resync(resync)) => {
                coverage.see(Situation::Resynced);
                known.cover(resync.id, resync.index, coverage);
                Ok(())
            }
            Some(Message::Answer(v1::Answer { id, result: Some(result) })) => {
                self.on_answer(client, connection, id, &result, log, coverage)
            }
            _ => Ok(()),
        }
    }

    fn on_answer(
        &mut self,
        client: NodeId,
        connection: ConnectionId,
        id: u64,
        result: &Wire,
        log: &mut Reference,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let Some(known) = self.connections.get_mut(&connection) else { return Ok(()) };
        if let Wire::Watching(v1::Watching { index }) = result {
            if let Some(watch) = known.watches.get_mut(&id) {
                watch.covered = Some(watch.after.unwrap_or(*index));
            }
            return Ok(());
        }
        let session = known.session.unwrap_or_default();
        if let Wire::Error(error) = result
            && is_of_node(Error::from(error).code)
            && log.find_reply((session, id), result, 0).is_none()
        {
            let code = Error::from(error).code;
            if code == Code::Overloaded {
                coverage.see(Situation::Overloaded);
            }
            // A request that was sent twice may have been done by the other sending.
            let is_first = self.sendings.get(&(client, id)) == Some(&1);
            if let Some(session) = known.session.filter(|_| is_first && code.is_definite()) {
                if log.has_request((session, id)) {
                    return Err(format!(
                        "request {id} of session {session} was done, and rejected: {code:?}"
                    ));
                }
                self.refused.insert((session, id));
            }
            return Ok(());
        }
        if let Some((query, sent)) = known.queries.remove(&id) {
            coverage.see(Situation::ReadServed);
            known.check_read(&query, sent, result, log)?;
            return known.check_events(result, log);
        }
        known.check_reply(self.scenario, id, result, log, coverage)
    }
}

impl Connection {
    fn begin_session(&mut self, session: u64, log: &Reference) -> Result<(), String> {
        self.session = Some(session);
        if log.has_session(session) {
            return Ok(());
        }
        Err(format!("session {session} is not in the log, and its client got it"))
    }

    /// All events of a watch up to an index have arrived.
    fn cover(&mut self, id: u64, index: u64, coverage: &mut Coverage) {
        if let Some(watch) = self.watches.get_mut(&id) {
            if self.has_resumed && watch.after.is_some() {
                coverage.see(Situation::WatchContinued);
            }
            watch.covered = watch.covered.max(Some(index));
        }
    }

    /// Checks that a reply is one of the log, and behind the replies before it. An early grant may be neither:
    /// [`crate::early`] has the rule.
    fn check_reply(
        &mut self,
        scenario: Scenario,
        id: u64,
        result: &Wire,
        log: &mut Reference,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let session = self.session.unwrap_or_default();
        let key = (session, id);
        let early = match result {
            Wire::Granted(granted) if scenario == Scenario::Single && log.early.is_possible(key) => {
                Some(granted)
            }
            _ => None,
        };
        if let Some(granted) = early {
            log.early.on_read(key, granted);
        }
        if let Some(index) = log.find_reply(key, result, self.last_index) {
            if early.is_none() {
                self.last_index = index;
            }
            return Ok(());
        }
        if let Some(granted) = early
            && (log.find_reply(key, result, 0).is_some() || log.early.is_unsynced_or_lost(key, granted))
        {
            coverage.see(Situation::EarlyGrant);
            return Ok(());
        }
        let is_late = log.find_reply(key, result, 0).is_some();
        let problem = if is_late { "is behind a later reply" } else { "is not in the log" };
        Err(format!("the reply to request {id} of session {session} {problem}: {result:?}"))
    }

    /// Checks that a read shows the state of one index, between its sending and now.
    fn check_read(
        &self,
        query: &v1::query::Kind,
        sent: u64,
        result: &Wire,
        log: &Reference,
    ) -> Result<(), String> {
        use v1::query::Kind;
        let index = match (query, result) {
            (Kind::File(v1::ReadFile { path }), Wire::File(file)) => {
                let version = file.stat.map_or(0, |stat| stat.version);
                if is_of_file(path) && !log.had_file(file.index, &file.data, version) {
                    return Err(format!("a read at index {} shows version {version}", file.index));
                }
                file.index
            }
            (Kind::File(_), Wire::Error(error)) if Error::from(error).code == Code::NoSuchFile => {
                if log.lacked_file(sent, log.applied()) {
                    return Ok(());
                }
                return Err("a read misses a file that was there all the time".to_owned());
            }
            (Kind::Why(v1::Why { name }), Wire::Report(report)) => {
                let shown: Vec<(u64, u64)> =
                    report.holders.iter().map(|holder| (holder.session, holder.fence)).collect();
                let held = log.holders(name, report.index);
                if held != shown {
                    return Err(format!("{name} is shown as held by {shown:?}, and {held:?} holds it"));
                }
                report.index
            }
            (Kind::Sessions(_), Wire::Sessions(sessions)) => sessions.index,
            other => return Err(format!("a query got a strange reply: {other:?}")),
        };
        if !(sent..=log.applied()).contains(&index) {
            let now = log.applied();
            return Err(format!(
                "a read that was sent at index {sent} and read at {now} shows index {index}"
            ));
        }
        Ok(())
    }

    /// Checks that the events of all changes that a read shows have arrived before it.
    fn check_events(&self, result: &Wire, log: &Reference) -> Result<(), String> {
        let index = match result {
            Wire::File(file) => file.index,
            Wire::Report(report) => report.index,
            Wire::Sessions(sessions) => sessions.index,
            _ => return Ok(()),
        };
        for (id, Watch { target, covered, .. }) in &self.watches {
            let Some(covered) = *covered else { continue };
            let missing = log.changes_of(target, covered).find(|change| change.index <= index);
            if let Some(missing) = missing {
                return Err(format!("a read shows index {index} before event {missing:?} of watch {id}"));
            }
        }
        Ok(())
    }
}

/// Returns whether this is an error of a node, and not an answer of the state.
fn is_of_node(code: Code) -> bool {
    matches!(
        code,
        Code::NotLeader
            | Code::NoQuorum
            | Code::NoAnswer
            | Code::Overloaded
            | Code::ShuttingDown
            | Code::SessionEnded
    )
}

fn target_of(target: &v1::watch::Target) -> WatchTarget {
    use v1::watch::Target;
    let path = |path: &str| FilePath::new(path).expect("a path of the workload");
    match target {
        Target::File(file) => WatchTarget::File(path(file)),
        Target::Children(parent) => WatchTarget::Directory(path(parent)),
        Target::Lock(name) => {
            WatchTarget::Lock(conclave_core::LockName::new(name).expect("a name of the workload"))
        }
    }
}
