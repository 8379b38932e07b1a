//! The part of one node that applies the log.

use std::collections::VecDeque;

use super::{Entry, Flaw};
use crate::cluster::{LogId, Member, Membership, NodeId, ReadError, Status};
use crate::entry::Service;
use crate::node::{Input, RoundId, View};
use crate::state::{Effect, State};

/// The part of one node that applies the log. It is the [`View`] of its node.
///
/// The caller passes the entries of [`super::Consensus`] in their order, and hands every returned input to
/// the node in its order.
#[derive(Clone, Debug)]
pub struct Replica {
    service: Service,
    status: Status,
    /// The rounds that a quorum has confirmed up to an entry that is not applied here yet.
    confirmed: VecDeque<(RoundId, LogId)>,
    may_be_unsynced: bool,
    flaw: Option<Flaw>,
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
        let may_be_unsynced = status.membership.nodes.len() == 1;
        Self { service: Service::new(), status, confirmed: VecDeque::new(), may_be_unsynced, flaw: None }
    }

    /// Plants a bug.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self.service.plant(flaw);
        self
    }

    /// This node has learned the leader of a term.
    pub fn on_leader(&mut self, term: u64, leader: NodeId) {
        if term >= self.status.term {
            (self.status.term, self.status.leader) = (term, Some(leader));
        }
    }

    /// Applies the next entry. Returns its effects, then the rounds that waited for it.
    pub fn apply<O>(&mut self, entry: Entry) -> Vec<Input<O>> {
        let id = entry.id;
        let effects = self.apply_entry(entry);
        self.advance(Input::Applied { id, effects })
    }

    /// Applies the next entry before it is on disk, if the first `durable` commands are. Returns the effects
    /// that are sent early, and those that wait for the sync.
    pub fn apply_unsynced(&mut self, entry: Entry, durable: u64) -> (Vec<Effect>, Vec<Effect>) {
        let mut effects = self.apply_entry(entry);
        (self.service.early(durable, &mut effects), effects)
    }

    /// Replaces the state by a snapshot. Returns the input for the node, then the rounds that waited for it.
    ///
    /// # Errors
    /// The reason why these bytes are not a snapshot.
    pub fn restore<O>(&mut self, id: LogId, snapshot: &[u8]) -> Result<Vec<Input<O>>, String> {
        self.service = Service::from_snapshot(snapshot)?;
        self.service.plant(self.flaw);
        (self.status.applied, self.status.last, self.status.snapshot) = (Some(id), Some(id.index), Some(id));
        Ok(self.advance(Input::Restored { id }))
    }

    fn apply_entry(&mut self, Entry { id, batch }: Entry) -> Vec<Effect> {
        (self.status.applied, self.status.last) = (Some(id), Some(id.index));
        batch.map(|batch| self.service.apply(id, batch)).unwrap_or_default()
    }

    /// Returns the input, then the rounds that waited for the applied entries.
    fn advance<O>(&mut self, input: Input<O>) -> Vec<Input<O>> {
        let mut inputs = vec![input];
        let applied = self.status.applied;
        while let Some((round, of)) = self.confirmed.pop_front_if(|(_, of)| Some(*of) <= applied) {
            inputs.push(Input::Confirmed { round, result: Ok(of) });
        }
        inputs
    }

    /// A quorum has confirmed the leader, or has not. Returns the input for the node, unless the node must
    /// apply an entry first.
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
    fn read(&self, read: &mut dyn FnMut(&State)) {
        read(self.state());
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn cluster_id(&self) -> u128 {
        1
    }

    fn may_be_unsynced(&self) -> bool {
        self.may_be_unsynced
    }
}
