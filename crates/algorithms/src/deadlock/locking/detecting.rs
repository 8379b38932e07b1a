//! Detection: all requests wait, and a detector of this problem finds the deadlocks.
//!
//! **Intuition.** A lock is a process too. It grants the request of a client, and then waits for *that*
//! client to return it. For this it sends a request to the client, which grants it when it commits. So the
//! waits of transactions and of locks are waits of the problem's only [application
//! protocol](crate::deadlock::underlying). Every detector judges them unchanged.
//!
//! **Rules.**
//! 1. A site hosts the process of its client and those of the locks that it keeps. Messages between them do
//!    not count.
//! 2. A lock lends itself to the first client in its queue. A client that commits or is aborted grants every
//!    lock that it has. It makes no new request before each of these locks has sent its request, because a
//!    blocked process grants nothing.
//! 3. A lock is never a victim. A declared lock blames its holder, which is on the same cycle.
//!
//! **The trap.**
//! 1. A victim cancels its request for a lock, and its abort lets others proceed.
//! 2. One of them returns the same lock. The lock grants the victim's request, because the cancellation is
//!    still in transit.
//! 3. The lock receives the cancellation of a request that it has granted.
//!
//! The client never took the lock, so the lock must become free. Otherwise it would wait for a client that
//! does not hold it.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use conclave_kernel::{Buffer, Card, Cx, Effect, Env, Input, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Command, Estate, Event, Lock, Locking, PER_TRANSACTION, WITH_ABORTS, card, cost};
use crate::deadlock::site::{self, Detection, Group, Part, Site};
use crate::deadlock::underlying::Traffic;

/// The state of a site: the processes of its client and of its locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Detecting<D: Detection> {
    nodes: u32,
    locks: u32,
    /// The processes of this site. Clients are processes 0 to N-1; locks have the numbers from N on.
    processes: BTreeMap<NodeId, Site<D>>,
    lines: BTreeMap<NodeId, Line>,
    /// The locks that the transaction needs; `None` between transactions.
    needs: Option<BTreeSet<NodeId>>,
    /// The locks that it has.
    has: BTreeSet<NodeId>,
    /// The lock that it needs now. The request may not have been sent yet.
    wanted: Option<NodeId>,
    /// The locks of an earlier transaction that must be returned, but have not requested it yet.
    owes: BTreeSet<NodeId>,
}

/// The queue of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Line {
    is_lent: bool,
    /// The waiting clients in order of arrival; at most one entry per client.
    askers: VecDeque<NodeId>,
}

/// A message between processes of different sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Message<D: Detection> {
    from: NodeId,
    to: NodeId,
    message: site::Message<D>,
}

/// The inputs that are still to be handled in a step.
type Agenda<D> = VecDeque<(NodeId, Input<Site<D>>)>;

impl<D: Detection> Locking for Detecting<D> {
    const CARD: Card = card(
        "detect",
        "Detection",
        "edge chasing finds each deadlock, and the transaction that completed it is aborted",
        D::CARD.papers,
        WITH_ABORTS,
        cost!("6 per lock", 6 * PER_TRANSACTION),
    );

    fn new(me: NodeId, estate: &Estate) -> Self {
        let Estate { nodes, locks } = *estate;
        let group = Group { nodes: nodes + locks, resolves: true, resources_from: nodes };
        let kept = (nodes..nodes + locks).map(NodeId).filter(|lock| host(*lock, nodes) == me);
        Self {
            nodes,
            locks,
            processes: kept.clone().chain([me]).map(|id| (id, Site::new(id, &group))).collect(),
            lines: kept.map(|lock| (lock, Line::default())).collect(),
            needs: None,
            has: BTreeSet::new(),
            wanted: None,
            owes: BTreeSet::new(),
        }
    }

    fn kind(message: &Message<D>) -> (&'static str, Part) {
        Site::<D>::kind(&message.message)
    }
}

impl<D: Detection> Protocol for Detecting<D> {
    type Message = Message<D>;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, _: NodeId, Message { from, to, message }: Message<D>, cx: &mut Cx<'_, Self>) {
        self.run(Agenda::from([(to, Input::Message { from, message })]), cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        let mut agenda = Agenda::new();
        match (command, &self.needs) {
            (Command::Begin { needs, .. }, None) if needs.iter().all(|lock| *lock < self.locks) => {
                self.needs = Some(needs.into_iter().map(|lock| self.process_of(lock)).collect());
            }
            (Command::Lock(lock), Some(needs))
                if self.wanted.is_none() && needs.contains(&self.process_of(lock)) =>
            {
                let lock = self.process_of(lock);
                if self.has.contains(&lock) {
                    cx.emit(Event::Locked(lock.0 - self.nodes));
                } else {
                    self.wanted = Some(lock);
                    self.ask(cx.me(), &mut agenda);
                }
            }
            (Command::Commit, Some(_)) if self.wanted.is_none() => {
                cx.emit(Event::Committed);
                self.end(cx.me(), &mut agenda);
            }
            _ => cx.emit(Event::Refused),
        }
        self.run(agenda, cx);
    }
}

impl<D: Detection> Detecting<D> {
    fn process_of(&self, lock: Lock) -> NodeId {
        NodeId(self.nodes + lock)
    }

    /// Runs the processes of this site until no input is left.
    fn run(&mut self, mut agenda: Agenda<D>, cx: &mut Cx<'_, Self>) {
        while let Some((id, input)) = agenda.pop_front() {
            let Some(process) = self.processes.get_mut(&id) else { continue };
            let is_untaken = is_untaken(process, &input);
            let mut buffer = Buffer::default();
            process.step(input, &mut Cx::new(Env::new(id, self.nodes + self.locks), &mut buffer));
            for effect in buffer.effects {
                match effect {
                    Effect::Send { to, message } => self.send(id, to, message, &mut agenda, cx),
                    Effect::SendTo { to, message } => {
                        to.iter().for_each(|to| self.send(id, to, message.clone(), &mut agenda, cx));
                    }
                    Effect::Broadcast { message } => {
                        let others = (0..self.nodes + self.locks).map(NodeId).filter(|to| *to != id);
                        others.for_each(|to| self.send(id, to, message.clone(), &mut agenda, cx));
                    }
                    Effect::Arm { timer, .. } | Effect::Disarm { timer } => match timer {},
                    Effect::Emit { event } if id.0 < self.nodes => {
                        self.on_client(id, &event, &mut agenda, cx);
                    }
                    Effect::Emit { event } => self.on_lock(id, &event, &mut agenda),
                }
            }
            if is_untaken {
                agenda.push_back((id, Input::Command(site::Command::Withdraw)));
            }
        }
    }

    fn send(
        &self,
        from: NodeId,
        to: NodeId,
        message: site::Message<D>,
        agenda: &mut Agenda<D>,
        cx: &mut Cx<'_, Self>,
    ) {
        match host(to, self.nodes) {
            here if here == cx.me() => agenda.push_back((to, Input::Message { from, message })),
            there => cx.send(there, Message { from, to, message }),
        }
    }

    fn on_client(&mut self, me: NodeId, event: &site::Event, agenda: &mut Agenda<D>, cx: &mut Cx<'_, Self>) {
        match event {
            site::Event::Proceeds { .. } => {
                if let Some(lock) = self.wanted.take() {
                    self.has.insert(lock);
                    cx.emit(Event::Locked(lock.0 - self.nodes));
                }
            }
            site::Event::Aborted { .. } => {
                cx.emit(Event::Aborted);
                self.wanted = None;
                self.end(me, agenda);
            }
            site::Event::Asked(lock) => {
                if self.owes.remove(lock) {
                    agenda.push_back((me, Input::Command(site::Command::Grant(*lock))));
                    self.ask(me, agenda);
                }
            }
            site::Event::Declared { .. } | site::Event::Refused => {}
        }
    }

    fn on_lock(&mut self, lock: NodeId, event: &site::Event, agenda: &mut Agenda<D>) {
        let Some(line) = self.lines.get_mut(&lock) else { return };
        match event {
            site::Event::Asked(client) => {
                if !line.askers.contains(client) {
                    line.askers.push_back(*client);
                }
            }
            // The lock has been returned, or its next client is no longer there.
            site::Event::Proceeds { .. } | site::Event::Aborted { .. } | site::Event::Refused => {
                line.is_lent = false;
            }
            site::Event::Declared { .. } => return,
        }
        if !line.is_lent
            && let Some(next) = line.askers.pop_front()
        {
            line.is_lent = true;
            agenda.push_back((lock, Input::Command(site::Command::Lend(next))));
        }
    }

    /// Requests the wanted lock, unless locks of an earlier transaction must be returned first.
    fn ask(&self, me: NodeId, agenda: &mut Agenda<D>) {
        if let Some(lock) = self.wanted.filter(|_| self.owes.is_empty()) {
            let of = NodeSet::from_iter([lock]);
            agenda.push_back((me, Input::Command(site::Command::Ask { need: 1, of })));
        }
    }

    /// Returns the locks that have sent a request, and marks the others as owed.
    fn end(&mut self, me: NodeId, agenda: &mut Agenda<D>) {
        self.needs = None;
        for lock in core::mem::take(&mut self.has) {
            let process = self.processes.get(&me).map(Site::process);
            if process.is_some_and(|process| process.pending().get(lock).is_some()) {
                agenda.push_back((me, Input::Command(site::Command::Grant(lock))));
            } else {
                self.owes.insert(lock);
            }
        }
    }
}

/// Returns whether the input cancels a request that this process has granted, and whose lock it still waits
/// to get back.
fn is_untaken<D: Detection>(process: &Site<D>, input: &Input<Site<D>>) -> bool {
    let Input::Message { from, message: site::Message::Process(Traffic::Cancel(number)) } = input else {
        return false;
    };
    let process = process.process();
    process.granted(*from) == *number && process.wait().is_some_and(|wait| wait.of.contains(*from))
}

/// Returns the site of a process.
fn host(process: NodeId, nodes: u32) -> NodeId {
    NodeId(if process.0 < nodes { process.0 } else { (process.0 - nodes) % nodes })
}
