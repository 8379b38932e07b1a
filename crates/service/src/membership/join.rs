//! How a node comes into a cluster, and stays findable in it.
//!
//! ```text
//!   newcomer                        any member          leader
//!      | admit me, I am at A ----------> | elsewhere: L
//!      | admit me, I am at A ---------------------------> |  agreed: node 4 at A learns
//!      | <---------------------- cluster C, you are node 4 |
//!      | (keeps both, opens its log, listens; the leader sends it everything)
//!      | I am node 4 of C at A --------------------------> |  has it caught up? agreed: it votes
//!      | <--------------------------------------- settled |
//! ```
//!
//! **Rules** (docs/service.md 9). The first node of a cluster founds it; every other asks a member. A node that knows who it is never
//! asks for another number, whatever `--join` says: the addresses are then only a hint where others may be. Changes of the
//! membership are made one at a time, by the leader.
//!
//! **The trap.** A number must never have two nodes behind it, for they would vote twice. So an admission that nobody heard
//! the answer of is not repeated with the same number: who asks again from the same address gets a new one, and the learner
//! of that address, which never voted, is dropped. And since numbers are given upwards from the largest, no number comes
//! back: the largest leaves the membership only together with the arrival of a larger one.
//!
//! **Bounds.** [`MAX_NODES`] nodes in a cluster, then refused. A newcomer gives up after [`JOIN_LIMIT`]; a node that was
//! admitted never does, it asks again at growing intervals until it votes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use conclave_api::servers::ADDRESS_BYTES_MAX;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::peers::{self, Dial};
use crate::replica::{Identity, Member, MembershipError, NodeId, Replica, Status};
use conclave_node::entry::Service;

/// Nodes in one cluster, those that only learn included.
pub const MAX_NODES: usize = 16;
/// How long a newcomer tries to be admitted. Then its start fails.
pub const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// A learner that lacks at most so many entries has caught up.
const CAUGHT_UP: u64 = 1_000;
/// How long the leader waits for a learner to catch up before it says "later".
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a member may take to answer: it may wait for another change, and for the learner.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How long a hint may take to answer when nothing depends on it.
const HINT_LIMIT: Duration = Duration::from_secs(2);
/// How often a node that does not belong to its cluster yet reports the reason.
const REPORT_EVERY: Duration = Duration::from_secs(3);
/// The first and the longest pause between two rounds of requests.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What a node asks of a member.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// I am of this cluster; are you?
    Hello { cluster: u128 },
    /// I am new, and will be found there.
    Admit { address: String },
    /// I am this node, am found there, and want to vote if I do not.
    Present { cluster: u128, node: NodeId, address: String },
}

/// What a member answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// To [`Ask::Admit`]: who you are from now on.
    Admitted { cluster: u128, node: NodeId },
    /// It is as you say.
    Settled,
    /// Another node leads: ask there, if it is known where.
    Elsewhere { leader: Option<String> },
    /// Not now; ask again.
    Later(String),
    /// Never.
    Refused(String),
}

/// The member's side.
pub(crate) struct JoinServer {
    pub(crate) replica: Replica<Service>,
    /// One change at a time: the next number is chosen when the last one is agreed upon.
    busy: Mutex<()>,
}

impl JoinServer {
    pub(crate) fn new(replica: Replica<Service>) -> Self {
        Self { replica, busy: Mutex::new(()) }
    }

    pub(crate) async fn answer(&self, ask: Ask) -> Answer {
        let ours = self.replica.identity().cluster;
        match ask {
            Ask::Hello { cluster } | Ask::Present { cluster, .. } if cluster != ours => {
                Answer::Refused(format!("this is a node of cluster {ours:032x}, not of {cluster:032x}"))
            }
            Ask::Hello { .. } => Answer::Settled,
            Ask::Admit { address } | Ask::Present { address, .. } if !is_address(&address) => {
                Answer::Refused(format!(
                    "`{}` is not an address of the form HOST:PORT; correct --advertise",
                    address.escape_debug()
                ))
            }
            Ask::Admit { address } => self.admit(address).await.unwrap_or_else(|answer| answer),
            Ask::Present { node, address, .. } => {
                self.settle(node, address).await.unwrap_or_else(|answer| answer)
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

    async fn settle(&self, node: NodeId, address: String) -> Result<Answer, Answer> {
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
            return Ok(Answer::Settled);
        }
        let caught_up = |status: &Status| {
            let matched = status.matched.get(&node).copied().flatten();
            !status.leads() || matched.is_some_and(|matched| matched + CAUGHT_UP >= status.last.unwrap_or(0))
        };
        if timeout(PATIENCE, self.replica.wait_for(caught_up)).await.is_err() {
            return Err(Answer::Later(format!("node {node} has not caught up yet")));
        }
        let _busy = self.busy.lock().await;
        self.replica.promote(node).await.map_err(|error| self.unchanged(error))?;
        tracing::info!(node, "gave a node its vote");
        Ok(Answer::Settled)
    }

    /// How things stand, if this node leads.
    fn lead(&self) -> Result<Status, Answer> {
        let status = self.replica.status();
        if status.leads() { Ok(status) } else { Err(elsewhere(&status, status.leader)) }
    }

    fn unchanged(&self, error: MembershipError) -> Answer {
        match error {
            MembershipError::NotLeader(leader) => elsewhere(&self.replica.status(), leader),
            MembershipError::Refused(why) | MembershipError::Unknown(why) => Answer::Later(why),
        }
    }
}

fn elsewhere(status: &Status, leader: Option<NodeId>) -> Answer {
    let address = |leader| status.membership.nodes.get(&leader).map(|member| member.address.clone());
    Answer::Elsewhere { leader: leader.filter(|leader| *leader != status.node).and_then(address) }
}

/// A host and a port that can be connected to; whether somebody is there is another question.
pub(crate) fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let plain = |c: char| c.is_ascii_graphic();
    !host.is_empty()
        && address.len() <= ADDRESS_BYTES_MAX
        && address.chars().all(plain)
        && port.parse::<u16>().is_ok_and(|port| port != 0)
}

/// Asks the hints in turn until a member admits this node, for at most [`JOIN_LIMIT`]. Reports every few
/// seconds why no member has.
///
/// # Errors
/// A member refuses this node for good, or the time is over.
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
                Ok(Admission::Later(reason)) => reasons.push(reason),
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

/// The reply to a newcomer.
enum Admission {
    Granted(Identity),
    Later(String),
    Refused(String),
}

/// Asks one member, and then the leader that it names, if there is one.
async fn admit_by(dial: &dyn Dial, hint: &str, address: &str) -> std::io::Result<Admission> {
    let request = || Ask::Admit { address: address.to_owned() };
    let mut member = hint.to_owned();
    let mut answer = ask(dial, hint, &request(), ANSWER_LIMIT).await?;
    if let Answer::Elsewhere { leader: Some(leader) } = answer {
        answer = match ask(dial, &leader, &request(), ANSWER_LIMIT).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Admission::Later(format!("{hint} names the leader {leader}: {error}"))),
        };
        member = leader;
    }
    Ok(match answer {
        Answer::Admitted { cluster, node } => Admission::Granted(Identity { cluster, node }),
        Answer::Elsewhere { .. } => Admission::Later(format!("{member} knows no leader")),
        Answer::Later(reason) => Admission::Later(format!("{member}: {reason}")),
        Answer::Refused(reason) => Admission::Refused(format!("{member} refuses this node: {reason}")),
        Answer::Settled => Admission::Later(format!("{member} sent a reply to another request")),
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

/// Checks that no hint belongs to another cluster than the data folder. A hint that does not reply proves
/// nothing.
///
/// # Errors
/// One of them belongs to another cluster.
pub(crate) async fn check_hints(dial: &dyn Dial, hints: &[String], identity: Identity) -> Result<(), String> {
    let hello = Ask::Hello { cluster: identity.cluster };
    let asked = hints.iter().map(async |hint| (hint, ask(dial, hint, &hello, HINT_LIMIT).await));
    for (hint, answer) in futures_util::future::join_all(asked).await {
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

/// Asks the leader to record the address of this node and to give it a vote, until both are done. Then calls
/// `settled`. Reports every few seconds why they are not.
pub(crate) async fn present(
    join_server: Arc<JoinServer>,
    dial: Arc<dyn Dial>,
    hints: Vec<String>,
    address: String,
    settled: impl FnOnce() + Send + 'static,
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
            return settled();
        }
        let me = || Ask::Present { cluster, node, address: address.clone() };
        let answer = if status.leads() {
            Ok(join_server.answer(me()).await)
        } else {
            let leader = status.leader.and_then(|leader| status.membership.nodes.get(&leader));
            let leader = leader.map(|member| member.address.clone());
            ask_around(&*dial, leader.into_iter().chain(hints.iter().cloned()), me).await
        };
        let reason = match answer {
            Ok(Answer::Settled) => None,
            Ok(Answer::Refused(reason)) => Some(format!("the cluster refuses it: {reason}")),
            Ok(Answer::Later(reason)) => Some(reason),
            Ok(Answer::Elsewhere { .. }) => Some("no leader is known".to_owned()),
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

/// Asks the members in turn until one replies, and then the leader that it names, if there is one.
///
/// # Errors
/// No member replies: each with its error.
async fn ask_around(
    dial: &dyn Dial,
    members: impl Iterator<Item = String>,
    question: impl Fn() -> Ask,
) -> Result<Answer, String> {
    let mut errors = Vec::new();
    for member in members {
        let failed = |member: &str, error: std::io::Error| format!("{member}: {error}");
        match ask(dial, &member, &question(), ANSWER_LIMIT).await {
            Ok(Answer::Elsewhere { leader: Some(leader) }) => {
                match ask(dial, &leader, &question(), ANSWER_LIMIT).await {
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

async fn ask(dial: &dyn Dial, member: &str, ask: &Ask, limit: Duration) -> std::io::Result<Answer> {
    let body = postcard::to_stdvec(ask).map_err(std::io::Error::other)?;
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
