//! Joining: the protocol by which a node enters a cluster and keeps its address up to date.
//!
//! ```text
//!   new node                        any member          leader
//!      | Admit, address A ----------> | NotLeader: L
//!      | Admit, address A ---------------------------> |  commits: node 4 at A is a learner
//!      | <--------------- Admitted: cluster C, node 4  |
//!      | (stores both, opens its log, listens; the leader replicates the log to it)
//!      | Announce: node 4 of C, address A -----------> |  caught up? commits: node 4 votes
//!      | <---------------------------------- Accepted  |
//! ```
//!
//! **Rules** (docs/service.md 9). The first node founds the cluster; every other node sends a request to a
//! member. A node with an identity never requests another one. The addresses of `--join` then only help it to
//! find members. The leader changes the membership, one change at a time.
//!
//! **Trap.** A reply `Admitted` is lost and the new node repeats the request. If two nodes then had the same
//! number, they could vote twice. So the leader never repeats a number: it assigns a new one and removes the
//! learner of the same address, which has never voted. A new number is larger than all numbers of the
//! membership. The largest number leaves only when a larger one enters, so no number returns.
//!
//! **Bounds.** A cluster has at most [`MAX_NODES`] nodes; further ones are refused. A new node gives up after
//! [`JOIN_LIMIT`]. An admitted node never gives up: it repeats `Announce` at growing intervals until it
//! votes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use conclave_core::servers::ADDRESS_BYTES_MAX;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::peers::{self, Dial};
use crate::replica::{Identity, Member, MembershipError, NodeId, Replica, Status};
use conclave_node::entry::Service;

/// The most nodes of one cluster, learners included. The leader refuses further ones.
pub const MAX_NODES: usize = 16;
/// The longest time that a new node tries to be admitted. Its start then fails.
pub const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// The most entries by which a learner may be behind the leader and still get a vote.
const CAUGHT_UP: u64 = 1_000;
/// The longest wait of the leader for a learner to catch up. It then replies `TryLater`.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for the reply of a member, which may itself wait for another change and for the learner.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// The longest wait for the reply to `Hello`. A member that does not reply in time is ignored.
const HINT_LIMIT: Duration = Duration::from_secs(2);
/// The time between two reports of the reason why a node is not admitted or does not vote.
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// The first and the longest pause between two rounds of requests.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A request of a node to a member.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JoinRequest {
    /// Checks whether the member belongs to this cluster.
    Hello { cluster: u128 },
    /// Requests the admission of a new node at this address.
    Admit { address: String },
    /// Reports the address of a node, and requests a vote if it has none.
    Announce { cluster: u128, node: NodeId, address: String },
}

/// The reply of a member.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The reply to [`JoinRequest::Admit`]: the identity of the new node.
    Admitted { cluster: u128, node: NodeId },
    /// The request is fulfilled: the member belongs to the cluster, or the address is recorded and the node
    /// votes.
    Accepted,
    /// Another node is the leader. Its address is `None` if it is unknown.
    NotLeader { leader: Option<String> },
    /// The request cannot be fulfilled now, for this reason. The sender repeats it.
    TryLater(String),
    /// The request is refused for this reason. Repeating it does not help.
    Refused(String),
}

/// The part of a member that handles join requests.
pub(crate) struct JoinServer {
    pub(crate) replica: Replica<Service>,
    /// Allows one change at a time: the next number is chosen after the last change is committed.
    busy: Mutex<()>,
}

impl JoinServer {
    pub(crate) fn new(replica: Replica<Service>) -> Self {
        Self { replica, busy: Mutex::new(()) }
    }

    pub(crate) async fn answer(&self, request: JoinRequest) -> Answer {
        let ours = self.replica.identity().cluster;
        match request {
            JoinRequest::Hello { cluster } | JoinRequest::Announce { cluster, .. } if cluster != ours => {
                Answer::Refused(format!("this is a node of cluster {ours:032x}, not of {cluster:032x}"))
            }
            JoinRequest::Hello { .. } => Answer::Accepted,
            JoinRequest::Admit { address } | JoinRequest::Announce { address, .. }
                if !is_address(&address) =>
            {
                Answer::Refused(format!(
                    "`{}` is not an address of the form HOST:PORT; correct --advertise",
                    address.escape_debug()
                ))
            }
            JoinRequest::Admit { address } => self.admit(address).await.unwrap_or_else(|answer| answer),
            JoinRequest::Announce { node, address, .. } => {
                self.promote_when_caught_up(node, address).await.unwrap_or_else(|answer| answer)
            }
        }
    }

    async fn admit(&self, address: String) -> Result<Answer, Answer> {
        let _busy = self.busy.lock().await;
        let status = self.lead()?;
        let at_address = |member: &Member| member.address == address;
        let same: BTreeSet<NodeId> = status
            .membership
            .nodes
            .iter()
            .filter(|(_, member)| at_address(member))
            .map(|(node, _)| *node)
            .collect();
        let voter = |node: &&NodeId| status.membership.voters.iter().any(|voters| voters.contains(node));
        if let Some(voter) = same.iter().find(voter) {
            let text = format!(
                "{address} is the address of node {voter}; start that node with its own data folder, or use another address"
            );
            return Err(Answer::Refused(text));
        }
        if status.membership.nodes.len() - same.len() >= MAX_NODES {
            return Err(Answer::Refused(format!(
                "the cluster already has {MAX_NODES} nodes, which is the most"
            )));
        }
        let largest = status.membership.nodes.keys().next_back().copied().unwrap_or(status.node);
        let node = largest + 1;
        self.replica.admit(node, Member { address }, same).await.map_err(|error| self.unchanged(error))?;
        tracing::info!(node, "admitted a new node");
        Ok(Answer::Admitted { cluster: self.replica.identity().cluster, node })
    }

    async fn promote_when_caught_up(&self, node: NodeId, address: String) -> Result<Answer, Answer> {
        let status = self.lead()?;
        let Some(known) = status.membership.nodes.get(&node) else {
            return Err(Answer::Refused(format!(
                "node {node} does not belong to this cluster; join it again with an empty data folder"
            )));
        };
        if known.address != address {
            let _busy = self.busy.lock().await;
            let taken = |(other, member): (&NodeId, &Member)| *other != node && member.address == address;
            if self.lead()?.membership.nodes.iter().any(taken) {
                return Err(Answer::Refused(format!(
                    "another node has the address {address}; use another one"
                )));
            }
            self.replica.relocate(node, Member { address }).await.map_err(|error| self.unchanged(error))?;
        }
        if self.replica.status().votes(node) {
            return Ok(Answer::Accepted);
        }
        let caught_up = |status: &Status| {
            let matched = status.matched.get(&node).copied().flatten();
            !status.leads() || matched.is_some_and(|matched| matched + CAUGHT_UP >= status.last.unwrap_or(0))
        };
        if timeout(CATCH_UP_LIMIT, self.replica.wait_for(caught_up)).await.is_err() {
            return Err(Answer::TryLater(format!("node {node} has not caught up yet")));
        }
        let _busy = self.busy.lock().await;
        self.replica.promote(node).await.map_err(|error| self.unchanged(error))?;
        tracing::info!(node, "gave a node its vote");
        Ok(Answer::Accepted)
    }

    /// Returns the status if this node leads, else the reply that names the leader.
    fn lead(&self) -> Result<Status, Answer> {
        let status = self.replica.status();
        if status.leads() { Ok(status) } else { Err(not_leader(&status, status.leader)) }
    }

    fn unchanged(&self, error: MembershipError) -> Answer {
        match error {
            MembershipError::NotLeader(leader) => not_leader(&self.replica.status(), leader),
            MembershipError::Refused(why) | MembershipError::Unknown(why) => Answer::TryLater(why),
        }
    }
}

fn not_leader(status: &Status, leader: Option<NodeId>) -> Answer {
    let address = |leader| status.membership.nodes.get(&leader).map(|member| member.address.clone());
    Answer::NotLeader { leader: leader.filter(|leader| *leader != status.node).and_then(address) }
}

/// Returns whether the text has the form HOST:PORT with a port other than 0. It does not connect.
pub(crate) fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let plain = |c: char| c.is_ascii_graphic();
    !host.is_empty()
        && address.len() <= ADDRESS_BYTES_MAX
        && address.chars().all(plain)
        && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Sends `Admit` to the hints in turn until a member admits this node, for at most [`JOIN_LIMIT`]. Logs the
/// reasons of the failures every few seconds.
///
/// # Errors
/// A member refuses this node, or the time is over.
pub(crate) async fn admit(dial: &dyn Dial, hints: &[String], address: &str) -> Result<Identity, String> {
    let began = Instant::now();
    let mut pause = PAUSE.0;
    let mut reports = Reports::default();
    loop {
        let mut reasons = Vec::new();
        for hint in hints {
            match admit_by(dial, hint, address).await {
                Ok(Admission::Granted(identity)) => return Ok(identity),
                Ok(Admission::Refused(reason)) => return Err(reason),
                Ok(Admission::TryLater(reason)) => reasons.push(reason),
                Err(error) => reasons.push(format!("{hint}: {error}")),
            }
        }
        let reasons = reasons.join("; ");
        if began.elapsed() >= JOIN_LIMIT {
            return Err(format!(
                "no member has admitted this node within {} s ({reasons}); check the addresses of --join, and that a member runs \
                 there",
                JOIN_LIMIT.as_secs()
            ));
        }
        if reports.is_due() {
            tracing::warn!(%reasons, "no member has admitted this node yet; trying again");
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// The reply to a new node.
enum Admission {
    Granted(Identity),
    TryLater(String),
    Refused(String),
}

/// Sends `Admit` to one member, and then to the leader that it names, if any.
async fn admit_by(dial: &dyn Dial, hint: &str, address: &str) -> std::io::Result<Admission> {
    let request = || JoinRequest::Admit { address: address.to_owned() };
    let mut member = hint.to_owned();
    let mut answer = call_member(dial, hint, &request(), ANSWER_LIMIT).await?;
    if let Answer::NotLeader { leader: Some(leader) } = answer {
        answer = match call_member(dial, &leader, &request(), ANSWER_LIMIT).await {
            Ok(answer) => answer,
            Err(error) => {
                return Ok(Admission::TryLater(format!("{hint} names the leader {leader}: {error}")));
            }
        };
        member = leader;
    }
    Ok(match answer {
        Answer::Admitted { cluster, node } => Admission::Granted(Identity { cluster, node }),
        Answer::NotLeader { .. } => Admission::TryLater(format!("{member} knows no leader")),
        Answer::TryLater(reason) => Admission::TryLater(format!("{member}: {reason}")),
        Answer::Refused(reason) => Admission::Refused(format!("{member} refuses this node: {reason}")),
        Answer::Accepted => Admission::TryLater(format!("{member} sent a reply to another request")),
    })
}

/// The time of the last report, so that reports are [`REPORT_EVERY`] apart. The first is due at once.
#[derive(Default)]
struct Reports {
    last: Option<Instant>,
}

impl Reports {
    fn is_due(&mut self) -> bool {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= REPORT_EVERY);
        if is_due {
            self.last = Some(Instant::now());
        }
        is_due
    }
}

/// Checks that no hint belongs to another cluster than the data folder. Hints that do not reply are ignored.
///
/// # Errors
/// A hint belongs to another cluster.
pub(crate) async fn check_hints(dial: &dyn Dial, hints: &[String], identity: Identity) -> Result<(), String> {
    let hello = JoinRequest::Hello { cluster: identity.cluster };
    let calls = hints.iter().map(async |hint| (hint, call_member(dial, hint, &hello, HINT_LIMIT).await));
    for (hint, answer) in futures_util::future::join_all(calls).await {
        if let Ok(Answer::Refused(reason)) = answer {
            return Err(format!(
                "{hint} refuses this node: {reason}; the data folder belongs to node {} of another cluster: use the \
                 addresses of that cluster, or another folder",
                identity.node
            ));
        }
    }
    Ok(())
}

/// Sends `Announce` to the leader until the address of this node is recorded and the node votes, then calls
/// `on_accepted`. Logs every few seconds why this has not happened yet.
pub(crate) async fn announce(
    join_server: Arc<JoinServer>,
    dial: Arc<dyn Dial>,
    hints: Vec<String>,
    address: String,
    on_accepted: impl FnOnce() + Send + 'static,
) {
    let Identity { cluster, node } = join_server.replica.identity();
    let mut pause = PAUSE.0;
    let mut reports = Reports::default();
    loop {
        let status = join_server.replica.status();
        if !status.running {
            return;
        }
        let known = status.membership.nodes.get(&node);
        if status.votes(node) && known.is_some_and(|known| known.address == address) {
            return on_accepted();
        }
        let me = || JoinRequest::Announce { cluster, node, address: address.clone() };
        let answer = if status.leads() {
            Ok(join_server.answer(me()).await)
        } else {
            let leader = status.leader.and_then(|leader| status.membership.nodes.get(&leader));
            let leader = leader.map(|member| member.address.clone());
            call_members(&*dial, leader.into_iter().chain(hints.iter().cloned()), me).await
        };
        let reason = match answer {
            Ok(Answer::Accepted) => None,
            Ok(Answer::Refused(reason)) => Some(format!("the cluster refuses it: {reason}")),
            Ok(Answer::TryLater(reason)) => Some(reason),
            Ok(Answer::NotLeader { .. }) => Some("no leader is known".to_owned()),
            Ok(Answer::Admitted { .. }) => Some("a member sent a reply to another request".to_owned()),
            Err(reason) => Some(reason),
        };
        match reason {
            None => pause = PAUSE.0,
            Some(reason) if reports.is_due() => {
                tracing::warn!(node, %reason, "this node does not vote yet; trying again");
            }
            Some(_) => {}
        }
        // This node may not have applied the change yet.
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Sends the request to the members in turn until one replies, and then to the leader that it names, if any.
///
/// # Errors
/// No member replied. The text has the error of each.
async fn call_members(
    dial: &dyn Dial,
    members: impl Iterator<Item = String>,
    request: impl Fn() -> JoinRequest,
) -> Result<Answer, String> {
    let mut errors = Vec::new();
    for member in members {
        let failed = |member: &str, error: std::io::Error| format!("{member}: {error}");
        match call_member(dial, &member, &request(), ANSWER_LIMIT).await {
            Ok(Answer::NotLeader { leader: Some(leader) }) => {
                match call_member(dial, &leader, &request(), ANSWER_LIMIT).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => errors.push(failed(&leader, error)),
                }
            }
            Ok(answer) => return Ok(answer),
            Err(error) => errors.push(failed(&member, error)),
        }
    }
    Err(if errors.is_empty() { "no other member is known".to_owned() } else { errors.join("; ") })
}

async fn call_member(
    dial: &dyn Dial,
    member: &str,
    request: &JoinRequest,
    limit: Duration,
) -> std::io::Result<Answer> {
    let body = postcard::to_stdvec(request).map_err(std::io::Error::other)?;
    let answer = timeout(limit, peers::call_once(dial, member, peers::JOINING, &body)).await;
    let answer =
        answer.map_err(|_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no reply in time"))??;
    postcard::from_bytes(&answer).map_err(|_| std::io::Error::other("the reply cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_that_can_be_connected_to() {
        for good in ["127.0.0.1:7411", "db-1.example:1", "[::1]:7411"] {
            assert!(is_address(good), "{good}");
        }
        let long = format!("{}:1", "a".repeat(ADDRESS_BYTES_MAX));
        for bad in ["", "host", ":7411", "host:0", "host:99999", "a b:1", "a\n:1", "é:1", long.as_str()] {
            assert!(!is_address(bad), "{bad:?}");
        }
    }
}
