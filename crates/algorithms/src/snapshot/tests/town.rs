//! A group for tests, stepped by hand, with the judge beside it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use conclave_kernel::{Cx, Effect, Env, Input, NodeId, Prng, Protocol, Sink};

use crate::snapshot::spec::{Breach, Judge, Note};
use crate::snapshot::{Application, Command, Event, Picture, Refusal, Snapshot, SnapshotId};

/// The messages in flight on one link, in the order sent, each with the judge's note.
type Link<A, P> = VecDeque<(<P as Protocol>::Message, Note<A>)>;

pub(super) struct Town<A: Application, P: Snapshot<A>> {
    pub(super) nodes: Vec<P>,
    pub(super) judge: Judge<A>,
    pub(super) breaches: Vec<Breach>,
    pub(super) pictures: Vec<(u32, Picture<A>)>,
    pub(super) refused: Vec<(SnapshotId, Refusal)>,
    pub(super) told: Vec<(u32, A::Event)>,
    /// The number of messages of the algorithm itself.
    pub(super) sent: u64,
    links: BTreeMap<(u32, u32), Link<A, P>>,
    timers: Vec<(u32, A::Timer)>,
    dice: Prng,
}

impl<A: Application, P: Snapshot<A>> Town<A, P> {
    pub(super) fn new(apps: impl IntoIterator<Item = A>) -> Self {
        let apps: Vec<_> = apps.into_iter().collect();
        let nodes = apps.len() as u32;
        let site = |(me, app)| P::new(NodeId(me), nodes, app);
        let mut town = Self {
            nodes: (0..nodes).zip(apps).map(site).collect(),
            judge: Judge::new(nodes),
            breaches: Vec::new(),
            pictures: Vec::new(),
            refused: Vec::new(),
            told: Vec::new(),
            sent: 0,
            links: BTreeMap::new(),
            timers: Vec::new(),
            dice: Prng::new(7),
        };
        (0..nodes).for_each(|site| town.step(site, Input::Start));
        town
    }

    pub(super) fn take(&mut self, site: u32, id: u32) {
        self.judge.starts(SnapshotId(id), self.nodes.iter().map(Snapshot::app));
        self.step(site, Input::Command(Command::Take(SnapshotId(id))));
    }

    pub(super) fn ask(&mut self, site: u32, command: A::Command) {
        self.step(site, Input::Command(Command::App(command)));
    }

    /// Delivers the oldest message of a link.
    pub(super) fn deliver(&mut self, from: u32, to: u32) {
        self.deliver_nth(from, to, 0);
    }

    /// Delivers the message at position `nth` of a link, counted from 0.
    pub(super) fn deliver_nth(&mut self, from: u32, to: u32, nth: usize) {
        let link = self.links.get_mut(&(from, to)).expect("something was sent on this link");
        let (message, note) = link.remove(nth).expect("something is under way on this link");
        let breaches = &mut self.breaches;
        self.judge.step_over(|breach| breaches.push(breach));
        self.judge.receives(NodeId(from), NodeId(to), &note);
        self.step(to, Input::Message { from: NodeId(from), message });
    }

    /// Executes one possible event, drawn at random; returns `false` if there is none.
    pub(super) fn stir(&mut self, dice: &mut Prng, fifo: bool) -> bool {
        let busy: Vec<_> =
            self.links.iter().filter(|(_, queue)| !queue.is_empty()).map(|(link, _)| *link).collect();
        let ways = busy.len() + self.timers.len();
        if ways == 0 {
            return false;
        }
        match dice.below(ways as u64) as usize {
            way if way < busy.len() => {
                let (from, to) = busy[way];
                let waiting = self.links[&(from, to)].len() as u64;
                self.deliver_nth(from, to, if fifo { 0 } else { dice.below(waiting) as usize });
            }
            way => {
                let (site, timer) = self.timers.remove(way - busy.len());
                self.step(site, Input::Timer(timer));
            }
        }
        true
    }

    /// Executes events until there are none, then ends the run for the judge.
    pub(super) fn settle(&mut self, dice: &mut Prng, fifo: bool, conserved: Option<u64>) {
        while self.stir(dice, fifo) {}
        let breaches = &mut self.breaches;
        let states: Vec<_> = self.nodes.iter().map(|node| node.app().clone()).collect();
        self.judge.finish(states.iter(), conserved, true, |breach| breaches.push(breach));
    }

    pub(super) fn step(&mut self, site: u32, input: Input<P>) {
        let env = Env::new(NodeId(site), self.nodes.len() as u32);
        let breaches = &mut self.breaches;
        if !matches!(input, Input::Message { .. }) {
            self.judge.step_over(|breach| breaches.push(breach));
        }
        let mut sink = Kept { effects: Vec::new(), dice: &mut self.dice };
        self.nodes[site as usize].step(input, &mut Cx::new(env, &mut sink));
        for effect in sink.effects {
            match effect {
                Effect::Send { to, message } => self.post(site, to.0, message),
                Effect::SendTo { .. } => unreachable!("the layer expands it"),
                Effect::Broadcast { message } => {
                    (0..self.nodes.len() as u32)
                        .filter(|to| *to != site)
                        .for_each(|to| self.post(site, to, message.clone()));
                }
                Effect::Arm { timer, .. } => {
                    self.timers.retain(|armed| *armed != (site, timer));
                    self.timers.push((site, timer));
                }
                Effect::Disarm { timer } => self.timers.retain(|armed| *armed != (site, timer)),
                Effect::Emit { event } => self.hear(site, event),
            }
        }
    }

    fn hear(&mut self, site: u32, event: Event<A>) {
        match event {
            Event::Recorded(id) => self.judge.records(NodeId(site), id),
            Event::Complete(picture) => {
                let breaches = &mut self.breaches;
                self.judge.completes(NodeId(site), &picture, |breach| breaches.push(breach));
                self.pictures.push((site, picture));
            }
            Event::Refused { id, why } => self.refused.push((id, why)),
            Event::App(event) => self.told.push((site, event)),
        }
    }

    fn post(&mut self, from: u32, to: u32, message: P::Message) {
        let note = self.judge.sends(NodeId(from), NodeId(to), P::carried(&message));
        self.sent += u64::from(P::carried(&message).is_none());
        self.links.entry((from, to)).or_default().push_back((message, note));
    }
}

struct Kept<'a, P: Protocol> {
    effects: Vec<Effect<P>>,
    dice: &'a mut Prng,
}

impl<P: Protocol> Sink<P> for Kept<'_, P> {
    fn push(&mut self, effect: Effect<P>) {
        self.effects.push(effect);
    }

    fn choose(&mut self, n: u32) -> u32 {
        self.dice.below(u64::from(n)) as u32
    }
}
