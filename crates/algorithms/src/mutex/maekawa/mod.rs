//! Maekawa: ask a quorum, of which any two meet.
//!
//! Every site is the arbiter of a few others and lets one of them at a time have its grant. Who has the
//! grants of a whole quorum may go in; since any two quorums share an arbiter, nobody else can. But grants
//! that are collected one by one can deadlock, as with any locks; so an arbiter that has granted too early
//! asks for its grant back, and a requester that is stuck gives it.
//!
//! **Rules** \[M85 §4\], corrected by \[S87\]; the arbiter's are in `arbiter.rs`. The requester's:
//! 1. To ask: stamp the request, send REQUEST to the quorum. Enter with all its GRANTs. On exit: RELEASE.
//! 2. On FAILED from an arbiter: note it. A GRANT from it clears the note.
//! 3. On INQUIRE ("may I have it back?"): YIELD the grant if some arbiter has FAILED me, *or* holds a grant
//!    that I yielded and that has not come again. Otherwise remember the question, and ask yourself again
//!    whenever something changes. Inside, it needs no answer but the RELEASE.
//!
//! **Traps**: an INQUIRE that crosses a RELEASE is about an earlier request and must be ignored, one that
//! overtakes its GRANT must wait for it, one that cannot be answered yet must be remembered. The famous
//! "5(K-1) messages" belongs to the rule of 1985, which deadlocks with three contenders at one arbiter.
//!
//! A site asks its own arbiter as it asks any other, by messages to itself: nobody counts them, but they may be
//! late, and some executions need that to cost as much as they can.
//!
//! **Where we depart**: every message names its request; grants are numbered by *rounds* (how often this
//! arbiter's grant was yielded), so that neither order nor duplication of messages matters; a grant for a
//! request that is long over goes straight back. Arbiters carry the largest fence they know on their grants
//! and learn of larger ones from releases; a requester takes one more than the largest it is told, and because
//! quorums meet, that has never been used. INQUIRE, YIELD and the second GRANT name the rival on whose behalf
//! they are sent: it is on its account that they count.

pub(crate) mod arbiter;

use alloc::boxed::Box;

use conclave_kernel::{Card, Cost, Cx, Load, Measure, Needs, Never, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use self::arbiter::Arbiter;
use super::{Bill, Command, Door, Event, Fence, Group, Mutex};
use crate::clock::{LamportClock, Stamp};
use crate::quorum::Quorum;

/// One site: a requester and an arbiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Maekawa {
    pub(crate) door: Door,
    pub(crate) clock: LamportClock,
    /// My request, from the moment I ask until I leave.
    pub(crate) wanted: Option<Stamp>,
    /// How it stands with each arbiter of my quorum, in order of ids.
    pub(crate) votes: Box<[Vote]>,
    /// The largest fence that I had or that grants told me of.
    pub(crate) fence: Fence,
    /// My other half.
    pub(crate) arbiter: Arbiter,
}

/// How my request stands with one arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Vote {
    pub(crate) arbiter: NodeId,
    pub(crate) standing: Standing,
    /// How often I yielded its grant.
    pub(crate) round: u32,
    /// It wants its grant back, for this rival, and I have not answered.
    pub(crate) inquiry: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    /// Asked, or about to be.
    Asked,
    /// It told me that somebody comes before me.
    Failed,
    /// I have its grant.
    Granted,
    /// I had its grant and gave it back: it will come again.
    Yielded,
}

/// What sites say to each other. Requests are named by their stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To an arbiter: may I?
    Request(Stamp),
    /// From an arbiter: I let you, and nobody else, until you say otherwise. (LOCKED in the paper.)
    Grant {
        /// The request.
        request: Stamp,
        /// How often this grant was given before, and yielded.
        round: u32,
        /// The largest fence that the arbiter knows.
        fence: Fence,
        /// Who displaced the request, if it was granted before; else the request itself.
        account: Stamp,
    },
    /// From an arbiter: somebody comes before you.
    Failed(Stamp),
    /// From an arbiter: an older request came; are you stuck, and will you give my grant back?
    Inquire {
        /// The request that was granted.
        request: Stamp,
        /// Which grant is meant.
        round: u32,
        /// The older request.
        rival: Stamp,
    },
    /// To an arbiter: I am stuck, here it is. (RELINQUISH in the paper.)
    Yield {
        /// My request.
        request: Stamp,
        /// Which grant is meant.
        round: u32,
        /// The older request.
        rival: Stamp,
    },
    /// To an arbiter: I am done.
    Release {
        /// My request.
        request: Stamp,
        /// The largest fence that I know: my own, or a later one.
        fence: Fence,
    },
}

impl Protocol for Maekawa {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        let answers = match message {
            Message::Request(theirs) => {
                self.clock.merge(theirs.time);
                self.arbiter.on_request(theirs)
            }
            Message::Yield { request, round, rival } => self.arbiter.on_yield(request, round, rival),
            Message::Release { request, fence } => self.arbiter.on_release(request, fence),
            Message::Grant { request, round, fence, .. } => {
                return self.on_grant(from, request, round, fence, cx);
            }
            Message::Failed(request) => return self.on_failed(from, request),
            Message::Inquire { request, round, rival } => {
                return self.on_inquire(from, request, round, rival);
            }
        };
        for answer in answers {
            cx.send(answer.requester(), answer);
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.exit(cx),
            Command::Release => {}
            Command::Witness(time) => self.clock.merge(time),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            let mine = Stamp::new(self.clock.tick(), cx.me());
            self.wanted = Some(mine);
            self.votes.iter().for_each(|vote| cx.send(vote.arbiter, Message::Request(mine)));
        }
        if let Some(mine) = self.wanted.filter(|_| self.door.is_asking()) {
            self.yield_if_stuck(mine, cx);
            if self.votes.iter().all(|vote| vote.standing == Standing::Granted) {
                self.votes.iter_mut().for_each(|vote| vote.inquiry = None); // the RELEASE will answer
                self.fence = self.fence.next();
                self.door.enter(self.fence, cx);
            }
        }
    }
}

impl Maekawa {
    fn on_grant(&mut self, from: NodeId, request: Stamp, round: u32, fence: Fence, cx: &mut Cx<'_, Self>) {
        if self.wanted != Some(request) {
            // A duplicate brought a request back to life that is over. This may overtake its true RELEASE, so
            // that the fence must be as large.
            cx.send(from, Message::Release { request, fence: self.fence });
        } else if let Some(vote) = self.vote(from, request)
            && vote.round == round
            && vote.standing != Standing::Granted
        {
            vote.standing = Standing::Granted;
            self.fence = self.fence.max(fence);
        }
    }

    fn on_failed(&mut self, from: NodeId, request: Stamp) {
        // Once granted, a FAILED is late: it was sent before the grant, and says nothing any more.
        if let Some(vote) = self.vote(from, request)
            && vote.standing == Standing::Asked
        {
            vote.standing = Standing::Failed;
        }
    }

    fn on_inquire(&mut self, from: NodeId, request: Stamp, round: u32, rival: Stamp) {
        let asking = self.door.is_asking();
        if let Some(vote) = self.vote(from, request)
            && asking
            && vote.round == round
        {
            vote.inquiry = Some(rival);
        }
    }

    /// Gives back every grant that is asked for, if some other cannot be had now.
    fn yield_if_stuck(&mut self, mine: Stamp, cx: &mut Cx<'_, Self>) {
        let stuck = |vote: &Vote| matches!(vote.standing, Standing::Failed | Standing::Yielded);
        if !self.votes.iter().any(stuck) {
            return;
        }
        for vote in &mut self.votes {
            if vote.standing == Standing::Granted
                && let Some(rival) = vote.inquiry.take()
            {
                cx.send(vote.arbiter, Message::Yield { request: mine, round: vote.round, rival });
                vote.standing = Standing::Yielded;
                vote.round += 1;
            }
        }
    }

    fn exit(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(request) = self.wanted.take() else { return };
        for vote in &mut self.votes {
            *vote = Vote::new(vote.arbiter);
            cx.send(vote.arbiter, Message::Release { request, fence: self.fence });
        }
    }

    /// How my current request stands with an arbiter; nothing if the message is about an earlier one.
    fn vote(&mut self, from: NodeId, request: Stamp) -> Option<&mut Vote> {
        if self.wanted != Some(request) {
            return None;
        }
        let row = self.votes.binary_search_by_key(&from, |vote| vote.arbiter).ok()?;
        Some(&mut self.votes[row])
    }
}

impl Vote {
    const fn new(arbiter: NodeId) -> Self {
        Self { arbiter, standing: Standing::Asked, round: 0, inquiry: None }
    }
}

impl Message {
    /// The site whose request the message is about.
    pub(crate) fn requester(&self) -> NodeId {
        match self {
            Self::Request(request) | Self::Failed(request) => request.site,
            Self::Grant { request, .. }
            | Self::Inquire { request, .. }
            | Self::Yield { request, .. }
            | Self::Release { request, .. } => request.site,
        }
    }
}

impl Mutex for Maekawa {
    const CARD: Card = Card {
        problem: "mutex",
        name: "maekawa",
        title: "Maekawa",
        summary: "ask a quorum, of which any two meet; who is stuck gives grants back to the older",
        papers: &["M85", "S87"],
        needs: Needs { no_duplication: false, ..Needs::RELIABLE },
        promises: &["ME1", "ME1-causal", "ME2", "fences"],
        costs: &[
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::Low,
                formula: "3(K-1)",
                range: |size| (3.0 * (size.k().0 - 1.0), 3.0 * (size.k().1 - 1.0)),
            },
            Cost {
                measure: Measure::MessagesPerEntry,
                load: Load::High,
                formula: "3(K-1)..7(K-1)",
                range: |size| (3.0 * (size.k().0 - 1.0), 7.0 * (size.k().1 - 1.0)),
            },
            Cost {
                measure: Measure::ClientDelay,
                load: Load::Low,
                formula: "2T",
                range: |size| if size.quorum_max == 1 { (0.0, 0.0) } else { (2.0, 2.0) },
            },
            Cost {
                measure: Measure::SyncDelay,
                load: Load::High,
                formula: "2T, T if the common arbiter is one of the two",
                range: |size| if size.quorum_max == 1 { (0.0, 0.0) } else { (1.0, 2.0) },
            },
        ],
        survives: "the crash of a site that is in no quorum that is needed",
        idle_traffic: false,
        reads_clock: false,
    };

    const USES_QUORUMS: bool = true;

    /// Without quorums in the group, the site uses those of [`Quorum::default_for`] its size.
    fn new(me: NodeId, group: &Group) -> Self {
        let chosen = group.quorums.get(me.index()).cloned();
        let quorum = chosen.unwrap_or_else(|| {
            let default = Quorum::default_for(group.nodes).quorums(group.nodes);
            default.map_or_else(|_| NodeSet::full(group.nodes), |mut all| all.swap_remove(me.index()))
        });
        Self {
            door: Door::default(),
            clock: LamportClock::new(),
            wanted: None,
            votes: quorum.iter().map(Vote::new).collect(),
            fence: Fence::default(),
            arbiter: Arbiter::default(),
        }
    }

    fn bill(message: &Message, _from: NodeId, _to: NodeId) -> Bill {
        match message {
            Message::Request(request) => Bill::enter("REQUEST", request.site, request.time),
            Message::Grant { account, .. } => Bill::enter("GRANT", account.site, account.time),
            Message::Failed(request) => Bill::enter("FAILED", request.site, request.time),
            Message::Inquire { rival, .. } => Bill::enter("INQUIRE", rival.site, rival.time),
            Message::Yield { rival, .. } => Bill::enter("YIELD", rival.site, rival.time),
            Message::Release { request, .. } => Bill::exit("RELEASE", request.site, request.time),
        }
    }

    fn clock(&self) -> u64 {
        self.clock.time()
    }
}

#[cfg(test)]
mod tests;
