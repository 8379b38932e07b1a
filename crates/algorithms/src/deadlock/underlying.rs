//! The underlying computation: processes that ask, grant and wait, so that detectors watch real traffic.
//!
//! One process a site. A process that runs may *ask* some others for leave, `need` of them being enough: it is then
//! blocked, and does nothing until so many have granted. A process that runs may *grant* what it was asked for: to
//! grant is to release what the other waits for. A blocked process grants nothing, which is how deadlocks form.
//!
//! **Rules.**
//! 1. REQUEST(n) to each; n numbers the requests of a process, so that nothing late is taken for something new.
//! 2. GRANT(n) from enough of them: run again, and CANCEL(n) to those that have not answered.
//! 3. An aborted process cancels likewise, and runs: whoever was asked forgets the dead edge at once.
//!
//! Single resource, AND, OR and p-out-of-q are all `need` of `of`. **The trap**: a GRANT under way is no wait any more
//! although its receiver still waits: whoever judges must look at both ends of an edge ([`Record`]).
//!
//! Bounds: a process has one wait, and at most one pending request of each other process.

use conclave_kernel::{NodeId, NodeMap, NodeSet};
use serde::{Deserialize, Serialize};

use super::records::Record;

/// The process of a site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Underlying {
    me: NodeId,
    nodes: u32,
    /// The number of the latest request.
    number: u64,
    wait: Option<Wait>,
    /// Who asked and was not yet answered, with the number of the request.
    pending: NodeMap<u64>,
    /// The latest request of each that was granted.
    granted: NodeMap<u64>,
}

/// What a blocked process waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wait {
    /// The number of the request.
    pub number: u64,
    /// How many more grants it needs.
    pub need: u32,
    /// Who was asked and has not granted.
    pub of: NodeSet,
}

/// What processes say to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// May I?
    Request(u64),
    /// You may.
    Grant(u64),
    /// I need it no more.
    Cancel(u64),
}

/// What a step of the process came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing that concerns waits.
    None,
    /// One more has granted, and it is not enough.
    Granted,
    /// This request arrived.
    Asked,
    /// It runs again.
    Runs,
}

impl Underlying {
    /// A process that runs.
    pub fn new(me: NodeId, nodes: u32) -> Self {
        Self { me, nodes, number: 0, wait: None, pending: NodeMap::new(nodes), granted: NodeMap::new(nodes) }
    }

    /// How many processes there are.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// What it waits for; `None` if it runs.
    pub fn wait(&self) -> Option<&Wait> {
        self.wait.as_ref()
    }

    /// Whether it waits by the request of that number.
    pub fn waits_by(&self, number: u64) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.number == number)
    }

    /// Who asked and was not yet answered, with the number of the request.
    pub fn pending(&self) -> &NodeMap<u64> {
        &self.pending
    }

    /// The latest request of that process that was granted; 0 if none was.
    pub fn granted(&self, to: NodeId) -> u64 {
        self.granted.get(to).unwrap_or(0)
    }

    /// Who still stands in its way, itself left out: whom a detector sends its messages to.
    pub fn waits_for(&self) -> NodeSet {
        let mut of = self.wait.as_ref().map_or_else(NodeSet::new, |wait| wait.of.clone());
        of.remove(self.me);
        of
    }

    /// Whether it stands in its own way.
    pub fn waits_for_itself(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.of.contains(self.me))
    }

    /// Both ends of its edges.
    pub fn record(&self) -> Record {
        Record { process: self.me, wait: self.wait.clone(), granted: self.granted.iter().collect() }
    }

    /// Blocks; `false` if it is blocked already or asks for nothing that could be.
    pub(super) fn ask(&mut self, need: u32, of: &NodeSet, mut send: impl FnMut(NodeId, Traffic)) -> bool {
        if self.wait.is_some() || need == 0 || (of.len() as u64) < u64::from(need) {
            return false;
        }
        self.number += 1;
        for to in of.iter().filter(|to| *to != self.me) {
            send(to, Traffic::Request(self.number));
        }
        self.wait = Some(Wait { number: self.number, need, of: of.clone() });
        true
    }

    /// Grants what `to` asked for; `false` if it did not, or this process is blocked.
    pub(super) fn grant(&mut self, to: NodeId, mut send: impl FnMut(NodeId, Traffic)) -> bool {
        if self.wait.is_some() {
            return false;
        }
        let Some(number) = self.pending.remove(to) else { return false };
        self.granted.insert(to, number);
        send(to, Traffic::Grant(number));
        true
    }

    /// Gives up waiting.
    pub(super) fn abort(&mut self, send: impl FnMut(NodeId, Traffic)) {
        self.run_again(send);
    }

    /// Takes what another process says.
    pub(super) fn on_traffic(
        &mut self,
        from: NodeId,
        traffic: Traffic,
        send: impl FnMut(NodeId, Traffic),
    ) -> Change {
        match traffic {
            Traffic::Request(number) => {
                self.pending.insert(from, number);
                return Change::Asked;
            }
            Traffic::Cancel(number) => {
                if self.pending.get(from) == Some(number) {
                    self.pending.remove(from);
                }
            }
            Traffic::Grant(number) => {
                if let Some(wait) = self.wait.as_mut().filter(|wait| wait.number == number)
                    && wait.of.remove(from)
                {
                    wait.need -= 1;
                    if wait.need == 0 {
                        self.run_again(send);
                        return Change::Runs;
                    }
                    return Change::Granted;
                }
            }
        }
        Change::None
    }

    fn run_again(&mut self, mut send: impl FnMut(NodeId, Traffic)) {
        if let Some(wait) = self.wait.take() {
            for to in wait.of.iter().filter(|to| *to != self.me) {
                send(to, Traffic::Cancel(wait.number));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn set(ids: &[u32]) -> NodeSet {
        ids.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn enough_grants_end_a_wait_and_cancel_the_rest() {
        let mut process = Underlying::new(NodeId(0), 4);
        let mut sent = Vec::new();
        assert!(process.ask(2, &set(&[1, 2, 3]), |to, traffic| sent.push((to.0, traffic))));
        assert_eq!(sent, [1, 2, 3].map(|to| (to, Traffic::Request(1))));
        assert!(!process.ask(1, &set(&[1]), |_, _| panic!("it is blocked already")));
        assert!(!process.grant(NodeId(1), |_, _| panic!("a blocked process grants nothing")));
        sent.clear();
        let mut take = |process: &mut Underlying, from, traffic| {
            process.on_traffic(NodeId(from), traffic, |to, traffic| sent.push((to.0, traffic)))
        };
        assert_eq!(take(&mut process, 3, Traffic::Grant(1)), Change::Granted);
        assert_eq!(take(&mut process, 3, Traffic::Grant(1)), Change::None, "a copy counts once");
        assert_eq!(take(&mut process, 1, Traffic::Grant(1)), Change::Runs);
        assert_eq!(sent, [(2, Traffic::Cancel(1))]);
    }

    #[test]
    fn what_was_cancelled_is_forgotten_and_a_late_grant_is_no_grant() {
        let mut process = Underlying::new(NodeId(0), 2);
        process.on_traffic(NodeId(1), Traffic::Request(4), |_, _| ());
        process.on_traffic(NodeId(1), Traffic::Cancel(4), |_, _| ());
        assert!(process.pending().is_empty() && !process.grant(NodeId(1), |_, _| ()));
        process.ask(1, &set(&[1]), |_, _| ());
        process.abort(|_, _| ());
        process.ask(1, &set(&[1]), |_, _| ());
        assert_eq!(process.on_traffic(NodeId(1), Traffic::Grant(1), |_, _| ()), Change::None);
        assert!(process.waits_by(2));
    }
}
