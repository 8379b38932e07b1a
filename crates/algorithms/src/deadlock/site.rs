//! A site of the problem: its process, a detector that watches it, and the resolution of what the detector finds.
//!
//! [`Site`] is the one [`Protocol`]; an algorithm is a [`Detection`], which sees its process block, run, be asked and grant, and
//! says who is deadlocked. What happens then is the same for all of them:
//!
//! **Rules of resolution.**
//! 1. Every process that blocks is watched. A deadlock is closed by the last process that blocks, everybody newly stuck
//!    waits in the end for it, and so the victim is the one that is found: its abort frees them all.
//! 2. The victim asks the *registrar* (site 0), which lets one after the other. While its turn lasts nobody else is aborted.
//! 3. In its turn it asks whom it waits for, then whom those wait for, for their [`Record`]s, and reduces. If it is
//!    still stuck, and waits in the end for itself, it aborts itself, else it just waits on.
//!
//! **The trap.** A detection begun before somebody else's abort must not kill a second victim: two processes of one cycle
//! may find it at once, and a probe may have passed over an edge that an abort has removed since. Rule 2 orders them, and
//! rule 3 looks again; its records need not be of one moment (see [`Record`]). It costs 3 messages and 2 for each process
//! that is reached, once for every deadlock found, and is counted apart from the detector's own.
//!
//! An algorithm that does not confirm (`Detection::CONFIRMS`) aborts whom it accuses: its phantoms have victims.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use conclave_kernel::{Card, Cx, Never, NodeId, NodeSet, Protocol};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::records::{Known, Record};
use super::underlying::{Change, Traffic, Underlying};

/// What the layer above asks of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Block until so many of these have granted.
    Ask {
        /// How many.
        need: u32,
        /// Of whom; may contain the site itself.
        of: NodeSet,
    },
    /// Grant what that process asked for.
    Grant(NodeId),
    /// Grant what that process asked for, and block until it grants in turn: what a lock does.
    Lend(NodeId),
    /// Wait no longer: what was asked for has come otherwise.
    Withdraw,
}

/// What a site tells the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// That process asks.
    Asked(NodeId),
    /// Enough have granted: you run again.
    Proceeds {
        /// The number of the request.
        number: u64,
    },
    /// That process is deadlocked, says this site's detector.
    Declared {
        /// Who.
        process: NodeId,
        /// By which request.
        number: u64,
    },
    /// You are the victim: your request is refused, and you run again.
    Aborted {
        /// The number of the request.
        number: u64,
    },
    /// The command made no sense: a blocked process asks or grants, or nobody asked.
    Refused,
}

/// Which requests a detector can judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// One process at a time.
    Single,
    /// All of several.
    And,
    /// Any of several.
    Or,
    /// So many of several.
    #[serde(rename = "p-out-of-q")]
    POutOfQ,
}

impl Model {
    /// Whether every request of the other model is one of this model.
    pub fn includes(self, other: Self) -> bool {
        self == other || self == Self::POutOfQ || other == Self::Single
    }

    /// Whether `need` of `of` is a request of this model.
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

/// What the sites know of each other from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// N.
    pub nodes: u32,
    /// Whether what is found is also resolved.
    pub resolves: bool,
    /// Processes from this one on are resources, which wait for one process at a time: they are never aborted.
    pub resources_from: u32,
}

impl Group {
    /// A group of processes.
    pub fn new(nodes: u32, resolves: bool) -> Self {
        Self { nodes, resolves, resources_from: nodes }
    }
}

/// An algorithm of the problem, as the other parts of a site see it.
pub trait Detection:
    Clone + fmt::Debug + Eq + core::hash::Hash + Serialize + DeserializeOwned + Send + 'static
{
    /// What detectors say to each other.
    type Message: conclave_kernel::protocol::Wire;

    /// What it says of itself.
    const CARD: Card;

    /// Which requests it judges.
    const MODEL: Model;

    /// Whether whom it accuses is looked at again before it is aborted.
    const CONFIRMS: bool = true;

    /// The detector of a site.
    fn new(me: NodeId, nodes: u32) -> Self;

    /// What a message is, as the paper spells it: `PROBE`.
    fn kind(message: &Self::Message) -> &'static str;

    /// The process has blocked.
    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Self::Message>);

    /// The process runs again.
    fn on_runs(&mut self, process: &Underlying, out: &mut Out<Self::Message>) {
        let _ = (process, out);
    }

    /// One more has granted, and it is not enough.
    fn on_granted(&mut self, process: &Underlying, out: &mut Out<Self::Message>) {
        let _ = (process, out);
    }

    /// That process has asked this one.
    fn on_asked(&mut self, from: NodeId, process: &Underlying, out: &mut Out<Self::Message>) {
        let _ = (from, process, out);
    }

    /// The processes' own traffic arrives, and has not been looked at yet.
    fn on_traffic(&mut self, from: NodeId, traffic: Traffic) {
        let _ = (from, traffic);
    }

    /// Another detector says something.
    fn on_message(
        &mut self,
        from: NodeId,
        message: Self::Message,
        process: &Underlying,
        out: &mut Out<Self::Message>,
    );
}

/// What a detector wants done.
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

    /// Sends the same message to each.
    pub fn send_to(&mut self, to: &NodeSet, message: &M) {
        to.iter().for_each(|to| self.send(to, message.clone()));
    }

    /// That process is deadlocked, by its request of that number.
    pub fn accuse(&mut self, process: NodeId, number: u64) {
        self.accused.push((process, number));
    }
}

/// A site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Site<D: Detection> {
    process: Underlying,
    detector: D,
    resolves: bool,
    is_resource: bool,
    /// By which request each was declared last, if deadlocks are left standing.
    declared: BTreeMap<NodeId, u64>,
    /// The turn of this site's process to be looked at again.
    inquiry: Option<Inquiry>,
    /// Whose turn it is, and who comes next: at the registrar only, at most one entry a site.
    turns: VecDeque<(NodeId, u64)>,
}

/// What sites say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound = "")]
pub enum Message<D: Detection> {
    /// Between processes.
    Process(Traffic),
    /// Between detectors.
    Detector(D::Message),
    /// To resolve what was found.
    Resolution(Resolution),
}

/// What sites say to each other to resolve a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// To the accused: you are deadlocked by this request.
    Accused(u64),
    /// From a resource to who has it: you are deadlocked, for I am, and wait for you.
    Blamed,
    /// To the registrar: I am deadlocked by this request.
    Apply(u64),
    /// From the registrar: it is your turn.
    Turn(u64),
    /// To the registrar: my turn is over.
    Over(u64),
    /// What do you wait for, and what have you granted?
    Inquire(u64),
    /// This.
    Record(u64, Record),
}

/// Who lets one victim after the other.
pub const REGISTRAR: NodeId = NodeId(0);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Inquiry {
    /// The request in question.
    number: u64,
    /// Who was asked, and what it answered: at most N.
    records: BTreeMap<NodeId, Option<Record>>,
}

impl<D: Detection> Site<D> {
    /// A site of a group.
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

    /// The site's process, for those who judge.
    pub fn process(&self) -> &Underlying {
        &self.process
    }

    /// The site's detector.
    pub fn detector(&self) -> &D {
        &self.detector
    }

    /// What a message is, for those who count; whether it is the detector's.
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

    /// Lets the detector look at something, and does what it wants.
    fn watch(&mut self, cx: &mut Cx<'_, Self>, look: impl FnOnce(&mut D, &Underlying, &mut Out<D::Message>)) {
        let mut out = Out::new();
        look(&mut self.detector, &self.process, &mut out);
        for (to, message) in out.sends {
            cx.send(to, Message::Detector(message));
        }
        for (process, number) in out.accused {
            // What is left standing is told once, however often it is found.
            if !self.resolves && self.declared.insert(process, number) == Some(number) {
                continue;
            }
            cx.emit(Event::Declared { process, number });
            if self.resolves {
                self.tell(process, Resolution::Accused(number), cx);
            }
        }
    }

    /// Says something to a site, which may be this one.
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

    /// One entry a site: it has one request at a time, and the latest counts.
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

    /// Everybody who was asked has answered: still stuck?
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

    /// Who runs needs no turn.
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

/// Which part of a site a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The processes' own.
    Process,
    /// To find deadlocks.
    Detection,
    /// To resolve them.
    Resolution,
}
