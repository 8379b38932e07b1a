//! The judge: it collects everything that the group does and promises, and checks the invariants.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::super::support::Notebook;
use crate::replica::log::LogId;
use crate::replica::{Delivery, NodeId, ProposeError};

macro_rules! sometimes {
    ($($field:ident)*) => {
        /// Counts of the faults and situations that a set of runs must contain.
        #[derive(Clone, Debug, Default)]
        pub(super) struct Sometimes {
            $(pub(super) $field: u64,)*
        }

        impl Sometimes {
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }

            /// Returns the situations that did not occur.
            pub(super) fn missing(&self) -> Vec<&'static str> {
                [$((stringify!($field), self.$field)),*]
                    .into_iter()
                    .filter_map(|(name, count)| (count == 0).then_some(name))
                    .collect()
            }
        }
    };
}

sometimes! {
    acknowledged retry unknown reads reads_refused
    requests_lost replies_lost cut_messages partitions leaders_isolated
    power_cuts power_cuts_of_all cuts_while_ahead torn_writes failed_syncs ends_by_disk slow_disks full_disks slow_receivers restarts
    cuts_after_vote cuts_after_append cuts_after_result
    elections transfers conflicts votes_refused
    forwarded voters_removed voters_added snapshots_taken snapshots_installed
}

/// A group of commands that were proposed together.
type Proposed = Vec<u64>;

#[derive(Default)]
pub(super) struct Judge {
    /// The first invariant that was violated.
    pub(super) wrong: Option<String>,
    pub(super) sometimes: Sometimes,
    /// The leader of each term.
    leaders: BTreeMap<u64, NodeId>,
    /// The candidate that got the vote of a node in a term.
    votes: BTreeMap<(NodeId, u64), NodeId>,
    /// The term and the effects of each entry, by index.
    applied: BTreeMap<u64, (u64, Vec<(u64, usize)>)>,
    /// The number at each place of the state. Places begin at 1.
    order: BTreeMap<usize, u64>,
    /// The last entry delivered in the present boot of a node.
    delivered: BTreeMap<NodeId, LogId>,
    acknowledged: Vec<(u64, LogId)>,
    refused: BTreeSet<u64>,
    groups: Vec<Proposed>,
    /// The length of the longest state that a read returned.
    longest_read: usize,
    next_number: u64,
}

/// The state of the judge when a read began.
#[derive(Clone, Copy)]
pub(super) struct ReadBegin {
    acknowledged: usize,
    longest_read: usize,
}

impl Judge {
    pub(super) fn fail(&mut self, why: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(why);
    }

    /// Records a leader that sends entries, a snapshot or a transfer.
    pub(super) fn on_leader(&mut self, term: u64, leader: NodeId) {
        let known = *self.leaders.entry(term).or_insert_with(|| {
            self.sometimes.elections += 1;
            leader
        });
        if known != leader {
            self.fail(|| format!("nodes {known} and {leader} both lead in term {term}"));
        }
    }

    /// Records a vote that left a node.
    pub(super) fn on_vote(&mut self, node: NodeId, term: u64, candidate: NodeId) {
        let known = *self.votes.entry((node, term)).or_insert(candidate);
        if known != candidate {
            self.fail(|| format!("node {node} voted for {known} and for {candidate} in term {term}"));
        }
    }

    /// Records that a node has started with this term on its disk.
    pub(super) fn on_start(&mut self, node: NodeId, term: u64, state: &Notebook) {
        self.delivered.remove(&node);
        let voted = self.votes.range((node, 0)..=(node, u64::MAX)).next_back();
        if let Some((&(_, last), _)) = voted
            && last > term
        {
            self.fail(|| format!("node {node} voted in term {last} and starts in term {term}"));
        }
        self.on_state(node, state);
    }

    /// Records that the power of a node with this state fails. `may_be_unsynced` is whether it may apply
    /// entries that are not durable.
    pub(super) fn on_power_cut(&mut self, may_be_unsynced: bool, state: &Notebook) {
        self.sometimes.power_cuts += 1;
        let delivered = self.order.last_key_value().map_or(0, |(place, _)| *place);
        self.sometimes.cuts_while_ahead += u64::from(may_be_unsynced && state.seen.len() > delivered);
    }

    pub(super) fn on_delivery(&mut self, node: NodeId, delivery: Delivery<(u64, usize)>) {
        let before = self.delivered.get(&node).copied();
        match delivery {
            Delivery::Applied { id, effects } => {
                if before.is_some_and(|before| before.index + 1 != id.index || before.term > id.term) {
                    self.fail(|| format!("node {node} applied {id:?} after {before:?}"));
                }
                self.delivered.insert(node, id);
                for (number, place) in &effects {
                    self.on_place(node, *place, *number);
                }
                let known = self.applied.entry(id.index).or_insert_with(|| (id.term, effects.clone()));
                if *known != (id.term, effects) {
                    let known = known.clone();
                    self.fail(|| format!("node {node} applied {id:?}, and another node applied {known:?}"));
                }
            }
            Delivery::Restored { id } => {
                self.sometimes.snapshots_installed += 1;
                if before.is_some_and(|before| before >= id) {
                    self.fail(|| format!("node {node} restored {id:?} after {before:?}"));
                }
                self.delivered.insert(node, id);
            }
            Delivery::Early { effects } => self.fail(|| format!("{effects:?} are not early")),
        }
    }

    /// Checks a state that consists of committed entries.
    pub(super) fn on_state(&mut self, node: NodeId, state: &Notebook) {
        for (at, number) in state.seen.iter().enumerate() {
            self.on_place(node, at + 1, *number);
        }
    }

    fn on_place(&mut self, node: NodeId, place: usize, number: u64) {
        let known = *self.order.entry(place).or_insert(number);
        if known != number {
            self.fail(|| format!("at place {place}, node {node} has {number}, and another node {known}"));
        }
    }

    /// Returns `count` new numbers, for commands that are proposed together.
    pub(super) fn propose(&mut self, count: u64) -> Proposed {
        let group: Proposed = (self.next_number..self.next_number + count).collect();
        self.next_number += count;
        self.groups.push(group.clone());
        group
    }

    /// Records the result of a proposal.
    pub(super) fn on_result(&mut self, number: u64, result: Result<LogId, ProposeError>) {
        match result {
            Ok(id) => {
                self.sometimes.acknowledged += 1;
                self.acknowledged.push((number, id));
            }
            Err(ProposeError::Unknown) => self.sometimes.unknown += 1,
            Err(ProposeError::TooLarge) => self.fail(|| format!("{number} is too large")),
            Err(ProposeError::Retry | ProposeError::Stopped) => {
                self.sometimes.retry += 1;
                self.refused.insert(number);
            }
        }
    }

    pub(super) fn begin_read(&self) -> ReadBegin {
        ReadBegin { acknowledged: self.acknowledged.len(), longest_read: self.longest_read }
    }

    /// Checks the result of a linearizable read.
    pub(super) fn on_read(&mut self, node: NodeId, begin: ReadBegin, state: &Notebook) {
        self.sometimes.reads += 1;
        let seen: HashSet<u64> = state.seen.iter().copied().collect();
        let missing =
            self.acknowledged[..begin.acknowledged].iter().find(|(number, _)| !seen.contains(number));
        if let Some((number, id)) = missing.copied() {
            self.fail(|| {
                format!("a read on node {node} does not see {number}, acknowledged before as {id:?}")
            });
        }
        if state.seen.len() < begin.longest_read {
            let longest = begin.longest_read;
            self.fail(|| {
                format!("a read on node {node} sees {} numbers, an earlier read {longest}", state.seen.len())
            });
        }
        self.longest_read = self.longest_read.max(state.seen.len());
        self.on_state(node, state);
    }

    /// Checks the results of all proposals against the state on which all nodes agree at the end.
    pub(super) fn on_end(&mut self, state: &Notebook) {
        let places: BTreeMap<u64, usize> =
            state.seen.iter().enumerate().map(|(at, number)| (*number, at)).collect();
        for (number, id) in std::mem::take(&mut self.acknowledged) {
            if !places.contains_key(&number) {
                self.fail(|| format!("{number} was acknowledged as {id:?} and is lost"));
            }
            let entry = self.applied.get(&id.index);
            let is_at = |(term, effects): &(u64, Vec<(u64, usize)>)| {
                *term == id.term && effects.iter().any(|(effect, _)| *effect == number)
            };
            if entry.is_some_and(|entry| !is_at(entry)) {
                let entry = entry.cloned();
                self.fail(|| format!("{number} was acknowledged as {id:?}, which is {entry:?}"));
            }
        }
        if let Some(number) = self.refused.iter().find(|number| places.contains_key(number)).copied() {
            self.fail(|| format!("{number} was reported as not proposed, and is applied"));
        }
        for group in std::mem::take(&mut self.groups) {
            let at: Vec<Option<&usize>> = group.iter().map(|number| places.get(number)).collect();
            let is_prefix = at.iter().skip_while(|place| place.is_some()).all(Option::is_none);
            if !is_prefix || !at.iter().flatten().is_sorted() {
                self.fail(|| format!("the commands {group:?} of one proposal were applied at {at:?}"));
            }
        }
    }
}
