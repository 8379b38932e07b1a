//! The doors of a replica: proposals and reads, each gathered into batches.
//!
//! Whoever comes while a batch is on its way is in the next one; a batch takes all who wait, up to a bound.
//! - Proposals go to the leader: into openraft if that is this node, else in a message to the node that leads, or several if
//!   they are long.
//!   If nothing of them was taken (it cannot be reached, is not ready, or leads no more), they are taken to whoever leads
//!   then: its end is noticed long before another one is elected.
//!   Several batches may be on their way at once; the log makes one sync of what has gathered. Many that are handed in together
//!   on the node that leads are a batch already, and go into openraft without a task in between.
//! - Reads share a round in which the leader confirms that it leads (ReadIndex). A round serves only those who came
//!   before it began, or a leader that was deposed in between could answer with what is no longer true.
//!
//! Bounds: at most [`PROPOSALS`] proposals and as many reads are under way; who comes then with one waits for room, who
//! comes with many is told to come again.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::Either;
use futures_util::{FutureExt, Stream, StreamExt};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::raft::WriteResponse;
use openraft::{Raft, ReadPolicy};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::unconstrained;

use super::log::LogId;
use super::machine::{Machine, StateMachine};
use super::network::{Network, Reply, Request};
use super::types::{Member, NodeId, Proposal, Types, log_id};
use super::{ProposeError, ReadError};

/// Proposals that may be under way.
const PROPOSALS: usize = 16 * 1024;
/// Proposals in one batch.
const BATCH: usize = 1024;
/// Bytes of proposals in one question to the leader, or a single proposal that has more; what is left goes in the next question.
const QUESTION_BYTES: usize = 8 * 1024 * 1024;
/// How long an answer of the leader may take.
const FORWARD_LIMIT: Duration = Duration::from_secs(5);
/// How long there may be no leader who takes proposals, or confirms reads: longer than an election takes.
const LEADER_LIMIT: Duration = Duration::from_secs(3);
/// The same leader is tried again after a time that grows from the first to the second of these.
const AGAIN_AFTER: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

pub(super) type RaftOf<M> = Raft<Types<M>, StateMachine<M>>;

/// Where proposals and reads are handed in.
pub(super) struct Doors<M: Machine> {
    way: Way<M>,
    room: Arc<Semaphore>,
    proposals: mpsc::Sender<Waiting<M>>,
    /// How many have not left the channel, or the task behind it, towards the leader yet: nobody may go past them.
    gathered: Arc<AtomicUsize>,
    reads: mpsc::Sender<oneshot::Sender<Result<LogId, ReadError>>>,
}

/// Proposals that were handed in together, and are answered together.
struct Waiting<M: Machine> {
    proposals: Vec<Proposal<M>>,
    answer: oneshot::Sender<Results>,
    room: OwnedSemaphorePermit,
}

/// One for each proposal, in their order.
type Results = Vec<Result<LogId, ProposeError>>;

impl<M: Machine> Doors<M> {
    /// Opens the doors; the tasks behind them end when the doors are dropped.
    pub(super) fn open(raft: &RaftOf<M>, network: &Network) -> Self {
        let (proposals, proposed) = mpsc::channel(PROPOSALS);
        let (reads, asked) = mpsc::channel(PROPOSALS);
        let gathered = Arc::new(AtomicUsize::new(0));
        let way = Way { raft: raft.clone(), network: network.clone() };
        tokio::spawn(gather_proposals(way.clone(), proposed, gathered.clone()));
        tokio::spawn(gather_reads(way.clone(), asked));
        Self { way, room: Arc::new(Semaphore::new(PROPOSALS)), proposals, gathered, reads }
    }

    pub(super) async fn propose(&self, proposal: Proposal<M>) -> Result<LogId, ProposeError> {
        let room = self.room.clone().acquire_owned().await.map_err(|_| ProposeError::Stopped)?;
        let results = self.hand_in(vec![proposal], room).await;
        results.into_iter().next().unwrap_or(Err(ProposeError::Unknown))
    }

    /// Hands proposals in now, in their order and before whatever is handed in later; the future is of their results.
    pub(super) fn propose_all(
        &self,
        proposals: Vec<Proposal<M>>,
    ) -> impl Future<Output = Results> + Send + use<M> {
        let count = proposals.len();
        let room =
            u32::try_from(count).ok().and_then(|count| self.room.clone().try_acquire_many_owned(count).ok());
        let Some(room) = room else {
            return Either::Left(ready(vec![Err(ProposeError::Retry); count]));
        };
        if self.gathered.load(Ordering::Acquire) == 0 && self.way.leads_here() {
            return Either::Right(Either::Left(self.propose_now(proposals, room)));
        }
        Either::Right(Either::Right(self.hand_in(proposals, room)))
    }

    /// Hands proposals to openraft.
    fn propose_now(
        &self,
        proposals: Vec<Proposal<M>>,
        room: OwnedSemaphorePermit,
    ) -> impl Future<Output = Results> + Send + use<M> {
        let way = self.way.clone();
        // Whatever the runtime thinks that this task has had of its turn: here is its place in the order.
        let taken = unconstrained(way.raft.client_write_many(proposals.clone())).now_or_never();
        async move {
            let _room = room;
            let count = proposals.len();
            let results = match taken {
                Some(Ok(results)) => results_of(results, count).await,
                Some(Err(_)) => vec![Err(ProposeError::Stopped); count],
                // Its queue is full, and nothing was put there.
                None => vec![Err(ProposeError::Retry); count],
            };
            until_taken(&way, &proposals, results).await
        }
    }

    /// Hands proposals to the task that gathers them.
    fn hand_in(
        &self,
        proposals: Vec<Proposal<M>>,
        room: OwnedSemaphorePermit,
    ) -> impl Future<Output = Results> + Send + use<M> {
        let count = proposals.len();
        let (answer, answered) = oneshot::channel();
        self.gathered.fetch_add(1, Ordering::AcqRel);
        // There is room in the channel for as many as have a permit.
        let handed_in = self.proposals.try_send(Waiting { proposals, answer, room }).is_ok();
        async move {
            let missing = if handed_in { ProposeError::Unknown } else { ProposeError::Stopped };
            answered.await.unwrap_or_else(|_| vec![Err(missing); count])
        }
    }

    pub(super) async fn read_index(&self) -> Result<LogId, ReadError> {
        let (answer, answered) = oneshot::channel();
        self.reads.send(answer).await.map_err(|_| ReadError::Stopped)?;
        answered.await.unwrap_or(Err(ReadError::Stopped))
    }
}

/// The way to the leader, wherever it is.
struct Way<M: Machine> {
    raft: RaftOf<M>,
    network: Network,
}

impl<M: Machine> Clone for Way<M> {
    fn clone(&self) -> Self {
        Self { raft: self.raft.clone(), network: self.network.clone() }
    }
}

impl<M: Machine> Way<M> {
    /// Whether consensus has ended here. What is handed to it then may be dropped without a word.
    fn has_ended(&self) -> bool {
        self.raft.metrics().borrow_watched().running_state.is_err()
    }

    /// Who leads, as far as this node knows.
    fn leader(&self) -> Option<NodeId> {
        self.raft.metrics().borrow_watched().current_leader
    }

    /// Whether this node leads, as far as it knows.
    fn leads_here(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.current_leader == Some(metrics.id) && metrics.running_state.is_ok()
    }

    /// The leader, if it is another node.
    fn leader_elsewhere(&self) -> Option<(NodeId, Member)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader.filter(|leader| *leader != metrics.id)?;
        metrics.membership_config.get_node(&leader).map(|member| (leader, member.clone()))
    }

    /// Waits until a leader is known, here or elsewhere, but not for ever: then whoever proposes is told.
    async fn until_led(&self) {
        let mut metrics = self.raft.metrics();
        let led = async {
            while metrics.borrow_watched().current_leader.is_none() && metrics.changed().await.is_ok() {}
        };
        drop(tokio::time::timeout(LEADER_LIMIT, led).await);
    }

    /// Asks the leader. Once it is not known to lead any more its answer is not waited for: it may never come.
    async fn ask_leader(&self, to: NodeId, member: &Member, request: Request) -> io::Result<Reply> {
        let mut metrics = self.raft.metrics();
        let deposed = async {
            while metrics.borrow_watched().current_leader == Some(to) {
                if metrics.changed().await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            reply = self.network.call(to, member, &request, FORWARD_LIMIT) => reply,
            () = deposed => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

/// What is tried until there is a leader for it.
struct Tries {
    until: Instant,
    pause: Duration,
    leader: Option<NodeId>,
}

impl Tries {
    fn begin<M: Machine>(way: &Way<M>) -> Self {
        Self { until: Instant::now() + LEADER_LIMIT, pause: AGAIN_AFTER.0, leader: way.leader() }
    }

    /// Waits until another one leads, or for a moment, since the same one may be back; `false` if that is of no use.
    async fn again<M: Machine>(&mut self, way: &Way<M>) -> bool {
        if way.has_ended() || Instant::now() >= self.until {
            return false;
        }
        let mut metrics = way.raft.metrics();
        let another = async {
            while [None, self.leader].contains(&metrics.borrow_watched().current_leader)
                && metrics.changed().await.is_ok()
            {}
        };
        drop(tokio::time::timeout(self.pause, another).await);
        let before = std::mem::replace(&mut self.leader, way.leader());
        // A new leader is not ready at once, but soon.
        self.pause = if self.leader == before { (self.pause * 2).min(AGAIN_AFTER.1) } else { AGAIN_AFTER.0 };
        true
    }
}

async fn gather_proposals<M: Machine>(
    way: Way<M>,
    mut proposed: mpsc::Receiver<Waiting<M>>,
    gathered: Arc<AtomicUsize>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while proposed.recv_many(&mut batch, BATCH).await > 0 {
        let count = batch.len();
        way.until_led().await;
        hand_over(&way, batch.drain(..)).await;
        gathered.fetch_sub(count, Ordering::AcqRel);
    }
}

/// Hands proposals to the leader, wherever it is; what becomes of them is not waited for.
async fn hand_over<M: Machine>(way: &Way<M>, batch: impl Iterator<Item = Waiting<M>>) {
    let (proposals, waiting): (Vec<_>, Vec<_>) =
        batch.map(|handed_in| (handed_in.proposals, (handed_in.answer, handed_in.room))).unzip();
    let waiting: Vec<_> = proposals.iter().map(Vec::len).zip(waiting).collect();
    let proposals: Vec<_> = proposals.into_iter().flatten().collect();
    let count = proposals.len();
    let way = way.clone();
    if way.leader_elsewhere().is_some() || way.has_ended() {
        tokio::spawn(
            async move { answer(waiting, take_to_leader(&way, Tries::begin(&way), &proposals).await) },
        );
        return;
    }
    let taken = way.raft.client_write_many(proposals.clone()).await;
    tokio::spawn(async move {
        let results = match taken {
            Ok(results) => results_of(results, count).await,
            Err(_) => vec![Err(ProposeError::Stopped); count],
        };
        answer(waiting, until_taken(&way, &proposals, results).await);
    });
}

/// Gives everybody the results of what they handed in.
fn answer(waiting: Vec<(usize, (oneshot::Sender<Results>, OwnedSemaphorePermit))>, results: Results) {
    let mut results = results.into_iter();
    for (count, (answer, _room)) in waiting {
        // Whoever stopped waiting does not want to know.
        let _ = answer.send(results.by_ref().take(count).collect());
    }
}

/// The results, if any of the proposals was taken; else those of another try.
async fn until_taken<M: Machine>(way: &Way<M>, proposals: &[Proposal<M>], results: Results) -> Results {
    if is_taken(&results) {
        return results;
    }
    let mut tries = Tries::begin(way);
    match tries.again(way).await {
        true => take_to_leader(way, tries, proposals).await,
        false => results,
    }
}

/// Whether trying again is out of the question: something was done, may have been, or can never be.
fn is_taken(results: &Results) -> bool {
    results.iter().any(|result| *result != Err(ProposeError::Retry))
}

/// Takes proposals to the leader, wherever it is, until one takes them.
async fn take_to_leader<M: Machine>(way: &Way<M>, mut tries: Tries, proposals: &[Proposal<M>]) -> Results {
    loop {
        let results = match way.leader_elsewhere() {
            _ if way.has_ended() => vec![Err(ProposeError::Stopped); proposals.len()],
            Some(leader) => ask_one_by_one(way, &leader, proposals).await,
            None => propose_here(&way.raft, proposals.to_vec()).await,
        };
        if is_taken(&results) || !tries.again(way).await {
            return results;
        }
    }
}

/// Asks the leader to propose these, one question after the other: on the way they could overtake each other. After one that was
/// not all taken nothing more is sent, or what comes later would be applied without what came before.
async fn ask_one_by_one<M: Machine>(
    way: &Way<M>,
    leader: &(NodeId, Member),
    proposals: &[Proposal<M>],
) -> Results {
    let mut results = Results::with_capacity(proposals.len());
    let mut rest = proposals;
    while !rest.is_empty() && results.iter().all(Result::is_ok) {
        let (question, later) = rest.split_at(fitting(rest.iter().map(|proposal| proposal.data().len())));
        results.extend(ask_to_propose(way, leader, question).await);
        rest = later;
    }
    results.resize(proposals.len(), Err(ProposeError::Retry));
    results
}

/// How many of the first, of these lengths, go into one question: at least one.
fn fitting(lengths: impl Iterator<Item = usize>) -> usize {
    let total = lengths.scan(0_usize, |total, length| {
        *total = total.saturating_add(length);
        Some(*total)
    });
    total.take_while(|total| *total <= QUESTION_BYTES).count().max(1)
}

/// Asks the leader to propose these. If no answer comes, nobody knows what became of them.
async fn ask_to_propose<M: Machine>(
    way: &Way<M>,
    (leader, member): &(NodeId, Member),
    proposals: &[Proposal<M>],
) -> Results {
    let count = proposals.len();
    let request = Request::Propose(proposals.iter().map(|proposal| proposal.data().to_vec()).collect());
    let error = match way.ask_leader(*leader, member, request).await {
        Ok(Reply::Propose(mut results)) => {
            results.resize(count, Err(ProposeError::Unknown));
            return results;
        }
        Ok(_) => ProposeError::Unknown,
        Err(error) => match error.kind() {
            io::ErrorKind::InvalidInput => ProposeError::TooLarge,
            io::ErrorKind::WouldBlock | io::ErrorKind::HostUnreachable => ProposeError::Retry,
            _ => ProposeError::Unknown,
        },
    };
    vec![Err(error); count]
}

/// Proposes what another node forwarded, if this node leads.
pub(super) async fn propose_here<M: Machine>(raft: &RaftOf<M>, proposals: Vec<Proposal<M>>) -> Results {
    let count = proposals.len();
    match raft.client_write_many(proposals).await {
        Ok(results) => results_of(results, count).await,
        Err(_) => vec![Err(ProposeError::Stopped); count],
    }
}

/// What became of proposals that the core has taken, in their order.
async fn results_of<M: Machine, E>(
    results: impl Stream<Item = Result<Result<WriteResponse<Types<M>>, ClientWriteError<Types<M>>>, E>>,
    count: usize,
) -> Results {
    let result = |result: Result<Result<WriteResponse<Types<M>>, _>, E>| match result {
        Ok(Ok(written)) => Ok(log_id(&written.log_id)),
        Ok(Err(error)) => Err(refusal(&error)),
        // The core ended after it had taken the proposal.
        Err(_) => Err(ProposeError::Unknown),
    };
    let mut results: Vec<_> = results.map(result).collect().await;
    results.resize(count, Err(ProposeError::Unknown));
    results
}

async fn gather_reads<M: Machine>(
    way: Way<M>,
    mut asked: mpsc::Receiver<oneshot::Sender<Result<LogId, ReadError>>>,
) {
    let mut waiting = Vec::new();
    while asked.recv_many(&mut waiting, PROPOSALS).await > 0 {
        let result = read_index(&way).await;
        for answer in waiting.drain(..) {
            let _ = answer.send(result);
        }
    }
}

/// Has the leader confirm that it leads, wherever it is.
async fn read_index<M: Machine>(way: &Way<M>) -> Result<LogId, ReadError> {
    let mut tries = Tries::begin(way);
    loop {
        let result = match way.leader_elsewhere() {
            _ if way.has_ended() => Err(ReadError::Stopped),
            None => read_index_here(&way.raft).await,
            Some((leader, member)) => match way.ask_leader(leader, &member, Request::ReadIndex).await {
                Ok(Reply::ReadIndex(result)) => result,
                _ => Err(ReadError::Retry),
            },
        };
        if result != Err(ReadError::Retry) || !tries.again(way).await {
            return result;
        }
    }
}

/// Confirms by a round of a quorum, begun now, that this node leads; never from a lease.
pub(super) async fn read_index_here<M: Machine>(raft: &RaftOf<M>) -> Result<LogId, ReadError> {
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(log_id(linearizer.read_log_id().log_id())),
        Err(RaftError::APIError(
            LinearizableReadError::ForwardToLeader(_) | LinearizableReadError::QuorumNotEnough(_),
        )) => Err(ReadError::Retry),
        Err(RaftError::Fatal(_)) => Err(ReadError::Stopped),
    }
}

fn refusal<M: Machine>(error: &ClientWriteError<Types<M>>) -> ProposeError {
    match error {
        // With or without a leader to name: this node looks again and finds it, so "retry here" serves both.
        ClientWriteError::ForwardToLeader(ForwardToLeader { .. }) => ProposeError::Retry,
        _ => ProposeError::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_as_many_as_fit_and_at_least_one() {
        assert_eq!(fitting([1, 2, 3].into_iter()), 3);
        assert_eq!(fitting([QUESTION_BYTES, 1].into_iter()), 1);
        assert_eq!(fitting([QUESTION_BYTES - 1, 1, 1].into_iter()), 2);
        assert_eq!(fitting([QUESTION_BYTES + 1, 1].into_iter()), 1);
        assert_eq!(fitting([1, usize::MAX, 1].into_iter()), 1);
    }
}
