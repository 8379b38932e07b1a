//! The world: it takes the earliest event from the queue, runs the step of its site and applies the effects.

use std::time::Duration;

use conclave_kernel::trace::What;
use conclave_kernel::{
    Cx, Digest, Effect, Env, Header, Input, NodeId, Prng, Protocol, Recording, Sink, StepHead, Time, Trace,
    time,
};

use crate::clock::LocalClock;
use crate::director::{Desk, Director};
use crate::fault::{FaultKind, Recovery};
use crate::network::{Fate, Network};
use crate::progress::{Limits, Progress};
use crate::queue::{Lane, Queue};
use crate::report::{End, Ledger, Outcome};
use crate::setup::Setup;

/// A run of one algorithm: its sites, the network between them, and the director above them.
pub struct World<P: Protocol, D: Director<P>> {
    nodes: Vec<P>,
    core: Core<P, D::Note>,
    director: D,
    make: Box<dyn FnMut(NodeId) -> P>,
    effects: Vec<Effect<P>>,
    setup: Setup,
    check_guards: bool,
}

/// The part of a world that a director can reach through its [`Desk`].
pub(crate) struct Core<P: Protocol, N> {
    pub(crate) now: u64,
    /// Set only by [`Core::stop`].
    stopped: bool,
    pub(crate) sites: Vec<Site>,
    drawers: Vec<Drawer<P>>,
    queue: Queue<Pending<P, N>>,
    network: Network,
    /// The number of messages, commands and wake-ups in the queue. Without any of them the run is quiet.
    work_pending: u64,
    events: u64,
    messages: u64,
    next_id: u64,
    timers_armed: u64,
    progress: Progress,
    ledger: Ledger,
    digest: Digest,
    trace: Option<Box<Trace<P>>>,
}

/// The data of a site that every step needs, besides its state. It is small, so that the data of a thousand
/// sites stays in the processor's cache.
pub(crate) struct Site {
    stamp: u64,
    clock: LocalClock,
    incarnation: u32,
    pub(crate) up: bool,
}

/// The data of a site that only random numbers and timers need.
struct Drawer<P: Protocol> {
    dice: Prng,
    timer_dice: Prng,
    /// The armed timers, each with the number of its arming. There are few, so a list is enough.
    timers: Vec<(P::Timer, u64)>,
}

enum Pending<P: Protocol, N> {
    Message(Envelope<P, N>),
    Timer { node: NodeId, timer: P::Timer, number: u64 },
    Command { node: NodeId, command: P::Command },
    Wake(u64),
    Begin(usize),
    End(usize),
}

#[derive(Clone)]
struct Envelope<P: Protocol, N> {
    from: NodeId,
    to: NodeId,
    id: u64,
    stamp: u64,
    note: N,
    message: P::Message,
}

const NODE: u64 = 0x6e6f_6465;
const TIMER: u64 = 0x7469_6d65;
const CLOCK: u64 = 0x636c_6f63;

impl<P: Protocol, D: Director<P>> World<P, D> {
    /// Creates a world in which `make` builds the sites. The setup must be valid ([`Setup::validate`]).
    pub fn new(setup: Setup, director: D, mut make: impl FnMut(NodeId) -> P + 'static) -> Self {
        let site = |index| {
            let clock = LocalClock::of(index, setup.clocks, &mut Prng::stream(setup.seed, CLOCK, index));
            Site { stamp: 0, clock, incarnation: 0, up: true }
        };
        let drawer = |index| Drawer {
            dice: Prng::stream(setup.seed, NODE, index),
            timer_dice: Prng::stream(setup.seed, TIMER, index),
            timers: Vec::new(),
        };
        let indices = 0..u64::from(setup.nodes);
        let core = Core {
            now: 0,
            stopped: false,
            sites: indices.clone().map(site).collect(),
            drawers: indices.map(drawer).collect(),
            queue: Queue::new(),
            network: Network::new(&setup),
            work_pending: 0,
            events: 0,
            messages: 0,
            next_id: 0,
            timers_armed: 0,
            progress: Progress::new(Limits::default()),
            ledger: Ledger::default(),
            digest: Digest::new(),
            trace: None,
        };
        let nodes = (0..setup.nodes).map(|id| make(NodeId(id))).collect();
        Self { nodes, core, director, make: Box::new(make), effects: Vec::new(), setup, check_guards: true }
    }

    /// Records a trace from the beginning of the run.
    #[must_use]
    pub fn recording(mut self, header: Header) -> Self {
        self.core.trace = Some(Box::new(Trace::new(header)));
        self
    }

    /// Switches off a check of debug builds, which runs the guards again on a copy of the site after every
    /// step. For measurements.
    #[must_use]
    pub fn without_guard_checks(mut self) -> Self {
        self.check_guards = false;
        self
    }

    /// Runs until the director stops the run, the queue is empty, or a limit is reached. The beginning and the
    /// end of a fault count as progress.
    pub fn run(&mut self, limits: Limits) -> Outcome {
        self.core.progress = Progress::new(limits);
        self.begin();
        let end = loop {
            if self.core.progress.has_passed_mark(self.core.events)
                && let Some(end) = self.core.end_before_next_event()
            {
                break end;
            }
            let Some((at, pending)) = self.core.queue.pop() else { break End::Quiet };
            if self.core.progress.is_too_late(at) {
                break self.core.progress.end_at(at);
            }
            self.core.now = at;
            self.handle(pending);
            if self.core.work_pending == 0 && !self.core.stopped {
                self.director.on_quiet(&mut Desk { core: &mut self.core, nodes: &self.nodes });
            }
        };
        self.outcome(end)
    }

    /// Returns the director.
    pub fn director(&self) -> &D {
        &self.director
    }

    /// Returns the states of the sites.
    pub fn nodes(&self) -> &[P] {
        &self.nodes
    }

    /// Consumes the world and returns the director, and the recorded run if it was recorded.
    pub fn into_parts(self) -> (D, Option<Recording>) {
        (self.director, self.core.trace.map(|trace| trace.into_recording()))
    }

    fn begin(&mut self) {
        for (index, fault) in self.setup.faults.iter().enumerate() {
            self.core.queue.push(time::nanos(fault.at), Lane::Alarm, || Pending::Begin(index));
            if let Some(until) = fault.until {
                self.core.queue.push(time::nanos(until), Lane::Alarm, || Pending::End(index));
            }
        }
        for node in (0..self.setup.nodes).map(NodeId) {
            self.step(node, Input::Start, None);
        }
        self.director.on_begin(&mut Desk { core: &mut self.core, nodes: &self.nodes });
    }

    fn outcome(&mut self, end: End) -> Outcome {
        for fault in self.setup.faults.iter().filter(|fault| time::nanos(fault.at) > self.core.now) {
            self.core.ledger.never_struck(fault);
        }
        let (idle_events, idle_time) = self.core.progress.idle(end, self.core.events, self.core.now);
        Outcome {
            end,
            at: Time(self.core.now),
            events: self.core.events,
            messages: self.core.messages,
            digest: self.core.digest.value(),
            ledger: self.core.ledger.clone(),
            idle_events,
            idle_time,
        }
    }

    #[inline(always)]
    fn handle(&mut self, pending: Pending<P, D::Note>) {
        match pending {
            Pending::Message(envelope) => self.deliver(envelope),
            Pending::Timer { node, timer, number } => self.fire(node, timer, number),
            Pending::Command { node, command } => self.command(node, command),
            Pending::Wake(key) => {
                self.core.work_pending -= 1;
                self.director.on_wake(key, &mut Desk { core: &mut self.core, nodes: &self.nodes });
            }
            Pending::Begin(index) => {
                // Absorb the kind, not the index: a plan without a fault that never happened gives the same
                // digest.
                self.core.digest.absorb(&(true, self.core.now, &self.setup.faults[index].kind));
                self.core.progress();
                self.begin_fault(index);
            }
            Pending::End(index) => {
                self.core.digest.absorb(&(false, self.core.now, &self.setup.faults[index].kind));
                self.core.progress();
                self.end_fault(index);
            }
        }
    }

    #[inline(always)]
    fn deliver(&mut self, envelope: Envelope<P, D::Note>) {
        let Envelope { from, to, id, stamp, note, message } = envelope;
        self.core.work_pending -= 1;
        let site = &mut self.core.sites[to.index()];
        if !site.up {
            self.core.ledger.missed += 1;
            self.core.mark(What::Lose(id));
            return;
        }
        site.stamp = site.stamp.max(stamp);
        self.core.network.deliver(to, id);
        self.director.on_deliver(from, to, &note);
        self.core.events += 1;
        self.step_inline(to, Input::Message { from, message }, Some(id));
    }

    fn fire(&mut self, node: NodeId, timer: P::Timer, number: u64) {
        let timers = &mut self.core.drawers[node.index()].timers;
        let Some(armed) = timers.iter().position(|armed| *armed == (timer, number)) else { return };
        match self.core.network.awake(node, self.core.now) {
            Some(awake) if awake > self.core.now => {
                self.core.queue.push(awake, Lane::Alarm, || Pending::Timer { node, timer, number });
            }
            Some(_) => {
                timers.swap_remove(armed);
                self.core.events += 1;
                self.step(node, Input::Timer(timer), None);
            }
            None => {}
        }
    }

    fn command(&mut self, node: NodeId, command: P::Command) {
        match self.core.network.awake(node, self.core.now) {
            Some(awake) if awake > self.core.now => {
                self.core.queue.push(awake, Lane::Alarm, || Pending::Command { node, command });
                return;
            }
            Some(_) => self.core.work_pending -= 1,
            None => return,
        }
        if !self.core.sites[node.index()].up {
            self.core.ledger.missed += 1;
            return;
        }
        self.director.on_command(node, &command, Time(self.core.now));
        self.core.events += 1;
        self.step(node, Input::Command(command), None);
    }

    fn step(&mut self, node: NodeId, input: Input<P>, received: Option<u64>) {
        self.step_inline(node, input, received);
    }

    /// Executes one whole step of one site: handler, guards, effects. A run spends most of its time with the
    /// delivery of messages, so the step is inlined there to avoid copies of the message.
    #[inline(always)]
    fn step_inline(&mut self, node: NodeId, input: Input<P>, received: Option<u64>) {
        let core = &mut self.core;
        let site = &mut core.sites[node.index()];
        site.stamp += 1;
        let (clock, incarnation) = (site.clock.read(core.now), site.incarnation);
        let (stamp, first_sent) = (site.stamp, core.next_id);
        // Each step starts a new digest, so that the processor need not wait for the digest of the step
        // before.
        let mut digest = Digest::new();
        digest.word(core.now);
        match received {
            // The content and the receiver were absorbed when the message was sent.
            Some(id) => digest.word(id),
            None => {
                digest.word(u64::from(node.0));
                digest.absorb(&input);
            }
        }
        let recorded = (core.trace.is_some() && received.is_none()).then(|| input.clone());

        let nodes = self.setup.nodes;
        let mut sink = NodeSink { effects: &mut self.effects, dice: &mut core.drawers[node.index()].dice };
        let mut cx = Cx::new(Env { me: node, nodes, now: clock, incarnation }, &mut sink);
        self.nodes[node.index()].step(input, &mut cx);
        // The condition is a constant, so that release builds do not compile the check.
        if cfg!(debug_assertions) && self.check_guards {
            assert_guards_settled(
                &self.nodes[node.index()],
                Env { me: node, nodes, now: clock, incarnation },
            );
        }
        if let Some(trace) = &mut core.trace {
            let head = StepHead { at: Time(core.now), node, clock, stamp, received, first_sent };
            match recorded {
                Some(input) => trace.push(head, &input, &self.effects),
                None => trace.push_received(head, &self.effects),
            }
            if self.setup.keeps_states {
                trace.push_state(&self.nodes[node.index()]);
            }
        }
        self.apply(node, stamp, &mut digest);
        self.core.digest.join(digest);
    }

    #[inline(always)]
    fn apply(&mut self, node: NodeId, stamp: u64, digest: &mut Digest) {
        // Most steps have at most one effect, usually a message. They avoid the cost of moving the whole
        // list.
        match self.effects.len() {
            0 => {}
            1 => {
                if let Some(effect) = self.effects.pop() {
                    self.apply_one(node, stamp, effect, digest);
                }
            }
            _ => self.apply_all(node, stamp, digest),
        }
    }

    #[inline(never)]
    fn apply_all(&mut self, node: NodeId, stamp: u64, digest: &mut Digest) {
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.apply_one(node, stamp, effect, digest);
        }
        self.effects = effects;
    }

    #[inline(always)]
    fn apply_one(&mut self, node: NodeId, stamp: u64, effect: Effect<P>, digest: &mut Digest) {
        self.director.on_effect(node, &effect);
        match effect {
            Effect::Send { to, message } => {
                digest.word(u64::from(to.0));
                digest.absorb(&message);
                self.send(node, to, stamp, message);
            }
            effect => self.apply_other(node, stamp, effect, digest),
        }
    }

    #[inline(never)]
    fn apply_other(&mut self, node: NodeId, stamp: u64, effect: Effect<P>, digest: &mut Digest) {
        digest.absorb(&effect);
        match effect {
            Effect::Send { to, message } => self.send(node, to, stamp, message),
            Effect::SendTo { to, message } => {
                for to in to.iter().filter(|to| *to != node) {
                    self.send(node, to, stamp, message.clone());
                }
            }
            Effect::Broadcast { message } => {
                for to in (0..self.setup.nodes).map(NodeId).filter(|to| *to != node) {
                    self.send(node, to, stamp, message.clone());
                }
            }
            Effect::Arm { timer, min, max } => self.core.arm(node, timer, min, max),
            Effect::Disarm { timer } => {
                self.core.drawers[node.index()].timers.retain(|(armed, _)| *armed != timer);
            }
            Effect::Emit { event } => {
                self.director.on_event(node, &event, &mut Desk { core: &mut self.core, nodes: &self.nodes });
            }
        }
    }

    #[inline(always)]
    fn send(&mut self, from: NodeId, to: NodeId, stamp: u64, message: P::Message) {
        let note = self.director.on_send(from, to, &message);
        let core = &mut self.core;
        let id = core.next_id;
        core.next_id += 1;
        core.messages += u64::from(from != to);
        let now = core.now;
        let envelope = || Envelope { from, to, id, stamp, note, message };
        match core.network.plain() {
            _ if from == to => core.post(now, Lane::Now, envelope),
            Some(delay) => core.post(now.saturating_add(delay), Lane::Message, envelope),
            None => core.dispatch(envelope()),
        }
    }

    fn begin_fault(&mut self, index: usize) {
        match self.setup.faults[index].kind.clone() {
            FaultKind::Crash { node, .. } => {
                self.core.sites[node.index()].up = false;
                self.core.drawers[node.index()].timers.clear();
                self.core.ledger.crashes += 1;
                self.core.mark(What::Crash(node));
                self.director.on_crash(node, &mut Desk { core: &mut self.core, nodes: &self.nodes });
            }
            FaultKind::Pause { node } => {
                self.core.ledger.pauses += 1;
                self.core.mark(What::Pause(node));
            }
            FaultKind::Partition { group, .. } => {
                self.core.ledger.partitions += 1;
                self.core.mark(What::Cut(group.iter().collect()));
            }
            FaultKind::Step { node, by } => {
                self.core.sites[node.index()].clock.step(self.core.now, by);
                self.core.ledger.steps += 1;
                self.director.on_step(node, by, &mut Desk { core: &mut self.core, nodes: &self.nodes });
            }
        }
    }

    fn end_fault(&mut self, index: usize) {
        match self.setup.faults[index].kind.clone() {
            FaultKind::Crash { node, recovery } => self.recover(node, recovery),
            FaultKind::Pause { node } => self.core.mark(What::Resume(node)),
            FaultKind::Partition { group, .. } => self.core.mark(What::Heal(group.iter().collect())),
            FaultKind::Step { .. } => {} // a step has no end
        }
    }

    fn recover(&mut self, node: NodeId, recovery: Recovery) {
        let site = &mut self.core.sites[node.index()];
        site.up = true;
        site.incarnation += 1;
        self.core.ledger.recoveries += 1;
        self.core.mark(What::Recover(node));
        match recovery {
            Recovery::Stable => self.step(node, Input::Recover, None),
            Recovery::Amnesia => {
                self.nodes[node.index()] = (self.make)(node);
                self.step(node, Input::Start, None);
            }
        }
        self.director.on_recover(node, &mut Desk { core: &mut self.core, nodes: &self.nodes });
    }
}

impl<P: Protocol, N> Core<P, N> {
    #[inline]
    pub(crate) fn progress(&mut self) {
        self.progress.made(self.events, self.now);
    }

    pub(crate) fn stop(&mut self) {
        self.stopped = true;
        self.progress.drop_mark();
    }

    /// Returns the reason for the end of the run, if it ends before its next event.
    #[cold]
    fn end_before_next_event(&mut self) -> Option<End> {
        match self.stopped {
            true => Some(End::Stopped),
            false => self.progress.is_spent(self.events).then_some(End::Bounded),
        }
    }

    pub(crate) fn command(&mut self, after: Duration, node: NodeId, command: P::Command) {
        self.work_pending += 1;
        let lane = if after.is_zero() { Lane::Now } else { Lane::Alarm };
        self.queue
            .push(self.now.saturating_add(time::nanos(after)), lane, || Pending::Command { node, command });
    }

    pub(crate) fn wake(&mut self, after: Duration, key: u64) {
        self.work_pending += 1;
        self.queue.push(self.now.saturating_add(time::nanos(after)), Lane::Alarm, || Pending::Wake(key));
    }

    fn arm(&mut self, node: NodeId, timer: P::Timer, min: Duration, max: Duration) {
        self.timers_armed += 1;
        let number = self.timers_armed;
        let drawer = &mut self.drawers[node.index()];
        drawer.timers.retain(|(armed, _)| *armed != timer);
        drawer.timers.push((timer, number));
        let local = drawer.timer_dice.between(time::nanos(min), time::nanos(max));
        let at = self.now.saturating_add(self.sites[node.index()].clock.world_span(local));
        self.queue.push(at, Lane::Alarm, || Pending::Timer { node, timer, number });
    }

    /// Schedules the arrival of a message.
    #[inline(always)]
    fn post(&mut self, at: u64, lane: Lane, envelope: impl FnOnce() -> Envelope<P, N>) {
        self.work_pending += 1;
        self.queue.push(at, lane, || Pending::Message(envelope()));
    }

    /// Sends a message through a network that may delay, lose or duplicate it.
    fn dispatch(&mut self, envelope: Envelope<P, N>)
    where
        N: Clone,
    {
        let id = envelope.id;
        match self.network.fate(envelope.from, envelope.to, self.now) {
            Fate::Arrives { at, copy } => {
                self.network.depart(envelope.from, id);
                if let Some(copy) = copy {
                    self.ledger.duplicated += 1;
                    self.mark(What::Duplicate(id));
                    self.post(copy, Lane::Message, || envelope.clone());
                }
                self.post(at, Lane::Message, || envelope);
            }
            Fate::Lost => self.lose(id, |ledger| &mut ledger.lost),
            Fate::Corrupted => self.lose(id, |ledger| &mut ledger.corrupted),
            Fate::Cut => self.lose(id, |ledger| &mut ledger.cut),
            Fate::Held => self.lose(id, |ledger| &mut ledger.held_for_ever),
        }
    }

    fn lose(&mut self, id: u64, counter: fn(&mut Ledger) -> &mut u64) {
        *counter(&mut self.ledger) += 1;
        self.mark(What::Lose(id));
    }

    fn mark(&mut self, what: What) {
        if let Some(trace) = &mut self.trace {
            trace.mark(Time(self.now), what);
        }
    }
}

/// The sink of a site during a step.
struct NodeSink<'a, P: Protocol> {
    effects: &'a mut Vec<Effect<P>>,
    dice: &'a mut Prng,
}

impl<P: Protocol> Sink<P> for NodeSink<'_, P> {
    #[inline]
    fn push(&mut self, effect: Effect<P>) {
        self.effects.push(effect);
    }

    #[inline(always)]
    fn send(&mut self, to: NodeId, message: P::Message) {
        // `extend` grows the list first and then builds the effect in its place.
        self.effects.extend(std::iter::once_with(|| Effect::Send { to, message }));
    }

    fn choose(&mut self, n: u32) -> u32 {
        self.dice.below(u64::from(n)) as u32
    }
}

/// Checks that the guards have run to the end: run again on a copy, they must do nothing.
fn assert_guards_settled<P: Protocol>(node: &P, env: Env) {
    let mut again = node.clone();
    let mut effects = Vec::new();
    let mut sink = NodeSink { effects: &mut effects, dice: &mut Prng::new(0) };
    again.guards(&mut Cx::new(env, &mut sink));
    assert!(effects.is_empty(), "guards left something enabled at {}: {effects:?}", env.me);
    assert!(again == *node, "guards changed the state of {} when run again", env.me);
}
