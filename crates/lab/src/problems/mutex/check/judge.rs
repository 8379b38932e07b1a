//! The judges of the properties besides exclusion and progress. The state of a judge is part of the explored
//! state, so a judge remembers no more than it needs.

use std::fmt::Debug;
use std::hash::Hash;

use conclave_algorithms::mutex::Fence;
use conclave_algorithms::mutex::spec::{FENCES, ME1_CAUSAL, ME3};
use conclave_check::Findings;
use conclave_kernel::NodeId;

/// Sees who asks, enters, leaves and speaks.
pub trait Judge: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    /// What rides on every message for its sake.
    type Note: Clone + Debug + Default + Eq + Hash + Send + 'static;
    /// Whether anything does.
    const NOTES: bool = false;

    /// Before anything happened.
    fn new(nodes: u32) -> Self;
    /// Whether a site that is outside may ask now.
    fn may_ask(&self, site: NodeId) -> bool {
        let _ = site;
        true
    }
    /// A site asks.
    fn asks(&mut self, site: NodeId) {
        let _ = site;
    }
    /// A site enters, while these ask.
    fn enters(&mut self, site: NodeId, fence: Fence, asking: &[usize], findings: &mut Findings) {
        let _ = (site, fence, asking, findings);
    }
    /// A site leaves.
    fn leaves(&mut self, site: NodeId) {
        let _ = site;
    }
    /// A message leaves; the answer rides on it.
    fn sends(&mut self, from: NodeId, to: NodeId) -> Self::Note {
        let _ = (from, to);
        Self::Note::default()
    }
    /// A message arrives, with what rode on it.
    fn receives(&mut self, from: NodeId, to: NodeId, note: &Self::Note) {
        let _ = (from, to, note);
    }
    /// A site dies; whether it was inside.
    fn crashes(&mut self, inside: bool) {
        let _ = inside;
    }
}

/// Nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bare;

impl Judge for Bare {
    type Note = ();
    fn new(_: u32) -> Self {
        Self
    }
}

/// Nothing more; and nobody asks before all that it said to others has arrived. So no more than a few messages are ever under
/// way, and sites that ask for ever make a graph that is finite.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quiet {
    /// How many messages of each site to others are under way.
    under_way: Vec<u8>,
}

impl Judge for Quiet {
    type Note = ();
    const NOTES: bool = true;

    fn new(nodes: u32) -> Self {
        Self { under_way: vec![0; nodes as usize] }
    }
    fn may_ask(&self, site: NodeId) -> bool {
        self.under_way[site.index()] == 0
    }
    fn sends(&mut self, from: NodeId, to: NodeId) {
        self.under_way[from.index()] += u8::from(from != to);
    }
    fn receives(&mut self, from: NodeId, to: NodeId, (): &()) {
        self.under_way[from.index()] -= u8::from(from != to);
    }
}

/// Fences grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fences {
    last: Option<Fence>,
}

impl Judge for Fences {
    type Note = ();

    fn new(_: u32) -> Self {
        Self { last: None }
    }
    fn enters(&mut self, site: NodeId, fence: Fence, _: &[usize], findings: &mut Findings) {
        if let Some(last) = self.last.filter(|last| fence <= *last) {
            findings.breach(&FENCES, format!("{site} was granted fence {fence} after fence {last}"));
        }
        self.last = self.last.max(Some(fence));
    }
}

/// Causality: every exit happened before the next entry; and, if `ORDER`, grants follow the order of requests. Each
/// site knows the latest exit in its past, and how many requests of each site lie there; so does each message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Causal<const ORDER: bool> {
    /// What each site knows.
    known: Vec<Known>,
    /// What each site knew of when it asked.
    asked: Vec<Box<[u16]>>,
    requests: Box<[u16]>,
    entries: u16,
    /// Somebody died inside: nobody can know that it left.
    blind: bool,
}

/// What lies in a site's past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    exit: u16,
    requests: Box<[u16]>,
}

impl<const ORDER: bool> Judge for Causal<ORDER> {
    type Note = Known;
    const NOTES: bool = true;

    fn new(nodes: u32) -> Self {
        let none = vec![0; if ORDER { nodes as usize } else { 0 }].into_boxed_slice();
        let known = Known { exit: 0, requests: none.clone() };
        Self {
            known: vec![known; nodes as usize],
            asked: vec![none.clone(); nodes as usize],
            requests: none,
            entries: 0,
            blind: false,
        }
    }

    fn asks(&mut self, site: NodeId) {
        if ORDER {
            let row = site.index();
            self.asked[row] = self.known[row].requests.clone();
            self.requests[row] += 1;
            self.known[row].requests[row] = self.requests[row];
        }
    }

    fn enters(&mut self, site: NodeId, _: Fence, asking: &[usize], findings: &mut Findings) {
        let row = site.index();
        if self.known[row].exit < self.entries && !self.blind {
            findings.breach(
                &ME1_CAUSAL,
                format!("{site} entered, but did not know that entry {} had ended", self.entries),
            );
        }
        let knew = |other: &&usize| ORDER && self.asked[row][**other] == self.requests[**other];
        if let Some(older) = asking.iter().find(knew) {
            findings.breach(
                &ME3,
                format!("{site} entered before n{older}, although it knew of the request of n{older}"),
            );
        }
        self.asked[row].fill(0);
        self.entries += 1;
    }

    fn leaves(&mut self, site: NodeId) {
        self.known[site.index()].exit = self.entries;
    }

    fn sends(&mut self, from: NodeId, _: NodeId) -> Known {
        self.known[from.index()].clone()
    }

    fn receives(&mut self, _: NodeId, to: NodeId, note: &Known) {
        let known = &mut self.known[to.index()];
        known.exit = known.exit.max(note.exit);
        for (mine, theirs) in known.requests.iter_mut().zip(&note.requests) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn crashes(&mut self, inside: bool) {
        self.blind |= inside;
    }
}

/// One of the judges for whom nothing rides on messages. Together, because every type is explored by code of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Plain {
    /// Nothing more.
    Bare(Bare),
    /// Fences grow.
    Fences(Fences),
}

impl Judge for Plain {
    type Note = ();

    fn new(_: u32) -> Self {
        Self::Bare(Bare)
    }
    fn enters(&mut self, site: NodeId, fence: Fence, asking: &[usize], findings: &mut Findings) {
        match self {
            Self::Bare(judge) => judge.enters(site, fence, asking, findings),
            Self::Fences(judge) => judge.enters(site, fence, asking, findings),
        }
    }
}

/// One of the judges that let notes ride on messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Noted {
    /// Nothing more, and nobody speaks too soon.
    Quiet(Quiet),
    /// Every exit happened before the next entry.
    Causality(Causal<false>),
    /// The same, and grants follow the order of requests.
    Order(Causal<true>),
}

impl Judge for Noted {
    type Note = Known;
    const NOTES: bool = true;

    fn new(nodes: u32) -> Self {
        Self::Causality(Causal::new(nodes))
    }
    fn may_ask(&self, site: NodeId) -> bool {
        match self {
            Self::Quiet(judge) => judge.may_ask(site),
            Self::Causality(_) | Self::Order(_) => true,
        }
    }
    fn asks(&mut self, site: NodeId) {
        match self {
            Self::Quiet(_) | Self::Causality(_) => {}
            Self::Order(judge) => judge.asks(site),
        }
    }
    fn enters(&mut self, site: NodeId, fence: Fence, asking: &[usize], findings: &mut Findings) {
        match self {
            Self::Quiet(_) => {}
            Self::Causality(judge) => judge.enters(site, fence, asking, findings),
            Self::Order(judge) => judge.enters(site, fence, asking, findings),
        }
    }
    fn leaves(&mut self, site: NodeId) {
        match self {
            Self::Quiet(_) => {}
            Self::Causality(judge) => judge.leaves(site),
            Self::Order(judge) => judge.leaves(site),
        }
    }
    fn sends(&mut self, from: NodeId, to: NodeId) -> Known {
        match self {
            Self::Quiet(judge) => {
                judge.sends(from, to);
                Known::default()
            }
            Self::Causality(judge) => judge.sends(from, to),
            Self::Order(judge) => judge.sends(from, to),
        }
    }
    fn receives(&mut self, from: NodeId, to: NodeId, note: &Known) {
        match self {
            Self::Quiet(judge) => judge.receives(from, to, &()),
            Self::Causality(judge) => judge.receives(from, to, note),
            Self::Order(judge) => judge.receives(from, to, note),
        }
    }
    fn crashes(&mut self, inside: bool) {
        match self {
            Self::Quiet(_) => {}
            Self::Causality(judge) => judge.crashes(inside),
            Self::Order(judge) => judge.crashes(inside),
        }
    }
}
