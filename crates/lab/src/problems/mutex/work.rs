//! The times and the sites of the requests.

use std::collections::VecDeque;
use std::time::Duration;

use conclave_algorithms::mutex::spec::{Judge, Note};
use conclave_algorithms::mutex::{Command, Mutex};
use conclave_kernel::{NodeId, Prng};
use conclave_sim::Desk;

use super::scenario::{Scenario, Workload};

const STREAM: u64 = 0x776f_726b;

/// The source of the work: issues the requests of the scenario, and releases after the time of the critical
/// section.
pub(super) struct Worker {
    work: Workload,
    nodes: u32,
    ordered: u64,
    issued: u64,
    served: u64,
    /// Requests that each site has received and not yet served. A crash of the site ends them.
    open: Vec<u64>,
    /// The sum of `open`.
    all_open: u64,
    /// Requests that ended with the crash of their site, while it is down.
    lost: Vec<u64>,
    /// The sum of `lost`.
    all_lost: u64,
    section: Duration,
    delay: Duration,
    /// Whether the algorithm sends messages without requests. Such a run is never quiet.
    idle_traffic: bool,
    random: Prng,
    /// Application messages of the relay.
    relayed: Vec<RelayMessage>,
    /// Application messages that have arrived at a site and that it has not handled yet, for example a paused
    /// site.
    unhandled: VecDeque<(NodeId, Note)>,
    /// Whether each site is inside, or crashed inside.
    inside: Vec<bool>,
}

/// An application message: a site informs another site that it has made a request.
#[derive(Clone, Copy, Debug)]
enum RelayMessage {
    Sent { from: NodeId },
    InTransit { to: NodeId, clock: u64, note: Note },
}

/// The key of the alarm for the next request. Every other key is the index of a message of the relay.
const NEXT: u64 = u64::MAX;

impl Worker {
    pub(super) fn new(scenario: &Scenario, idle_traffic: bool) -> Self {
        Self {
            work: scenario.work.load.clone(),
            nodes: scenario.world.nodes,
            ordered: scenario.work.entries,
            issued: 0,
            served: 0,
            open: vec![0; scenario.world.nodes as usize],
            all_open: 0,
            lost: vec![0; scenario.world.nodes as usize],
            all_lost: 0,
            section: scenario.work.cs,
            delay: scenario.world.delay.mean(),
            idle_traffic,
            random: Prng::stream(scenario.world.seed, STREAM, 0),
            relayed: Vec::new(),
            unhandled: VecDeque::new(),
            inside: vec![false; scenario.world.nodes as usize],
        }
    }

    pub(super) fn begin<P: Mutex>(&mut self, desk: &mut Desk<'_, P, Note>) {
        match self.work.clone() {
            Workload::Low | Workload::Relay => self.issue(NodeId(0), desk),
            Workload::High => (0..self.nodes).for_each(|node| self.issue(NodeId(node), desk)),
            Workload::Pair => self.issue_pair(desk),
            Workload::Poisson { .. } | Workload::Burst { .. } => self.schedule(desk),
            Workload::Script(requests) => {
                self.ordered = requests.len() as u64;
                self.issued = self.ordered;
                for (at, node) in requests {
                    desk.command_in(at, node, Command::Acquire);
                }
            }
        }
    }

    /// Records that a request has reached its site.
    pub(super) fn asked(&mut self, node: NodeId) {
        self.open[node.index()] += 1;
        self.all_open += 1;
    }

    /// Returns the note of the application message that a site handles now. The site knows the note from now
    /// on.
    pub(super) fn handled_note(&mut self, node: NodeId) -> Option<Note> {
        let first = self.unhandled.iter().position(|(to, _)| *to == node)?;
        self.unhandled.remove(first).map(|(_, note)| note)
    }

    pub(super) fn granted<P: Mutex>(&mut self, node: NodeId, desk: &mut Desk<'_, P, Note>) {
        self.inside[node.index()] = true;
        desk.command_in(self.section, node, Command::Release);
    }

    pub(super) fn released<P: Mutex>(&mut self, node: NodeId, desk: &mut Desk<'_, P, Note>) {
        self.inside[node.index()] = false;
        // A site that crashed while it waited, and kept its state, is served nevertheless.
        if self.open[node.index()] > 0 {
            self.open[node.index()] -= 1;
            self.all_open -= 1;
        }
        self.served += 1;
        match self.work {
            Workload::High => self.issue(node, desk),
            Workload::Low | Workload::Pair | Workload::Relay
                if self.idle_traffic && self.served == self.issued =>
            {
                // Such an algorithm is never quiet. The next request comes at a random time, within one round
                // of the ring.
                let round = self.delay.saturating_mul(self.nodes);
                let most = conclave_kernel::time::nanos(round).saturating_add(1);
                let after = Duration::from_nanos(self.random.below(most));
                self.wake_for_next(after, desk);
            }
            _ => {}
        }
        if self.idle_traffic && self.served + self.all_lost >= self.ordered {
            desk.stop();
        }
    }

    pub(super) fn quiet<P: Mutex>(&mut self, desk: &mut Desk<'_, P, Note>) {
        if self.all_open > 0 {
            return;
        }
        match self.work {
            // The chain of a relay ends if the next site is still waiting. Begin another chain.
            Workload::Low | Workload::Relay => self.issue_in_turn(desk),
            Workload::Pair => self.issue_pair(desk),
            _ => {}
        }
    }

    pub(super) fn wake<P: Mutex>(&mut self, key: u64, judge: &mut Judge, desk: &mut Desk<'_, P, Note>) {
        if key != NEXT {
            return self.relay(key, judge, desk);
        }
        match self.work {
            Workload::Poisson { .. } => {
                let node = NodeId(self.random.below(u64::from(self.nodes)) as u32);
                self.issue(node, desk);
                self.schedule(desk);
            }
            Workload::Burst { size, .. } => {
                for _ in 0..size {
                    let node = NodeId(self.random.below(u64::from(self.nodes)) as u32);
                    self.issue(node, desk);
                }
                self.schedule(desk);
            }
            Workload::Pair => self.issue_pair(desk),
            _ => self.issue_in_turn(desk),
        }
    }

    /// Records a crash, which ends the requests of the site.
    pub(super) fn crashed(&mut self, node: NodeId) {
        let lost = std::mem::take(&mut self.open[node.index()]);
        self.all_open -= lost;
        self.lost[node.index()] += lost;
        self.all_lost += lost;
        self.unhandled.retain(|(to, _)| *to != node);
    }

    /// Records a recovery. A site that recovers inside, with its state, leaves. Under high load it requests
    /// again.
    pub(super) fn recovered<P: Mutex>(&mut self, node: NodeId, desk: &mut Desk<'_, P, Note>) {
        self.all_lost -= std::mem::take(&mut self.lost[node.index()]);
        if std::mem::take(&mut self.inside[node.index()]) {
            desk.command(node, Command::Release);
        }
        if self.work == Workload::High {
            self.issue(node, desk);
        }
    }

    /// Returns the next site in turn that is up.
    fn turn<P: Mutex>(&self, desk: &Desk<'_, P, Note>) -> Option<NodeId> {
        let nodes = u64::from(self.nodes);
        let mut in_turn = (0..nodes).map(|ahead| NodeId(((self.issued + ahead) % nodes) as u32));
        in_turn.find(|node| desk.is_up(*node))
    }

    fn issue_in_turn<P: Mutex>(&mut self, desk: &mut Desk<'_, P, Note>) {
        if let Some(node) = self.turn(desk) {
            self.issue(node, desk);
        }
    }

    fn issue<P: Mutex>(&mut self, node: NodeId, desk: &mut Desk<'_, P, Note>) {
        if self.issued == self.ordered {
            return;
        }
        self.issued += 1;
        desk.progress();
        desk.command(node, Command::Acquire);
        if self.work == Workload::Relay {
            self.relayed.push(RelayMessage::Sent { from: node });
            desk.wake_in(Duration::ZERO, self.relayed.len() as u64 - 1);
        }
    }

    /// Issues requests of two sites at the same moment, so that one of them waits for the other.
    fn issue_pair<P: Mutex>(&mut self, desk: &mut Desk<'_, P, Note>) {
        let Some(first) = self.turn(desk) else { return };
        self.issue(first, desk);
        if self.nodes > 1 {
            let other =
                NodeId((first.0 + 1 + self.random.below(u64::from(self.nodes - 1)) as u32) % self.nodes);
            self.issue(other, desk);
        }
    }

    fn schedule<P: Mutex>(&mut self, desk: &mut Desk<'_, P, Note>) {
        if self.issued == self.ordered {
            return;
        }
        let after = match self.work {
            Workload::Poisson { mean } => mean.mul_f64(-(1.0 - self.random.unit()).ln()),
            Workload::Burst { every, .. } => every,
            _ => return,
        };
        self.wake_for_next(after, desk);
    }

    fn wake_for_next<P: Mutex>(&mut self, after: Duration, desk: &mut Desk<'_, P, Note>) {
        if self.issued < self.ordered {
            desk.wake_in(after, NEXT);
        }
    }

    /// Handles a step of the relay. After its request, a site informs the next site outside of the algorithm,
    /// which then requests too. The second request happened after the first, so a fair algorithm must grant
    /// it later.
    fn relay<P: Mutex>(&mut self, key: u64, judge: &mut Judge, desk: &mut Desk<'_, P, Note>) {
        match self.relayed[key as usize] {
            RelayMessage::Sent { from } => {
                let to = NodeId((from.0 + 1) % self.nodes);
                let (clock, note) = (desk.node(from).clock(), judge.sends(from));
                self.relayed[key as usize] = RelayMessage::InTransit { to, clock, note };
                desk.wake_in(self.delay / 10, key);
            }
            RelayMessage::InTransit { to, .. } if !desk.is_up(to) => {}
            RelayMessage::InTransit { to, clock, note } => {
                self.unhandled.push_back((to, note));
                desk.command(to, Command::Witness(clock));
                if judge.waiting().all(|site| site != to) {
                    self.issue(to, desk);
                }
            }
        }
    }
}
