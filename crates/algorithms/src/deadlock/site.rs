//! A site: its process, a detector that observes it, and the resolution of the deadlocks that the detector
//! finds.
//!
//! [`Site`] is the only [`Protocol`] of this problem. An algorithm is a [`Detection`]: it observes that its
//! process blocks, runs, receives requests and grants, and it declares processes deadlocked. The resolution
//! is the same for all algorithms:
//!
//! **Rules of resolution.**
//! 1. The detector observes every process that blocks. The last process that blocks closes a deadlock, and
//!    all newly stuck processes wait for it, directly or indirectly. So the abort of that process frees all
//!    of them. The victim is the process that the detector declares.
//! 2. The victim applies to the *registrar* (site 0), which gives turns to one victim after the other. During
//!    a turn no other process is aborted.
//! 3. In its turn, the victim requests the [`Record`]s of the processes for which it waits, then of those for
//!    which these wait, and so on. It then reduces them. If it is still stuck and waits for itself, directly
//!    or indirectly, it aborts itself. Otherwise it continues to wait.
//!
//! **The trap.** A detection that began before another abort must not abort a second victim. Two processes of
//! one cycle may find it at the same time. Or a probe may have passed an edge that an abort has removed
//! since. Rule 2 puts the victims in order, and rule 3 checks again. Its records need not be of one moment
//! (see [`Record`]). For every deadlock found, this costs 3 messages, and 2 more for each process that is
//! reached. They are counted separately from the messages of the detector.
//!
//! An algorithm that does not confirm (`Detection::CONFIRMS` is false) aborts every process that it declares.
//! So its phantoms have victims.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use conclave_kernel::{Card, Cx, Never, NodeId, NodeSet, Protocol};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::records::{Known, Record};
use super::underlying::{Change, Traffic, Underlying};

/// A command of the layer above to a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Request grants, and block until enough have arrived.
    Ask {
        /// The number of grants that are needed.
        need: u32,
        /// The processes that receive the request; may contain the site itself.
        of: NodeSet,
    },
    /// Grant the request of this process.
    Grant(NodeId),
    /// Grant the request of this process, and block until it grants in return. A lock does this.
    Lend(NodeId),
    /// Stop waiting: the layer above got the resource in another way.
    Withdraw,
}

/// An event of a site for the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A request of this process has arrived.
    Asked(NodeId),
    /// Enough processes have granted, and the process runs again.
    Proceeds {
        /// The number of the request.
        number: u64,
    },
    /// The site's detector declares a process deadlocked.
    Declared {
        /// The declared process.
        process: NodeId,
        /// The number of the request that deadlocks it.
        number: u64,
    },
    /// The site's process is the victim: its request is rejected, and it runs again.
    Aborted {
        /// The number of the request.
        number: u64,
    },
    /// The command made no sense. A blocked process tried to request or grant, or there was no request to
    /// grant.
    Refused,
}

/// The requests that a detector can judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// One process at a time.
    Single,
    /// All of several processes.
    And,
    /// Any of several processes.
    Or,
    /// A number of several processes.
    #[serde(rename = "p-out-of-q")]
    POutOfQ,
}

impl Model {
    /// Returns whether every request of the other model is a request of this model.
    pub fn includes(self, other: Self) -> bool {
        self == other || self == Self::POutOfQ || other == Self::Single
    }

    /// Returns whether `need` of `of` is a request of this model.
    pub const fn allows(self, need: u32, of: u32) -> bool {
        match self {
            Self::Single => need == 1 && of == 1,
            Self::And => need == of,
            Self::Or => need == 1,
            Self::POutOfQ => true,
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Single => "single",
            Self::And => "and",
            Self::Or => "or",
            Self::POutOfQ => "p-out-of-q",
        })
    }
}

impl FromStr for Model {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "single" => Ok(Self::Single),
            "and" => Ok(Self::And),
            "or" => Ok(Self::Or),
            "p-out-of-q" => Ok(Self::POutOfQ),
            _ => Err("expected single, and, or or p-out-of-q"),
        }
    }
}

/// The initial configuration, which all sites share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// N, the number of sites.
    pub nodes: u32,
    /// Whether deadlocks are also resolved.
    pub resolves: bool,
    /// The first process that is a resource; all later ones are resources too. A resource waits for one
    /// process at a time and is never aborted.
    pub resources_from: u32,
}

impl Group {
    /// Creates the configuration of a group in which no process is a resource.
    pub fn new(nodes: u32, resolves: bool) -> Self {
        Self { nodes, resolves, resources_from: nodes }
    }
}

/// An algorithm of the problem, as the other parts of a site use it.
pub trait Detection:
    Clone + fmt::Debug + Eq + core::hash::Hash + Serialize + DeserializeOwned + Send + 'static
{
    /// A message between detectors.
    type Message: conclave_kernel::protocol::Wire;

    /// The card of the algorithm.
    const CARD: Card;

    /// The requests that the algorithm can judge.
    const MODEL: Model;

    /// Whether a declared process is checked again before it is aborted.
    const CONFIRMS: bool = true;

    /// Creates the detector of a site.
    fn new(me: NodeId, nodes: u32) -> Self;

    /// Returns the type of a message as the paper writes it, such as `PROBE`.
    fn kind(message: &Self::Message) -> &'static str;

    /// Called when the process has blocked.
    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Self::Message>);

    /// Called when the process runs again.
    fn on_runs(&mut self, process: &Underlying, out: &mut Out<Self::Message>) {
        let _ = (process, out);
    }

    /// Called when another process has granted, but more grants are needed.
    fn on_granted(&mut self, process: &Underlying, out: &mut Out<Self::Message>) {
        let _ = (process, out);
    }

    /// Called when a request of process `from` has arrived.
    fn on_asked(&mut self, from: NodeId, process: &Underlying, out: &mut Out<Self::Message>) {
        let _ = (from, process, out);
    }

    /// Called when a message of another process arrives, before the process handles it.
    fn on_traffic(&mut self, from: NodeId, traffic: Traffic) {
        let _ = (from, traffic);
    }

    /// Called when a message of another detector arrives.
    fn on_message(
        &mut self,
        from: NodeId,
        message: Self::Message,
        process: &Underlying,
        out: &mut Out<Self::Message>,
    );
}

/// The actions that a detector requests.
#[derive(Debug)]
pub struct Out<M> {
    sends: Vec<(NodeId, M)>,
    accused: Vec<(NodeId, u64)>,
}

impl<M: Clone> Out<M> {
    fn new() -> Self {
        Self { sends: Vec::new(), accused: Vec::new() }
    }

    /// Sends one message.
    pub fn send(&mut self, to: NodeId, message: M) {
        self.sends.push((to, message));
    }

    /// Sends the same message to each site of a set.
    pub fn send_to(&mut self, to: &NodeSet, message: &M) {
        to.iter().for_each(|to| self.send(to, message.clone()));
    }

    /// Declares a process deadlocked by its request with this number.
    pub fn accuse(&mut self, process: NodeId, number: u64) {
        self.accused.push((process, number));
    }
}

/// The state of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Site<D: Detection> {
    process: Underlying,
    detector: D,
    resolves: bool,
    is_resource: bool,
    /// The request by which each process was last declared. Used only if deadlocks are left unresolved.
    declared: BTreeMap<NodeId, u64>,
    /// The second check of this site's process, while it has its turn.
    inquiry: Option<Inquiry>,
    /// At the registrar only: the site that has its turn, and the sites that come next. At most one entry per
    /// waiting site.
    turns: VecDeque<(NodeId, u64)>,
}

/// A message between sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound = "")]
pub enum Message<D: Detection> {
    /// A message between processes.
    Process(Traffic),
    /// A message between detectors.
    Detector(D::Message),
    /// A message of the resolution.
    Resolution(Resolution),
}

/// A message between sites that resolves a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// To the declared process: it is deadlocked by its request with this number.
    Accused(u64),
    /// From a deadlocked resource to its holder: the resource waits for the holder, so the holder is
    /// deadlocked too.
    Blamed,
    /// To the registrar: the sender is deadlocked by its request with this number, and applies for a turn.
    Apply(u64),
    /// From the registrar: the turn of the receiver begins.
    Turn(u64),
    /// To the registrar: the turn of the sender is over.
    Over(u64),
    /// A request for the receiver's record.
    Inquire(u64),
    /// The record of the sender.
    Record(u64, Record),
}

/// The site that gives turns to one victim after the other.
pub const REGISTRAR: NodeId = NodeId(0);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Inquiry {
    /// The number of the request that is checked.
    number: u64,
    /// The processes to which INQUIRE was sent, and their answers; at most N.
    records: BTreeMap<NodeId, Option<Record>>,
}

impl<D: Detection> Site<D> {
    /// Creates a site of a group.
    pub fn new(me: NodeId, group: &Group) -> Self {
        Self {
            process: Underlying::new(me, group.nodes),
            detector: D::new(me, group.nodes),
            resolves: group.resolves,
            is_resource: me.0 >= group.resources_from,
            declared: BTreeMap::new(),
            inquiry: None,
            turns: VecDeque::new(),
        }
    }

    /// Returns the site's process, for judges.
    pub fn process(&self) -> &Underlying {
        &self.process
    }

    /// Returns the site's detector.
    pub fn detector(&self) -> &D {
        &self.detector
    }

    /// Returns the type of a message and the part of the site to which it belongs, for counts.
    pub fn kind(message: &Message<D>) -> (&'static str, Part) {
        match message {
            Message::Detector(message) => (D::kind(message), Part::Detection),
            Message::Process(Traffic::Request(_)) => ("REQUEST", Part::Process),
            Message::Process(Traffic::Grant(_)) => ("GRANT", Part::Process),
            Message::Process(Traffic::Cancel(_)) => ("CANCEL", Part::Process),
            Message::Resolution(Resolution::Accused(_)) => ("ACCUSED", Part::Resolution),
            Message::Resolution(Resolution::Blamed) => ("BLAMED", Part::Resolution),
            Message::Resolution(Resolution::Apply(_)) => ("APPLY", Part::Resolution),
            Message::Resolution(Resolution::Turn(_)) => ("TURN", Part::Resolution),
            Message::Resolution(Resolution::Over(_)) => ("OVER", Part::Resolution),
            Message::Resolution(Resolution::Inquire(_)) => ("INQUIRE", Part::Resolution),
            Message::Resolution(Resolution::Record(..)) => ("RECORD", Part::Resolution),
        }
    }

    /// Calls the detector, and executes the actions that it requests.
    fn watch(&mut self, cx: &mut Cx<'_, Self>, look: impl FnOnce(&mut D, &Underlying, &mut Out<D::Message>)) {
        let mut out = Out::new();
        look(&mut self.detector, &self.process, &mut out);
        for (to, message) in out.sends {
            cx.send(to, Message::Detector(message));
        }
        for (process, number) in out.accused {
            // A deadlock that is left unresolved is declared once, however often it is found.
            if !self.resolves && self.declared.insert(process, number) == Some(number) {
                continue;
            }
            cx.emit(Event::Declared { process, number });
            if self.resolves {
                self.tell(process, Resolution::Accused(number), cx);
            }
        }
    }

    /// Sends a message to a site, which may be this one.
    fn tell(&mut self, to: NodeId, message: Resolution, cx: &mut Cx<'_, Self>) {
        if to == cx.me() {
            self.on_resolution(to, message, cx);
        } else {
            cx.send(to, Message::Resolution(message));
        }
    }

    fn on_resolution(&mut self, from: NodeId, message: Resolution, cx: &mut Cx<'_, Self>) {
        match message {
            Resolution::Accused(number) if !self.process.waits_by(number) => {}
            Resolution::Accused(_) if self.is_resource => {
                let holder = self.process.waits_for().iter().next();
                holder.into_iter().for_each(|holder| self.tell(holder, Resolution::Blamed, cx));
            }
            Resolution::Accused(number) if D::CONFIRMS => self.tell(REGISTRAR, Resolution::Apply(number), cx),
            Resolution::Accused(_) => self.abort(cx),
            Resolution::Blamed => {
                if let Some(number) = self.process.wait().map(|wait| wait.number) {
                    self.on_resolution(from, Resolution::Accused(number), cx);
                }
            }
            Resolution::Apply(number) => self.on_apply(from, number, cx),
            Resolution::Turn(number) => self.begin_inquiry(number, cx),
            Resolution::Over(number) => {
                if self.turns.front() == Some(&(from, number)) {
                    self.turns.pop_front();
                    self.call_next(cx);
                }
            }
            Resolution::Inquire(number) => {
                let record = self.process.record();
                self.tell(from, Resolution::Record(number, record), cx);
            }
            Resolution::Record(number, record) => self.on_record(number, record, cx),
        }
    }

    /// Adds an application to the queue of turns. A waiting site has one entry, and its latest request
    /// counts.
    fn on_apply(&mut self, from: NodeId, number: u64, cx: &mut Cx<'_, Self>) {
        let is_known = self.turns.iter().any(|entry| *entry == (from, number));
        let waiting = self.turns.iter().skip(1).position(|(site, _)| *site == from).map(|at| at + 1);
        match waiting {
            _ if is_known => {}
            Some(at) => self.turns[at].1 = number,
            None => {
                self.turns.push_back((from, number));
                if self.turns.len() == 1 {
                    self.call_next(cx);
                }
            }
        }
    }

    fn call_next(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some((site, number)) = self.turns.front().copied() {
            self.tell(site, Resolution::Turn(number), cx);
        }
    }

    fn begin_inquiry(&mut self, number: u64, cx: &mut Cx<'_, Self>) {
        if !self.process.waits_by(number) {
            return self.tell(REGISTRAR, Resolution::Over(number), cx);
        }
        let mine = (cx.me(), Some(self.process.record()));
        self.inquiry = Some(Inquiry { number, records: BTreeMap::from([mine]) });
        self.inquire(&self.process.waits_for(), number, cx);
        self.conclude(cx);
    }

    fn inquire(&mut self, of: &NodeSet, number: u64, cx: &mut Cx<'_, Self>) {
        let Some(inquiry) = &mut self.inquiry else { return };
        for process in of.iter() {
            inquiry.records.entry(process).or_insert_with(|| {
                cx.send(process, Message::Resolution(Resolution::Inquire(number)));
                None
            });
        }
    }

    fn on_record(&mut self, number: u64, record: Record, cx: &mut Cx<'_, Self>) {
        let Some(inquiry) = self.inquiry.as_mut().filter(|inquiry| inquiry.number == number) else { return };
        let next = record.wait.as_ref().map(|wait| wait.of.clone()).unwrap_or_default();
        inquiry.records.insert(record.process, Some(record));
        self.inquire(&next, number, cx);
        self.conclude(cx);
    }

    /// Ends the check after all answers have arrived: aborts the process if it is still deadlocked.
    fn conclude(&mut self, cx: &mut Cx<'_, Self>) {
        let is_complete = |inquiry: &Inquiry| inquiry.records.values().all(Option::is_some);
        if !self.inquiry.as_ref().is_some_and(is_complete) {
            return;
        }
        let Some(Inquiry { number, records }) = self.inquiry.take() else { return };
        let granted = |by: NodeId, to: NodeId| {
            let record = records.get(&by).and_then(Option::as_ref);
            record.map_or(0, |record| record.granted_to(to))
        };
        let waits =
            records.values().flatten().filter_map(|record| Some((record.process, record.wait.as_ref()?)));
        if self.process.waits_by(number) && Known::new(waits, &granted).is_on_cycle(cx.me()) {
            self.abort(cx);
        }
        self.tell(REGISTRAR, Resolution::Over(number), cx);
    }

    fn abort(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(number) = self.process.wait().map(|wait| wait.number) else { return };
        self.process.abort(|to, traffic| cx.send(to, Message::Process(traffic)));
        cx.emit(Event::Aborted { number });
        self.watch(cx, Detection::on_runs);
    }

    fn grant(&mut self, to: NodeId, cx: &mut Cx<'_, Self>) -> bool {
        let is_member = cx.members().contains(to);
        is_member && self.process.grant(to, |to, traffic| cx.send(to, Message::Process(traffic)))
    }

    /// Handles the end of a wait. A process that runs gives up its turn.
    fn on_runs(&mut self, number: u64, cx: &mut Cx<'_, Self>) {
        cx.emit(Event::Proceeds { number });
        self.watch(cx, Detection::on_runs);
        if self.inquiry.take_if(|inquiry| inquiry.number == number).is_some() {
            self.tell(REGISTRAR, Resolution::Over(number), cx);
        }
    }
}

impl<D: Detection> Protocol for Site<D> {
    type Message = Message<D>;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message<D>, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Process(traffic) => {
                self.detector.on_traffic(from, traffic);
                let number = self.process.wait().map_or(0, |wait| wait.number);
                let send = |to, traffic| cx.send(to, Message::Process(traffic));
                match self.process.on_traffic(from, traffic, send) {
                    Change::None => {}
                    Change::Granted => {
                        self.watch(cx, Detection::on_granted);
                    }
                    Change::Asked => {
                        cx.emit(Event::Asked(from));
                        self.watch(cx, |detector, process, out| detector.on_asked(from, process, out));
                    }
                    Change::Runs => self.on_runs(number, cx),
                }
            }
            Message::Detector(message) => {
                self.watch(cx, |detector, process, out| detector.on_message(from, message, process, out));
            }
            Message::Resolution(message) => self.on_resolution(from, message, cx),
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Ask { need, of } => {
                let is_allowed = D::MODEL.allows(need, of.len() as u32)
                    && of.iter().all(|process| cx.members().contains(process));
                let send = |to, traffic| cx.send(to, Message::Process(traffic));
                if is_allowed && self.process.ask(need, &of, send) {
                    self.watch(cx, Detection::on_blocked);
                } else {
                    cx.emit(Event::Refused);
                }
            }
            Command::Grant(to) => {
                if !self.grant(to, cx) {
                    cx.emit(Event::Refused);
                }
            }
            Command::Lend(to) => {
                let of = NodeSet::from_iter([to]);
                let is_lent = self.grant(to, cx)
                    && self.process.ask(1, &of, |to, traffic| cx.send(to, Message::Process(traffic)));
                if is_lent {
                    self.watch(cx, Detection::on_blocked);
                } else {
                    cx.emit(Event::Refused);
                }
            }
            Command::Withdraw => match self.process.wait().map(|wait| wait.number) {
                Some(number) => {
                    self.process.abort(|to, traffic| cx.send(to, Message::Process(traffic)));
                    self.on_runs(number, cx);
                }
                None => cx.emit(Event::Refused),
            },
        }
    }
}

/// The part of a site to which a message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The processes themselves.
    Process,
    /// The detection of deadlocks.
    Detection,
    /// The resolution of deadlocks.
    Resolution,
}
