//! The bully algorithm: send ELECTION to all higher sites, and lead if none of them replies.
//!
//! Garcia-Molina's algorithm relies on synchrony. A message takes at most T_trans, and a site takes at most
//! T_process to reply. A site that has not replied after T = 2 T_trans + T_process has therefore crashed. So
//! the highest site that is up can find out by itself that it is the highest. It then bullies the others into
//! following it.
//!
//! **Rules** \[GM82 §4, CDK §15.3.2\]
//! 1. To begin: send ELECTION to all higher sites and wait for T. If there are none, announce yourself at
//!    once.
//! 2. On ELECTION from a lower site: reply OK, and begin unless you have begun already.
//! 3. No OK within T: you have won. Send COORDINATOR to all lower sites.
//! 4. On OK: wait for COORDINATOR. If it does not arrive within T', begin again, because the sites that
//!    replied have crashed since.
//! 5. On COORDINATOR from a higher site: follow it. On COORDINATOR from a lower site: begin.
//! 6. After a recovery: begin.
//!
//! **Traps**
//! - Without the second timeout of rule 4 the group may stay without a leader: the higher site replies OK and
//!   crashes, and the lower site waits for ever. T' must cover T and one message in each direction: T' = T +
//!   2 T_trans + T_process.
//! - An OK that arrives at the very end of T is in time. The timers therefore fire one nanosecond later.
//! - Two sites lead if a message or a reply takes longer than its bound. The same happens if a crashed site
//!   returns under its old id while another site announces itself. The checker shows both.
//!
//! **Differences from the paper**: candidates are pairs of rank and id. Messages carry the rank of their
//! sender, so that a site that resigned no longer receives ELECTION. RESIGN goes to all sites, and the
//! highest of the other sites announces itself. If the leader is the highest of all sites, it replies to
//! ELECTION with COORDINATOR instead of OK.

use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::{Candidate, Command, Election, Event, Group, Seat};

/// The state of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bully {
    seat: Seat,
    /// The rank of each site, as far as this site knows.
    ranks: Vec<u64>,
    pub(crate) stage: Stage,
    /// T, and one nanosecond.
    pub(crate) answer_timeout: Duration,
    /// T', and one nanosecond.
    pub(crate) coordinator_timeout: Duration,
}

/// The progress of the site's own election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The site holds no election.
    #[default]
    Idle,
    /// The site has sent ELECTION and waits for OK.
    Asking,
    /// A higher site is up. This site waits for its COORDINATOR.
    Waiting,
}

/// A message between two sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The rank of the sender.
    rank: u64,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Body {
    /// To higher sites: the sender holds an election and waits for OK.
    Election,
    /// To a lower site: the sender is up and takes over the election.
    Ok,
    /// To lower sites: the sender leads.
    Coordinator,
    /// To all sites: the sender has resigned.
    Resign,
}

/// The timers of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Timer {
    /// T is over: no higher site is up.
    Answer,
    /// T' is over: the higher sites that were up have crashed.
    Coordinator,
}

impl Protocol for Bully {
    type Message = Message;
    type Timer = Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        // Not at the first boot: then the layer above commands the election.
        if cx.incarnation() > 0 {
            self.stage = Stage::Idle;
            self.begin(cx);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        self.ranks[from.index()] = message.rank;
        let is_lower = self.candidate(from) < self.candidate(cx.me());
        match message.body {
            // This site leads and is the highest of all, so the other sites need no second announcement.
            Body::Election if is_lower && self.leads(cx.me()) && self.is_highest(cx) => {
                cx.send(from, self.say(Body::Coordinator, cx.me()));
            }
            Body::Election if is_lower => {
                cx.send(from, self.say(Body::Ok, cx.me()));
                if self.stage == Stage::Idle {
                    self.begin(cx);
                }
            }
            Body::Ok if self.stage == Stage::Asking && !is_lower => self.wait(cx),
            // The OK is late: this site has announced itself although a higher site is up.
            Body::Ok if self.leads(cx.me()) && !is_lower => {
                self.seat.vacate(cx);
                self.wait(cx);
            }
            Body::Coordinator if is_lower => self.begin(cx),
            Body::Coordinator => self.follow(from, cx),
            Body::Resign if self.seat.leader() == Some(from) => self.on_resigned(cx),
            // A higher site that does not know of the resignation gets no reply. A late OK or RESIGN changes
            // nothing.
            Body::Election | Body::Ok | Body::Resign => {}
        }
    }

    fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Self>) {
        match timer {
            Timer::Answer => self.lead(cx),
            Timer::Coordinator => self.begin(cx),
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Elect => self.begin(cx),
            Command::Resign => {
                self.ranks[cx.me().index()] = 0;
                cx.broadcast(self.say(Body::Resign, cx.me()));
                self.on_resigned(cx);
            }
            // Bully detects crashes by silence.
            Command::Suspect(_) | Command::Trust(_) => {}
        }
    }
}

impl Bully {
    pub(crate) fn begin(&mut self, cx: &mut Cx<'_, Self>) {
        self.seat.vacate(cx);
        let higher: NodeSet = self.than_me(cx, |them, me| them > me);
        if higher.is_empty() {
            return self.lead(cx);
        }
        self.stage = Stage::Asking;
        cx.disarm(Timer::Coordinator);
        cx.send_to(higher, self.say(Body::Election, cx.me()));
        cx.arm(Timer::Answer, self.answer_timeout..=self.answer_timeout);
    }

    /// Waits for the COORDINATOR of a higher site.
    fn wait(&mut self, cx: &mut Cx<'_, Self>) {
        self.stage = Stage::Waiting;
        cx.disarm(Timer::Answer);
        cx.arm(Timer::Coordinator, self.coordinator_timeout..=self.coordinator_timeout);
    }

    fn lead(&mut self, cx: &mut Cx<'_, Self>) {
        let lower = self.than_me(cx, |them, me| them < me);
        self.follow(cx.me(), cx);
        if !lower.is_empty() {
            cx.send_to(lower, self.say(Body::Coordinator, cx.me()));
        }
    }

    pub(crate) fn leads(&self, me: NodeId) -> bool {
        self.seat.leader() == Some(me)
    }

    pub(crate) fn follow(&mut self, leader: NodeId, cx: &mut Cx<'_, Self>) {
        if self.stage != Stage::Idle {
            self.stage = Stage::Idle;
            cx.disarm(Timer::Answer);
            cx.disarm(Timer::Coordinator);
        }
        self.seat.fill(leader, cx);
    }

    /// Handles the resignation of the leader. The highest of the other sites leads at once; the rest wait for
    /// it.
    fn on_resigned(&mut self, cx: &mut Cx<'_, Self>) {
        self.seat.vacate(cx);
        if self.is_highest(cx) {
            self.lead(cx);
        } else {
            self.wait(cx);
        }
    }

    fn is_highest(&self, cx: &Cx<'_, Self>) -> bool {
        self.than_me(cx, |them, me| them > me).is_empty()
    }

    fn than_me(&self, cx: &Cx<'_, Self>, compare: fn(Candidate, Candidate) -> bool) -> NodeSet {
        let me = self.candidate(cx.me());
        cx.peers().iter().filter(|peer| compare(self.candidate(*peer), me)).collect()
    }

    pub(crate) fn candidate(&self, site: NodeId) -> Candidate {
        Candidate { rank: self.ranks[site.index()], site }
    }

    pub(crate) fn say(&self, body: Body, me: NodeId) -> Message {
        Message { rank: self.ranks[me.index()], body }
    }
}

impl Election for Bully {
    const CARD: Card = Card {
        problem: "election",
        name: "bully",
        title: "Bully",
        summary: "a site asks all higher sites; if none answers, it announces itself to all lower sites",
        papers: &["GM82", "CDK"],
        needs: Needs { no_duplication: false, no_crash: false, synchrony: true, ..Needs::RELIABLE },
        promises: &["E1", "E2"],
        costs: &[
            Cost {
                measure: Measure::Messages,
                load: Load::Low,
                formula: "N-1..N^2-N-1 (the highest is dead)",
                range: |size| if size.nodes == 1 { (0.0, 0.0) } else { (size.n() - 1.0, worst(size.n())) },
            },
            Cost {
                measure: Measure::Messages,
                load: Load::High,
                // ELECTION N(N-1)/2, OK (N-1)(N-2)/2, COORDINATOR N-1, and N-1 more as replies to ELECTION.
                formula: "N^2-1 (all up, equal delays)",
                range: |size| (size.n() * size.n() - 1.0, size.n() * size.n() - 1.0),
            },
        ],
        survives: "any number of crashes, while delays are bounded and no site returns during an announcement",
        idle_traffic: false,
        reads_clock: false,
    };

    fn new(_me: NodeId, group: &Group) -> Self {
        let in_time = Duration::from_nanos(1);
        let answer_timeout = 2 * group.transmission + group.processing + in_time;
        Self {
            seat: Seat::default(),
            ranks: group.candidates().map(|candidate| candidate.rank).collect(),
            stage: Stage::Idle,
            answer_timeout,
            coordinator_timeout: answer_timeout + 2 * group.transmission + group.processing,
        }
    }

    fn kind(message: &Message) -> &'static str {
        match message.body {
            Body::Election => "ELECTION",
            Body::Ok => "OK",
            Body::Coordinator => "COORDINATOR",
            Body::Resign => "RESIGN",
        }
    }
}

/// Returns the largest number of messages: ELECTION N(N-1)/2, OK (N-1)(N-2)/2, COORDINATOR N-2.
fn worst(n: f64) -> f64 {
    n * n - n - 1.0
}

#[cfg(test)]
mod tests {
    use super::super::by_hand::ByHand;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn group(nodes: u32) -> ByHand<Bully> {
        ByHand::new(&Group::new(nodes, MS))
    }

    /// Creates a group whose highest site has crashed.
    fn headless(nodes: u32) -> ByHand<Bully> {
        let mut group = group(nodes);
        group.crash(nodes - 1);
        group
    }

    /// \[GM82\]: N-2 announcements, and one ELECTION to the crashed site.
    #[test]
    fn the_second_highest_needs_n_minus_one_messages() {
        let mut group = headless(5);
        group.command(3, Command::Elect);
        group.settle();
        group.fire(3, Timer::Answer);
        group.settle();
        assert_eq!((group.sent, &group.leaders()[..4]), (4, &[Some(3); 4][..]));
    }

    /// N = 5 costs 19 messages.
    #[test]
    fn the_lowest_sets_off_n_squared_minus_n_minus_one() {
        for nodes in 2..9 {
            let mut group = headless(nodes);
            group.command(0, Command::Elect);
            group.settle();
            group.fire(nodes - 2, Timer::Answer);
            group.settle();
            assert_eq!(group.sent, u64::from(nodes * nodes - nodes - 1), "{nodes}");
            assert!(group.leaders()[..nodes as usize - 1].iter().all(|leader| *leader == Some(nodes - 2)));
        }
    }

    #[test]
    fn the_highest_announces_itself_at_once() {
        let mut group = group(4);
        group.command(3, Command::Elect);
        assert_eq!((group.sent, group.in_flight()), (3, 3));
        group.settle();
        assert_eq!(group.leaders(), [Some(3); 4]);
    }

    /// Rule 4: the site that replied crashes before its announcement.
    #[test]
    fn who_was_answered_and_hears_nothing_more_begins_again() {
        let mut group = group(3);
        group.command(0, Command::Elect);
        group.deliver(0, 1);
        group.deliver(1, 0); // OK; then 1 crashes
        group.crash(1);
        group.crash(2);
        group.fire(0, Timer::Coordinator);
        group.settle();
        group.fire(0, Timer::Answer);
        assert_eq!(group.leaders()[0], Some(0));
    }

    /// Rule 5.
    #[test]
    fn an_announcement_by_somebody_lower_is_answered_by_an_election() {
        let mut group = group(3);
        group.inject(0, 2, Message { rank: 1, body: Body::Coordinator });
        group.settle();
        assert_eq!(group.leaders(), [Some(2); 3]);
    }

    /// A reply is late, and two sites lead for a while.
    #[test]
    fn a_late_answer_deposes_who_announced_itself_too_soon() {
        let mut group = group(3);
        group.command(1, Command::Elect);
        group.fire(1, Timer::Answer); // too soon: 2 is up
        assert_eq!(group.leaders()[1], Some(1));
        group.settle();
        assert_eq!(group.leaders(), [Some(2); 3]);
    }

    /// Rule 6.
    #[test]
    fn who_comes_back_takes_over() {
        let mut group = headless(3);
        group.command(1, Command::Elect);
        group.settle();
        group.fire(1, Timer::Answer);
        group.settle();
        assert_eq!(group.leaders()[..2], [Some(1); 2]);
        group.recover(2);
        group.settle();
        assert_eq!(group.leaders(), [Some(2); 3]);
    }

    #[test]
    fn a_leader_that_resigns_is_replaced_by_the_next_at_once() {
        let mut group = group(4);
        group.command(3, Command::Elect);
        group.settle();
        let before = group.sent;
        group.command(3, Command::Resign);
        group.settle();
        assert_eq!((group.leaders(), group.sent - before), ([Some(2); 4].to_vec(), 3 + 3));
    }

    /// T = 2 T_trans + T_process. T' covers T and one message in each direction.
    #[test]
    fn the_timeouts_are_made_of_the_bounds() {
        let group = Group { processing: 3 * MS, ..Group::new(3, 5 * MS) };
        let site = Bully::new(NodeId(0), &group);
        assert_eq!(site.answer_timeout, 13 * MS + Duration::from_nanos(1));
        assert_eq!(site.coordinator_timeout, 26 * MS + Duration::from_nanos(1));
    }
}
