//! The plan of a seed: elections, moves of clients, pauses, partitions, power cuts and jumps.

use std::time::Duration;

use conclave_kernel::{NodeId, Prng};
use conclave_sim::{CutLoss, Fault, FaultKind, Recovery};

use crate::scenario::{Config, Scenario, below};
use crate::site::{CONSENSUS, Script};

/// The plan of a run: the faults, and the commands with their times and receivers.
pub struct Plan {
    scenario: Scenario,
    is_abrupt: bool,
    pub faults: Vec<Fault>,
    pub commands: Vec<(Duration, NodeId, Script)>,
}

impl Plan {
    /// Draws a plan. Messages on a cut link arrive later.
    pub fn draw(config: &Config, dice: &mut Prng) -> Self {
        let Config { scenario, is_abrupt, .. } = *config;
        let mut plan = Self { scenario, is_abrupt, faults: Vec::new(), commands: Vec::new() };
        for client in scenario.clients() {
            let first = Duration::from_millis(dice.between(500, 6_000));
            plan.repeat(first, (100, 8_000), dice, |dice| {
                (client, Script::Move(scenario.server(below(3, dice))))
            });
        }
        match scenario {
            Scenario::Leases => plan.draw_leases(dice),
            Scenario::Cluster => plan.draw_cluster(dice),
            Scenario::Single => plan.draw_single(dice),
        }
        plan
    }

    fn draw_leases(&mut self, dice: &mut Prng) {
        self.elections(dice);
        self.pauses(4, dice);
        self.partitions(dice);
        if dice.below(2) == 0 {
            self.isolate_leader(dice);
        }
    }

    fn draw_cluster(&mut self, dice: &mut Prng) {
        let scenario = self.scenario;
        self.elections(dice);
        self.pauses(3, dice);
        self.partitions(dice);
        for server in scenario.servers() {
            if dice.below(3) == 0 {
                self.fault(FaultKind::Crash { node: server, recovery: Recovery::Amnesia }, 2_000, dice);
            }
            if dice.below(2) == 0 {
                let at = Duration::from_millis(dice.between(1_000, 6_000));
                self.commands.push((at, CONSENSUS, Script::Lag(server)));
                let jump = at + Duration::from_millis(dice.between(100, 1_500));
                self.commands.push((jump, CONSENSUS, Script::Jump(server)));
            }
        }
        let healed = scenario.healed_at();
        self.commands.push((healed, CONSENSUS, Script::Elect(scenario.server(below(3, dice)))));
        self.commands.extend(scenario.servers().map(|server| (healed, CONSENSUS, Script::Jump(server))));
    }

    fn draw_single(&mut self, dice: &mut Prng) {
        self.pauses(2, dice);
        if dice.below(2) == 0 {
            self.partitions(dice);
        }
        let node = self.scenario.server(0);
        let mut at = Duration::from_millis(dice.between(600, 2_000));
        while at + Duration::from_millis(600) < self.scenario.healed_at() {
            let (down_ms, up_ms) =
                if self.is_abrupt { ((1, 20), (100, 700)) } else { ((5, 600), (200, 1_500)) };
            let until = at + Duration::from_millis(dice.between(down_ms.0, down_ms.1));
            let kind = FaultKind::Crash { node, recovery: Recovery::Amnesia };
            self.faults.push(Fault { kind, at, until: Some(until), demanded: false });
            at = until + Duration::from_millis(dice.between(up_ms.0, up_ms.1));
        }
    }

    fn elections(&mut self, dice: &mut Prng) {
        let scenario = self.scenario;
        self.repeat(Duration::ZERO, (200, 8_000), dice, |dice| {
            (CONSENSUS, Script::Elect(scenario.server(below(3, dice))))
        });
    }

    fn pauses(&mut self, most: u64, dice: &mut Prng) {
        for _ in 0..dice.below(most) {
            let node = NodeId(1 + below(u64::from(self.scenario.sites() - 1), dice));
            self.fault(FaultKind::Pause { node }, 3_000, dice);
        }
    }

    fn partitions(&mut self, dice: &mut Prng) {
        for _ in 0..dice.between(1, 4) {
            let sites = (1..self.scenario.sites()).map(NodeId);
            let mut group: Vec<NodeId> = sites.filter(|_| dice.below(3) == 0).collect();
            if group.is_empty() {
                group.push(self.scenario.server(below(3, dice)));
            }
            self.cut(group, 6_000, dice);
        }
    }

    /// Cuts off a leader together with one of its clients, and elects another leader. Then the client may
    /// stop for a while: a keep-alive that the old leader answered is its last.
    fn isolate_leader(&mut self, dice: &mut Prng) {
        let leader = below(3, dice);
        let (leader, next) = (self.scenario.server(leader), self.scenario.server(leader + 1));
        let client = self.scenario.clients().nth(below(3, dice) as usize).expect("there are three");
        let most_ms = if dice.below(2) == 0 { 1_200 } else { 6_000 };
        let (from, until) = self.cut(vec![leader, client], most_ms, dice);
        let before = from.saturating_sub(Duration::from_millis(dice.between(50, 900)));
        self.commands.push((before, CONSENSUS, Script::Elect(leader)));
        self.commands.push((before, client, Script::Move(leader)));
        let cut_ms = u64::try_from((until - from).as_millis()).expect("a few seconds");
        let elected = from + Duration::from_millis(dice.below(cut_ms.min(2_000)));
        self.commands.push((elected, CONSENSUS, Script::Elect(next)));
        if dice.below(2) == 0 {
            let at = until + Duration::from_millis(dice.below(200));
            let until = Some(at + Duration::from_millis(dice.between(1_500, 3_000)));
            let kind = FaultKind::Pause { node: client };
            self.faults.push(Fault { kind, at, until, demanded: false });
        }
    }

    fn repeat(
        &mut self,
        first: Duration,
        gap_ms: (u64, u64),
        dice: &mut Prng,
        command: impl Fn(&mut Prng) -> (NodeId, Script),
    ) {
        let mut at = first;
        while at < self.scenario.length().min(self.scenario.healed_at()) {
            let (to, script) = command(dice);
            self.commands.push((at, to, script));
            at += Duration::from_millis(dice.between(gap_ms.0, gap_ms.1));
        }
    }

    fn cut(&mut self, group: Vec<NodeId>, most_ms: u64, dice: &mut Prng) -> (Duration, Duration) {
        let kind = FaultKind::Partition { group: group.into_iter().collect(), loss: CutLoss::Hold };
        self.fault(kind, most_ms, dice)
    }

    /// Plans a fault. It ends before everything heals.
    fn fault(&mut self, kind: FaultKind, most_ms: u64, dice: &mut Prng) -> (Duration, Duration) {
        let healed = self.scenario.healed_at();
        let last = healed.min(self.scenario.length()) - Duration::from_secs(2);
        let at =
            Duration::from_millis(dice.between(1_000, u64::try_from(last.as_millis()).expect("seconds")));
        let until = (at + Duration::from_millis(dice.between(1, most_ms))).min(healed);
        self.faults.push(Fault { kind, at, until: Some(until), demanded: false });
        (at, until)
    }
}
