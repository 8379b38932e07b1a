//! Hirschberg and Sinclair: ask ever wider neighbourhoods, both ways.
//!
//! A candidate that wants to go on must first be the highest within one hop on both sides, then within two,
//! within four, and so on. Each round at most one of so many neighbours survives, so that few travel far: O(N
//! log N) messages at worst, where a one-way ring needs O(N^2).
//!
//! **Rules** \[HS80 §2\]
//! 1. In phase k send PROBE 2^k hops both ways.
//! 2. On a PROBE of somebody higher: pass it on, or answer with REPLY if it has come far enough. On one of
//!    somebody lower: swallow it, and begin if you have not.
//! 3. With both replies, go on to the next phase. If your own probes come to you, they have been all round:
//!    you have won, and send ELECTED round.
//!
//! **Trap**: in a small ring both ways lead to the same neighbour: direction must be in the message. And who
//! announces itself when the first of its probes is back leaves the second under way, behind the
//! announcement: whoever it passes takes part in an election that is over. For the same reason a candidate
//! stops as soon as it has seen somebody higher, even if its replies come; and who has a leader that is
//! higher only passes things on.
//!
//! **Where we depart**: as for the other ring, the [`View`] rides on every message, against crashes.

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Candidate, Command, Election, Event, Group, Seat, View};

/// One site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HirschbergSinclair {
    pub(crate) me: Candidate,
    seat: Seat,
    pub(crate) view: View,
    participant: bool,
    /// Who leads, as a candidate.
    pub(crate) winner: Option<Candidate>,
    /// Whether I may still win: nobody higher has been seen.
    pub(crate) standing: bool,
    pub(crate) phase: u32,
    /// What came back in this phase, of what was sent either way: the reply, or the probe itself.
    pub(crate) back: [bool; 2],
}

/// What sites say to each other, in which view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    pub(crate) view: View,
    way: Way,
    pub(crate) body: Body,
}

/// Which way round a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    Clockwise,
    Anticlockwise,
}

impl Way {
    const BOTH: [Self; 2] = [Self::Clockwise, Self::Anticlockwise];

    fn back(self) -> Self {
        match self {
            Self::Clockwise => Self::Anticlockwise,
            Self::Anticlockwise => Self::Clockwise,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Body {
    /// Is anybody within 2^phase hops higher? This is hop number so many.
    Probe { candidate: Candidate, phase: u32, hop: u32 },
    /// Nobody is.
    Reply { candidate: Candidate, phase: u32 },
    /// This one has won.
    Elected(Candidate),
}

impl Protocol for HirschbergSinclair {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        // Not at first boot: then somebody says Elect.
        if cx.incarnation() > 0 {
            self.view.live(cx.me(), cx.incarnation());
            self.begin(cx);
        }
    }

    fn on_message(&mut self, _from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        if self.view.merge(&message.view) {
            self.view.trust(cx.me()); // whoever takes me for dead is wrong
            self.on_new_view(cx);
        }
        let Message { view, way, body } = message;
        if view == self.view {
            match body {
                Body::Probe { candidate, phase, hop } => self.on_probe(candidate, phase, hop, way, cx),
                Body::Reply { candidate, phase } => self.on_reply(candidate, phase, way, cx),
                Body::Elected(leader) => self.on_elected(leader, cx),
            }
        } else if matches!(body, Body::Probe { .. }) && !self.participant {
            // Of an older view: what it was to achieve must be done again in this one.
            self.begin(cx);
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Elect => self.begin(cx),
            Command::Resign => {
                self.me.rank = 0;
                self.view.change(cx.me());
                self.begin(cx);
            }
            Command::Suspect(site) if site != cx.me() && self.view.suspect(site) => self.on_new_view(cx),
            Command::Trust(site) if self.view.trust(site) => self.on_new_view(cx),
            Command::Suspect(_) | Command::Trust(_) => {}
        }
    }
}

impl HirschbergSinclair {
    fn begin(&mut self, cx: &mut Cx<'_, Self>) {
        self.participate(cx);
        self.standing = true;
        if self.view.after(cx.members(), cx.me()) == cx.me() {
            return self.win(cx);
        }
        self.phase = 0;
        self.probe(cx);
    }

    fn probe(&mut self, cx: &mut Cx<'_, Self>) {
        self.back = [false; 2];
        let body = Body::Probe { candidate: self.me, phase: self.phase, hop: 1 };
        Way::BOTH.into_iter().for_each(|way| self.pass(way, body, cx));
    }

    fn on_probe(&mut self, candidate: Candidate, phase: u32, hop: u32, way: Way, cx: &mut Cx<'_, Self>) {
        if candidate == self.me {
            self.back[way as usize] |= self.standing && phase == self.phase;
            if self.standing && self.back == [true; 2] {
                self.win(cx);
            }
        } else if candidate > self.me {
            if self.winner.is_none_or(|winner| winner < candidate) {
                self.participate(cx);
            }
            self.standing = false;
            if u64::from(hop) < 1 << phase.min(63) {
                self.pass(way, Body::Probe { candidate, phase, hop: hop.saturating_add(1) }, cx);
            } else {
                self.pass(way.back(), Body::Reply { candidate, phase }, cx);
            }
        } else if !self.participant {
            self.begin(cx);
        }
    }

    fn on_reply(&mut self, candidate: Candidate, phase: u32, way: Way, cx: &mut Cx<'_, Self>) {
        if candidate != self.me {
            return self.pass(way, Body::Reply { candidate, phase }, cx);
        }
        if self.standing && phase == self.phase {
            self.back[way.back() as usize] = true;
            if self.back == [true; 2] {
                self.phase += 1;
                self.probe(cx);
            }
        }
    }

    fn win(&mut self, cx: &mut Cx<'_, Self>) {
        self.settle(self.me, cx);
        if self.view.after(cx.members(), cx.me()) != cx.me() {
            self.pass(Way::Clockwise, Body::Elected(self.me), cx);
        }
    }

    fn on_elected(&mut self, leader: Candidate, cx: &mut Cx<'_, Self>) {
        if leader.site == cx.me() {
            return; // it has been all round
        }
        if leader < self.me {
            return self.begin(cx);
        }
        self.settle(leader, cx);
        self.pass(Way::Clockwise, Body::Elected(leader), cx);
    }

    /// Somebody went or came: an election under way may have lost its messages, and begins again.
    fn on_new_view(&mut self, cx: &mut Cx<'_, Self>) {
        if self.winner.is_some_and(|winner| !self.view.is_up(winner.site)) {
            self.winner = None;
            self.seat.vacate(cx);
        }
        if self.participant {
            self.begin(cx);
        }
    }

    fn participate(&mut self, cx: &mut Cx<'_, Self>) {
        (self.participant, self.winner) = (true, None);
        self.seat.vacate(cx);
    }

    fn settle(&mut self, winner: Candidate, cx: &mut Cx<'_, Self>) {
        (self.participant, self.standing, self.phase, self.back) = (false, false, 0, [false; 2]);
        self.winner = Some(winner);
        self.seat.fill(winner.site, cx);
    }

    fn pass(&mut self, way: Way, body: Body, cx: &mut Cx<'_, Self>) {
        let next = match way {
            Way::Clockwise => self.view.after(cx.members(), cx.me()),
            Way::Anticlockwise => self.view.before(cx.members(), cx.me()),
        };
        cx.send(next, Message { view: self.view.clone(), way, body });
    }
}

impl Election for HirschbergSinclair {
    const CARD: Card = Card {
        problem: "election",
        name: "hirschberg-sinclair",
        title: "Hirschberg-Sinclair (two-way ring)",
        summary: "a candidate must be the highest within 1, 2, 4, ... hops on both sides, then all round",
        papers: &["HS80"],
        needs: Needs {
            no_duplication: false,
            no_crash: false,
            perfect_detector: true,
            ..Needs::RELIABLE_FIFO
        },
        promises: &["E1", "E2"],
        costs: &[
            Cost {
                measure: Measure::Messages,
                load: Load::Low,
                formula: "at most 8N(1+log2 N)+N",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (3.0 * size.n(), most(size.nodes)) },
            },
            Cost {
                measure: Measure::Messages,
                load: Load::High,
                formula: "at most 8N(1+log2 N)+N",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (3.0 * size.n(), most(size.nodes)) },
            },
        ],
        survives: "crashes that a perfect detector tells everybody of",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(me: NodeId, group: &Group) -> Self {
        Self {
            me: group.candidate(me),
            seat: Seat::default(),
            view: View::default(),
            participant: false,
            winner: None,
            standing: false,
            phase: 0,
            back: [false; 2],
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message.body {
            Body::Probe { .. } => "PROBE",
            Body::Reply { .. } => "REPLY",
            Body::Elected(_) => "ELECTED",
        }
    }
}

/// \[HS80 §3\]: 8N for each phase, of which there are 1 + log2 N, and the announcement.
fn most(nodes: u32) -> f64 {
    let n = f64::from(nodes);
    8.0 * n * f64::from(1 + nodes.next_power_of_two().ilog2()) + n
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use conclave_kernel::Prng;

    use super::super::by_hand::ByHand;
    use super::*;

    fn group(nodes: u32) -> ByHand<HirschbergSinclair> {
        ByHand::new(&Group::new(nodes, Duration::from_millis(1)))
    }

    #[test]
    fn the_highest_wins_in_rings_of_any_size() {
        for nodes in 1..20 {
            for starter in 0..nodes {
                let mut ring = group(nodes);
                ring.command(starter, Command::Elect);
                ring.settle();
                assert_eq!(
                    ring.leaders(),
                    alloc::vec![Some(nodes - 1); nodes as usize],
                    "{starter} of {nodes}"
                );
            }
        }
    }

    /// [HS80 §3]
    #[test]
    fn the_cost_stays_below_eight_n_a_phase_for_random_rings_in_which_all_start() {
        let mut dice = Prng::new(1);
        for nodes in [2_u32, 3, 5, 8, 16, 33, 64] {
            for _ in 0..20 {
                let ranks = (0..nodes).map(|_| 1 + dice.below(1_000_000)).collect();
                let mut ring = ByHand::<HirschbergSinclair>::new(&Group {
                    ranks,
                    ..Group::new(nodes, Duration::from_millis(1))
                });
                (0..nodes).for_each(|site| ring.command(site, Command::Elect));
                ring.settle();
                let leaders = ring.leaders();
                assert!(leaders.iter().all(|leader| *leader == leaders[0] && leader.is_some()));
                assert!(ring.sent as f64 <= most(nodes), "{} messages for {nodes}", ring.sent);
            }
        }
    }

    #[test]
    fn the_highest_wins_whatever_the_order_of_messages() {
        for seed in 0..200 {
            let mut dice = Prng::new(seed);
            let nodes = 1 + dice.below(8) as u32;
            let mut ring = group(nodes);
            let starters: alloc::vec::Vec<_> = (0..nodes).filter(|_| dice.below(2) == 0).collect();
            starters.into_iter().for_each(|site| ring.command(site, Command::Elect));
            ring.command(0, Command::Elect);
            ring.churn(&mut dice);
            assert_eq!(ring.leaders(), alloc::vec![Some(nodes - 1); nodes as usize], "seed {seed}");
        }
    }

    /// In a ring of two both ways lead to the same neighbour.
    #[test]
    fn two_probes_that_come_round_win_once() {
        let mut ring = group(2);
        ring.command(1, Command::Elect);
        ring.settle();
        assert_eq!(ring.elected_events(1), 1);
        assert_eq!(ring.leaders(), [Some(1); 2]);
    }

    #[test]
    fn a_crash_in_the_middle_begins_again_without_the_dead() {
        let mut ring = group(5);
        ring.command(4, Command::Elect);
        ring.deliver(4, 0);
        ring.deliver(4, 3);
        ring.crash(4);
        (0..4).for_each(|site| ring.command(site, Command::Suspect(NodeId(4))));
        ring.settle();
        assert_eq!(ring.leaders()[..4], [Some(3); 4]);
    }
}
