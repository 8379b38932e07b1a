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
//!    too.
//!
//! **Trap**: a suspicion must be right. If the detector wrongly suspects the site in the critical section,
//! the master grants the next request, and two sites are inside. ME1 therefore holds only while delays are
//! bounded by [`LONGEST_DELAY`]. Fences grow in any case.
//!
//! **Differences from the paper**: the first master is site 0, without an election. A master that restarts
//! after a crash has lost its queue. It is a client until it is elected.

use conclave_kernel::{Card, Cx, Emitted, Input, Needs, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::super::{Bill, Command, Event, Group, LONGEST_DELAY, Mutex, watching};
use super::{Body, Central};
use crate::detector::{self, Detector, Heartbeat};
use crate::election::{self, Bully, ChangRoberts, Election};

/// A coordinator that is elected by the bully algorithm.
pub type CentralBully = CentralElected<Bully>;
/// A coordinator that is elected on a ring (Chang-Roberts).
pub type CentralRing = CentralElected<ChangRoberts>;

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CentralElected<E: Election> {
    mutex: Central,
    election: E,
    detector: Heartbeat,
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
        if cx.incarnation() > 0 {
            self.mutex.desk = None; // another site may have become the master
        }
        self.watch(Input::Start, cx);
        self.elect(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message<E>, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Mutex(message) => self.coordinate(Input::Message { from, message }, cx),
            Message::Election(message) => self.elect(Input::Message { from, message }, cx),
            Message::Detector(message) => self.watch(Input::Message { from, message }, cx),
        }
    }

    fn on_timer(&mut self, timer: Timer<E::Timer>, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Election(timer) => self.elect(Input::Timer(timer), cx),
            Timer::Detector(timer) => self.watch(Input::Timer(timer), cx),
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        self.coordinate(Input::Command(command), cx);
    }
}

impl<E: Election> CentralElected<E> {
    /// Returns the site that this site takes for the master.
    pub fn master(&self) -> NodeId {
        self.mutex.master()
    }

    /// Runs one step of the coordinator's protocol.
    fn coordinate(&mut self, input: Input<Central>, cx: &mut Cx<'_, Self>) {
        cx.delegate(&mut self.mutex, input, Message::Mutex, |never| match never {});
    }

    /// Runs one step of the election, and becomes the master if this site wins.
    fn elect(&mut self, input: Input<E>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.election, input, Message::Election, Timer::Election) {
            if event == (election::Event::Elected { leader: cx.me() }) {
                self.take_over(cx);
            }
        }
    }

    /// Runs one step of the failure detector and passes its events on.
    fn watch(&mut self, input: Input<Heartbeat>, cx: &mut Cx<'_, Self>) {
        let said: Emitted<Heartbeat> =
            cx.drive(&mut self.detector, input, Message::Detector, Timer::Detector);
        for event in said {
            match event {
                detector::Event::Suspected(site) => self.on_suspected(site, cx),
                detector::Event::Trusted(site) => {
                    self.elect(Input::Command(election::Command::Trust(site)), cx);
                    if self.mutex.desk.is_some() {
                        self.take_over(cx);
                    }
                }
            }
        }
    }

    fn on_suspected(&mut self, site: NodeId, cx: &mut Cx<'_, Self>) {
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
        let alive: NodeSet =
            cx.members().iter().filter(|site| !self.detector.suspects().contains(*site)).collect();
        let term = self.mutex.term + 1;
        if let Some(polled) = self.mutex.install(cx.me(), cx.members().len() as u32, term, &alive) {
            cx.send_to(polled, Message::Mutex(super::Message { term, body: Body::Poll }));
            self.coordinate(Input::Start, cx); // if no other site is left, its guards grant the next request
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
        Self {
            mutex: Central::new(me, group),
            election: E::new(me, &election::Group::new(group.nodes, LONGEST_DELAY)),
            detector: Heartbeat::new(me, &watching(group.nodes)),
        }
    }

    fn bill(message: &Message<E>, from: NodeId, to: NodeId) -> Bill {
        match message {
            Message::Mutex(message) => Central::bill(message, from, to),
            Message::Election(message) => Bill::shared(E::kind(message)),
            Message::Detector(message) => Bill::shared(Heartbeat::kind(message)),
        }
    }
}
