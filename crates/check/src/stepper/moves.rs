//! The edges out of a state.

use super::{Outcome, Span, Stepper, contribution, nonzero, plain_fingerprint};
use crate::options::{Order, Timing};
use crate::registry::NOTHING;
use crate::system::{CRASH, Post, RECOVER};

/// A step from one state to another.
pub(crate) struct Edge<'a> {
    /// The state after the step.
    pub(crate) words: &'a [u32],
    pub(crate) fingerprint: u64,
    pub(crate) action: Action,
    /// The violation: a number for [`Stepper::breach`], or 0.
    pub(crate) breach: u32,
    /// The messages sent, as packets.
    pub(crate) posts: &'a [Post],
    /// The outcome at the site, if a site stepped.
    pub(crate) outcome: Option<Outcome>,
}

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) kind: Kind,
    /// The site of the action.
    pub(crate) node: u32,
    /// The packet, or the input.
    pub(crate) what: u32,
    /// The index of the combination of random choices.
    pub(crate) fall: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Start,
    Command { required: bool },
    Deliver,
    Timer,
    Recover,
    Tick,
    Duplicate,
    Lose,
    Crash,
}

impl Kind {
    /// Whether the action is a fault, which need not happen.
    fn is_fault(self) -> bool {
        matches!(self, Self::Duplicate | Self::Lose | Self::Crash)
    }

    /// Returns a number of the kind, below 2^16 - 1.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Start => 0,
            Self::Command { required } => 1 + u32::from(required),
            Self::Deliver => 3,
            Self::Timer => 4,
            Self::Recover => 5,
            Self::Tick => 6,
            Self::Duplicate => 7,
            Self::Lose => 8,
            Self::Crash => 9,
        }
    }

    /// Whether the action must happen in the end if it stays possible.
    fn is_required(self) -> bool {
        !self.is_fault() && self != Self::Command { required: false }
    }
}

/// The facts about a state whose edges are all known. An edge back to the same state is no step, because
/// nothing changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outlook {
    /// Whether a step is possible, apart from faults.
    pub(crate) moves: bool,
    /// Whether a step must happen.
    pub(crate) required: bool,
}

/// A step before its random choices.
#[derive(Clone, Copy)]
struct Planned {
    action: Action,
    input: u32,
    /// The site's inbox after the step.
    inbox: Option<u32>,
    note: u32,
    /// The rest of the fault budget.
    budget: u32,
}

impl Stepper<'_> {
    /// Passes every edge out of a state to `sink`.
    pub(crate) fn expand(&mut self, state: &[u32], sink: &mut impl FnMut(Edge<'_>)) -> Outlook {
        self.base.clear();
        self.base.extend_from_slice(state);
        let before = plain_fingerprint(state);
        let mut outlook = Outlook::default();
        let before_nonzero = nonzero(before);
        let stutters =
            |edge: &Edge<'_>| edge.breach == 0 && edge.fingerprint == before_nonzero && edge.words == state;
        let mut sink = |edge: Edge<'_>| {
            if !stutters(&edge) {
                outlook.moves |= !edge.action.kind.is_fault();
                outlook.required |= edge.action.kind.is_required();
                sink(edge);
            }
        };
        self.commands(before, &mut sink);
        for node in 0..self.ground.nodes {
            self.deliveries(before, node, &mut sink);
            self.timers(before, node, &mut sink);
        }
        if self.ground.faults.crash > 0 {
            self.crashes(before, &mut sink);
        }
        if let Timing::Sync { .. } = self.ground.timing {
            self.tick(before, &mut sink);
        }
        if !self.crossing {
            self.look_for_crossing();
        }
        outlook
    }

    /// Passes the edges on which a site starts to `sink`.
    pub(crate) fn start(&mut self, state: &[u32], node: u32, input: u32, sink: &mut impl FnMut(Edge<'_>)) {
        self.base.clear();
        self.base.extend_from_slice(state);
        let action = Action { kind: Kind::Start, node, what: input, fall: 0 };
        self.act(plain_fingerprint(state), self.plan(action, input), sink);
    }

    fn commands(&mut self, before: u64, sink: &mut impl FnMut(Edge<'_>)) {
        let offers = self.monitor(self.base[self.monitor_slot()]).offers;
        for index in offers.range() {
            let offer = self.offers[index];
            if self.local(self.base[offer.node as usize]).up {
                let kind = Kind::Command { required: offer.required };
                let action = Action { kind, node: offer.node, what: offer.input, fall: 0 };
                self.act(before, self.plan(action, offer.input), sink);
            }
        }
    }

    fn deliveries(&mut self, before: u64, node: u32, sink: &mut impl FnMut(Edge<'_>)) {
        let slot = self.inbox_slot(node);
        let info = self.inbox(self.base[slot]);
        let [loss, duplication, ..] = self.budget();
        for index in info.deliveries.range() {
            let delivery = self.deliveries[index];
            let packet = self.packets[delivery.packet as usize];
            let action = Action { kind: Kind::Deliver, node, what: delivery.packet, fall: 0 };
            let plan = self.plan(action, packet.input);
            self.act(before, Planned { inbox: Some(delivery.rest), note: packet.note, ..plan }, sink);
            if loss > 0 && packet.from != packet.to {
                self.draft.clone_from(&self.base);
                let mut fingerprint = before;
                self.set(slot, delivery.rest, &mut fingerprint);
                self.set(self.budget_slot(), self.base[self.budget_slot()] - LOSS, &mut fingerprint);
                let action = Action { kind: Kind::Lose, ..action };
                self.hand_over(fingerprint, action, 0, Span::default(), None, sink);
            }
        }
        if duplication > 0 {
            for index in info.copies.range() {
                let copy = self.deliveries[index];
                let packet = self.packets[copy.packet as usize];
                if packet.from == packet.to {
                    continue;
                }
                let action = Action { kind: Kind::Duplicate, node, what: copy.packet, fall: 0 };
                let plan = self.plan(action, packet.input);
                let budget = plan.budget - DUPLICATION;
                self.act(before, Planned { inbox: Some(copy.rest), note: packet.note, budget, ..plan }, sink);
            }
        }
    }

    fn timers(&mut self, before: u64, node: u32, sink: &mut impl FnMut(Edge<'_>)) {
        let timers = self.local(self.base[node as usize]).timers;
        for index in timers.range() {
            let input = self.timers[index];
            let action = Action { kind: Kind::Timer, node, what: input, fall: 0 };
            self.act(before, self.plan(action, input), sink);
        }
    }

    fn crashes(&mut self, before: u64, sink: &mut impl FnMut(Edge<'_>)) {
        let [_, _, crash, _] = self.budget();
        for node in 0..self.ground.nodes {
            let up = self.local(self.base[node as usize]).up;
            if up && crash > 0 {
                let action = Action { kind: Kind::Crash, node, what: CRASH, fall: 0 };
                let plan = self.plan(action, CRASH);
                // A site that never recovers receives no message that is in flight.
                let inbox = self.ground.faults.recovery.is_none().then_some(NOTHING);
                self.act(before, Planned { inbox, budget: plan.budget - CRASHES, ..plan }, sink);
            }
            if !up && self.ground.faults.recovery.is_some() {
                let action = Action { kind: Kind::Recover, node, what: RECOVER, fall: 0 };
                self.act(before, self.plan(action, RECOVER), sink);
            }
        }
    }

    fn tick(&mut self, before: u64, sink: &mut impl FnMut(Edge<'_>)) {
        self.draft.clone_from(&self.base);
        let mut fingerprint = before;
        for node in 0..self.ground.nodes {
            let Some(local) = self.tick_local(self.base[node as usize]) else { return };
            let slot = self.inbox_slot(node);
            let Some(inbox) = self.tick_inbox(self.base[slot]) else { return };
            self.set(node as usize, local, &mut fingerprint);
            self.set(slot, inbox, &mut fingerprint);
        }
        let action = Action { kind: Kind::Tick, node: 0, what: 0, fall: 0 };
        self.hand_over(fingerprint, action, 0, Span::default(), None, sink);
    }

    fn plan(&self, action: Action, input: u32) -> Planned {
        Planned { action, input, inbox: None, note: NOTHING, budget: self.base[self.budget_slot()] }
    }

    /// Passes one edge to `sink` for each combination of random choices.
    #[inline]
    fn act(&mut self, before: u64, planned: Planned, sink: &mut impl FnMut(Edge<'_>)) {
        let node = planned.action.node as usize;
        let Some(first) = self.first_outcome(self.base[node], planned.input) else { return };
        for fall in 0.. {
            let outcome = self.outcomes[first + fall];
            self.draft.clone_from(&self.base);
            let mut fingerprint = before;
            self.set(node, outcome.local, &mut fingerprint);
            self.set(self.budget_slot(), planned.budget, &mut fingerprint);
            if let Some(inbox) = planned.inbox {
                self.set(self.inbox_slot(node as u32), inbox, &mut fingerprint);
            }
            let (mut breach, mut posts) = (0, outcome.posts);
            if outcome.observation != NOTHING {
                let slot = self.monitor_slot();
                let judgement = self.judge(self.base[slot], outcome.observation, planned.note);
                self.set(slot, judgement.monitor, &mut fingerprint);
                breach = judgement.breach;
                if self.ground.notes {
                    posts = judgement.posts;
                }
            }
            for index in posts.range() {
                let Post { to, packet } = self.posts[index];
                if self.ground.faults.crash > 0 && self.is_gone(to) {
                    continue;
                }
                let slot = self.inbox_slot(to);
                let more = self.push(self.draft[slot], packet);
                self.set(slot, more, &mut fingerprint);
            }
            let action = Action { fall: fall as u32, ..planned.action };
            self.hand_over(fingerprint, action, breach, posts, Some(outcome), sink);
            if !outcome.more {
                break;
            }
        }
    }

    #[inline]
    fn hand_over(
        &mut self,
        fingerprint: u64,
        action: Action,
        breach: u32,
        posts: Span,
        outcome: Option<Outcome>,
        sink: &mut impl FnMut(Edge<'_>),
    ) {
        let fingerprint = if self.ground.symmetries.is_empty() {
            nonzero(fingerprint)
        } else {
            let draft = std::mem::take(&mut self.draft);
            let canonical = self.canonical_fingerprint(&draft);
            self.draft = draft;
            canonical
        };
        let posts = posts.of(&self.posts);
        sink(Edge { words: &self.draft, fingerprint, action, breach, posts, outcome });
    }

    #[inline]
    fn set(&mut self, slot: usize, word: u32, fingerprint: &mut u64) {
        let old = std::mem::replace(&mut self.draft[slot], word);
        if old != word {
            let difference = contribution(slot, word).wrapping_sub(contribution(slot, old));
            *fingerprint = fingerprint.wrapping_add(difference);
        }
    }

    fn budget(&self) -> [u8; 4] {
        self.base[self.budget_slot()].to_le_bytes()
    }

    /// Returns whether the site is down and never recovers.
    fn is_gone(&mut self, node: u32) -> bool {
        self.ground.faults.recovery.is_none() && !self.local(self.draft[node as usize]).up
    }

    /// Returns whether two messages are in flight between two sites, one in each direction.
    fn look_for_crossing(&mut self) {
        let nodes = self.ground.nodes;
        for one in 0..nodes {
            let senders = self.inbox(self.base[self.inbox_slot(one)]).senders;
            for other in (one + 1..nodes).filter(|other| senders & (1 << other) != 0) {
                self.crossing |= self.inbox(self.base[self.inbox_slot(other)]).senders & (1 << one) != 0;
            }
        }
    }

    /// Returns the action in the sense of weak fairness: if it stays possible, it happens in the end. `None`
    /// if it need not happen.
    pub(crate) fn fair_key(&mut self, action: Action) -> Option<(Kind, u32, u32)> {
        let Action { kind, node, what, .. } = action;
        match kind {
            // The delivery of a copy is a delivery.
            Kind::Deliver | Kind::Duplicate => {
                let packet = self.packet(what);
                match self.ground.order {
                    Order::Fifo => Some((Kind::Deliver, node, u32::from(packet.from))),
                    Order::Any => Some((Kind::Deliver, node, what)),
                }
            }
            _ if kind.is_required() => Some((kind, node, what)),
            _ => None,
        }
    }
}

const LOSS: u32 = 1;
const DUPLICATION: u32 = 1 << 8;
const CRASHES: u32 = 1 << 16;
