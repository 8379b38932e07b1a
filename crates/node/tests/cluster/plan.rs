//! The plan of a seed: clocks, elections, moves of clients, pauses and partitions.

use std::time::Duration;

use conclave_kernel::{NodeId, Prng};
use conclave_sim::{CutLoss, Fault, FaultKind};

use crate::site::{CLIENTS, Clock, DRIFT_PPM, ORDER, SERVERS, Script};

/// The length of a run: ten leases.
pub const LENGTH: Duration = Duration::from_secs(20);
/// The number of sites.
pub const SITES: u32 = 1 + SERVERS + CLIENTS;

/// The plan of a run: the faults, and the commands with their times and receivers.
#[derive(Default)]
pub struct Plan {
    pub faults: Vec<Fault>,
    pub commands: Vec<(Duration, NodeId, Script)>,
}

impl Plan {
    /// Draws a plan: elections, clients that change their server, pauses and partitions. Messages on a cut link arrive later.
    pub fn draw(dice: &mut Prng) -> Self {
        let mut plan = Self::default();
        plan.repeat(Duration::ZERO, (200, 8_000), dice, |dice| (ORDER, Script::Elect(server(dice))));
        for client in clients() {
            let first = Duration::from_millis(dice.between(500, 6_000));
            plan.repeat(first, (100, 8_000), dice, |dice| (client, Script::Move(server(dice))));
        }
        for _ in 0..dice.below(4) {
            let node = NodeId(1 + below(u64::from(SITES - 1), dice));
            plan.fault(FaultKind::Pause { node }, 3_000, dice);
        }
        for _ in 0..dice.between(1, 4) {
            let mut group: Vec<NodeId> = (1..SITES).map(NodeId).filter(|_| dice.below(3) == 0).collect();
            if group.is_empty() {
                group.push(server(dice));
            }
            plan.cut(group, 6_000, dice);
        }
        if dice.below(2) == 0 {
            plan.isolate_leader(dice);
        }
        plan
    }

    /// Cuts off a leader together with one of its clients, and elects another leader. Then the client may stop for a while: a
    /// keep-alive that the old leader answered is its last.
    fn isolate_leader(&mut self, dice: &mut Prng) {
        let (leader, client) = (server(dice), NodeId(1 + SERVERS + below(u64::from(CLIENTS), dice)));
        let most_ms = if dice.below(2) == 0 { 1_200 } else { 6_000 };
        let (from, until) = self.cut(vec![leader, client], most_ms, dice);
        let next = NodeId(1 + leader.0 % SERVERS);
        let before = from.saturating_sub(Duration::from_millis(dice.between(50, 900)));
        self.commands.push((before, ORDER, Script::Elect(leader)));
        self.commands.push((before, client, Script::Move(leader)));
        let cut_ms = u64::try_from((until - from).as_millis()).expect("a few seconds");
        let elected = from + Duration::from_millis(dice.below(cut_ms.min(2_000)));
        self.commands.push((elected, ORDER, Script::Elect(next)));
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
        while at < LENGTH {
            let (to, script) = command(dice);
            self.commands.push((at, to, script));
            at += Duration::from_millis(dice.between(gap_ms.0, gap_ms.1));
        }
    }

    fn cut(&mut self, group: Vec<NodeId>, most_ms: u64, dice: &mut Prng) -> (Duration, Duration) {
        let kind = FaultKind::Partition { group: group.into_iter().collect(), loss: CutLoss::Hold };
        self.fault(kind, most_ms, dice)
    }

    fn fault(&mut self, kind: FaultKind, most_ms: u64, dice: &mut Prng) -> (Duration, Duration) {
        let at = Duration::from_millis(dice.between(1_000, 18_000));
        let until = at + Duration::from_millis(dice.between(1, most_ms));
        self.faults.push(Fault { kind, at, until: Some(until), demanded: false });
        (at, until)
    }
}

/// Draws the clock of a site. Extremes are drawn often: bugs of drift are bugs of its extremes.
pub fn clock(dice: &mut Prng) -> Clock {
    let most = i64::from(DRIFT_PPM);
    let zero = Duration::from_millis(dice.below(1_000_000));
    let ppm = match dice.below(4) {
        0 => -most,
        1 => most,
        _ => i64::from(below(2 * u64::from(DRIFT_PPM), dice)) - most,
    };
    Clock { zero, ppm }
}

/// Draws a server.
pub fn server(dice: &mut Prng) -> NodeId {
    NodeId(1 + below(u64::from(SERVERS), dice))
}

/// Returns all clients.
pub fn clients() -> impl Iterator<Item = NodeId> {
    (1 + SERVERS..SITES).map(NodeId)
}

fn below(n: u64, dice: &mut Prng) -> u32 {
    u32::try_from(dice.below(n)).expect("a small number")
}
