//! The knowledge of a detector or a judge about processes, and the stuck processes that follow from it.

use alloc::vec::Vec;

use conclave_kernel::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};

use super::underlying::Wait;

/// Both ends of the edges of a process, at one moment: its wait, and the requests that it has granted.
///
/// Records of different processes may be of different moments. If no process is aborted in the meantime, a
/// process that is stuck according to them ([`Known`]) is really stuck. Proof: let x be the first of these
/// processes that runs again after its record. Then some y among them granted x. The record of y shows no
/// such grant, so y granted after its record. For that y ran again after its record and before x did, which
/// is a contradiction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// The process.
    pub process: NodeId,
    /// Its wait; `None` if it runs.
    pub wait: Option<Wait>,
    /// The latest request of each other process that it has granted.
    pub granted: Vec<(NodeId, u64)>,
}

impl Record {
    /// Returns the latest request of process `to` that was granted; 0 if there is none.
    pub fn granted_to(&self, to: NodeId) -> u64 {
        self.granted.iter().find(|(peer, _)| *peer == to).map_or(0, |(_, number)| *number)
    }
}

/// Returns the stuck processes, by reduction. A process runs if enough others can grant it: those that run,
/// those that are known to have granted, and those about which nothing is known.
fn stuck_by<'w>(
    waits: impl Iterator<Item = (NodeId, &'w Wait)>,
    granted: impl Fn(NodeId, NodeId) -> u64,
) -> NodeSet {
    let mut waits: Vec<_> = waits.collect();
    let mut stuck: NodeSet = waits.iter().map(|(process, _)| *process).collect();
    loop {
        let before = waits.len();
        waits.retain(|(process, wait)| {
            let helps = |by: &NodeId| !stuck.contains(*by) || granted(*by, *process) >= wait.number;
            let proceeds = wait.of.iter().filter(helps).count() >= wait.need as usize;
            if proceeds {
                stuck.remove(*process);
            }
            !proceeds
        });
        if waits.len() == before {
            return stuck;
        }
    }
}

/// Known waits and grants of processes: the stuck processes that follow, and the victims to choose.
pub struct Known<'k> {
    waits: Vec<(NodeId, &'k Wait)>,
    granted: &'k dyn Fn(NodeId, NodeId) -> u64,
    stuck: NodeSet,
}

impl<'k> Known<'k> {
    /// Reduces the waits. `granted(by, to)` is the latest request of `to` that `by` is known to have granted.
    pub fn new(
        waits: impl IntoIterator<Item = (NodeId, &'k Wait)>,
        granted: &'k dyn Fn(NodeId, NodeId) -> u64,
    ) -> Self {
        let waits: Vec<_> = waits.into_iter().collect();
        let stuck = stuck_by(waits.iter().copied(), granted);
        Self { waits, granted, stuck }
    }

    /// Returns the processes that wait for ever.
    pub fn stuck(&self) -> &NodeSet {
        &self.stuck
    }

    /// Returns whether the process is stuck and waits, directly or indirectly, for itself. Only then does
    /// its abort help. (A process that only waits for a deadlock of others is freed by *their* victim.)
    pub fn is_on_cycle(&self, process: NodeId) -> bool {
        self.stuck.contains(process) && self.reach(process).contains(process)
    }

    /// Returns processes to abort so that no process is stuck. They are chosen one after the other, each from
    /// a group that waits for no other process.
    pub fn victims(&self) -> Vec<(NodeId, u64)> {
        let mut rest = Known { waits: self.waits.clone(), granted: self.granted, stuck: self.stuck.clone() };
        let mut victims = Vec::new();
        // The smallest reach is a group whose members reach each other and no other process.
        while let Some(group) = rest.stuck.iter().map(|process| rest.reach(process)).min_by_key(NodeSet::len)
        {
            let is_in = |(process, _): &&(NodeId, &Wait)| group.contains(*process);
            let Some((victim, wait)) = rest.waits.iter().filter(is_in).max_by_key(|(process, _)| *process)
            else {
                break;
            };
            victims.push((*victim, wait.number));
            let victim = *victim;
            rest.waits.retain(|(process, _)| *process != victim);
            rest.stuck = stuck_by(rest.waits.iter().copied(), rest.granted);
        }
        victims
    }

    /// Returns every stuck process for which this one waits, directly or indirectly.
    fn reach(&self, process: NodeId) -> NodeSet {
        let mut reached = NodeSet::new();
        let mut rest = Vec::from([process]);
        while let Some(waiter) = rest.pop() {
            let Some((_, wait)) = self.waits.iter().find(|(process, _)| *process == waiter) else { continue };
            let stands = |by: &NodeId| self.stuck.contains(*by) && (self.granted)(*by, waiter) < wait.number;
            rest.extend(wait.of.iter().filter(stands).filter(|by| reached.insert(*by)));
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn stuck(records: &[Record]) -> NodeSet {
        let granted = |by: NodeId, to: NodeId| {
            records.iter().find(|record| record.process == by).map_or(0, |record| record.granted_to(to))
        };
        let waits = records.iter().filter_map(|record| Some((record.process, record.wait.as_ref()?)));
        Known::new(waits, &granted).stuck().clone()
    }

    fn set(ids: &[u32]) -> NodeSet {
        ids.iter().copied().map(NodeId).collect()
    }

    fn blocked(id: u32, number: u64, need: u32, of: &[u32], granted: &[(u32, u64)]) -> Record {
        let wait = Some(Wait { number, need, of: set(of) });
        let granted = granted.iter().map(|(to, number)| (NodeId(*to), *number)).collect();
        Record { process: NodeId(id), wait, granted }
    }

    #[test]
    fn a_grant_under_way_is_no_wait() {
        let records = vec![blocked(0, 3, 1, &[1], &[]), blocked(1, 5, 1, &[0], &[(0, 2)])];
        assert_eq!(stuck(&records), set(&[0, 1]), "1 granted an earlier request of 0");
        let records = vec![blocked(0, 3, 1, &[1], &[]), blocked(1, 5, 1, &[0], &[(0, 3)])];
        assert_eq!(stuck(&records), set(&[]), "this one");
    }

    #[test]
    fn p_out_of_q_is_stuck_when_too_few_can_help() {
        let waits = |need| vec![blocked(0, 1, need, &[1, 2, 3], &[]), blocked(1, 1, 1, &[0], &[])];
        assert_eq!(stuck(&waits(2)), set(&[]), "2 and 3 run");
        assert_eq!(stuck(&waits(3)), set(&[0, 1]));
        assert_eq!(stuck(&[blocked(4, 1, 1, &[4], &[])]), set(&[4]), "to wait for oneself is a cycle");
    }

    #[test]
    fn the_victim_is_of_the_group_that_waits_for_nobody_else() {
        let wait = |of: &[u32]| Wait { number: 1, need: of.len() as u32, of: set(of) };
        // 9 waits for the cycle 1, 2. So does the cycle 5, 6, but it needs another victim.
        let waits = [(1, wait(&[2])), (2, wait(&[1])), (9, wait(&[1])), (5, wait(&[6])), (6, wait(&[5, 2]))];
        let known = Known::new(waits.iter().map(|(process, wait)| (NodeId(*process), wait)), &|_, _| 0);
        assert_eq!(*known.stuck(), set(&[1, 2, 5, 6, 9]));
        assert_eq!(known.victims(), [(NodeId(2), 1), (NodeId(6), 1)]);
        assert!(known.is_on_cycle(NodeId(5)) && !known.is_on_cycle(NodeId(9)));
    }
}
