//! Repeats a counterexample. The recorded inputs go to fresh sites, their effects are compared with the
//! recorded ones, and the judge checks the steps again.
//!
//! A new exploration cannot do that: another search, or more threads, may find another counterexample of the
//! same length. Here nothing is searched. The trace repeats, or the error names the step that differs.

use std::collections::{BTreeMap, BTreeSet};

use conclave_kernel::trace::{Record, What};
use conclave_kernel::{Effect, Input, NodeId, Protocol, StepHead, Trace};

use crate::local::Local;
use crate::model::{Breach, Findings, Model, Monitor};
use crate::options::{Options, Recovery};
use crate::registry::sends;

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

/// Repeats the steps of a trace. The error names the step that is impossible or has other effects.
pub fn retrace<M: Model>(
    model: &M,
    options: &Options,
    trace: &Trace<M::Protocol>,
) -> Result<Retraced, String> {
    let nodes = model.nodes();
    if trace.header.nodes != nodes {
        return Err(format!(
            "the trace has {} sites, but its scenario has {nodes}: record the trace again",
            trace.header.nodes
        ));
    }
    let mut stage = Stage {
        model,
        options,
        locals: (0..nodes).map(NodeId).map(|node| Local::new(node, model.site(node))).collect(),
        monitor: model.monitor(),
        flying: BTreeMap::new(),
        copied: BTreeSet::new(),
        revived: BTreeSet::new(),
        breach: None,
        steps: 0,
    };
    for record in trace.records() {
        match record {
            Record::Mark(mark) => stage.mark(&mark.what)?,
            Record::Step { at, node, clock, stamp, received, first_sent, input, effects } => {
                let head = StepHead { at, node, clock, stamp, received, first_sent };
                stage.step(&head, &input, &effects).map_err(|why| format!("step {}: {why}", stage.steps))?;
                stage.steps += 1;
            }
        }
    }
    let pending = stage.monitor.pending();
    let waiting = (0..nodes).filter(|node| pending >> node & 1 == 1).map(NodeId).collect();
    Ok(Retraced { steps: stage.steps, breach: stage.breach, waiting })
}

type MessageOf<M> = <<M as Model>::Protocol as Protocol>::Message;
type NoteOf<M> = <<M as Model>::Monitor as Monitor<<M as Model>::Protocol>>::Note;

struct Stage<'m, M: Model> {
    model: &'m M,
    options: &'m Options,
    locals: Vec<Local<M::Protocol>>,
    monitor: M::Monitor,
    flying: BTreeMap<u64, Flying<M>>,
    /// Messages whose next delivery leaves a copy in flight.
    copied: BTreeSet<u64>,
    /// Sites that are about to start again.
    revived: BTreeSet<NodeId>,
    breach: Option<(usize, Breach)>,
    steps: usize,
}

struct Flying<M: Model> {
    from: NodeId,
    to: NodeId,
    message: MessageOf<M>,
    note: NoteOf<M>,
}

impl<M: Model> Stage<'_, M> {
    fn mark(&mut self, what: &What) -> Result<(), String> {
        match what {
            What::Crash(node) => {
                let local = self.local(*node)?;
                *local = local.crash();
                let mut findings = Findings::default();
                self.monitor.on_crash(*node, &mut findings);
                self.find(findings);
            }
            What::Recover(node) => _ = self.revived.insert(*node),
            What::Duplicate(id) => _ = self.copied.insert(*id),
            // The message stays in the table, but no step receives it.
            What::Lose(_) => {}
            What::Pause(_) | What::Resume(_) | What::Cut(_) | What::Heal(_) => {
                return Err(
                    "the checker does not pause sites or cut links: repeat this trace with conclave replay"
                        .into(),
                );
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        head: &StepHead,
        input: &Input<M::Protocol>,
        effects: &[Effect<M::Protocol>],
    ) -> Result<(), String> {
        let node = head.node;
        let mut findings = Findings::default();
        if self.revived.remove(&node) {
            let amnesia = self.options.faults.recovery == Some(Recovery::Amnesia);
            let fresh = amnesia.then(|| self.model.site(node));
            let local = self.local(node)?;
            *local = local.revive(fresh);
            self.monitor.on_recover(node, &mut findings);
        }
        match input {
            Input::Message { from, message } => self.deliver(head, *from, message)?,
            Input::Command(command) => {
                let mut offered = false;
                self.monitor.offers(&mut |offer| offered |= offer.node == node && offer.command == *command);
                if !offered {
                    return Err(format!("the command {command:?} was not possible at {node}"));
                }
                self.monitor.on_command(node, command, &mut findings);
            }
            Input::Start | Input::Recover | Input::Timer(_) => {}
        }
        let (nodes, timing) = (self.model.nodes(), self.options.timing);
        let local = self.local(node)?;
        if !local.up {
            return Err(format!("{node} is down"));
        }
        // The trace holds the effects of the random choices, not the choices. Try all of them.
        let outcomes =
            local.step(nodes, input, timing).ok_or("the step has too many combinations of random choices")?;
        let now = outcomes.first().map(|outcome| format!("{:?}", outcome.effects));
        let same = outcomes.into_iter().find(|outcome| outcome.effects == effects);
        let same = same.ok_or_else(|| {
            format!(
                "{node} has other effects\n  recorded: {effects:?}\n  now:      {}",
                now.unwrap_or_default()
            )
        })?;
        *local = same.local;
        self.observe(head, effects, &mut findings);
        self.find(findings);
        Ok(())
    }

    /// Removes a message from those in flight. It must be there, with the same contents.
    fn deliver(&mut self, head: &StepHead, from: NodeId, message: &MessageOf<M>) -> Result<(), String> {
        let id = head.received.ok_or("a received message has no number")?;
        let flying = self.flying.get(&id).ok_or_else(|| format!("message {id} is not in flight"))?;
        if (flying.from, flying.to) != (from, head.node) || flying.message != *message {
            return Err(format!("message {id} was sent with other contents"));
        }
        self.monitor.on_deliver(from, head.node, &flying.note);
        if !self.copied.remove(&id) {
            self.flying.remove(&id);
        }
        Ok(())
    }

    fn observe(&mut self, head: &StepHead, effects: &[Effect<M::Protocol>], findings: &mut Findings) {
        let from = head.node;
        let mut id = head.first_sent;
        for effect in effects {
            if let Effect::Emit { event } = effect {
                self.monitor.on_event(from, event, findings);
            }
            for (to, message) in sends(from, self.model.nodes(), effect) {
                let note = self.monitor.on_send(from, to, message);
                self.flying.insert(id, Flying { from, to, message: message.clone(), note });
                id += 1;
            }
        }
    }

    fn local(&mut self, node: NodeId) -> Result<&mut Local<M::Protocol>, String> {
        self.locals.get_mut(node.index()).ok_or_else(|| format!("site {node} does not exist"))
    }

    fn find(&mut self, findings: Findings) {
        let breach = findings.into_breach();
        self.breach = self.breach.take().or(breach.map(|breach| (self.steps, breach)));
    }
}
