//! Election over a detector: the highest site that is not suspected leads.
//!
//! If a reliable detector runs anyway, an election needs no messages: every site follows the highest site
//! that it does not suspect. All sites agree as soon as their detectors agree. The price is that of the
//! detector: N(N-1) heartbeats every T, also while no site crashes. The result is only as correct as the
//! detector.
//!
//! **Rules** \[CT96 §2\]
//! 1. The leader is at all times the highest site that is not suspected.
//!
//! **Trap**: two sites may lead while two detectors differ. With a perfect detector, the old leader has
//! crashed by then. With any other detector, both may be up, for example after a wrong suspicion.
//!
//! **Differences from the paper**: ranks are known from the start. A site that resigns sends RANK to all
//! sites.

use alloc::vec::Vec;

use conclave_kernel::{Card, Cost, Cx, Emitted, Input, Load, Measure, Needs, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Candidate, Command, Election, Event, Group, Seat};
use crate::detector::{self, Detector};

/// The state of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct DetectorBased<D: Detector> {
    detector: D,
    /// The sites that the detector or a command has reported as crashed.
    suspects: NodeSet,
    ranks: Vec<u64>,
    seat: Seat,
}

/// A message between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Message<D: Detector> {
    /// A message of the detector.
    Detector(D::Message),
    /// The new rank of the sender.
    Rank(u64),
}

impl<D: Detector> Protocol for DetectorBased<D> {
    type Message = Message<D>;
    type Timer = D::Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.watch(Input::Start, cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.suspects.clear();
        self.seat.vacate(cx); // so that `guards` reports the leader again
        self.watch(Input::Recover, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Message<D>, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Detector(message) => self.watch(Input::Message { from, message }, cx),
            Message::Rank(rank) => self.ranks[from.index()] = rank,
        }
    }

    fn on_timer(&mut self, timer: D::Timer, cx: &mut Cx<'_, Self>) {
        self.watch(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Elect => {} // the result is always up to date
            Command::Resign => {
                self.ranks[cx.me().index()] = 0;
                cx.broadcast(Message::Rank(0));
            }
            Command::Suspect(site) if site != cx.me() => _ = self.suspects.insert(site),
            Command::Suspect(_) => {}
            Command::Trust(site) => _ = self.suspects.remove(site),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        let trusted = cx.members().iter().filter(|site| !self.suspects.contains(*site));
        if let Some(highest) = trusted.map(|site| self.candidate(site)).max() {
            self.seat.fill(highest.site, cx);
        }
    }
}

impl<D: Detector> DetectorBased<D> {
    /// Runs a step of the detector.
    fn watch(&mut self, input: Input<D>, cx: &mut Cx<'_, Self>) {
        let said: Emitted<D> = cx.drive(&mut self.detector, input, Message::Detector, |timer| timer);
        for event in said {
            match event {
                detector::Event::Suspected(site) => self.suspects.insert(site),
                detector::Event::Trusted(site) => self.suspects.remove(site),
            };
        }
    }

    fn candidate(&self, site: NodeId) -> Candidate {
        Candidate { rank: self.ranks[site.index()], site }
    }
}

impl<D: Detector> Election for DetectorBased<D> {
    const CARD: Card = Card {
        problem: "election",
        name: "detector-based",
        title: "Election over a detector",
        summary: "the highest site that is not suspected leads; the cost is its heartbeats",
        papers: &["CT96"],
        // With bounded delays the detector inside is perfect. A detector that sends commands must be perfect,
        // too.
        needs: Needs {
            no_duplication: false,
            no_crash: false,
            synchrony: true,
            perfect_detector: true,
            ..Needs::RELIABLE
        },
        promises: &["E1", "E2"],
        costs: &[
            Cost {
                measure: Measure::Messages,
                load: Load::Low,
                formula: "0, not counting heartbeats",
                range: |_| (0.0, 0.0),
            },
            Cost {
                measure: Measure::Messages,
                load: Load::High,
                formula: "0, not counting heartbeats",
                range: |_| (0.0, 0.0),
            },
        ],
        survives: "any number of crashes, while delays are bounded",
        idle_traffic: true,
        reads_clock: D::CARD.reads_clock,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            detector: D::new(me, &group.detector),
            suspects: NodeSet::new(),
            ranks: group.candidates().map(|candidate| candidate.rank).collect(),
            seat: Seat::default(),
        }
    }

    fn kind(message: &Message<D>) -> &'static str {
        match message {
            Message::Detector(message) => D::kind(message),
            Message::Rank(_) => "RANK",
        }
    }

    fn is_background(message: &Message<D>) -> bool {
        matches!(message, Message::Detector(_))
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::by_hand::ByHand;
    use super::*;
    use crate::detector::Mute;

    fn group() -> ByHand<DetectorBased<Mute>> {
        ByHand::new(&Group::new(3, Duration::from_millis(1)))
    }

    #[test]
    fn everybody_knows_the_highest_without_a_message() {
        let group = group();
        assert_eq!((group.leaders(), group.sent), ([Some(2); 3].to_vec(), 0));
    }

    #[test]
    fn the_next_leads_when_the_highest_is_suspected_and_the_highest_when_it_is_back() {
        let mut group = group();
        (0..2).for_each(|site| group.command(site, Command::Suspect(NodeId(2))));
        assert_eq!(group.leaders(), [Some(1), Some(1), Some(2)]);
        (0..2).for_each(|site| group.command(site, Command::Trust(NodeId(2))));
        assert_eq!(group.leaders(), [Some(2); 3]);
    }

    #[test]
    fn who_resigns_tells_everybody() {
        let mut group = group();
        group.command(2, Command::Resign);
        group.settle();
        assert_eq!((group.leaders(), group.sent), ([Some(1); 3].to_vec(), 2));
    }
}
