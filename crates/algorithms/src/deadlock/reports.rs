//! Central detection on request: two reports, which is wrong, and one report of both ends, which is correct.
//!
//! A site wakes the coordinator, and the coordinator requests the tables of every site. With *two reports*,
//! it requests them again if they show a deadlock, and accepts the edges that are in both. With *one report*,
//! every site sends two tables: the processes for which its process waits, and the processes that wait for
//! it. An edge is accepted if both ends report it.
//!
//! **Rules** \[HR82 §3, §4\]
//! 1. Send WAKE to the coordinator. With two reports, a process does this when it blocks. With one report, it
//!    does this when it is blocked and receives a request, or when it waits for itself. (One request of a
//!    deadlock arrives last, at a blocked process. Before that, some edge has only one end, and the deadlock
//!    cannot be seen.)
//! 2. The coordinator sends ASK to all sites. It evaluates when all have sent TABLE. If a WAKE arrives in the
//!    meantime, it sends ASK once more.
//! 3. Edges that are not accepted are ignored: their wait counts as granted.
//!
//! **The trap.** Two reports look safe, because an edge that is in both seems to have existed the whole time.
//! But it may have vanished and come back, and reports of different sites are of different moments. Two
//! processes that *alternately* wait for each other can both be seen waiting, twice. One report does not need
//! a common moment; [`Record`](super::records::Record) explains why both ends are enough.
//!
//! **Differences from the paper**: the paper requests the tables periodically. We request them on WAKE, so
//! that a deadlock is found without a further event.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId, NodeMap, NodeSet};
use serde::{Deserialize, Serialize};

use super::central::COORDINATOR;
use super::records::Known;
use super::site::{Detection, Model, Out};
use super::spec::{NO_MISS, PURGED};
use super::underlying::{Underlying, Wait};

/// Ho and Ramamoorthy's two-phase detector.
pub type TwoReport = Reports<true>;
/// Ho and Ramamoorthy's one-phase detector.
pub type OneReport = Reports<false>;

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reports<const TWICE: bool> {
    me: NodeId,
    desk: Option<Box<Desk>>,
}

/// The state of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Desk {
    round: u64,
    /// The sites that have not answered; empty between rounds.
    awaited: NodeSet,
    /// The received tables, at most one per site.
    tables: BTreeMap<NodeId, Table>,
    /// The tables of the round before, if this is the second report.
    first: Option<BTreeMap<NodeId, Table>>,
    /// Whether a WAKE arrived during the round.
    again: bool,
    accused: NodeMap<u64>,
}

/// The edges of a site's process, as the site sees them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Table {
    /// The wait of the process.
    pub wait: Option<Wait>,
    /// The processes whose requests it has not granted, with the numbers of the requests.
    pub asked: Vec<(NodeId, u64)>,
}

impl Table {
    /// Returns the tables of a process.
    pub fn of(process: &Underlying) -> Self {
        Self { wait: process.wait().cloned(), asked: process.pending().iter().collect() }
    }
}

/// A message between a site and the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To the coordinator: start a round.
    Wake,
    /// From the coordinator: the request for the tables, with the number of the round.
    Ask(u64),
    /// To the coordinator: the tables of the sender, with the number of the round.
    Table(u64, Table),
}

impl<const TWICE: bool> Detection for Reports<TWICE> {
    type Message = Message;

    const CARD: Card = if TWICE {
        super::card(
            "two-report",
            "Ho-Ramamoorthy, two reports",
            "a coordinator asks all sites twice for their wait edges and keeps the edges in both reports",
            &["HR82"],
            &[NO_MISS.name, PURGED.name],
            &[Cost {
                measure: Measure::Messages,
                load: Load::Low,
                formula: "2(N-1) + 1; 4(N-1) + 1 if the first report shows a deadlock",
                range: |size| (2.0 * (size.n() - 1.0), 4.0 * (size.n() - 1.0) + 1.0),
            }],
        )
    } else {
        super::card(
            "one-report",
            "Ho-Ramamoorthy, one report",
            "a coordinator asks all sites once and keeps the wait edges that both ends report",
            &["HR82"],
            super::EXACT,
            &[Cost {
                measure: Measure::Messages,
                load: Load::Low,
                formula: "2(N-1) + 1; 1 less if the coordinator wakes itself",
                range: |size| (2.0 * (size.n() - 1.0), 2.0 * (size.n() - 1.0) + 1.0),
            }],
        )
    };
    const MODEL: Model = Model::POutOfQ;
    const CONFIRMS: bool = !TWICE;

    fn new(me: NodeId, nodes: u32) -> Self {
        let desk = || {
            Box::new(Desk {
                round: 0,
                awaited: NodeSet::new(),
                tables: BTreeMap::new(),
                first: None,
                again: false,
                accused: NodeMap::new(nodes),
            })
        };
        Self { me, desk: (me == COORDINATOR).then(desk) }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Wake => "WAKE",
            Message::Ask(_) => "ASK",
            Message::Table(..) => "TABLE",
        }
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Message>) {
        if TWICE || process.waits_for_itself() {
            self.wake(process, out);
        }
    }

    fn on_asked(&mut self, _from: NodeId, process: &Underlying, out: &mut Out<Message>) {
        if !TWICE && process.wait().is_some() {
            self.wake(process, out);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, process: &Underlying, out: &mut Out<Message>) {
        match message {
            Message::Wake => self.wake(process, out),
            Message::Ask(round) => out.send(from, Message::Table(round, Table::of(process))),
            Message::Table(round, table) => {
                let Some(desk) = self.desk.as_mut().filter(|desk| desk.round == round) else { return };
                desk.awaited.remove(from);
                desk.tables.insert(from, table);
                self.conclude(process, out);
            }
        }
    }
}

impl<const TWICE: bool> Reports<TWICE> {
    fn wake(&mut self, process: &Underlying, out: &mut Out<Message>) {
        match &mut self.desk {
            None => out.send(COORDINATOR, Message::Wake),
            Some(desk) if !desk.awaited.is_empty() => desk.again = true,
            Some(_) => self.ask(process, out),
        }
    }

    fn ask(&mut self, process: &Underlying, out: &mut Out<Message>) {
        let (me, Some(desk)) = (self.me, &mut self.desk) else { return };
        desk.round += 1;
        desk.tables = BTreeMap::from([(me, Table::of(process))]);
        desk.awaited = NodeSet::full(process.nodes());
        desk.awaited.remove(me);
        out.send_to(&desk.awaited, &Message::Ask(desk.round));
        self.conclude(process, out);
    }

    fn conclude(&mut self, process: &Underlying, out: &mut Out<Message>) {
        let Some(desk) = self.desk.as_mut().filter(|desk| desk.awaited.is_empty()) else { return };
        let tables = core::mem::take(&mut desk.tables);
        let waits = match (&desk.first, TWICE) {
            (Some(first), _) => in_both(first, &tables),
            (None, true) => believed(&tables, |_, _, _| true),
            (None, false) => both_ends(&tables),
        };
        let victims = victims(&waits, &desk.accused);
        if TWICE && desk.first.is_none() && !victims.is_empty() {
            desk.first = Some(tables);
            return self.ask(process, out);
        }
        desk.first = None;
        for (victim, number) in victims {
            desk.accused.insert(victim, number);
            out.accuse(victim, number);
        }
        if core::mem::take(&mut desk.again) {
            self.ask(process, out);
        }
    }
}

/// Returns the waits with only their accepted edges. Each other edge counts as granted.
fn believed(
    tables: &BTreeMap<NodeId, Table>,
    is_believed: impl Fn(NodeId, &Wait, NodeId) -> bool,
) -> BTreeMap<NodeId, Wait> {
    let mut waits = BTreeMap::new();
    for (process, table) in tables {
        let Some(wait) = &table.wait else { continue };
        let of: NodeSet = wait.of.iter().filter(|by| is_believed(*process, wait, *by)).collect();
        let need = (wait.need as usize).saturating_sub(wait.of.len() - of.len());
        if need > 0 {
            let need = u32::try_from(need).expect("no more than was needed");
            waits.insert(*process, Wait { number: wait.number, need, of });
        }
    }
    waits
}

/// Returns the waits with only the edges that both ends report. A process has both ends of an edge to itself.
pub(super) fn both_ends(tables: &BTreeMap<NodeId, Table>) -> BTreeMap<NodeId, Wait> {
    believed(tables, |process, wait, by| {
        let asked = |table: &Table| table.asked.contains(&(process, wait.number));
        by == process || tables.get(&by).is_some_and(asked)
    })
}

/// Returns the waits of the second report with only the edges that the first report has too. The algorithm
/// compares only the names of the processes.
fn in_both(first: &BTreeMap<NodeId, Table>, second: &BTreeMap<NodeId, Table>) -> BTreeMap<NodeId, Wait> {
    believed(second, |process, _, by| {
        let before = first.get(&process).and_then(|table| table.wait.as_ref());
        before.is_some_and(|before| before.of.contains(by))
    })
}

/// Returns the processes to abort. A process that was accused before, and is deadlocked by the same request,
/// is accused again. Its first accusation may be still pending. But it may also be over without an abort,
/// because the abort of another process had just freed it; then this is a new deadlock.
pub(super) fn victims(waits: &BTreeMap<NodeId, Wait>, accused: &NodeMap<u64>) -> Vec<(NodeId, u64)> {
    let all = Known::new(waits.iter().map(|(process, wait)| (*process, wait)), &|_, _| 0);
    let is_again =
        |process: NodeId, wait: &Wait| accused.get(process) == Some(wait.number) && all.is_on_cycle(process);
    let (again, rest): (Vec<_>, Vec<_>) = waits
        .iter()
        .map(|(process, wait)| (*process, wait))
        .partition(|(process, wait)| is_again(*process, wait));
    let again = again.into_iter().map(|(process, wait)| (process, wait.number));
    again.chain(Known::new(rest, &|_, _| 0).victims()).collect()
}
