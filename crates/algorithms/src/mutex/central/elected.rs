//! The central coordinator whose master is elected, and elected again when it dies.
//!
//! Three protocols in one site: the coordinator's, an election and a detector. The detector says that
//! somebody is dead; if it is the master, an election is held; the winner takes the desk over, asks those who
//! are left where they stand, and so rebuilds the queue from those who wait ([`Central::on_elected`]).
//!
//! **Rules** \[CDK §15.2, §15.3\]
//! 1. The detector suspects somebody: tell the election. Was it the master, call for one.
//! 2. Elected: take over, in a new term, with everybody who is not suspected.
//! 3. The master strikes who is suspected from its queue; who was inside is inside no longer.
//! 4. Somebody is back: the master takes over from itself, so that the returned one is heard like all others.
//!
//! **Trap**: a suspicion must be right. Who is wrongly suspected while it is inside is struck, and the next
//! is let in: ME1 holds while delays are bounded ([`LONGEST_DELAY`]), not otherwise; fences grow in any case.
//!
//! **Where we depart**: the first master is site 0, without an election. A master that comes back after a
//! crash has lost its desk: it is a client until it is elected.

use conclave_kernel::{Card, Cx, Emitted, Input, Needs, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::super::{Bill, Command, Event, Group, LONGEST_DELAY, Mutex, watching};
use super::{Body, Central};
use crate::detector::{self, Detector, Heartbeat};
use crate::election::{self, Bully, ChangRoberts, Election};

/// The master is elected by the bully algorithm.
pub type CentralBully = CentralElected<Bully>;
/// The master is elected round a ring.
pub type CentralRing = CentralElected<ChangRoberts>;

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CentralElected<E: Election> {
    mutex: Central,
    election: E,
    detector: Heartbeat,
}

/// What sites say to each other, layer by layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<E: Election> {
    /// The coordinator's.
    Mutex(super::Message),
    /// The election's.
    Election(E::Message),
    /// The detector's.
    Detector(<Heartbeat as Protocol>::Message),
}

/// What a site asks to be reminded of, layer by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timer<E> {
    /// The election's.
    Election(E),
    /// The detector's.
    Detector(<Heartbeat as Protocol>::Timer),
}

impl<E: Election> Protocol for CentralElected<E> {
    type Message = Message<E>;
    type Timer = Timer<E::Timer>;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        if cx.incarnation() > 0 {
            self.mutex.desk = None; // others may have taken over
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
    /// Whom the site takes for the master.
    pub fn master(&self) -> NodeId {
        self.mutex.master()
    }

    /// A step of the coordinator's protocol.
    fn coordinate(&mut self, input: Input<Central>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.mutex, input, Message::Mutex, |never| match never {}) {
            cx.emit(event);
        }
    }

    /// A step of the election.
    fn elect(&mut self, input: Input<E>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.election, input, Message::Election, Timer::Election) {
            if event == (election::Event::Elected { leader: cx.me() }) {
                self.take_over(cx);
            }
        }
    }

    /// A step of the detector.
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
            self.coordinate(Input::Start, cx); // its guards look who is next
        } else if self.mutex.master() == site {
            self.elect(Input::Command(election::Command::Elect), cx);
        }
    }

    /// The site is the master from now on, in a new term.
    fn take_over(&mut self, cx: &mut Cx<'_, Self>) {
        let alive: NodeSet =
            cx.members().iter().filter(|site| !self.detector.suspects().contains(*site)).collect();
        let term = self.mutex.term + 1;
        if let Some(polled) = self.mutex.install(cx.me(), cx.members().len() as u32, term, &alive) {
            cx.send_to(polled, Message::Mutex(super::Message { term, body: Body::Poll }));
            self.coordinate(Input::Start, cx); // if nobody else is left, its guards let the next one in
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
        summary: "one site keeps the queue; when it dies, another is elected and rebuilds it from those who wait",
        papers: &["CDK"],
        needs: Needs { no_duplication: false, no_crash: false, synchrony: true, ..Needs::RELIABLE },
        promises: &["ME1", "ME2", "fences"],
        costs: &[],
        survives: "any number of crashes, the master's and the holder's too, while delays are bounded",
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
