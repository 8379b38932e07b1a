//! Turns a path of fingerprints into a trace, like that of a simulated run.
//!
//! The path is walked again from the start. At each state, the edge to the next fingerprint is taken. So
//! every step of the trace was really executed.

use conclave_kernel::trace::{FORMAT, What};
use conclave_kernel::{Header, Input, NodeId, StepHead, Time, Trace};

use crate::explore::{Failure, Waypoint};
use crate::local::Local;
use crate::model::Model;
use crate::options::Recovery;
use crate::registry::{ProtocolOf, Registry};
use crate::report::Counterexample;
use crate::stepper::{Action, Kind, Stepper};
use crate::system::Post;

/// Returns the failure as a trace.
pub(crate) fn narrate<M: Model>(
    registry: &Registry<'_, M>,
    stepper: &mut Stepper<'_>,
    failure: &Failure,
) -> Counterexample<ProtocolOf<M>> {
    let (starts, taken) = walk(stepper, &failure.path);
    let mut stage = Stage::new(registry);
    for step in starts.iter().chain(&taken) {
        stage.play(stepper, step);
    }
    Counterexample {
        trace: stage.trace,
        steps: taken.len() as u32,
        repeats_after: failure.repeats_after.map(|after| after as u32),
    }
}

/// An edge that was taken.
struct Taken {
    action: Action,
    posts: Vec<Post>,
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
                edges.push((edge.words.to_vec(), Taken { action: edge.action, posts: edge.posts.to_vec() }));
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
        for (state, falls) in paths {
            let falls: Vec<(Action, Vec<Post>)> = falls;
            stepper.start(&state, node, start, &mut |edge| {
                let mut falls = falls.clone();
                falls.push((edge.action, edge.posts.to_vec()));
                longer.push((edge.words.to_vec(), falls));
            });
        }
        paths = longer;
    }
    let index = paths.iter().position(|(state, _)| stepper.fingerprint(state) == fingerprint);
    let (state, falls) = paths.swap_remove(index.expect("a path begins in an initial state"));
    (state, falls.into_iter().map(|(action, posts)| Taken { action, posts }).collect())
}

/// The sites and the messages in flight, with the numbers that a trace needs.
struct Stage<'r, 'm, M: Model> {
    registry: &'r Registry<'m, M>,
    trace: Trace<ProtocolOf<M>>,
    locals: Vec<Local<ProtocolOf<M>>>,
    stamps: Vec<u64>,
    /// The messages in flight, in the order sent.
    flying: Vec<Flying>,
    next_id: u64,
    moment: u64,
}

struct Flying {
    id: u64,
    packet: u32,
    to: u32,
    stamp: u64,
}

/// The time between two steps of a trace: one millisecond.
const STEP_NS: u64 = 1_000_000;

impl<'r, 'm, M: Model> Stage<'r, 'm, M> {
    fn new(registry: &'r Registry<'m, M>) -> Self {
        let header = Header {
            format: FORMAT,
            code: env!("CARGO_PKG_VERSION").into(),
            algorithm: registry.model.name(),
            nodes: registry.ground.nodes,
            seed: 0,
            scenario: registry.model.scenario(),
        };
        let nodes = || (0..registry.ground.nodes).map(NodeId);
        Self {
            registry,
            trace: Trace::new(header),
            locals: nodes().map(|node| Local::new(node, registry.model.site(node))).collect(),
            stamps: vec![0; registry.ground.nodes as usize],
            flying: Vec::new(),
            next_id: 0,
            moment: 0,
        }
    }

    fn play(&mut self, stepper: &mut Stepper<'_>, taken: &Taken) {
        let Action { kind, node, what, .. } = taken.action;
        self.moment += u64::from(kind != Kind::Start);
        match kind {
            Kind::Start | Kind::Command { .. } | Kind::Timer => {
                self.step(taken, &self.registry.inputs.get(what), None);
            }
            Kind::Deliver | Kind::Duplicate => {
                let copy = kind == Kind::Duplicate;
                let (id, stamp) = self.take(what, copy);
                if copy {
                    self.mark(What::Duplicate(id));
                }
                if !self.locals[node as usize].up {
                    return self.mark(What::Lose(id));
                }
                self.stamps[node as usize] = self.stamps[node as usize].max(stamp);
                let input = stepper.packet(what).input;
                self.step(taken, &self.registry.inputs.get(input), Some(id));
            }
            Kind::Lose => {
                let (id, _) = self.take(what, false);
                self.mark(What::Lose(id));
            }
            Kind::Crash => self.crash(node),
            Kind::Recover => self.recover(taken),
            Kind::Tick => {}
        }
    }

    fn crash(&mut self, node: u32) {
        self.mark(What::Crash(NodeId(node)));
        let local = &mut self.locals[node as usize];
        *local = local.crash();
        if self.registry.ground.faults.recovery.is_none() {
            let lost: Vec<_> = self.flying.extract_if(.., |flying| flying.to == node).collect();
            for flying in lost {
                self.mark(What::Lose(flying.id));
            }
        }
    }

    fn recover(&mut self, taken: &Taken) {
        let node = taken.action.node;
        self.mark(What::Recover(NodeId(node)));
        let amnesia = self.registry.ground.faults.recovery == Some(Recovery::Amnesia);
        let fresh = amnesia.then(|| self.registry.model.site(NodeId(node)));
        let local = &mut self.locals[node as usize];
        *local = local.revive(fresh);
        self.step(taken, &if amnesia { Input::Start } else { Input::Recover }, None);
    }

    fn step(&mut self, taken: &Taken, input: &Input<ProtocolOf<M>>, received: Option<u64>) {
        let Action { node, fall, .. } = taken.action;
        let row = node as usize;
        self.stamps[row] += 1;
        let (stamp, first_sent) = (self.stamps[row], self.next_id);
        let outcomes = self.locals[row].step(self.registry.ground.nodes, input, self.registry.ground.timing);
        let stepped = outcomes.and_then(|mut outcomes| {
            (outcomes.len() > fall as usize).then(|| outcomes.swap_remove(fall as usize))
        });
        let stepped = stepped.expect("a step that was explored can be taken again");
        let at = Time(self.moment * STEP_NS);
        let head = StepHead { at, node: NodeId(node), clock: Time::ZERO, stamp, received, first_sent };
        self.trace.push(head, input, &stepped.effects);
        self.locals[row] = stepped.local;
        for post in &taken.posts {
            let id = self.next_id;
            self.next_id += 1;
            let gone = self.registry.ground.faults.recovery.is_none() && !self.locals[post.to as usize].up;
            if gone {
                self.mark(What::Lose(id));
            } else {
                self.flying.push(Flying { id, packet: post.packet, to: post.to, stamp });
            }
        }
    }

    /// Returns the id and the stamp of the oldest message in flight that is this packet.
    fn take(&mut self, packet: u32, keep: bool) -> (u64, u64) {
        let place = self.flying.iter().position(|flying| flying.packet == packet);
        let place = place.expect("a delivered message was sent");
        let Flying { id, stamp, .. } = self.flying[place];
        if !keep {
            self.flying.remove(place);
        }
        (id, stamp)
    }

    fn mark(&mut self, what: What) {
        self.trace.mark(Time(self.moment * STEP_NS), what);
    }
}
