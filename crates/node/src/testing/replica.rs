//! The part of one node that applies the log.

use std::collections::VecDeque;

use super::Entry;
use crate::cluster::{LogId, Member, Membership, NodeId, ReadError, Status};
use crate::entry::Service;
use crate::node::{Input, RoundId, View};
use crate::state::{Effect, State};

/// The part of one node that applies the log. It is the [`View`] of its node.
///
/// The caller passes the entries of [`super::Consensus`] in their order, and hands every returned input to the node in its order.
#[derive(Clone, Debug)]
pub struct Replica {
    service: Service,
    status: Status,
    /// The rounds that a quorum has confirmed up to an entry that is not applied here yet.
    confirmed: VecDeque<(RoundId, LogId)>,
}

impl Replica {
    /// Creates the replica of one node of a cluster.
    pub fn new(node: NodeId, members: impl IntoIterator<Item = NodeId>) -> Self {
        let member = |node| (node, Member { address: format!("node-{node}") });
        let nodes: std::collections::BTreeMap<NodeId, Member> = members.into_iter().map(member).collect();
        let membership = Membership { voters: vec![nodes.keys().copied().collect()], nodes };
        let status = Status {
            node,
            term: 0,
            leader: None,
            last: None,
            applied: None,
            snapshot: None,
            purged: None,
            membership,
            matched: [].into(),
            running: true,
        };
        Self { service: Service::new(), status, confirmed: VecDeque::new() }
    }

    /// This node has learned the leader of a term.
    pub fn on_leader(&mut self, term: u64, leader: NodeId) {
        if term >= self.status.term {
            (self.status.term, self.status.leader) = (term, Some(leader));
        }
    }

    /// Applies the next entry. Returns its effects, then the rounds that waited for it.
    pub fn apply<O>(&mut self, entry: Entry) -> Vec<Input<O>> {
        let Entry { id, batch } = entry;
        let effects: Vec<Effect> = batch.map(|batch| self.service.apply(id, batch)).unwrap_or_default();
        (self.status.applied, self.status.last) = (Some(id), Some(id.index));
        let mut inputs = vec![Input::Applied { id, effects }];
        while let Some((round, of)) = self.confirmed.pop_front_if(|(_, of)| of.index <= id.index) {
            inputs.push(Input::Confirmed { round, result: Ok(of) });
        }
        inputs
    }

    /// A quorum has confirmed the leader, or has not. Returns the input for the node, unless the node must apply an entry first.
    pub fn confirm<O>(&mut self, round: RoundId, result: Result<LogId, ReadError>) -> Option<Input<O>> {
        match result {
            Ok(id) if Some(id) > self.status.applied => {
                self.confirmed.push_back((round, id));
                None
            }
            result => Some(Input::Confirmed { round, result }),
        }
    }

    /// Returns the state.
    pub fn state(&self) -> &State {
        self.service.state()
    }
}

impl View for Replica {
    fn read(&self, look: &mut dyn FnMut(&State)) {
        look(self.state());
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn cluster_id(&self) -> u128 {
        1
    }

    fn may_be_unsynced(&self) -> bool {
        false
    }
}
