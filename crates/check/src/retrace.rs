//! Repeats a counterexample: explores only the edges whose records equal those of the trace.
//!
//! A new exploration cannot do that: another search, or more threads, may find another counterexample of the
//! same length. Here every state has its edges computed, and each edge is played as a trace would record it.
//! The trace repeats, or the error names the step that differs.

use conclave_kernel::trace::{Mark, RawInput, RawRecord, RawStep, What};
use conclave_kernel::{NodeId, Recording};

use crate::counterexample::{Moment, STEP_NS, Taken, TraceBuilder};
use crate::model::Breach;
use crate::stepper::Stepper;
use crate::system::System;

/// The result of a repeated trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retraced {
    /// The number of steps.
    pub steps: usize,
    /// The first violation, with its step.
    pub breach: Option<(usize, Breach)>,
    /// The sites that still wait at the end.
    pub waiting: Vec<NodeId>,
}

/// Repeats a trace. The error names the step that is impossible or has other effects.
pub(crate) fn retrace(system: &dyn System, trace: &Recording) -> Result<Retraced, String> {
    let nodes = system.ground().nodes;
    if trace.header.nodes != nodes {
        return Err(format!(
            "the trace has {} sites, but its scenario has {nodes}: record the trace again",
            trace.header.nodes
        ));
    }
    let mut stage = Stage::new(system);
    let mut moment = Moment::default();
    let mut records = trace.records().peekable();
    while let Some(record) = records.next() {
        let (at, is_start) = match record {
            RawRecord::Step(step) => {
                let at = step.head.at;
                if moment.step.replace(step).is_some() {
                    return Err(format!("step {}: another step has the same time", stage.steps + 1));
                }
                (at, stage.steps < nodes as usize)
            }
            RawRecord::Mark(Mark {
                what: What::Pause(_) | What::Resume(_) | What::Cut(_) | What::Heal(_),
                ..
            }) => {
                return Err(
                    "the checker does not pause sites or cut links: repeat this trace with conclave replay"
                        .into(),
                );
            }
            RawRecord::Mark(mark) => {
                let at = mark.at;
                moment.marks.push(mark);
                (at, false)
            }
        };
        let next = records.peek().map(|next| match next {
            RawRecord::Step(step) => step.head.at,
            RawRecord::Mark(mark) => mark.at,
        });
        if is_start || next != Some(at) {
            stage.wait_until(at.0 / STEP_NS)?;
            stage.take(std::mem::take(&mut moment)).map_err(|why| format!("step {}: {why}", stage.steps))?;
        }
    }
    match stage.other_state.take() {
        Some(difference) => Err(difference),
        None => Ok(stage.finish()),
    }
}

/// A state that the trace may have reached. There are several if random choices have the same effects and
/// lead to different states.
struct Reached<'r> {
    state: Vec<u32>,
    builder: TraceBuilder<'r>,
    breach: Option<(usize, Breach)>,
}

/// The most states that one trace may have reached. A trace that fits more executions is rejected.
const MOST_REACHED: usize = 4_096;

struct Stage<'r> {
    stepper: Stepper<'r>,
    reached: Vec<Reached<'r>>,
    steps: usize,
    /// The number of edges taken since the start of the sites.
    moment: u64,
    /// The first step after which a site has another state than the recorded one. Other differences are
    /// reported first, because they explain it.
    other_state: Option<String>,
}

impl<'r> Stage<'r> {
    fn new(system: &'r dyn System) -> Self {
        let mut stepper = Stepper::new(system);
        let state = stepper.before_start();
        let reached = vec![Reached { state, builder: TraceBuilder::new(system), breach: None }];
        Self { stepper, reached, steps: 0, moment: 0, other_state: None }
    }

    /// Takes the ticks before a moment. A trace has no record of a tick.
    fn wait_until(&mut self, moment: u64) -> Result<(), String> {
        while self.moment + 1 < moment {
            let at = self.moment + 1;
            self.take(Moment::default()).map_err(|_| {
                format!("step {}: nothing happens at {at}ms, and time cannot pass", self.steps)
            })?;
        }
        Ok(())
    }

    /// Takes every edge whose records are those of the trace.
    fn take(&mut self, mut recorded: Moment) -> Result<(), String> {
        let state_of = |moment: &mut Moment| moment.step.as_mut().and_then(|step| step.state.take());
        let recorded_state = state_of(&mut recorded);
        let mut other_states = Vec::new();
        let mut next: Vec<Reached<'r>> = Vec::new();
        let mut others = Vec::new();
        let is_start = self.steps < self.stepper.ground.nodes as usize;
        for reached in &self.reached {
            let edges = edges(&mut self.stepper, &reached.state, is_start.then_some(self.steps as u32))?;
            for (state, taken, breach) in edges {
                let mut builder = reached.builder.clone();
                let mut played = builder.play(&taken);
                let site = state_of(&mut played);
                if played != recorded {
                    others.extend(played.step);
                } else if next.iter().all(|known| known.state != state) {
                    let breach = self.stepper.breach(breach).map(|breach| (self.steps, breach.clone()));
                    next.push(Reached { state, builder, breach: reached.breach.clone().or(breach) });
                    other_states.push(site.filter(|site| recorded_state.as_ref() != Some(site)));
                }
            }
        }
        if next.is_empty() {
            return Err(difference(&recorded, &others));
        }
        if let (Some(recorded), Some(now)) = (&recorded_state, other_states.iter().flatten().next())
            && other_states.iter().all(Option::is_some)
        {
            let step = self.steps;
            self.other_state.get_or_insert_with(|| {
                format!("step {step}: another state\n  recorded: {recorded:?}\n  now:      {now:?}")
            });
        }
        if next.len() > MOST_REACHED {
            return Err(format!("the trace fits more than {MOST_REACHED} executions"));
        }
        self.reached = next;
        self.steps += usize::from(recorded.step.is_some());
        self.moment += u64::from(!is_start);
        Ok(())
    }

    fn finish(mut self) -> Retraced {
        let Reached { state, breach, .. } = self.reached.swap_remove(0);
        let pending = self.stepper.pending(&state);
        let waiting = (0..self.stepper.ground.nodes).filter(|node| pending >> node & 1 == 1);
        Retraced { steps: self.steps, breach, waiting: waiting.map(NodeId).collect() }
    }
}

/// Returns the edges out of a state, each with the state after it and its breach; or the edges on which the
/// site `start` starts.
fn edges(
    stepper: &mut Stepper<'_>,
    state: &[u32],
    start: Option<u32>,
) -> Result<Vec<(Vec<u32>, Taken, u32)>, String> {
    let mut edges = Vec::new();
    let mut keep = |edge: crate::stepper::Edge<'_>| {
        edges.push((edge.words.to_vec(), Taken::new(state, &edge), edge.breach));
    };
    match start {
        Some(node) => stepper.start(state, node, stepper.system.start(), &mut keep),
        None => _ = stepper.expand(state, &mut keep),
    }
    match stepper.trouble {
        Some(_) => Err("the step has too many combinations of random choices".into()),
        None => Ok(edges),
    }
}

/// Describes why no edge has these records. `others` are the steps that were possible.
fn difference(recorded: &Moment, others: &[RawStep]) -> String {
    let Some(step) = &recorded.step else {
        let marks: Vec<_> = recorded.marks.iter().map(|mark| &mark.what).collect();
        return format!("the world cannot do this here: {marks:?}");
    };
    let node = step.head.node;
    let same = |other: &&RawStep| other.head.node == node && other.input == step.input;
    if let Some(now) = others.iter().find(same) {
        return match now.effects == step.effects {
            true => {
                format!("{node} takes this step in another place\n  recorded: {step:?}\n  now:      {now:?}")
            }
            false => format!(
                "{node} has other effects\n  recorded: {:?}\n  now:      {:?}",
                step.effects, now.effects
            ),
        };
    }
    match &step.input {
        RawInput::Start | RawInput::Recover => format!("{node} cannot start here"),
        RawInput::Message { from, message } => {
            format!("the message {message:?} of {from} cannot arrive at {node} here")
        }
        RawInput::Timer(timer) => format!("the timer {timer:?} of {node} cannot fire here"),
        RawInput::Command(command) => format!("the command {command:?} was not possible at {node}"),
    }
}
