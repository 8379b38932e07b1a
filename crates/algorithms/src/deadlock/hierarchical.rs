//! The hierarchy: sites form clusters, a cluster's leader finds what is within, the root what is between clusters.
//!
//! **Intuition.** Most deadlocks are local. A leader asks its own cluster for both ends of the edges, as the one-report
//! detector does \[HR82 §5\]; only if somebody there waits for a process of another cluster the root must look, which is the
//! nearest common ancestor of all clusters \[MM79\].
//!
//! **Rules**
//! 1. WAKE the leader when the process is asked while it is blocked, or waits for itself.
//! 2. The leader sends ASK to its members and reduces their TABLEs; processes of other clusters count as running. It accuses
//!    whom it finds. If a table shows an edge that leaves the cluster it sends WAKE to the root.
//! 3. The root sends ASK to the leaders, which ask their members and send all their tables together, as CLUSTER.
//!
//! An edge that enters is no reason: of the processes of a deadlock between clusters each waits in the end for all others, so that
//! an edge leaves every one of these clusters, and also that where the last request arrived and woke the leader.
//!
//! **The trap**: a cycle through two clusters is in the tables of neither; one that crosses the root's own cluster is no exception.
//! **Another**: the root's question interrupts a leader's own round, and must not answer for it: another cluster may have
//! answered the root before it knew of the edge that the leader was woken for.
//!
//! Clusters are blocks of ceil(sqrt N) ids, the lowest of which leads; site 0 leads the first and is the root.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId, NodeMap, NodeSet};
use serde::{Deserialize, Serialize};

use super::reports::{Table, both_ends, victims};
use super::site::{Detection, Model, Out};
use super::underlying::Underlying;

/// Who looks at what is between clusters.
pub const ROOT: NodeId = NodeId(0);

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hierarchical {
    me: NodeId,
    nodes: u32,
    leader: Option<Box<Desk>>,
    root: Option<Box<Desk>>,
    /// The root waits for this cluster's tables.
    is_called: Option<u64>,
}

/// What a leader keeps of its cluster, and the root of all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Desk {
    round: u64,
    awaited: NodeSet,
    /// At most one a site.
    tables: Tables,
    again: bool,
    accused: NodeMap<u64>,
}

type Tables = BTreeMap<NodeId, Table>;

/// What detectors say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To the leader: look.
    Wake,
    /// From the leader: your tables?
    Ask(u64),
    /// To the leader: these.
    Table(u64, Table),
    /// To the root: look.
    WakeRoot,
    /// From the root: your cluster's tables?
    AskCluster(u64),
    /// To the root: these.
    Cluster(u64, Tables),
}

impl Detection for Hierarchical {
    type Message = Message;

    const CARD: Card = super::card(
        "hierarchical",
        "Hierarchical, one report",
        "a leader finds the deadlocks of its cluster, the root those between clusters",
        &["HR82", "MM79"],
        super::EXACT,
        &[Cost {
            measure: Measure::Messages,
            load: Load::Low,
            formula: "2(c-1) + 1 within a cluster of c; 2(c-1) + 2N between clusters",
            range: |size| (0.0, 4.0 * size.n()),
        }],
    );
    const MODEL: Model = Model::POutOfQ;

    fn new(me: NodeId, nodes: u32) -> Self {
        let desk = || {
            Box::new(Desk {
                round: 0,
                awaited: NodeSet::new(),
                tables: Tables::new(),
                again: false,
                accused: NodeMap::new(nodes),
            })
        };
        let is_leader = leader_of(me, nodes) == me;
        Self { me, nodes, leader: is_leader.then(desk), root: (me == ROOT).then(desk), is_called: None }
    }

    fn kind(message: &Message) -> &'static str {
        match message {
            Message::Wake => "WAKE",
            Message::Ask(_) => "ASK",
            Message::Table(..) => "TABLE",
            Message::WakeRoot => "WAKE ROOT",
            Message::AskCluster(_) => "ASK CLUSTER",
            Message::Cluster(..) => "CLUSTER",
        }
    }

    fn on_blocked(&mut self, process: &Underlying, out: &mut Out<Message>) {
        if process.waits_for_itself() {
            self.wake(process, out);
        }
    }

    fn on_asked(&mut self, _from: NodeId, process: &Underlying, out: &mut Out<Message>) {
        if process.wait().is_some() {
            self.wake(process, out);
        }
    }

    fn on_message(&mut self, from: NodeId, message: Message, process: &Underlying, out: &mut Out<Message>) {
        match message {
            Message::Wake => self.wake(process, out),
            Message::Ask(round) => out.send(from, Message::Table(round, Table::of(process))),
            Message::Table(round, table) => {
                if let Some(desk) = self.leader.as_mut().filter(|desk| desk.round == round) {
                    desk.awaited.remove(from);
                    desk.tables.insert(from, table);
                    self.conclude_cluster(process, out);
                }
            }
            Message::WakeRoot => self.wake_root(process, out),
            Message::AskCluster(round) => self.call(round, process, out),
            Message::Cluster(round, tables) => self.on_cluster(from, round, tables, out, process),
        }
    }
}

impl Hierarchical {
    fn wake(&mut self, process: &Underlying, out: &mut Out<Message>) {
        match &mut self.leader {
            None => out.send(leader_of(self.me, self.nodes), Message::Wake),
            Some(desk) if !desk.awaited.is_empty() => desk.again = true,
            Some(_) => self.ask_cluster(process, out),
        }
    }

    fn ask_cluster(&mut self, process: &Underlying, out: &mut Out<Message>) {
        let (me, nodes, Some(desk)) = (self.me, self.nodes, &mut self.leader) else { return };
        desk.round += 1;
        desk.tables = Tables::from([(me, Table::of(process))]);
        desk.awaited = (0..nodes).map(NodeId).filter(|site| leader_of(*site, nodes) == me).collect();
        desk.awaited.remove(me);
        out.send_to(&desk.awaited, &Message::Ask(desk.round));
        self.conclude_cluster(process, out);
    }

    fn conclude_cluster(&mut self, process: &Underlying, out: &mut Out<Message>) {
        let (me, nodes) = (self.me, self.nodes);
        let Some(desk) = self.leader.as_mut().filter(|desk| desk.awaited.is_empty()) else { return };
        let tables = core::mem::take(&mut desk.tables);
        desk.accuse(&tables, out);
        let again = core::mem::take(&mut desk.again);
        let is_stranger = |site: NodeId| leader_of(site, nodes) != me;
        let leaves = |table: &Table| table.wait.as_ref().is_some_and(|wait| wait.of.iter().any(is_stranger));
        let is_open = tables.values().any(leaves);
        match self.is_called.take() {
            Some(round) if me == ROOT => self.on_cluster(me, round, tables, out, process),
            Some(round) => out.send(ROOT, Message::Cluster(round, tables)),
            None if is_open && me == ROOT => self.wake_root(process, out),
            None if is_open => out.send(ROOT, Message::WakeRoot),
            None => {}
        }
        if again {
            self.wake(process, out);
        }
    }

    /// The root wants the cluster's tables: fresh ones, asked for after it did.
    fn call(&mut self, round: u64, process: &Underlying, out: &mut Out<Message>) {
        self.is_called = Some(round);
        if let Some(desk) = &mut self.leader {
            // What the leader was about to see may be newer than what other clusters have told the root in this round.
            desk.again |= !desk.awaited.is_empty();
        }
        self.ask_cluster(process, out);
    }

    fn wake_root(&mut self, process: &Underlying, out: &mut Out<Message>) {
        let nodes = self.nodes;
        let Some(desk) = &mut self.root else { return };
        if !desk.awaited.is_empty() {
            desk.again = true;
            return;
        }
        desk.round += 1;
        desk.tables.clear();
        desk.awaited = (0..nodes).map(NodeId).filter(|site| leader_of(*site, nodes) == *site).collect();
        let (round, others) = (desk.round, desk.awaited.clone());
        for leader in others.iter().filter(|leader| *leader != ROOT) {
            out.send(leader, Message::AskCluster(round));
        }
        self.call(round, process, out);
    }

    fn on_cluster(
        &mut self,
        from: NodeId,
        round: u64,
        tables: Tables,
        out: &mut Out<Message>,
        process: &Underlying,
    ) {
        let Some(desk) = self.root.as_mut().filter(|desk| desk.round == round) else { return };
        desk.awaited.remove(from);
        desk.tables.extend(tables);
        if !desk.awaited.is_empty() {
            return;
        }
        let tables = core::mem::take(&mut desk.tables);
        desk.accuse(&tables, out);
        if core::mem::take(&mut desk.again) {
            self.wake_root(process, out);
        }
    }
}

impl Desk {
    fn accuse(&mut self, tables: &Tables, out: &mut Out<Message>) {
        for (victim, number) in victims(&both_ends(tables), &self.accused) {
            self.accused.insert(victim, number);
            out.accuse(victim, number);
        }
    }
}

/// Who leads the cluster of a site.
pub fn leader_of(site: NodeId, nodes: u32) -> NodeId {
    let root = nodes.isqrt();
    let size = if root * root == nodes { root } else { root + 1 };
    NodeId(site.0 - site.0 % size.max(1))
}
