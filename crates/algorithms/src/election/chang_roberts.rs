//! Chang and Roberts: candidates travel round a ring, and only the highest returns to its sender.
//!
//! Each site knows only its successor. A site discards every candidate that is lower than itself. So only the
//! highest candidate travels all the way round, and its sender then knows that it has won. Elections that
//! several sites begin at once end each other in the same way.
//!
//! **Rules** \[CR79 §2\]
//! 1. To begin: become a participant, and send ELECTION with your own candidate.
//! 2. On ELECTION with a higher candidate: become a participant and forward it.
//! 3. On ELECTION with a lower candidate: discard it if you are a participant. Otherwise begin.
//! 4. On ELECTION with your own candidate: you have won. Send ELECTED round the ring. ELECTED ends
//!    participation.
//!
//! **Traps**
//! - The worst case of 3N-1 messages holds for one starter. If all sites start, the cost is N(N+1)/2 + N at
//!   worst and N H_N + N on average.
//! - The comparison of candidates does not need FIFO, so E1 holds without it. The marks of participants do. A
//!   slow candidate that arrives after ELECTED would make its receiver a participant again, although the
//!   election is over. A site therefore stays out of an election whose candidate is not higher than its
//!   leader: it only forwards the message.
//! - E2 needs FIFO. A site forwards ELECTED and then begins again. Its new candidate overtakes the ELECTED
//!   and reaches a higher site, which is still a participant of the old election and discards it. The new
//!   election never ends.
//!
//! **Differences from the paper**: the paper assumes that no site crashes during an election. Here every
//! message carries the [`View`] in which it was sent. A participant begins again when its view changes. A
//! site that knows of the crash of a maximum does not forward its message. A site that receives ELECTED for a
//! lower site, for example after a recovery, begins an election.

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Candidate, Command, Election, Event, Group, Seat, View};

/// The state of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChangRoberts {
    pub(crate) me: Candidate,
    seat: Seat,
    pub(crate) view: View,
    pub(crate) participant: bool,
    /// The leader as a candidate; `None` while it is not known.
    winner: Option<Candidate>,
}

/// A message, with the view of its sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    pub(crate) view: View,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Body {
    /// The highest candidate on the way so far.
    Election(Candidate),
    /// The candidate that has won.
    Elected(Candidate),
}

impl Protocol for ChangRoberts {
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
        let is_current = message.view == self.view;
        match message.body {
            Body::Election(theirs) if is_current => self.on_election(theirs, cx),
            Body::Elected(leader) if is_current => self.on_elected(leader, cx),
            // A message of an older view. Its election must begin again in this view.
            Body::Election(_) if !self.participant => self.begin(cx),
            _ => {}
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

impl ChangRoberts {
    pub(crate) fn begin(&mut self, cx: &mut Cx<'_, Self>) {
        self.participate(cx);
        self.pass(Body::Election(self.me), cx);
    }

    fn on_election(&mut self, theirs: Candidate, cx: &mut Cx<'_, Self>) {
        if theirs == self.me {
            if self.participant {
                self.settle(self.me, cx);
                self.pass(Body::Elected(self.me), cx);
            }
        } else if theirs > self.me {
            if self.winner.is_none_or(|winner| winner < theirs) {
                self.participate(cx);
            }
            self.pass(Body::Election(theirs), cx);
        } else if !self.participant {
            self.begin(cx);
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
        self.pass(Body::Elected(leader), cx);
    }

    /// Handles a change of the view. The election under way may have lost its message, so a participant
    /// begins again.
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

    pub(crate) fn settle(&mut self, winner: Candidate, cx: &mut Cx<'_, Self>) {
        (self.participant, self.winner) = (false, Some(winner));
        self.seat.fill(winner.site, cx);
    }

    /// Sends a message to the successor. If no other site is up, this site's candidate has travelled round at
    /// once. The candidate of another site is dropped then, because that site is down.
    pub(crate) fn pass(&mut self, body: Body, cx: &mut Cx<'_, Self>) {
        let next = self.view.after(cx.members(), cx.me());
        if next != cx.me() {
            cx.send(next, Message { view: self.view.clone(), body });
        } else if body == Body::Election(self.me) {
            self.on_election(self.me, cx);
        }
    }
}

impl Election for ChangRoberts {
    const CARD: Card = Card {
        problem: "election",
        name: "chang-roberts",
        title: "Chang-Roberts (ring)",
        summary: "candidates travel round a ring; each site drops those that are lower; the highest one returns",
        papers: &["CR79"],
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
                formula: "2N..3N-1",
                range: |size| {
                    if size.nodes == 1 { (0.0, 0.0) } else { (2.0 * size.n(), 3.0 * size.n() - 1.0) }
                },
            },
            Cost {
                measure: Measure::Messages,
                load: Load::High,
                formula: "3N-1..N(N+1)/2+N",
                range: |size| {
                    let n = size.n();
                    if size.nodes == 1 { (0.0, 0.0) } else { (3.0 * n - 1.0, n * (n + 1.0) / 2.0 + n) }
                },
            },
            Cost {
                measure: Measure::Turnaround,
                load: Load::Low,
                formula: "(2N-1)T..(3N-2)T",
                range: |size| {
                    if size.nodes == 1 { (0.0, 0.0) } else { (2.0 * size.n() - 1.0, 3.0 * size.n() - 2.0) }
                },
            },
            Cost {
                measure: Measure::Turnaround,
                load: Load::High,
                formula: "(2N-1)T",
                range: |size| {
                    if size.nodes == 1 { (0.0, 0.0) } else { (2.0 * size.n() - 1.0, 2.0 * size.n() - 1.0) }
                },
            },
        ],
        survives: "crashes that a perfect detector reports to all sites, also of the maximum during a round",
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
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message.body {
            Body::Election(_) => "ELECTION",
            Body::Elected(_) => "ELECTED",
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::by_hand::ByHand;
    use super::*;

    fn group(nodes: u32) -> ByHand<ChangRoberts> {
        ByHand::new(&Group::new(nodes, Duration::from_millis(1)))
    }

    #[test]
    fn the_highest_wins_and_everybody_knows() {
        let mut ring = group(5);
        ring.command(2, Command::Elect);
        ring.settle();
        assert_eq!(ring.leaders(), [Some(4); 5]);
        assert_eq!(ring.sent, 2 + 5 + 5, "2 to reach the highest, then two rounds");
    }

    /// [CR79 §3], [CDK §15.3.1]: at worst, the highest site is the anticlockwise neighbour of the starter.
    #[test]
    fn one_starter_costs_two_n_at_best_and_three_n_minus_one_at_worst() {
        for (starter, cost) in [(4, 10), (0, 14)] {
            let mut ring = group(5);
            ring.command(starter, Command::Elect);
            ring.settle();
            assert_eq!(ring.sent, cost);
        }
    }

    #[test]
    fn a_lone_site_elects_itself_without_a_message() {
        let mut ring = group(1);
        ring.command(0, Command::Elect);
        assert_eq!((ring.leaders(), ring.sent), (vec_of(&[Some(0)]), 0));
    }

    #[test]
    fn rank_counts_before_id() {
        let mut ring = ByHand::<ChangRoberts>::new(&Group {
            ranks: [7, 9, 9, 3].into(),
            ..Group::new(4, Duration::from_millis(1))
        });
        ring.command(0, Command::Elect);
        ring.settle();
        assert_eq!(ring.leaders(), [Some(2); 4]);
    }

    /// Of two concurrent elections, the lower one ends at a participant that is higher.
    #[test]
    fn concurrent_elections_are_extinguished() {
        let mut ring = group(4);
        ring.command(0, Command::Elect);
        ring.command(1, Command::Elect);
        ring.deliver(0, 1); // 0 < 1, and 1 is a participant already
        assert_eq!(ring.in_flight(), 1);
        ring.settle();
        assert_eq!(ring.leaders(), [Some(3); 4]);
    }

    /// Without views, its message would circulate for ever.
    #[test]
    fn the_message_of_a_maximum_that_died_in_mid_round_is_not_forwarded() {
        let mut ring = group(4);
        ring.command(3, Command::Elect);
        ring.deliver(3, 0);
        ring.deliver(0, 1);
        ring.crash(3);
        for site in [0, 1, 2] {
            ring.command(site, Command::Suspect(NodeId(3)));
        }
        ring.settle();
        assert_eq!(ring.leaders()[..3], [Some(2); 3]);
    }

    /// Site 1 has decided and forwards ELECTED to site 2. It crashes, and the message counts for nothing in
    /// the new view.
    #[test]
    fn a_crash_that_swallows_the_announcement_does_not_leave_anybody_undecided() {
        let mut ring = group(4);
        ring.command(3, Command::Elect);
        (0..4).for_each(|site| ring.deliver((site + 3) % 4, site)); // 3 has won; ELECTED is in flight to 0
        ring.deliver(3, 0);
        ring.deliver(0, 1);
        ring.crash(1); // ELECTED is in flight to 2
        for site in [0, 2, 3] {
            ring.command(site, Command::Suspect(NodeId(1)));
        }
        ring.settle();
        assert_eq!([0, 2, 3].map(|site: usize| ring.leaders()[site]), [Some(3); 3]);
    }

    /// The ranks in ring order are 4, 2, 1, 3. The candidate of rank 2 is slow. It reaches rank 1 after the
    /// announcement of rank 4, and it reaches rank 3 before that announcement.
    #[test]
    fn a_slow_candidate_does_not_undo_a_decision() {
        let mut ring = ByHand::<ChangRoberts>::new(&Group {
            ranks: [4, 2, 1, 3].into(),
            ..Group::new(4, Duration::from_millis(1))
        });
        ring.command(1, Command::Elect);
        let slow = ring.take(1, 2);
        ring.command(0, Command::Elect);
        (0..4).for_each(|site| ring.deliver(site, (site + 1) % 4)); // once round
        ring.deliver(0, 1);
        ring.deliver(1, 2); // rank 1 has decided; ELECTED is in flight to rank 3
        ring.inject(1, 2, slow);
        let announcement = ring.take(2, 3);
        ring.deliver(2, 3);
        ring.inject(2, 3, announcement);
        ring.settle();
        assert_eq!(ring.leaders(), [Some(0); 4]);
    }

    #[test]
    fn who_comes_back_higher_than_the_leader_takes_over() {
        let mut ring = group(3);
        ring.crash(2);
        ring.command(0, Command::Suspect(NodeId(2)));
        ring.command(0, Command::Elect);
        ring.settle();
        assert_eq!(ring.leaders()[..2], [Some(1); 2]);
        ring.recover(2);
        ring.settle();
        assert_eq!(ring.leaders(), [Some(2); 3]);
    }

    #[test]
    fn a_leader_that_resigns_is_replaced_by_the_next() {
        let mut ring = group(4);
        ring.command(1, Command::Elect);
        ring.settle();
        ring.command(3, Command::Resign);
        ring.settle();
        assert_eq!(ring.leaders(), [Some(2); 4]);
    }

    fn vec_of(leaders: &[Option<u32>]) -> alloc::vec::Vec<Option<u32>> {
        leaders.to_vec()
    }
}
