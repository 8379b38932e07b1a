//! Hierarchical detection: the leader of a cluster finds deadlocks within it, and the root finds those
//! between clusters.
//!
//! **Intuition.** Most deadlocks are local. A leader collects both ends of the edges of its own cluster, like
//! the one-report detector \[HR82 §5\]. The root works only if a process there waits for a process of another
//! cluster. It is the nearest common ancestor of all clusters \[MM79\].
//!
//! **Rules**
//! 1. Send WAKE to the leader when the process receives a request while it is blocked, or when it waits for
//!    itself.
//! 2. The leader sends ASK to its members and reduces their TABLEs. Processes of other clusters count as
//!    running. It declares the deadlocked processes. If a table shows an edge that leaves the cluster, it
//!    sends WAKE ROOT to the root.
//! 3. The root sends ASK CLUSTER to the leaders. Each leader collects the tables of its members and sends
//!    them together as CLUSTER.
//!
//! An edge that enters a cluster is no reason to wake the root. In a deadlock between clusters, each process
//! waits, directly or indirectly, for all others. So an edge leaves every one of these clusters. This
//! includes the cluster in which the last request arrived and woke the leader.
//!
//! **Traps.**
//! - A cycle through two clusters is in the tables of neither. This is also true if one of them is the root's
//!   own cluster.
//! - The root may call for tables during a leader's own round. Another cluster may have answered the root
//!   before it had the edge for which the leader was woken. So the leader must repeat its own round
//!   afterwards.
//!
//! Clusters are blocks of ceil(sqrt N) ids, and the lowest id of each is its leader. Site 0 leads the first
//! cluster and is the root.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use conclave_kernel::{Card, Cost, Load, Measure, NodeId, NodeMap, NodeSet};
use serde::{Deserialize, Serialize};

use super::reports::{Table, both_ends, victims};
use super::site::{Detection, Model, Out};
use super::underlying::Underlying;

/// The site that finds deadlocks between clusters.
pub const ROOT: NodeId = NodeId(0);

/// The detector of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hierarchical {
    me: NodeId,
    nodes: u32,
    leader: Option<Box<Desk>>,
    root: Option<Box<Desk>>,
    /// The round of the root that waits for this cluster's tables, if any.
    is_called: Option<u64>,
}

/// The state of a leader for its cluster, or of the root for all clusters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Desk {
    round: u64,
    awaited: NodeSet,
    /// The received tables, at most one per site.
    tables: Tables,
    again: bool,
    accused: NodeMap<u64>,
}

type Tables = BTreeMap<NodeId, Table>;

/// A message between detectors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To the leader: start a round.
    Wake,
    /// From the leader: the request for the tables, with the number of the round.
    Ask(u64),
    /// To the leader: the tables of the sender.
    Table(u64, Table),
    /// To the root: start a round.
    WakeRoot,
    /// From the root: the request for the tables of the receiver's cluster.
    AskCluster(u64),
    /// To the root: the tables of the sender's cluster.
    Cluster(u64, Tables),
}

impl Detection for Hierarchical {
    type Message = Message;

    const CARD: Card = super::card(
        "hierarchical",
        "Hierarchical, one report",
        "the leader of a cluster finds the deadlocks inside it, the root those between clusters",
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

    /// Collects the cluster's tables for the root. They must be requested after the root's request, so a
    /// running round is restarted.
    fn call(&mut self, round: u64, process: &Underlying, out: &mut Out<Message>) {
        self.is_called = Some(round);
        if let Some(desk) = &mut self.leader {
            // The leader's own round may concern edges that are newer than the answers of other clusters in
            // this round of the root.
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

/// Returns the leader of the cluster of a site.
pub fn leader_of(site: NodeId, nodes: u32) -> NodeId {
    let root = nodes.isqrt();
    let size = if root * root == nodes { root } else { root + 1 };
    NodeId(site.0 - site.0 % size.max(1))
}
