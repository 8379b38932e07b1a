//! From a standing to nodes that count down.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use conclave_algorithms::deadlock::batch::{NodeIndex, Snapshot, SnapshotError};
use conclave_algorithms::deadlock::{Claim, Demand};

use super::{Process, Resource, Standing, Target, Wish};

/// Everything as nodes that count down; `with_perhaps` takes what is perhaps held for held.
pub(super) struct Lowering<'s> {
    standing: &'s Standing,
    with_perhaps: bool,
    snapshot: Snapshot,
    /// What somebody who holds nothing of the resource waits for: shared by all of them, so that many waiters of
    /// many holders stay linear.
    shared: Shared,
    /// The members of what is being lowered.
    members: Vec<NodeIndex>,
}

/// Nodes by resource and demand: locks by number, permits, of which there are many different ones, in a map.
#[derive(Default)]
struct Shared {
    exclusive: Vec<Option<NonZeroU32>>,
    shared: Vec<Option<NonZeroU32>>,
    permits: BTreeMap<(Resource, u32), NodeIndex>,
}

impl Shared {
    fn get(&self, resource: Resource, demand: Demand) -> Option<NodeIndex> {
        let known = match demand {
            Demand::Exclusive => &self.exclusive,
            Demand::Shared => &self.shared,
            Demand::Permits(count) => return self.permits.get(&(resource, count)).copied(),
        };
        known.get(resource as usize).copied().flatten().map(|node| node.get() - 1)
    }

    fn insert(&mut self, resource: Resource, demand: Demand, node: NodeIndex) {
        let known = match demand {
            Demand::Exclusive => &mut self.exclusive,
            Demand::Shared => &mut self.shared,
            Demand::Permits(count) => {
                self.permits.insert((resource, count), node);
                return;
            }
        };
        if known.len() <= resource as usize {
            known.resize(resource as usize + 1, None);
        }
        known[resource as usize] = node.checked_add(1).and_then(NonZeroU32::new);
    }
}

/// What stands in the way of a claim.
pub(super) enum Obstacle {
    /// Nothing.
    Free,
    /// All of them.
    All(Vec<Process>),
    /// Some of them, worth so many permits.
    Permits { shortage: u32, holders: Vec<(Process, u32)> },
}

impl<'s> Lowering<'s> {
    pub(super) fn run(standing: &'s Standing, with_perhaps: bool) -> Result<Snapshot, SnapshotError> {
        // One process more, which runs: what is free waits for it.
        let processes = standing.processes().checked_add(1).ok_or(SnapshotError::Full)?;
        let snapshot = Snapshot::new(processes);
        let mut lowering =
            Self { standing, with_perhaps, snapshot, shared: Shared::default(), members: Vec::new() };
        for (process, state) in (0..).zip(&standing.processes) {
            let Some(wait) = &state.wait else { continue };
            let need = match (&wait.terms, &wait.wish) {
                (Some(terms), _) => {
                    lowering.members = lowering.terms(process, terms)?;
                    1
                }
                (None, Wish::Claim(claim)) => {
                    let node = lowering.claim(process, *claim)?;
                    lowering.members.push(node);
                    1
                }
                (None, Wish::Gate { need, members }) => {
                    lowering.wishes(process, members)?;
                    *need
                }
            };
            lowering.snapshot.wait_for(process, need, &lowering.members)?;
            lowering.members.clear();
        }
        Ok(lowering.snapshot)
    }

    /// Puts the nodes of the wishes on top of the members. As deep as [`LIMITS`](super::LIMITS) allow.
    fn wishes(&mut self, process: Process, wishes: &[Wish]) -> Result<(), SnapshotError> {
        for wish in wishes {
            let node = match wish {
                Wish::Claim(claim) => self.claim(process, *claim)?,
                Wish::Gate { need, members } => {
                    let first = self.members.len();
                    self.wishes(process, members)?;
                    let gate = self.snapshot.gate(*need, &self.members[first..])?;
                    self.members.truncate(first);
                    gate
                }
            };
            self.members.push(node);
        }
        Ok(())
    }

    fn terms(
        &mut self,
        process: Process,
        terms: &[Vec<Claim<Target>>],
    ) -> Result<Vec<NodeIndex>, SnapshotError> {
        let mut nodes = Vec::with_capacity(terms.len());
        for term in terms {
            let mut claims = Vec::with_capacity(term.len());
            for claim in term {
                claims.push(self.claim(process, *claim)?);
            }
            let all = u32::try_from(claims.len()).map_err(|_| SnapshotError::Full)?;
            nodes.push(self.snapshot.gate(all, &claims)?);
        }
        Ok(nodes)
    }

    fn claim(&mut self, process: Process, claim: Claim<Target>) -> Result<NodeIndex, SnapshotError> {
        let resource = match claim.resource {
            Target::Process(target) => return Ok(target),
            Target::Resource(resource) => resource,
        };
        let state = &self.standing.resources[resource as usize];
        let holds = state.holders.contains(process) || state.perhaps.contains(process);
        // Permits of one's own are in one's way like those of others.
        let is_shared = claim.demand.is_permits() || !holds;
        if is_shared && let Some(node) = self.shared.get(resource, claim.demand) {
            return Ok(node);
        }
        let node = match self.standing.obstacle(process, resource, claim.demand, self.with_perhaps) {
            Obstacle::Free => self.standing.processes(),
            Obstacle::All(holders) if holders.len() == 1 => holders[0],
            Obstacle::All(holders) => {
                let all = u32::try_from(holders.len()).map_err(|_| SnapshotError::Full)?;
                self.snapshot.gate(all, &holders)?
            }
            Obstacle::Permits { shortage, holders } => self.snapshot.semaphore(shortage, &holders)?,
        };
        if is_shared {
            self.shared.insert(resource, claim.demand, node);
        }
        Ok(node)
    }
}

impl Standing {
    pub(super) fn obstacle(
        &self,
        process: Process,
        resource: Resource,
        demand: Demand,
        with_perhaps: bool,
    ) -> Obstacle {
        let state = &self.resources[resource as usize];
        let perhaps = state.perhaps.iter().filter(|_| with_perhaps);
        let holders = state.holders.iter().chain(perhaps);
        if let (Demand::Permits(count), Some(limit)) = (demand, state.limit) {
            let permits = |(holder, held): (Process, Demand)| match held {
                Demand::Permits(held) => (holder, held),
                Demand::Shared | Demand::Exclusive => (holder, 0),
            };
            let holders: Vec<_> = holders.map(permits).collect();
            let held: u64 = holders.iter().map(|(_, held)| u64::from(*held)).sum();
            let shortage = (held + u64::from(count)).saturating_sub(u64::from(limit));
            return match u32::try_from(shortage) {
                Ok(0) => Obstacle::Free,
                Ok(shortage) => Obstacle::Permits { shortage, holders },
                // More is held than 32 bits count: all of them must give back.
                Err(_) => Obstacle::All(holders.into_iter().map(|(holder, _)| holder).collect()),
            };
        }
        let is_in_the_way = |(holder, held): &(Process, Demand)| {
            *holder != process && (demand, *held) != (Demand::Shared, Demand::Shared)
        };
        let mut others: Vec<_> = holders.filter(is_in_the_way).map(|(holder, _)| holder).collect();
        others.sort_unstable();
        others.dedup();
        if others.is_empty() { Obstacle::Free } else { Obstacle::All(others) }
    }
}
