//! The room of mutual exclusion as a model: every site enters a few times, and a judge watches.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use conclave_algorithms::mutex::spec::{FENCES, ME1, ME1_CAUSAL, ME2, ME3};
use conclave_algorithms::mutex::{Command, Event, Fence, Group, Mutex};
use conclave_check::{Findings, Model, Monitor, Offer};
use conclave_kernel::{NodeId, Property};

/// A group in which each site enters the critical section so many times.
pub struct Room<P, J> {
    pub group: Group,
    pub entries: u8,
    judge: PhantomData<fn() -> (P, J)>,
}

impl<P: Mutex, J: Judge> Room<P, J> {
    pub fn new(nodes: u32, entries: u8) -> Self {
        Self::of(Group::new(nodes), entries)
    }

    pub fn of(group: Group, entries: u8) -> Self {
        Self { group, entries, judge: PhantomData }
    }
}

impl<P: Mutex, J: Judge> Model for Room<P, J> {
    type Protocol = P;
    type Monitor = Desk<J>;

    fn name(&self) -> String {
        P::CARD.path().to_string()
    }

    fn nodes(&self) -> u32 {
        self.group.nodes
    }

    fn site(&self, me: NodeId) -> P {
        P::new(me, &self.group)
    }

    fn monitor(&self) -> Desk<J> {
        let site = Site { place: Place::Outside, left: self.entries };
        Desk { sites: vec![site; self.group.nodes as usize], judge: J::new(self.group.nodes) }
    }

    fn liveness(&self) -> Property {
        ME2
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        P::bill(message, NodeId(0), NodeId(0)).kind
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["two ask at once", "somebody asks while another is inside"]
    }
}

/// Offers the work, and watches who is where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Desk<J> {
    sites: Vec<Site>,
    judge: J,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Site {
    place: Place,
    left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Outside,
    Asking,
    Inside,
}

impl<J> Desk<J> {
    fn at(&self, place: Place) -> impl Iterator<Item = usize> + '_ {
        self.sites.iter().enumerate().filter(move |(_, site)| site.place == place).map(|(index, _)| index)
    }
}

impl<P: Mutex, J: Judge> Monitor<P> for Desk<J> {
    type Note = J::Note;
    const NOTES: bool = J::NOTES;

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command>)) {
        for (index, site) in self.sites.iter().enumerate() {
            let node = NodeId(index as u32);
            match site.place {
                Place::Outside if site.left > 0 => {
                    offer(Offer { node, command: Command::Acquire, required: false });
                }
                Place::Inside => offer(Offer { node, command: Command::Release, required: true }),
                _ => {}
            }
        }
    }

    fn pending(&self) -> u64 {
        self.at(Place::Asking).fold(0, |bits, index| bits | 1 << index)
    }

    fn shows(&self) -> u64 {
        let (asking, inside) = (self.at(Place::Asking).count(), self.at(Place::Inside).count());
        u64::from(asking > 1) | u64::from(asking > 0 && inside > 0) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _: &mut Findings) {
        let site = &mut self.sites[node.index()];
        if *command == Command::Acquire {
            site.place = Place::Asking;
            // 255 stands for without end.
            site.left -= u8::from(site.left < u8::MAX);
            self.judge.asks(node);
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        match event {
            Event::Granted { fence } => {
                if let Some(other) = self.at(Place::Inside).next() {
                    findings.breach(&ME1, format!("{node} entered while n{other} was inside"));
                }
                self.sites[node.index()].place = Place::Inside;
                let asking = self.at(Place::Asking).collect::<Vec<_>>();
                self.judge.enters(node, *fence, &asking, findings);
            }
            Event::Released => {
                self.sites[node.index()].place = Place::Outside;
                self.judge.leaves(node);
            }
            Event::Refused(_) => {}
        }
    }

    fn on_send(&mut self, from: NodeId, _: NodeId, _: &P::Message) -> J::Note {
        self.judge.sends(from)
    }

    fn on_deliver(&mut self, _: NodeId, to: NodeId, note: &J::Note) {
        self.judge.receives(to, note);
    }

    fn on_crash(&mut self, node: NodeId, _: &mut Findings) {
        self.sites[node.index()] = Site { place: Place::Outside, left: 0 };
    }
}

/// What is judged besides ME1 and ME2.
pub trait Judge: Clone + Debug + Eq + Hash + Send + 'static {
    type Note: Clone + Debug + Default + Eq + Hash + Send + 'static;
    const NOTES: bool = false;
    fn new(nodes: u32) -> Self;
    fn asks(&mut self, _: NodeId) {}
    fn enters(&mut self, _: NodeId, _: Fence, _asking: &[usize], _: &mut Findings) {}
    fn leaves(&mut self, _: NodeId) {}
    fn sends(&mut self, _: NodeId) -> Self::Note {
        Self::Note::default()
    }
    fn receives(&mut self, _: NodeId, _: &Self::Note) {}
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
    fn enters(&mut self, node: NodeId, fence: Fence, _: &[usize], findings: &mut Findings) {
        if let Some(last) = self.last.filter(|last| fence <= *last) {
            findings.breach(&FENCES, format!("{node} was granted with fence {fence} after fence {last}"));
        }
        self.last = self.last.max(Some(fence));
    }
}

/// Causality: every exit happened before the next entry, and grants follow the order of requests. Each site
/// knows the latest exit in its past, and how many requests of each site lie there; so does each message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Causal {
    /// What each site knows.
    known: Vec<Known>,
    /// What each site knew of when it asked.
    asked: Vec<Box<[u8]>>,
    requests: Box<[u8]>,
    entries: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Known {
    exit: u8,
    requests: Box<[u8]>,
}

impl Judge for Causal {
    type Note = Known;
    const NOTES: bool = true;

    fn new(nodes: u32) -> Self {
        let none = vec![0; nodes as usize].into_boxed_slice();
        let known = Known { exit: 0, requests: none.clone() };
        Self {
            known: vec![known; nodes as usize],
            asked: vec![none.clone(); nodes as usize],
            requests: none,
            entries: 0,
        }
    }

    fn asks(&mut self, node: NodeId) {
        let row = node.index();
        self.asked[row] = self.known[row].requests.clone();
        self.requests[row] += 1;
        self.known[row].requests[row] = self.requests[row];
    }

    fn enters(&mut self, node: NodeId, _: Fence, asking: &[usize], findings: &mut Findings) {
        let row = node.index();
        if self.known[row].exit < self.entries {
            findings.breach(
                &ME1_CAUSAL,
                format!("{node} entered without knowing that entry {} had ended", self.entries),
            );
        }
        if let Some(older) = asking.iter().find(|other| self.asked[row][**other] == self.requests[**other]) {
            findings.breach(&ME3, format!("{node} entered before n{older}, whose request it knew of"));
        }
        self.asked[row].fill(0);
        self.entries += 1;
    }

    fn leaves(&mut self, node: NodeId) {
        self.known[node.index()].exit = self.entries;
    }

    fn sends(&mut self, from: NodeId) -> Known {
        self.known[from.index()].clone()
    }

    fn receives(&mut self, to: NodeId, note: &Known) {
        let known = &mut self.known[to.index()];
        known.exit = known.exit.max(note.exit);
        for (mine, theirs) in known.requests.iter_mut().zip(&note.requests) {
            *mine = (*mine).max(*theirs);
        }
    }
}
