//! Hirschberg and Sinclair: candidates probe ever larger neighbourhoods, in both directions of a ring.
//!
//! A candidate must first be the highest within one hop on both sides, then within two hops, within four, and
//! so on. Each phase leaves at most one candidate in a neighbourhood of that size, so few candidates probe
//! far. The cost is O(N log N) messages at worst; a one-way ring needs O(N^2).
//!
//! **Rules** \[HS80 §2\]
//! 1. In phase k, send PROBE over 2^k hops in both directions.
//! 2. On PROBE of a higher candidate: forward it, or return REPLY if it has made all its hops.
//! 3. On PROBE of a lower candidate: discard it, and begin if you have not begun.
//! 4. With both replies, enter the next phase. If both your own probes return to you, they have travelled all
//!    round: you have won. Send ELECTED round the ring.
//!
//! **Traps**
//! - In a ring of two, both directions lead to the same neighbour. A message must therefore contain its
//!   direction.
//! - A site that announces itself as soon as its first probe is back leaves the second one in flight, behind
//!   the announcement. All sites that this probe passes then take part in an election that is over.
//! - For the same reason a candidate stops as soon as it has seen a higher one, even if its replies still
//!   arrive. A site also stays out of an election whose candidate is not higher than its leader: it only
//!   forwards the messages.
//!
//! **Differences from the paper**: every message carries a [`View`] against crashes, as in
//! [`chang_roberts`](super::chang_roberts).

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Candidate, Command, Election, Event, Group, Seat, View};

/// The state of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HirschbergSinclair {
    pub(crate) me: Candidate,
    seat: Seat,
    pub(crate) view: View,
    participant: bool,
    /// The leader as a candidate; `None` while it is not known.
    pub(crate) winner: Option<Candidate>,
    /// Whether this site can still win: it has begun, and has seen no higher candidate.
    pub(crate) standing: bool,
    pub(crate) phase: u32,
    /// Whether the probe in each direction has come back in this phase, as a reply or as the probe itself.
    pub(crate) back: [bool; 2],
}

/// A message, with its direction and the view of its sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    pub(crate) view: View,
    way: Way,
    pub(crate) body: Body,
}

/// The direction in which a message travels round the ring.
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
    /// A search for a higher site within 2^phase hops; `hop` counts the hops from 1.
    Probe { candidate: Candidate, phase: u32, hop: u32 },
    /// There is no higher site within 2^phase hops in the direction of the probe.
    Reply { candidate: Candidate, phase: u32 },
    /// The candidate that has won.
    Elected(Candidate),
}

impl Protocol for HirschbergSinclair {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        // Not at the first boot: then the layer above commands the election.
        if cx.incarnation() > 0 {
            self.view.live(cx.me(), cx.incarnation());
            self.begin(cx);
        }
    }

    fn on_message(&mut self, _from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        if self.view.merge(&message.view) {
            self.view.trust(cx.me()); // the sender takes this site for down, but it is up
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
            // A message of an older view. Its election must begin again in this view.
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
            return; // ELECTED has travelled all round
        }
        if leader < self.me {
            return self.begin(cx);
        }
        self.settle(leader, cx);
        self.pass(Way::Clockwise, Body::Elected(leader), cx);
    }

    /// Handles a change of the view. The election under way may have lost messages, so a participant begins
    /// again.
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
        summary: "a candidate must be the highest within 1, 2, 4, ... hops on both sides, and at last in the whole ring",
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
        survives: "crashes that a perfect detector reports to all sites",
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

/// Returns the bound of \[HS80 §3\]: 8N messages for each of the 1 + log2 N phases, and N announcements.
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

    /// The bound of [HS80 §3].
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

    /// In a ring of two, both directions lead to the same neighbour.
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
