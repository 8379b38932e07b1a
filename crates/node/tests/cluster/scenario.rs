//! The scenarios, and the parameters that a seed draws for one of them.

use std::time::Duration;

use conclave_kernel::{NodeId, Prng, Time};
use conclave_node::node::FULL_BYTES;

use crate::bug::Bug;
use crate::site::{CONSENSUS, Clock, DRIFT_PPM};

/// A kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Three servers, and clients that want one lock for as long as their leases. Faults never stop.
    Leases,
    /// Three servers, and clients that use everything: locks, elections, files, watches.
    Cluster,
    /// One server with a disk of its own, whose power fails. The clients use everything.
    Single,
}

impl Scenario {
    /// Returns the time at which the run ends.
    pub fn length(self) -> Duration {
        match self {
            Self::Leases => Duration::from_secs(20),
            Self::Cluster => Duration::from_secs(15),
            Self::Single => Duration::from_secs(11),
        }
    }

    /// Returns the time from which on nothing fails. Every client must then be served.
    pub fn healed_at(self) -> Duration {
        match self {
            Self::Leases => Duration::MAX,
            Self::Cluster => Duration::from_secs(8),
            Self::Single => Duration::from_secs(5),
        }
    }

    /// Returns the time from which on clients begin nothing new.
    pub fn quiet_at(self) -> Duration {
        match self {
            Self::Leases => Duration::MAX,
            Self::Cluster | Self::Single => self.length() - Duration::from_secs(2),
        }
    }

    pub fn is_healed(self, now: Time) -> bool {
        Duration::from_nanos(now.0) >= self.healed_at()
    }

    pub fn is_quiet(self, now: Time) -> bool {
        Duration::from_nanos(now.0) >= self.quiet_at()
    }

    fn servers_count(self) -> u32 {
        if self == Self::Single { 1 } else { 3 }
    }

    /// Returns the number of sites: consensus, the servers, and three clients.
    pub fn sites(self) -> u32 {
        1 + self.servers_count() + 3
    }

    pub fn servers(self) -> impl Iterator<Item = NodeId> + Clone {
        (CONSENSUS.0 + 1..=self.servers_count()).map(NodeId)
    }

    pub fn clients(self) -> impl Iterator<Item = NodeId> + Clone {
        (self.servers_count() + 1..self.sites()).map(NodeId)
    }

    /// Returns the server with this number, counted around.
    pub fn server(self, number: u32) -> NodeId {
        NodeId(1 + number % self.servers_count())
    }
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub scenario: Scenario,
    pub bug: Option<Bug>,
    pub multi_core: bool,
    /// The size of unread replies from which on an outbox is full. A small size makes clients slow readers.
    pub full_bytes: usize,
    /// The bound of a server's commands in flight, if it is not the usual one.
    pub most_in_flight: Option<usize>,
    /// A write breaks its connection with a chance of one in this number; 0 for never.
    pub one_break_in: u32,
    /// Whether clients send many queries at once.
    pub has_bursts: bool,
    /// Whether clients pause and hold names only for a moment.
    pub is_busy: bool,
    /// The longest sync of the disk, in microseconds.
    pub sync_us: u32,
    /// Whether the power of a single node fails often, during slow syncs, and returns at once. Clients then
    /// rely on early grants that the log has lost, and others request the same name with a higher priority.
    pub is_abrupt: bool,
    /// The longest time for which a node has not handled the effects of entries that its state contains, in
    /// microseconds; 0 if it handles them at once.
    pub effects_us: u32,
}

impl Config {
    /// Draws the parameters. Each seed switches some of them off and makes others extreme.
    pub fn draw(scenario: Scenario, bug: Option<Bug>, dice: &mut Prng) -> Self {
        let plain = Self {
            scenario,
            bug,
            multi_core: dice.below(2) == 0,
            full_bytes: FULL_BYTES,
            most_in_flight: None,
            one_break_in: 0,
            has_bursts: false,
            is_busy: false,
            sync_us: 0,
            is_abrupt: false,
            effects_us: [0, 0, 5_000, 100_000][below(4, dice) as usize],
        };
        if scenario == Scenario::Leases {
            return plain;
        }
        // A node that admits few requests must be fast, or it starves some clients.
        let is_tight = dice.below(3) == 0;
        let is_busy = scenario == Scenario::Single && !is_tight && dice.below(2) == 0;
        let is_abrupt = scenario == Scenario::Single && !is_tight && dice.below(2) == 0;
        let full_bytes = [FULL_BYTES, 4_000, 600][below(3, dice) as usize];
        let one_break_in = [0, 300, 60][below(3, dice) as usize];
        let has_bursts = dice.below(8) == 0;
        let sync_us = match is_tight {
            true => 500,
            false if is_abrupt => 200_000,
            false => [500, 20_000, 200_000][below(3, dice) as usize],
        };
        // A single node serves reads between two syncs, and the smallest outbox has space for about 20
        // replies. A burst then needs 30 syncs, and slow ones would last longer than the time after the
        // faults.
        let max_sync_us = if has_bursts && full_bytes == 600 { 20_000 } else { 200_000 };
        Self {
            full_bytes,
            most_in_flight: is_tight.then_some(3),
            one_break_in,
            has_bursts,
            is_busy,
            sync_us: sync_us.min(max_sync_us),
            is_abrupt,
            ..plain
        }
    }

    /// Returns whether clients acknowledge the bytes that they read.
    pub fn is_slow(&self) -> bool {
        self.full_bytes < FULL_BYTES
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

pub fn below(n: u64, dice: &mut Prng) -> u32 {
    u32::try_from(dice.below(n)).expect("a small number")
}
