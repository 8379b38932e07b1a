//! Work that spreads and ends: an application whose termination a snapshot detects.
//!
//! A site is active or passive. A task makes it active. It works on the task for a while, may send parts of
//! it to other sites, and becomes passive. Only a task makes a passive site active again. So *all sites
//! passive and no task in transit* is a stable property: termination. \[CL85 §4\], \[M87\]
//!
//! **Trap**: a query of the sites one after the other proves nothing. Site 0 replies that it is passive. Then
//! site 1 sends it a task, becomes passive and replies that it is passive, too.

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Picture};

/// The largest amount of work at a site, in units. The site drops a task that would exceed it, and reports
/// this.
pub const MOST_WORK: u32 = 1 << 20;

/// The time that one unit of work takes.
const UNIT: Duration = Duration::from_millis(1);

/// The state of one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Work {
    /// The units of work left; the site is passive at 0.
    pub left: u32,
}

/// A timer: one unit of work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Unit;

/// A task, as a command or a message: units of work to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Task(pub u32);

/// An event that a site reports to the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The site has become passive.
    Passive,
    /// The site had too much work and has dropped a task.
    Overworked,
}

impl Work {
    fn take(&mut self, task: u32, cx: &mut Cx<'_, Self>) {
        if self.left.saturating_add(task) > MOST_WORK {
            return cx.emit(Report::Overworked);
        }
        if self.left == 0 && task > 0 {
            cx.arm(Unit, UNIT..=UNIT);
        }
        self.left += task;
    }
}

impl Protocol for Work {
    type Message = Task;
    type Timer = Unit;
    type Command = Task;
    type Event = Report;

    fn on_message(&mut self, _from: NodeId, Task(task): Task, cx: &mut Cx<'_, Self>) {
        self.take(task, cx);
    }

    fn on_command(&mut self, Task(task): Task, cx: &mut Cx<'_, Self>) {
        self.take(task, cx);
    }

    /// Finishes one unit of work. The site may send half of the rest to another site.
    fn on_timer(&mut self, Unit: Unit, cx: &mut Cx<'_, Self>) {
        self.left = self.left.saturating_sub(1);
        let half = self.left / 2 + self.left % 2;
        let peers = cx.peers().len() as u32;
        if half > 0 && peers > 0 && cx.choose(2) == 1 {
            let to =
                cx.peers().iter().nth(cx.choose(peers) as usize).expect("the draw has one value per peer");
            self.left -= half;
            cx.send(to, Task(half));
        }
        match self.left {
            0 => cx.emit(Report::Passive),
            _ => cx.arm(Unit, UNIT..=UNIT),
        }
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        if self.left > 0 {
            cx.arm(Unit, UNIT..=UNIT);
        }
    }
}

/// Returns whether all sites are passive and no task is in transit.
pub fn terminated(picture: &Picture<Work>) -> bool {
    picture.states().all(|site| site.left == 0) && picture.in_transit().next().is_none()
}

impl Application for Work {
    fn stable_facts(picture: &Picture<Self>) -> BTreeSet<u64> {
        terminated(picture).then_some(0).into_iter().collect()
    }

    fn fact(_: u64) -> String {
        "terminated".into()
    }
}
