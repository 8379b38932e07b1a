//! Maekawa: request permission from a quorum; any two quorums intersect.
//!
//! Every site is also an *arbiter* for some sites, and gives its grant to one of them at a time. A site that
//! has the grants of a whole quorum may enter. Any two quorums share an arbiter, so no other site can enter
//! at the same time. But a site collects its grants one by one, and this can deadlock, as with locks. So an
//! arbiter that granted a younger request too early requests its grant back, and a requester that is stuck
//! returns it.
//!
//! **Rules** \[M85 §4\], corrected by \[S87\]. The arbiter's rules are in `arbiter.rs`. The requester's
//! rules:
//! 1. To request: stamp the request and send REQUEST to the quorum. Enter when all its GRANTs are there. On
//!    exit, send RELEASE.
//! 2. On FAILED from an arbiter: note it. A later GRANT from that arbiter clears the note.
//! 3. On INQUIRE (the arbiter requests its grant back): YIELD the grant if some arbiter has sent FAILED, *or*
//!    if a grant that this site yielded has not come again. Otherwise remember the INQUIRE and decide again
//!    after every change. In the critical section, the RELEASE is the only reply that it needs.
//!
//! **Traps**
//! - An INQUIRE that crosses a RELEASE is about an earlier request: ignore it.
//! - An INQUIRE that overtakes its GRANT must wait for that GRANT.
//! - An INQUIRE that cannot be answered yet must be remembered.
//! - The often quoted "5(K-1) messages" is the cost of the rule of 1985, which deadlocks with three
//!   contenders at one arbiter.
//!
//! A site sends requests to its own arbiter like to any other, as messages to itself. The metrics do not
//! count them, but they may be late. Some executions reach the largest message count only because of that.
//!
//! **Differences from the paper**
//! - Every message names its request, and grants are numbered by *rounds*: how often this arbiter's grant was
//!   yielded. So neither the order nor the duplication of messages matters. A grant for a request that is
//!   over is released at once.
//! - An arbiter puts the largest fence that it knows on its grants, and learns larger ones from releases. A
//!   requester takes one more than the largest fence on its grants. Quorums intersect, so no earlier grant
//!   has that fence.
//! - INQUIRE, YIELD and the second GRANT name the rival on whose behalf they are sent. The metrics count them
//!   for the rival.

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
    /// This site's request, from the moment of the request until the exit.
    pub(crate) wanted: Option<Stamp>,
    /// The state of that request at each arbiter of this site's quorum, in order of ids.
    pub(crate) votes: Box<[Vote]>,
    /// The largest fence that this site used or received with a grant.
    pub(crate) fence: Fence,
    /// The arbiter part of this site.
    pub(crate) arbiter: Arbiter,
}

/// The state of this site's request at one arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Vote {
    pub(crate) arbiter: NodeId,
    pub(crate) standing: Standing,
    /// The number of times that this site yielded the arbiter's grant.
    pub(crate) round: u32,
    /// The rival for which the arbiter requested its grant back, if this site has not replied yet.
    pub(crate) inquiry: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    /// Requested, or about to be.
    Asked,
    /// The arbiter replied that an older request exists.
    Failed,
    /// This site has the arbiter's grant.
    Granted,
    /// This site had the arbiter's grant and returned it. The grant will come again.
    Yielded,
}

/// A message between two sites. A request is identified by its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To an arbiter: requests its grant.
    Request(Stamp),
    /// From an arbiter: grants the request, and no other request until a YIELD or RELEASE. (LOCKED in the
    /// paper.)
    Grant {
        /// The granted request.
        request: Stamp,
        /// The number of times that this grant was given before, and yielded.
        round: u32,
        /// The largest fence that the arbiter knows.
        fence: Fence,
        /// The request that displaced this one, if it was granted before; otherwise the request itself.
        account: Stamp,
    },
    /// From an arbiter: an older request exists.
    Failed(Stamp),
    /// From an arbiter: an older request has arrived. If the receiver is stuck, it must return the grant.
    Inquire {
        /// The request that was granted.
        request: Stamp,
        /// The round of the grant that is meant.
        round: u32,
        /// The older request.
        rival: Stamp,
    },
    /// To an arbiter: the sender is stuck and returns the grant. (RELINQUISH in the paper.)
    Yield {
        /// The sender's request.
        request: Stamp,
        /// The round of the grant that is meant.
        round: u32,
        /// The older request.
        rival: Stamp,
    },
    /// To an arbiter: the sender has left the critical section.
    Release {
        /// The sender's request.
        request: Stamp,
        /// The largest fence that the sender knows: that of its entry, or a later one.
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
                self.votes.iter_mut().for_each(|vote| vote.inquiry = None); // the RELEASE will be the reply
                self.fence = self.fence.next();
                self.door.enter(self.fence, cx);
            }
        }
    }
}

impl Maekawa {
    fn on_grant(&mut self, from: NodeId, request: Stamp, round: u32, fence: Fence, cx: &mut Cx<'_, Self>) {
        if self.wanted != Some(request) {
            // A duplicate REQUEST made the arbiter grant a request that is over. This message may overtake
            // the true RELEASE, so it must carry as large a fence.
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
        // After the grant, a FAILED is late: the arbiter sent it before the grant, and it no longer matters.
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

    /// Returns every grant that an arbiter requested back, if this site is stuck: some other grant cannot
    /// come now.
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

    /// Returns the state of the current request at an arbiter. `None` if the message is about another
    /// request, or the sender is not in the quorum.
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
    /// Returns the site whose request the message is about.
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
        summary: "a site asks a quorum; any two quorums meet; a blocked site yields its grants to older requests",
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
                formula: "2T; T if the common arbiter is one of the two",
                range: |size| if size.quorum_max == 1 { (0.0, 0.0) } else { (1.0, 2.0) },
            },
        ],
        survives: "the crash of a site that is in no quorum of a requesting site",
        idle_traffic: false,
        reads_clock: false,
    };

    const USES_QUORUMS: bool = true;

    /// Creates one site. If the group gives no quorums, the site uses [`Quorum::default_for`] its size.
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
