//! Proposals: commands on their way to the leader, wherever it is.
//!
//! **Intuition.** On the leader, proposals go into openraft at once. On another node they go to the leader in
//! one message, or in several if they are long. If the leader accepted none of them (it cannot be reached, is
//! not ready, or no longer leads), they go to the next leader. This node notices the end of a leader long
//! before another one is elected.
//!
//! **Rules.** The caller has at most one group of proposals in flight, unless this node is a single node that
//! leads. Such a node passes each group to openraft within the call, so the groups keep their order.
//!
//! **Bounds.** The node's budget bounds the commands in flight. A message to the leader has at most
//! [`MESSAGE_BYTES`], or one proposal.

use std::future::ready;
use std::io;

use futures_util::future::Either;
use futures_util::{FutureExt, Stream, StreamExt};
use openraft::errors::{ClientWriteError, ForwardToLeader};
use openraft::raft::WriteResponse;
use tokio::task::unconstrained;

use super::ProposeError;
use super::leader_route::{LeaderRoute, RaftOf, RetryState};
use super::log::LogId;
use super::raft_types::{Member, NodeId, Proposal, Types, log_id};
use super::rpc_client::{Reply, Request};
use super::state_machine::Machine;

/// The most bytes of proposals in one message to the leader, unless a single proposal has more. The rest goes
/// in the next message.
const MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// One result for each proposal, in their order.
pub(super) type Results = Vec<Result<LogId, ProposeError>>;

impl<M: Machine> LeaderRoute<M> {
    /// Proposes in this order. On the leader, openraft has the proposals when the call returns. The future
    /// returns their results.
    pub(super) fn propose_all(
        &self,
        proposals: Vec<Proposal<M>>,
    ) -> impl Future<Output = Results> + Send + use<M> {
        let route = self.clone();
        if proposals.is_empty() {
            return Either::Left(ready(Results::new()));
        }
        if self.leads_here() {
            return Either::Right(Either::Left(propose_now(route, proposals)));
        }
        Either::Right(Either::Right(async move {
            route.until_led().await;
            take_to_leader(&route, RetryState::begin(&route), &proposals).await
        }))
    }
}

/// Passes proposals to openraft within the call.
fn propose_now<M: Machine>(
    route: LeaderRoute<M>,
    proposals: Vec<Proposal<M>>,
) -> impl Future<Output = Results> + Send + use<M> {
    // Run without the runtime's budget for this task: the order of the calls counts, so this must not yield.
    let taken = unconstrained(route.raft.client_write_many(proposals.clone())).now_or_never();
    async move {
        let count = proposals.len();
        let results = match taken {
            Some(Ok(results)) => results_of(results, count).await,
            Some(Err(_)) => vec![Err(ProposeError::Stopped); count],
            // The queue of openraft is full, so it accepted nothing.
            None => vec![Err(ProposeError::Retry); count],
        };
        retry_until_accepted(&route, &proposals, results).await
    }
}

/// Returns the results if one of the proposals was accepted, else the results of a retry.
async fn retry_until_accepted<M: Machine>(
    route: &LeaderRoute<M>,
    proposals: &[Proposal<M>],
    results: Results,
) -> Results {
    if is_accepted(&results) {
        return results;
    }
    let mut retry = RetryState::begin(route);
    match retry.again(route).await {
        true => take_to_leader(route, retry, proposals).await,
        false => results,
    }
}

/// Returns whether a retry is excluded: a proposal was accepted, may have been, or never can be.
fn is_accepted(results: &Results) -> bool {
    results.iter().any(|result| *result != Err(ProposeError::Retry))
}

/// Sends proposals to the leader, wherever it is, until one leader accepts them.
async fn take_to_leader<M: Machine>(
    route: &LeaderRoute<M>,
    mut retry: RetryState,
    proposals: &[Proposal<M>],
) -> Results {
    loop {
        let results = match route.leader_elsewhere() {
            _ if route.has_ended() => vec![Err(ProposeError::Stopped); proposals.len()],
            Some(leader) => forward(route, &leader, proposals).await,
            None => propose_here(&route.raft, proposals.to_vec()).await,
        };
        if is_accepted(&results) || !retry.again(route).await {
            return results;
        }
    }
}

/// Forwards proposals to the leader, one message after the other, because messages could overtake each other.
/// Sends nothing after a message with an error. Otherwise a later command could be applied without an earlier
/// one.
async fn forward<M: Machine>(
    route: &LeaderRoute<M>,
    leader: &(NodeId, Member),
    proposals: &[Proposal<M>],
) -> Results {
    let mut results = Results::with_capacity(proposals.len());
    let mut rest = proposals;
    while !rest.is_empty() && results.iter().all(Result::is_ok) {
        let (message, later) = rest.split_at(fitting(rest.iter().map(|proposal| proposal.data().len())));
        results.extend(forward_message(route, leader, message).await);
        rest = later;
    }
    results.resize(proposals.len(), Err(ProposeError::Retry));
    results
}

/// Returns how many of the first of these lengths go into one message: at least one.
fn fitting(lengths: impl Iterator<Item = usize>) -> usize {
    let total = lengths.scan(0_usize, |total, length| {
        *total = total.saturating_add(length);
        Some(*total)
    });
    total.take_while(|total| *total <= MESSAGE_BYTES).count().max(1)
}

/// Sends one message to the leader. Without a reply the outcome is unknown.
async fn forward_message<M: Machine>(
    route: &LeaderRoute<M>,
    (leader, member): &(NodeId, Member),
    proposals: &[Proposal<M>],
) -> Results {
    let count = proposals.len();
    let request = Request::Propose(proposals.iter().map(|proposal| proposal.data().to_vec()).collect());
    let error = match route.call_leader(*leader, member, request).await {
        Ok(Reply::Propose(mut results)) => {
            results.resize(count, Err(ProposeError::Unknown));
            return results;
        }
        Ok(_) => ProposeError::Unknown,
        Err(error) => match error.kind() {
            io::ErrorKind::InvalidInput => ProposeError::TooLarge,
            io::ErrorKind::WouldBlock | io::ErrorKind::HostUnreachable => ProposeError::Retry,
            _ if has_flaw!(RefusesUnknown) => ProposeError::Retry,
            _ => ProposeError::Unknown,
        },
    };
    vec![Err(error); count]
}

/// Proposes commands in openraft on this node. They fail with `Retry` if this node does not lead.
pub(super) async fn propose_here<M: Machine>(raft: &RaftOf<M>, proposals: Vec<Proposal<M>>) -> Results {
    let count = proposals.len();
    match raft.client_write_many(proposals).await {
        Ok(results) => results_of(results, count).await,
        Err(_) => vec![Err(ProposeError::Stopped); count],
    }
}

/// Returns the results of proposals that openraft accepted, in their order.
async fn results_of<M: Machine, E>(
    results: impl Stream<Item = Result<Result<WriteResponse<Types<M>>, ClientWriteError<Types<M>>>, E>>,
    count: usize,
) -> Results {
    let result = |result: Result<Result<WriteResponse<Types<M>>, _>, E>| match result {
        Ok(Ok(written)) => Ok(log_id(&written.log_id)),
        Ok(Err(error)) => Err(refusal(&error)),
        // Openraft ended after it had accepted the proposal.
        Err(_) => Err(ProposeError::Unknown),
    };
    let mut results: Vec<_> = results.map(result).collect().await;
    results.resize(count, Err(ProposeError::Unknown));
    results
}

fn refusal<M: Machine>(error: &ClientWriteError<Types<M>>) -> ProposeError {
    match error {
        // The error may name a leader, but the retry looks for the leader anyway.
        ClientWriteError::ForwardToLeader(ForwardToLeader { .. }) => ProposeError::Retry,
        _ => ProposeError::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_as_many_as_fit_and_at_least_one() {
        assert_eq!(fitting([1, 2, 3].into_iter()), 3);
        assert_eq!(fitting([MESSAGE_BYTES, 1].into_iter()), 1);
        assert_eq!(fitting([MESSAGE_BYTES - 1, 1, 1].into_iter()), 2);
        assert_eq!(fitting([MESSAGE_BYTES + 1, 1].into_iter()), 1);
        assert_eq!(fitting([1, usize::MAX, 1].into_iter()), 1);
    }
}
