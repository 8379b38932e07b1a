//! The central coordinator with an elected master, and a new election when the master crashes.
//!
//! One site runs three protocols: the coordinator, an election and a failure detector. If the detector
//! suspects the master, the sites hold an election. The winner becomes the master, polls the remaining sites,
//! and rebuilds the queue from the waiting ones, as [`Central::on_elected`] does.
//!
//! **Rules** \[CDK §15.2, §15.3\]
//! 1. If the detector suspects a site, inform the election. If the site is the master, start an election.
//! 2. If this site is elected, become the master in a new term and poll all sites that are not suspected.
//! 3. The master removes a suspected site from its queue. If the site was in the critical section, it counts
//!    as outside.
//! 4. If a suspected site is trusted again, the master starts a new term, so that it polls the returned site
//!    too. Until then, the master ignores requests of the suspected site.
//!
//! **Traps**: a REQUEST may arrive after the suspicion of its sender. A master that queues it grants it to a site
//! that is down, and waits for ever.
//!
//! A suspicion must be right. If the detector wrongly suspects the site in the critical section,
//! the master grants the next request, and two sites are inside. ME1 therefore holds only while delays are
//! bounded by [`LONGEST_DELAY`]. Fences grow in any case.
//!
//! **Differences from the paper**: the first master is site 0, without an election. A master that restarts
//! after a crash has lost its queue. It is a client until it is elected. [`ElectedCore`] receives the detector's
//! output as commands, so that the checker can run it over an oracle.

use conclave_kernel::{Card, Cx, Emitted, Input, Needs, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::super::layered::{self, Core};
use super::super::{Bill, Command, Event, Group, LONGEST_DELAY, Mutex, watching};
use super::{Body, Central};
use crate::detector::{self, Detector, Heartbeat};
use crate::election::{self, Bully, ChangRoberts, Election};

/// A coordinator that is elected by the bully algorithm.
pub type CentralBully = CentralElected<Bully>;
/// A coordinator that is elected on a ring (Chang-Roberts).
pub type CentralRing = CentralElected<ChangRoberts>;

/// One site with its own failure detector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CentralElected<E: Election> {
    core: ElectedCore<E>,
    detector: Heartbeat,
}

/// One site, which receives suspicions as commands from the layer above.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct ElectedCore<E: Election> {
    mutex: Central,
    election: E,
    suspects: NodeSet,
}

/// A message between two sites, by layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<E: Election> {
    /// A message of the coordinator's protocol.
    Mutex(super::Message),
    /// A message of the election.
    Election(E::Message),
    /// A message of the failure detector.
    Detector(<Heartbeat as Protocol>::Message),
}

/// A message between two sites without the detector, by layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum CoreMessage<E: Election> {
    /// A message of the coordinator's protocol.
    Mutex(super::Message),
    /// A message of the election.
    Election(E::Message),
}

/// A timer of a site, by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer<E> {
    /// A timer of the election.
    Election(E),
    /// A timer of the failure detector.
    Detector(<Heartbeat as Protocol>::Timer),
}

impl<E: Election> Protocol for CentralElected<E> {
    type Message = Message<E>;
    type Timer = Timer<E::Timer>;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.watch(Input::Start, cx);
        self.core(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message<E>, cx: &mut Cx<'_, Self>) {
        let message = match message {
            Message::Mutex(message) => CoreMessage::Mutex(message),
            Message::Election(message) => CoreMessage::Election(message),
            Message::Detector(message) => return self.watch(Input::Message { from, message }, cx),
        };
        self.core(Input::Message { from, message }, cx);
    }

    fn on_timer(&mut self, timer: Timer<E::Timer>, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Election(timer) => self.core(Input::Timer(timer), cx),
            Timer::Detector(timer) => self.watch(Input::Timer(timer), cx),
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        self.core(Input::Command(layered::Command::Mutex(command)), cx);
    }
}

impl<E: Election> CentralElected<E> {
    fn core(&mut self, input: Input<ElectedCore<E>>, cx: &mut Cx<'_, Self>) {
        let wrap = |message: CoreMessage<E>| match message {
            CoreMessage::Mutex(message) => Message::Mutex(message),
            CoreMessage::Election(message) => Message::Election(message),
        };
        cx.delegate(&mut self.core, input, wrap, Timer::Election);
    }

    /// Runs one step of the failure detector and passes its events on.
    fn watch(&mut self, input: Input<Heartbeat>, cx: &mut Cx<'_, Self>) {
        let said: Emitted<Heartbeat> =
            cx.drive(&mut self.detector, input, Message::Detector, Timer::Detector);
        for event in said {
            self.core(Input::Command(layered::Command::Detector(event)), cx);
        }
    }
}

impl<E: Election> Protocol for ElectedCore<E> {
    type Message = CoreMessage<E>;
    type Timer = E::Timer;
    type Command = layered::Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.suspects.clear();
        if cx.incarnation() > 0 {
            self.mutex.desk = None; // another site may have become the master
        }
        self.elect(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: CoreMessage<E>, cx: &mut Cx<'_, Self>) {
        match message {
            // The site is down, so it would never return a grant. If the suspicion is wrong, rule 4 polls it.
            CoreMessage::Mutex(super::Message { body: Body::Request { .. }, .. })
                if self.mutex.desk.is_some() && self.suspects.contains(from) => {}
            CoreMessage::Mutex(message) => self.coordinate(Input::Message { from, message }, cx),
            CoreMessage::Election(message) => self.elect(Input::Message { from, message }, cx),
        }
    }

    fn on_timer(&mut self, timer: E::Timer, cx: &mut Cx<'_, Self>) {
        self.elect(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: layered::Command, cx: &mut Cx<'_, Self>) {
        match command {
            layered::Command::Mutex(command) => self.coordinate(Input::Command(command), cx),
            layered::Command::Detector(detector::Event::Suspected(site)) => self.on_suspected(site, cx),
            layered::Command::Detector(detector::Event::Trusted(site)) => {
                self.suspects.remove(site);
                self.elect(Input::Command(election::Command::Trust(site)), cx);
                if self.mutex.desk.is_some() {
                    self.take_over(cx);
                }
            }
        }
    }
}

impl<E: Election> ElectedCore<E> {
    /// Returns the site that this site takes for the master.
    pub fn master(&self) -> NodeId {
        self.mutex.master()
    }

    /// Runs one step of the coordinator's protocol.
    fn coordinate(&mut self, input: Input<Central>, cx: &mut Cx<'_, Self>) {
        cx.delegate(&mut self.mutex, input, CoreMessage::Mutex, |never| match never {});
    }

    /// Runs one step of the election, and becomes the master if this site wins.
    fn elect(&mut self, input: Input<E>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.election, input, CoreMessage::Election, |timer| timer) {
            if event == (election::Event::Elected { leader: cx.me() }) {
                self.take_over(cx);
            }
        }
    }

    fn on_suspected(&mut self, site: NodeId, cx: &mut Cx<'_, Self>) {
        self.suspects.insert(site);
        self.elect(Input::Command(election::Command::Suspect(site)), cx);
        if let Some(desk) = &mut self.mutex.desk {
            desk.unheard.remove(site);
            desk.queue.retain(|ticket| ticket.site != site);
            desk.holder = desk.holder.filter(|ticket| ticket.site != site);
            self.coordinate(Input::Start, cx); // its guards grant the next request
        } else if self.mutex.master() == site {
            self.elect(Input::Command(election::Command::Elect), cx);
        }
    }

    /// Makes this site the master, in a new term, and polls all sites that are not suspected.
    fn take_over(&mut self, cx: &mut Cx<'_, Self>) {
        let alive: NodeSet = cx.members().iter().filter(|site| !self.suspects.contains(*site)).collect();
        let term = self.mutex.term + 1;
        if let Some(polled) = self.mutex.install(cx.me(), cx.members().len() as u32, term, &alive) {
            cx.send_to(polled, CoreMessage::Mutex(super::Message { term, body: Body::Poll }));
            self.coordinate(Input::Start, cx); // if no other site is left, its guards grant the next request
        }
    }
}

impl<E: Election> Core for ElectedCore<E> {
    const CARD: Card = CentralElected::<E>::CARD;

    const NEEDS_SYNCHRONY: bool = E::CARD.needs.synchrony;

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            mutex: Central::new(me, group),
            election: E::new(me, &election::Group::new(group.nodes, LONGEST_DELAY)),
            suspects: NodeSet::new(),
        }
    }

    fn kind(message: &CoreMessage<E>) -> &'static str {
        match message {
            // The kind of a message does not depend on its sender and receiver.
            CoreMessage::Mutex(message) => Central::bill(message, NodeId(0), NodeId(0)).kind,
            CoreMessage::Election(message) => E::kind(message),
        }
    }
}

impl<E: Election> Mutex for CentralElected<E> {
    const CARD: Card = Card {
        problem: "mutex",
        name: match E::CARD.name.as_bytes() {
            b"bully" => "central-bully",
            _ => "central-ring",
        },
        title: "Central coordinator, elected",
        summary: "one site keeps the queue; when it crashes, an elected site rebuilds the queue from the waiting sites",
        papers: &["CDK"],
        needs: Needs { no_duplication: false, no_crash: false, synchrony: true, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[],
        survives: "any number of crashes, also of the coordinator and the holder, while delays are bounded",
        idle_traffic: true,
        reads_clock: false,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self { core: ElectedCore::new(me, group), detector: Heartbeat::new(me, &watching(group.nodes)) }
    }

    fn bill(message: &Message<E>, from: NodeId, to: NodeId) -> Bill {
        match message {
            Message::Mutex(message) => Central::bill(message, from, to),
            Message::Election(message) => Bill::shared(E::kind(message)),
            Message::Detector(message) => Bill::shared(Heartbeat::kind(message)),
        }
    }
}
