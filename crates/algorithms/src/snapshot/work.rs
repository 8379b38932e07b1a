//! Work that spreads and dies out: the application whose end a snapshot detects.
//!
//! A site is active or passive. A task makes it active; after a while it hands smaller tasks on and is
//! passive. Only a task makes a passive site active again, so that *everybody passive and no task on its way*
//! is stable: it is termination. \[CL85 §4\], \[M87\]
//!
//! **Trap**: to ask one site after the other whether it is passive proves nothing. A site that said yes may
//! have been given a task since, by one that says yes later.

use alloc::collections::BTreeSet;
use alloc::string::String;
use core::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Picture};

/// At most so much work waits at a site; tasks beyond it are dropped and reported.
pub const MOST_WORK: u32 = 1 << 20;

/// How long a unit of work takes.
const UNIT: Duration = Duration::from_millis(1);

/// A site that works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Work {
    /// Units of work left; passive if there are none.
    pub left: u32,
}

/// The work in hand is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Unit;

/// So much to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Task(pub u32);

/// What a site tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// It is passive now.
    Passive,
    /// It has too much to do, and dropped a task.
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

    /// One unit is done. Of what is left, half may go to somebody else.
    fn on_timer(&mut self, Unit: Unit, cx: &mut Cx<'_, Self>) {
        self.left = self.left.saturating_sub(1);
        let half = self.left / 2 + self.left % 2;
        let peers = cx.peers().len() as u32;
        if half > 0 && peers > 0 && cx.choose(2) == 1 {
            let to = cx.peers().iter().nth(cx.choose(peers) as usize).expect("the dice have a face a peer");
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

/// Whether everybody is passive and no task is on its way.
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
