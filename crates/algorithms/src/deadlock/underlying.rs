//! The underlying computation: processes that request, grant and wait. So detectors observe real traffic.
//!
//! Each site has one process. A running process may *request* grants from some others, of which `need` are
//! enough. It is then blocked, and does nothing until so many have granted. A running process may *grant* a
//! request that it has received: it releases what the other waits for. A blocked process grants nothing; this
//! is how deadlocks form.
//!
//! **Rules.**
//! 1. REQUEST(n) to each of these processes; n numbers the requests of a process, so that late messages are
//!    recognised.
//! 2. After GRANT(n) from enough of them, run again, and send CANCEL(n) to those that have not granted.
//! 3. An aborted process also sends CANCEL(n), and runs. So the receivers forget the dead edge at once.
//!
//! Single resource, AND, OR and p-out-of-q are all `need` of `of`.
//!
//! **The trap.** While a GRANT is in transit, its edge is no longer a wait, although its receiver still
//! waits. So a judge must look at both ends of an edge ([`Record`]).
//!
//! **Bounds.** A process has at most one wait, and at most one pending request of each other process.

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
    /// The processes whose requests are not yet granted, with the numbers of the requests.
    pending: NodeMap<u64>,
    /// The latest granted request of each process.
    granted: NodeMap<u64>,
}

/// The wait of a blocked process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Wait {
    /// The number of the request.
    pub number: u64,
    /// The number of grants that are still needed.
    pub need: u32,
    /// The processes that received the request and have not granted it.
    pub of: NodeSet,
}

/// A message between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// A request.
    Request(u64),
    /// A grant of the receiver's request.
    Grant(u64),
    /// The withdrawal of a request.
    Cancel(u64),
}

/// The result of a message for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// No change of its wait or its pending requests that matters to a detector.
    None,
    /// Another process has granted, but more grants are needed.
    Granted,
    /// A request has arrived.
    Asked,
    /// The process runs again.
    Runs,
}

impl Underlying {
    /// Creates a running process.
    pub fn new(me: NodeId, nodes: u32) -> Self {
        Self { me, nodes, number: 0, wait: None, pending: NodeMap::new(nodes), granted: NodeMap::new(nodes) }
    }

    /// Returns the number of processes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the wait of the process; `None` if it runs.
    pub fn wait(&self) -> Option<&Wait> {
        self.wait.as_ref()
    }

    /// Returns whether the process waits because of the request with this number.
    pub fn waits_by(&self, number: u64) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.number == number)
    }

    /// Returns the processes whose requests are not yet granted, with the numbers of the requests.
    pub fn pending(&self) -> &NodeMap<u64> {
        &self.pending
    }

    /// Returns the number of the latest request of process `to` that was granted; 0 if there is none.
    pub fn granted(&self, to: NodeId) -> u64 {
        self.granted.get(to).unwrap_or(0)
    }

    /// Returns the other processes for which it waits. A detector sends its messages to them.
    pub fn waits_for(&self) -> NodeSet {
        let mut of = self.wait.as_ref().map_or_else(NodeSet::new, |wait| wait.of.clone());
        of.remove(self.me);
        of
    }

    /// Returns whether the process waits for itself.
    pub fn waits_for_itself(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.of.contains(self.me))
    }

    /// Returns both ends of the edges of this process.
    pub fn record(&self) -> Record {
        Record { process: self.me, wait: self.wait.clone(), granted: self.granted.iter().collect() }
    }

    /// Blocks the process and sends the request. Returns false if it is blocked already, or if `need` is zero
    /// or larger than `of`.
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

    /// Grants the request of `to`. Returns false if there is none, or if this process is blocked.
    pub(super) fn grant(&mut self, to: NodeId, mut send: impl FnMut(NodeId, Traffic)) -> bool {
        if self.wait.is_some() {
            return false;
        }
        let Some(number) = self.pending.remove(to) else { return false };
        self.granted.insert(to, number);
        send(to, Traffic::Grant(number));
        true
    }

    /// Ends the wait without the grants.
    pub(super) fn abort(&mut self, send: impl FnMut(NodeId, Traffic)) {
        self.run_again(send);
    }

    /// Handles a message of another process.
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
