//! Turns a path of fingerprints into a trace, like that of a simulated run.
//!
//! The path is walked again from the start. At each state, the edge to the next fingerprint is taken. So
//! every step of the trace was really executed.

use conclave_kernel::trace::{FORMAT, Json, Mark, RawEffect, RawInput, RawStep, What, WorldKind};
use conclave_kernel::{Header, NodeId, Recording, StepHead, Time};

use crate::explore::{Failure, Waypoint};
use crate::report::Counterexample;
use crate::stepper::{Action, Edge, Kind, Stepper};
use crate::system::{Post, System};

/// Returns the failure as a trace.
pub(crate) fn build_trace(stepper: &mut Stepper<'_>, failure: &Failure) -> Counterexample {
    let (starts, taken) = walk(stepper, &failure.path);
    let mut builder = TraceBuilder::new(stepper.system);
    let (mut marks, mut steps) = (Vec::new(), Vec::new());
    for edge in starts.iter().chain(&taken) {
        let moment = builder.play(edge);
        marks.extend(moment.marks);
        steps.extend(moment.step);
    }
    let (algorithm, scenario) = stepper.system.about();
    let header = Header {
        format: FORMAT,
        code: env!("CARGO_PKG_VERSION").into(),
        algorithm,
        nodes: stepper.ground.nodes,
        seed: 0,
        world: WorldKind::Check,
        scenario,
    };
    Counterexample {
        trace: Recording { header, marks, steps: Box::new(steps) },
        steps: taken.len() as u32,
        repeats_after: failure.repeats_after.map(|after| after as u32),
    }
}

/// An edge that was taken.
#[derive(Clone)]
pub(crate) struct Taken {
    action: Action,
    /// The state of the action's site before the step.
    local: u32,
    posts: Vec<Post>,
}

impl Taken {
    /// Copies an edge out of `state`.
    pub(crate) fn new(state: &[u32], edge: &Edge<'_>) -> Self {
        let action = edge.action;
        Self { action, local: state[action.node as usize], posts: edge.posts.to_vec() }
    }
}

/// Walks a path: first the starts of the sites, then the edges.
fn walk(stepper: &mut Stepper<'_>, path: &[Waypoint]) -> (Vec<Taken>, Vec<Taken>) {
    let Some((first, rest)) = path.split_first() else { return (Vec::new(), Vec::new()) };
    let (mut state, starts) = begin(stepper, first.fingerprint);
    let mut taken = Vec::new();
    for waypoint in rest {
        let mut edges = Vec::new();
        stepper.expand(&state, &mut |edge| {
            if edge.fingerprint == waypoint.fingerprint && (edge.breach != 0) == waypoint.breaks {
                edges.push((edge.words.to_vec(), Taken::new(&state, &edge)));
            }
        });
        let fits = |action| waypoint.fair.is_none() || stepper.fair_key(action) == waypoint.fair;
        let index = edges.iter().map(|(_, taken)| taken.action).position(fits);
        let (next, edge) = edges.swap_remove(index.expect("a path consists of edges"));
        state = next;
        taken.push(edge);
    }
    (starts, taken)
}

/// Returns the initial state with that fingerprint, and the random choices with which the sites started.
fn begin(stepper: &mut Stepper<'_>, fingerprint: u64) -> (Vec<u32>, Vec<Taken>) {
    let mut paths = vec![(stepper.before_start(), Vec::new())];
    let start = stepper.system.start();
    for node in 0..stepper.ground.nodes {
        let mut longer = Vec::new();
        for (state, taken) in paths {
            let taken: Vec<Taken> = taken;
            stepper.start(&state, node, start, &mut |edge| {
                let more = Taken::new(&state, &edge);
                longer.push((edge.words.to_vec(), [&taken[..], &[more]].concat()));
            });
        }
        paths = longer;
    }
    let index = paths.iter().position(|(state, _)| stepper.fingerprint(state) == fingerprint);
    paths.swap_remove(index.expect("a path begins in an initial state"))
}

/// Turns edges into the records of a trace. The caller plays the edges of one path in order.
#[derive(Clone)]
pub(crate) struct TraceBuilder<'r> {
    system: &'r dyn System,
    stamps: Vec<u64>,
    up: Vec<bool>,
    /// The messages in flight, in the order sent.
    flying: Vec<Flying>,
    next_id: u64,
    moment: u64,
}

#[derive(Clone, Copy)]
struct Flying {
    id: u64,
    packet: u32,
    to: u32,
    stamp: u64,
}

/// The records of one edge. All have the same time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) marks: Vec<Mark>,
    pub(crate) step: Option<RawStep>,
}

/// The time between two edges of a trace: one millisecond.
pub(crate) const STEP_NS: u64 = 1_000_000;

impl<'r> TraceBuilder<'r> {
    pub(crate) fn new(system: &'r dyn System) -> Self {
        let nodes = system.ground().nodes as usize;
        Self {
            system,
            stamps: vec![0; nodes],
            up: vec![true; nodes],
            flying: Vec::new(),
            next_id: 0,
            moment: 0,
        }
    }

    /// Returns the records of the next edge.
    pub(crate) fn play(&mut self, taken: &Taken) -> Moment {
        let Action { kind, node, what, .. } = taken.action;
        self.moment += u64::from(kind != Kind::Start);
        let mut records = Moment::default();
        match kind {
            Kind::Start | Kind::Command { .. } | Kind::Timer => {
                self.step(taken, what, None, &mut records);
            }
            Kind::Deliver | Kind::Duplicate => self.deliver(taken, &mut records),
            Kind::Lose => {
                let flying = self.take(what, false);
                records.marks.push(self.mark(What::Lose(flying.id)));
            }
            Kind::Crash => self.crash(node, &mut records),
            Kind::Recover => {
                records.marks.push(self.mark(What::Recover(NodeId(node))));
                self.up[node as usize] = true;
                self.step(taken, what, None, &mut records);
            }
            Kind::Tick => {}
        }
        records
    }

    fn deliver(&mut self, taken: &Taken, records: &mut Moment) {
        let Action { kind, node, what, .. } = taken.action;
        let copy = kind == Kind::Duplicate;
        let Flying { id, stamp, .. } = self.take(what, copy);
        if copy {
            records.marks.push(self.mark(What::Duplicate(id)));
        }
        if !self.up[node as usize] {
            records.marks.push(self.mark(What::Lose(id)));
            return;
        }
        self.stamps[node as usize] = self.stamps[node as usize].max(stamp);
        let input = self.system.ground().packets.get(what).input;
        self.step(taken, input, Some(id), records);
    }

    fn crash(&mut self, node: u32, records: &mut Moment) {
        records.marks.push(self.mark(What::Crash(NodeId(node))));
        self.up[node as usize] = false;
        if self.system.ground().faults.recovery.is_none() {
            let lost: Vec<_> = self.flying.extract_if(.., |flying| flying.to == node).collect();
            records.marks.extend(lost.iter().map(|flying| self.mark(What::Lose(flying.id))));
        }
    }

    fn step(&mut self, taken: &Taken, input: u32, received: Option<u64>, records: &mut Moment) {
        let Action { node, fall, .. } = taken.action;
        let row = node as usize;
        self.stamps[row] += 1;
        let (stamp, first_sent) = (self.stamps[row], self.next_id);
        let at = Time(self.moment * STEP_NS);
        let head = StepHead { at, node: NodeId(node), clock: Time::ZERO, stamp, received, first_sent };
        let (effects, state): (Vec<RawEffect>, Json) = self.system.effects(taken.local, input, fall);
        let input: RawInput = self.system.input(input);
        records.step = Some(RawStep { head, input, effects, state: Some(state) });
        for post in &taken.posts {
            let id = self.next_id;
            self.next_id += 1;
            if self.system.ground().faults.recovery.is_none() && !self.up[post.to as usize] {
                records.marks.push(self.mark(What::Lose(id)));
            } else {
                self.flying.push(Flying { id, packet: post.packet, to: post.to, stamp });
            }
        }
    }

    /// Returns the oldest message in flight that is this packet. Removes it unless `keep` is set.
    fn take(&mut self, packet: u32, keep: bool) -> Flying {
        let place = self.flying.iter().position(|flying| flying.packet == packet);
        let place = place.expect("a delivered message was sent");
        if keep { self.flying[place] } else { self.flying.remove(place) }
    }

    fn mark(&self, what: What) -> Mark {
        Mark { at: Time(self.moment * STEP_NS), what }
    }
}
