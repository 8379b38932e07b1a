//! The work and the judge: processes that think, grant and request at random.
//!
//! A running process thinks for a while, grants some of the requests that it has received, and then may
//! request itself. After the last request of the run, processes only grant, so every process that is not
//! deadlocked proceeds. A process that waits when no event is left is therefore deadlocked.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_algorithms::deadlock::site::{Message, Part};
use conclave_algorithms::deadlock::spec::{Breach, Judge, NO_MISS, NO_PHANTOM, ONE_VICTIM, PURGED};
use conclave_algorithms::deadlock::underlying::Traffic;
use conclave_algorithms::deadlock::{Command, Detection, Event, Model, Site};
use conclave_kernel::{Judgement, NodeId, NodeSet, Prng, Ratio, Time, Violation};
use conclave_sim::{Desk, Director};

use super::Scenario;

/// The most violations that are described.
const MOST_DESCRIBED: usize = 16;
const WORK: u64 = 0x776f_726b;

/// The director of the deadlock problem.
pub(super) struct Problem {
    pub(super) judge: Judge,
    pub(super) violations: Vec<Violation>,
    pub(super) counts: Counts,
    nodes: u32,
    model: Model,
    think: Duration,
    requests_left: u64,
    random: Prng,
    /// Whether the process has a wake-up scheduled.
    is_awake: Vec<bool>,
    waits_since: Vec<Option<Time>>,
    /// The time at which the process completed a deadlock that is not declared yet.
    closed_at: Vec<Option<Time>>,
}

/// The counters of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) proceeded: u64,
    pub(super) aborted: u64,
    pub(super) declared: u64,
    pub(super) deadlocks: u64,
    pub(super) waited: Duration,
    pub(super) found_after: Vec<Duration>,
    pub(super) messages: BTreeMap<Part, u64>,
    pub(super) kinds: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Returns each property with the evidence that the run lacks.
    pub(super) fn judgements(&self) -> [Judgement; 4] {
        [
            NO_PHANTOM.judged_unless(&[(self.declared == 0, "no process was declared deadlocked")]),
            NO_MISS
                .judged_unless(&[(self.requests == 0, "no request"), (self.deadlocks == 0, "no deadlock")]),
            ONE_VICTIM.judged_unless(&[(self.aborted == 0, "no process was aborted")]),
            PURGED.judged_unless(&[
                (self.requests == 0, "no request"),
                (self.proceeded + self.aborted == 0, "no wait ended"),
            ]),
        ]
    }
}

impl Problem {
    pub(super) fn new(scenario: &Scenario, model: Model) -> Self {
        let nodes = scenario.world.nodes;
        Self {
            judge: Judge::new(nodes),
            violations: Vec::new(),
            counts: Counts::default(),
            nodes,
            model,
            think: scenario.work.think,
            requests_left: scenario.work.requests,
            random: Prng::stream(scenario.world.seed, WORK, 0),
            is_awake: vec![false; nodes as usize],
            waits_since: vec![None; nodes as usize],
            closed_at: vec![None; nodes as usize],
        }
    }

    pub(super) fn breach(&mut self, breach: Option<Breach>, at: Time) {
        let Some(Breach { property, why }) = breach else { return };
        let is_known = self.violations.iter().any(|violation| violation.property == property.name);
        if !is_known || self.violations.len() < MOST_DESCRIBED {
            self.violations.push(Violation { property: property.name.into(), at, why });
        }
    }

    fn wake<D: Detection>(&mut self, node: NodeId, desk: &mut Desk<'_, Site<D>, ()>) {
        if !std::mem::replace(&mut self.is_awake[node.index()], true) {
            let mean = self.think.as_nanos() as f64;
            let after = -(1.0 - self.random.unit()).ln() * mean;
            desk.wake_in(Duration::from_nanos(after as u64), u64::from(node.0));
        }
    }

    /// Draws a request of one or more other processes. A process sometimes requests itself, which is a
    /// deadlock at once.
    fn draw(&mut self, me: NodeId) -> (u32, NodeSet) {
        let most = match self.model {
            Model::Single => 1,
            _ => self.nodes.min(4),
        };
        let count = self.random.between(1, u64::from(most));
        let mut of = NodeSet::new();
        for _ in 0..count {
            let other = NodeId(self.random.below(u64::from(self.nodes)) as u32);
            if other != me || self.random.chance(Ratio::percent(10)) {
                of.insert(other);
            }
        }
        if of.is_empty() {
            of.insert(NodeId((me.0 + 1) % self.nodes));
        }
        let size = of.len() as u32;
        let need = match self.model {
            Model::Single | Model::Or => 1,
            Model::And => size,
            Model::POutOfQ => self.random.between(1, u64::from(size)) as u32,
        };
        (need, of)
    }

    /// Ends the wait of a process, which is progress of the run.
    fn ends_wait<D: Detection>(&mut self, node: NodeId, desk: &mut Desk<'_, Site<D>, ()>) {
        if let Some(since) = self.waits_since[node.index()].take() {
            self.counts.waited += Duration::from_nanos(desk.now().0 - since.0);
            desk.progress();
        }
        self.closed_at[node.index()] = None;
    }
}

impl<D: Detection> Director<Site<D>> for Problem {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, Site<D>, ()>) {
        (0..self.nodes).for_each(|node| self.wake(NodeId(node), desk));
    }

    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, Site<D>, ()>) {
        let node = NodeId(key as u32);
        self.is_awake[node.index()] = false;
        let process = desk.node(node).process();
        if process.wait().is_some() {
            return;
        }
        let asked: Vec<NodeId> = process.pending().nodes().iter().collect();
        for from in asked {
            if self.requests_left == 0 || self.random.chance(Ratio::percent(60)) {
                desk.command(node, Command::Grant(from));
            }
        }
        if self.requests_left > 0 && self.random.chance(Ratio::percent(70)) {
            self.requests_left -= 1;
            let (need, of) = self.draw(node);
            desk.command(node, Command::Ask { need, of });
        } else if self.requests_left > 0 {
            self.wake(node, desk);
        }
    }

    fn on_command(&mut self, node: NodeId, command: &Command, now: Time) {
        if let Command::Ask { need, of } = command {
            self.counts.requests += 1;
            self.waits_since[node.index()] = Some(now);
            if self.judge.asks(node, *need, of.clone()) {
                self.counts.deadlocks += 1;
                self.closed_at[node.index()] = Some(now);
            }
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, Site<D>, ()>) {
        let now = desk.now();
        match event {
            Event::Asked(_) => {
                if desk.node(node).process().wait().is_none() {
                    self.wake(node, desk);
                }
            }
            Event::Proceeds { .. } => {
                self.counts.proceeded += 1;
                self.judge.runs(node);
                self.ends_wait(node, desk);
                self.wake(node, desk);
            }
            Event::Aborted { .. } => {
                self.counts.aborted += 1;
                let breach = self.judge.aborts(node);
                self.breach(breach, now);
                self.ends_wait(node, desk);
                self.wake(node, desk);
            }
            Event::Declared { process, number } => {
                self.counts.declared += 1;
                if !self.judge.is_declared(*process, *number) {
                    desk.progress();
                }
                let breach = self.judge.declares(*process, *number);
                self.breach(breach, now);
                if let Some(closed) = self.closed_at[process.index()].take() {
                    self.counts.found_after.push(Duration::from_nanos(now.0 - closed.0));
                }
            }
            Event::Refused => {}
        }
    }

    fn on_send(&mut self, from: NodeId, to: NodeId, message: &Message<D>) {
        if let Message::Process(Traffic::Grant(number)) = message {
            self.judge.grants(from, to, *number);
        }
        let (kind, part) = Site::<D>::kind(message);
        *self.counts.messages.entry(part).or_default() += 1;
        *self.counts.kinds.entry(kind).or_default() += 1;
    }

    fn on_deliver(&mut self, _from: NodeId, _to: NodeId, (): &()) {}
}
