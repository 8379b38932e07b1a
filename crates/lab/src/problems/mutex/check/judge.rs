//! The judge of the properties besides exclusion and progress. Its state is part of the explored state, so it
//! holds no more than it needs.

use conclave_algorithms::mutex::Fence;
use conclave_algorithms::mutex::spec::{FENCES, ME1_CAUSAL, ME3};
use conclave_check::Findings;
use conclave_kernel::NodeId;

use super::Judged;

/// The judge: it sees which sites request, enter, leave and send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Judge {
    /// Nothing is judged.
    Nothing,
    /// Nothing is judged. A site may request only when all its messages to others have arrived. So few
    /// messages are in flight, and endless requests make a finite graph. The field has the number of
    /// messages of each site to others that are in flight.
    Quiet(Vec<u8>),
    /// Fences grow. The field is the largest fence so far.
    Fences(Option<Fence>),
    /// Every exit happened before the next entry. For [`Judged::Order`], grants also follow the order of
    /// requests.
    Causal(Causal),
}

impl Judge {
    /// Creates the judge of these properties, for a group of that size.
    pub fn new(judged: Judged, nodes: u32) -> Self {
        match judged {
            Judged::Exclusion => Self::Nothing,
            Judged::Fences => Self::Fences(None),
            Judged::Causality => Self::Causal(Causal::new(nodes, 0)),
            Judged::Order => Self::Causal(Causal::new(nodes, nodes)),
        }
    }

    /// Creates the judge that keeps the graph of endless requests finite.
    pub fn quiet(nodes: u32) -> Self {
        Self::Quiet(vec![0; nodes as usize])
    }

    /// Returns whether messages carry notes for the judge.
    pub(super) fn has_notes(&self) -> bool {
        matches!(self, Self::Quiet(_) | Self::Causal(_))
    }

    /// Returns whether the order of requests is judged.
    pub(super) fn judges_order(&self) -> bool {
        matches!(self, Self::Causal(causal) if causal.judges_order())
    }

    /// Returns whether a site knows of one of the requests that wait.
    pub(super) fn knows_of_waiting(&self, site: usize, mut waiting: impl Iterator<Item = usize>) -> bool {
        match self {
            Self::Causal(causal) if causal.judges_order() => {
                waiting.any(|other| causal.known[site].requests[other] == causal.requests[other])
            }
            _ => false,
        }
    }

    /// Returns whether a waiting site knew, at its own request, of another request that still waits.
    pub(super) fn knew_of_waiting(&self, site: usize, mut waiting: impl Iterator<Item = usize>) -> bool {
        match self {
            Self::Causal(causal) if causal.judges_order() => {
                waiting.any(|other| other != site && causal.knew(site, other))
            }
            _ => false,
        }
    }

    /// Returns whether a site that is outside may request now.
    pub(super) fn may_request(&self, site: NodeId) -> bool {
        match self {
            Self::Quiet(in_flight) => in_flight[site.index()] == 0,
            _ => true,
        }
    }

    /// Records a request.
    pub(super) fn requests(&mut self, site: NodeId) {
        if let Self::Causal(causal) = self {
            causal.requests(site);
        }
    }

    /// Judges an entry. `waiting` are the sites that have requested and not entered.
    pub(super) fn enters(&mut self, site: NodeId, fence: Fence, waiting: &[usize], findings: &mut Findings) {
        match self {
            Self::Nothing | Self::Quiet(_) => {}
            Self::Fences(last) => {
                if let Some(last) = last.filter(|last| fence <= *last) {
                    findings.breach(&FENCES, format!("{site} was granted fence {fence} after fence {last}"));
                }
                *last = (*last).max(Some(fence));
            }
            Self::Causal(causal) => causal.enters(site, waiting, findings),
        }
    }

    /// Records an exit.
    pub(super) fn leaves(&mut self, site: NodeId) {
        if let Self::Causal(causal) = self {
            causal.known[site.index()].exit = causal.entries;
        }
    }

    /// Records a message that is sent, and returns its note.
    pub(super) fn sends(&mut self, from: NodeId, to: NodeId) -> Known {
        match self {
            Self::Nothing | Self::Fences(_) => Known::default(),
            Self::Quiet(in_flight) => {
                in_flight[from.index()] += u8::from(from != to);
                Known::default()
            }
            Self::Causal(causal) => causal.known[from.index()].clone(),
        }
    }

    /// Records a message that arrives, with its note.
    pub(super) fn receives(&mut self, from: NodeId, to: NodeId, note: &Known) {
        match self {
            Self::Nothing | Self::Fences(_) => {}
            Self::Quiet(in_flight) => in_flight[from.index()] -= u8::from(from != to),
            Self::Causal(causal) => causal.known[to.index()].learn(note),
        }
    }

    /// Records a crash. `inside` is whether the site was inside.
    pub(super) fn crashes(&mut self, inside: bool) {
        if let Self::Causal(causal) = self {
            causal.blind |= inside;
        }
    }
}

/// The judge of causality. Each site knows the latest exit in its past, and the number of requests of each
/// site there. Each message carries the knowledge of its sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Causal {
    /// The knowledge of each site.
    known: Vec<Known>,
    /// The requests that each site knew when it requested.
    at_request: Vec<Box<[u16]>>,
    /// The number of requests of each site; empty if their order is not judged.
    requests: Box<[u16]>,
    entries: u16,
    /// Whether a site crashed inside. No site can know that it left.
    blind: bool,
}

/// The past of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    exit: u16,
    requests: Box<[u16]>,
}

impl Known {
    fn learn(&mut self, other: &Self) {
        self.exit = self.exit.max(other.exit);
        for (mine, theirs) in self.requests.iter_mut().zip(&other.requests) {
            *mine = (*mine).max(*theirs);
        }
    }
}

impl Causal {
    /// Creates the judge of a group. It counts the requests of the first `counted` sites: of all or of none.
    fn new(nodes: u32, counted: u32) -> Self {
        let none = vec![0; counted as usize].into_boxed_slice();
        let known = Known { exit: 0, requests: none.clone() };
        Self {
            known: vec![known; nodes as usize],
            at_request: vec![none.clone(); nodes as usize],
            requests: none,
            entries: 0,
            blind: false,
        }
    }

    fn judges_order(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Returns whether a site knew, at its request, of the latest request of another site.
    fn knew(&self, site: usize, other: usize) -> bool {
        self.at_request[site][other] == self.requests[other]
    }

    fn requests(&mut self, site: NodeId) {
        let row = site.index();
        if self.judges_order() {
            self.at_request[row] = self.known[row].requests.clone();
            self.requests[row] += 1;
            self.known[row].requests[row] = self.requests[row];
        }
    }

    fn enters(&mut self, site: NodeId, waiting: &[usize], findings: &mut Findings) {
        let row = site.index();
        if self.known[row].exit < self.entries && !self.blind {
            findings.breach(
                &ME1_CAUSAL,
                format!("{site} entered, but did not know that entry {} had ended", self.entries),
            );
        }
        let knew = |other: &&usize| self.judges_order() && self.knew(row, **other);
        if let Some(older) = waiting.iter().find(knew) {
            findings.breach(
                &ME3,
                format!("{site} entered before n{older}, although it knew of the request of n{older}"),
            );
        }
        self.at_request[row].fill(0);
        self.entries += 1;
    }
}
