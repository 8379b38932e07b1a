//! Detection: everybody waits, and a detector of this problem watches.
//!
//! **Intuition.** A lock is a process, too. It grants who asks for it, and from then on waits for *that* one to give it
//! back: it asks its holder, and the holder grants when it commits. So the waits of transactions and of locks are the waits of
//! the problem's one [application protocol](crate::deadlock::underlying), and every detector judges them unchanged.
//!
//! **Rules.**
//! 1. A site hosts the process of its client and those of the locks that it keeps; what these say to each other is no message.
//! 2. A lock lends itself to the first in line. A client that commits or is aborted grants every lock that it has; it asks for
//!    nothing new before each of them has asked, for who is blocked gives nothing back.
//! 3. A lock is no victim: one that is accused blames its holder, which is on the same cycle.
//!
//! **The trap.** A victim cancels its request, and its abort lets others go on; one of them may give back the very lock, which
//! then goes to the victim while the cancellation is still under way. The lock sees the cancellation of something it
//! granted: it was never taken, and is free. Else it would wait for somebody who does not know of it.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use conclave_kernel::{Buffer, Card, Cx, Effect, Env, Input, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Command, Estate, Event, Lock, Locking, PER_TRANSACTION, WITH_ABORTS, card, cost};
use crate::deadlock::site::{self, Detection, Group, Part, Site};
use crate::deadlock::underlying::Traffic;

/// A site: the processes of its client and of its locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Detecting<D: Detection> {
    nodes: u32,
    locks: u32,
    /// Clients are processes 0 to N-1, locks those from N on.
    processes: BTreeMap<NodeId, Site<D>>,
    lines: BTreeMap<NodeId, Line>,
    /// What the transaction needs; `None` between transactions.
    needs: Option<BTreeSet<NodeId>>,
    /// What it has.
    has: BTreeSet<NodeId>,
    /// What it wants now, and has perhaps not asked for yet.
    wanted: Option<NodeId>,
    /// What an earlier transaction had, and has not been asked back.
    owes: BTreeSet<NodeId>,
}

/// Who waits for a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Line {
    is_lent: bool,
    /// In order of arrival; at most one entry a client.
    askers: VecDeque<NodeId>,
}

/// What processes of different sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Message<D: Detection> {
    from: NodeId,
    to: NodeId,
    message: site::Message<D>,
}

/// What is still to be done in a step.
type Agenda<D> = VecDeque<(NodeId, Input<Site<D>>)>;

impl<D: Detection> Locking for Detecting<D> {
    const CARD: Card = card(
        "detect",
        "Detection",
        "wait; edge chasing finds the deadlocks, and whoever closed one is aborted",
        D::CARD.papers,
        WITH_ABORTS,
        cost!("6 a lock", 6 * PER_TRANSACTION),
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

    /// Steps the processes of this site until none has anything to do.
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
            // It is back; or who was next has gone.
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

    /// Asks for what is wanted, if nothing is owed.
    fn ask(&self, me: NodeId, agenda: &mut Agenda<D>) {
        if let Some(lock) = self.wanted.filter(|_| self.owes.is_empty()) {
            let of = NodeSet::from_iter([lock]);
            agenda.push_back((me, Input::Command(site::Command::Ask { need: 1, of })));
        }
    }

    /// Gives back what has been asked for, and owes the rest.
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

/// Whether the input is the cancellation of something that this process granted, and still waits to have back.
fn is_untaken<D: Detection>(process: &Site<D>, input: &Input<Site<D>>) -> bool {
    let Input::Message { from, message: site::Message::Process(Traffic::Cancel(number)) } = input else {
        return false;
    };
    let process = process.process();
    process.granted(*from) == *number && process.wait().is_some_and(|wait| wait.of.contains(*from))
}

/// The site of a process.
fn host(process: NodeId, nodes: u32) -> NodeId {
    NodeId(if process.0 < nodes { process.0 } else { (process.0 - nodes) % nodes })
}
