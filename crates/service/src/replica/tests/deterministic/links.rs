//! The links between the nodes: delays, losses, cuts.
//!
//! **Rules.** A message is on its way independently of its sender: the sender may give up, and the message
//! arrives all the same. Messages overtake each other. A lost message or reply becomes an error after a
//! while, as on a broken connection; the request may have been executed.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::group::{CutAfter, Group};
use super::seeded;
use crate::replica::rpc_client::{AppendReply, Reply, Request, open_request};
use crate::replica::{Identity, Member, NodeId, Transport};

/// The time after which the sender of a message that was lost gets an error.
const SILENCE: Duration = Duration::from_secs(1);

/// The state of the links between all nodes.
#[derive(Default)]
pub(super) struct Links {
    /// Links that carry nothing, as pairs of sender and receiver.
    pub(super) cut: BTreeSet<(NodeId, NodeId)>,
    /// One of so many messages is lost; 0 for none.
    pub(super) one_lost_in: u64,
    /// The longest delay of a message in milliseconds.
    pub(super) delay_ms_max: u64,
}

/// The links of one node in one boot.
pub(super) struct Link {
    pub(super) from: NodeId,
    pub(super) boot: u64,
    pub(super) group: Weak<Group>,
}

impl Transport for Link {
    fn call(&self, to: NodeId, _: &Member, request: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let (reply, replied) = oneshot::channel();
        if let Some(group) = self.group.upgrade() {
            let message = Message { group, from: self.from, boot: self.boot, to };
            tokio::spawn(async move {
                // The sender may have given up.
                let _ = reply.send(message.carry(&request).await);
            });
        }
        Box::pin(async move { replied.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionReset.into())) })
    }
}

struct Message {
    group: Arc<Group>,
    from: NodeId,
    boot: u64,
    to: NodeId,
}

impl Message {
    /// Carries a request to its receiver, and the reply back.
    async fn carry(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let (from, to) = (self.from, self.to);
        if !self.group.is_boot(from, self.boot) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        seeded::note(|| format!("{from} -> {to}: {}", seeded::mark(bytes)));
        let request = open_request(Identity { cluster: 7, node: to }, bytes).ok();
        if let Some(request) = &request {
            self.judge_request(request);
        }
        if self.travel(from, to).await {
            self.group.with(|state| state.judge.sometimes.requests_lost += 1);
            return self.lose().await;
        }
        let Some((receiver, boot)) = self.group.up(to) else {
            return Err(io::ErrorKind::HostUnreachable.into());
        };
        seeded::note(|| format!("{to} <- {from}: {}", seeded::mark(bytes)));
        let reply = receiver.answer(bytes).await;
        if !self.group.is_boot(to, boot) {
            return self.lose().await;
        }
        seeded::note(|| format!("{from} <- {to}: {}", seeded::mark(&reply)));
        if let (Some(request), Ok(reply)) = (&request, postcard::from_bytes(&reply)) {
            self.judge_reply(request, &reply);
        }
        if self.travel(to, from).await {
            self.group.with(|state| state.judge.sometimes.replies_lost += 1);
            return self.lose().await;
        }
        Ok(reply)
    }

    /// Waits for the delay of a message. Returns whether the message is lost.
    async fn travel(&self, from: NodeId, to: NodeId) -> bool {
        let (delay_ms_max, one_lost_in) =
            self.group.with(|state| (state.links.delay_ms_max, state.links.one_lost_in));
        let ms = if seeded::one_in(50) { 10 * delay_ms_max } else { delay_ms_max };
        sleep(Duration::from_millis(seeded::below(ms + 1))).await;
        let is_cut = self.group.with(|state| {
            let is_cut = state.links.cut.contains(&(from, to));
            state.judge.sometimes.cut_messages += u64::from(is_cut);
            is_cut
        });
        is_cut || (one_lost_in > 0 && seeded::one_in(one_lost_in))
    }

    async fn lose<T>(&self) -> io::Result<T> {
        sleep(SILENCE).await;
        Err(io::ErrorKind::ConnectionReset.into())
    }

    fn judge_request(&self, request: &Request) {
        let from = self.from;
        self.group.with(|state| match request {
            Request::Append { vote, .. } | Request::Transfer { from: vote, .. } => {
                state.judge.on_leader(vote.term, from);
            }
            Request::Snapshot(piece) => state.judge.on_leader(piece.vote.term, from),
            Request::Vote(ballot) => state.judge.on_vote(from, ballot.vote.term, from),
            Request::PreVote(_) | Request::Propose(_) | Request::ReadIndex => {}
        });
    }

    fn judge_reply(&self, request: &Request, reply: &Reply) {
        let event = self.group.with(|state| match (request, reply) {
            (Request::Vote(ballot), Reply::Vote { granted: true, .. }) => {
                state.judge.on_vote(self.to, ballot.vote.term, ballot.vote.node);
                Some(CutAfter::Vote)
            }
            (Request::Vote(_), Reply::Vote { granted: false, .. }) => {
                state.judge.sometimes.votes_refused += 1;
                None
            }
            (Request::Append { entries, .. }, Reply::Append(AppendReply::Success)) => {
                (!entries.is_empty()).then_some(CutAfter::Append)
            }
            (_, Reply::Propose(results)) => {
                state.judge.sometimes.forwarded += u64::from(results.iter().all(Result::is_ok));
                None
            }
            (_, Reply::Append(AppendReply::Conflict)) => {
                state.judge.sometimes.conflicts += 1;
                None
            }
            _ => None,
        });
        let is_armed = event.is_some_and(|event| self.group.disarm(event));
        if is_armed {
            self.group.cut_power(self.to);
        }
    }
}
