//! Experiments: everything that determines a run of the simulator, or an exploration of the checker.
//!
//! An [`Experiment`] names an algorithm and holds the problem's work and a world. The work is a struct of the
//! problem; its fields are at once the flags of the command line and the fields of files. The world is a
//! [`Setup`] for a simulated run and a [`Space`] for an exploration. So a world of another kind, such as
//! processes on a network, is another type in place of the second parameter.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`Experiment`] and [`Space`] |
//! | `flags` | the flags of a work: added to a command, and written for the command that repeats a run |
//! | `file` | experiments in files and in headers of traces, also in the form of format 1 |

pub mod file;
pub mod flags;

use std::fmt::Debug;
use std::time::Duration;

use conclave_algorithms::mutants::World;
use conclave_check::{Faults, Options, Order, Recovery, Timing};
use conclave_kernel::Card;
use conclave_sim::Setup;
use serde::{Deserialize, Serialize};

/// Everything that determines a run or an exploration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment<W, S> {
    /// The algorithm's name.
    pub algorithm: String,
    /// The flaw that is put into the algorithm: the name of a mutant; `None` for the algorithm itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<String>,
    /// The work, in the terms of the problem.
    pub work: W,
    /// The network, the faults and the number of sites.
    pub world: S,
}

impl<W, S> Experiment<W, S> {
    /// Returns the same experiment with another work.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut W)) -> Self {
        change(&mut self.work);
        self
    }
}

/// An experiment in the simulator.
pub type Run<W> = Experiment<W, Setup>;

/// The world of an exploration: the number of sites, and everything that links and sites may do in one
/// execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Space {
    /// The number of sites
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = flags::nodes)]
    pub nodes: u32,
    /// The order in which messages arrive: fifo or any
    #[arg(long, value_name = "ORDER", default_value = "fifo", value_parser = flags::order)]
    pub order: Order,
    /// The largest number of messages that are lost
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub loss: u8,
    /// The largest number of messages that arrive twice
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub duplicate: u8,
    /// The largest number of sites that crash
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub crash: u8,
    /// The return of crashed sites: stable (with their memory) or amnesia (without it) [default: no return]
    #[arg(long, value_name = "WITH", value_parser = flags::recovery)]
    pub recovery: Option<Recovery>,
    /// The longest delay of a message, in ticks of 1ms; timers then count ticks too [default: any delay]
    #[arg(long, value_name = "TICKS")]
    pub sync: Option<u16>,
}

impl Default for Space {
    fn default() -> Self {
        Self { nodes: 3, order: Order::Fifo, loss: 0, duplicate: 0, crash: 0, recovery: None, sync: None }
    }
}

/// The length of a tick.
pub const TICK: Duration = Duration::from_millis(1);

impl Space {
    /// Creates the space of an algorithm without faults, over the links and with the synchrony that it needs.
    pub fn of(card: &Card, nodes: u32) -> Self {
        Self {
            nodes,
            order: if card.needs.fifo { Order::Fifo } else { Order::Any },
            sync: card.needs.synchrony.then_some(1),
            ..Self::default()
        }
    }

    /// Creates the space of the world in which a mutant runs.
    pub fn of_world(world: &World) -> Self {
        Self {
            nodes: world.nodes,
            order: if world.fifo { Order::Fifo } else { Order::Any },
            loss: world.loss,
            duplicate: world.duplication,
            crash: world.crash,
            recovery: world.recovery.then_some(Recovery::Stable),
            sync: world.ticks,
        }
    }

    /// The assumption about time.
    pub fn timing(&self) -> Timing {
        self.sync.map_or(Timing::Async, |delay| Timing::Sync { delay, tick: TICK })
    }

    /// The faults that may happen in one execution.
    pub fn faults(&self) -> Faults {
        let Self { loss, duplicate, crash, recovery, .. } = *self;
        Faults { loss, duplication: duplicate, crash, recovery }
    }

    /// The longest delay of a message; a tick if there is no bound.
    pub fn longest_delay(&self) -> Duration {
        TICK * u32::from(self.sync.unwrap_or(1))
    }

    /// Returns the options of an exploration in this space, with the search and the bounds of `options`.
    pub fn options(&self, options: &Options) -> Options {
        Options { order: self.order, timing: self.timing(), faults: self.faults(), ..options.clone() }
    }

    /// The flags that differ from the default, without the number of sites.
    pub(crate) fn flags(&self) -> Vec<String> {
        flags::written(self, &Self { nodes: self.nodes, ..Self::default() })
    }
}
