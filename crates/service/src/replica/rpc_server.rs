//! The replies of a replica to its peers.
//!
//! **Intuition.** Every request becomes a call of openraft, and its result becomes the reply.
//!
//! **Rules.** Any bytes get a reply. Openraft takes some properties of a request for granted, so this file
//! checks them first and rejects the request otherwise:
//! - the leader was elected and is another node;
//! - the entries follow each other and fit into the log;
//! - terms and indices can still grow;
//! - the machine can read the snapshot.
//!
//! This file does not check whether a leader contradicts its own earlier messages. Consensus relies on
//! members that do not lose durable data.
//!
//! **Trap.** A leader without a majority may wait for one for ever, long after the peer has given up. So a
//! reply takes at most [`super::Options::answer_limit`].
//!
//! **Bounds.** One snapshot is collected at a time, of at most [`SNAPSHOT_BYTES_MAX`]; a new one replaces it.

use std::cmp::Ordering;
use std::io;
use std::sync::PoisonError;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};

use super::Replica;
use super::log::{Entry, LogId, Vote};
use super::proposals::propose_here;
use super::raft_types::{Proposal, Types, decode, log_id, log_vote, raft_id, raft_vote};
use super::read_index::read_index_here;
use super::rpc_client::{
    AppendReply, Ballot, Piece, Reply, Request, SNAPSHOT_BYTES_MAX, open_request, seal_reply,
};
use super::runtime::blocking;
use super::snapshot::{Description, SnapshotBytes};
use super::state_machine::Machine;

/// The snapshot that a leader is sending.
pub(super) struct Incoming {
    vote: Vote,
    description: Description,
    bytes: Vec<u8>,
}

impl<M: Machine> Replica<M> {
    /// Handles a request that a peer's [`super::Transport`] carried here, and returns the reply.
    pub async fn answer(&self, request: &[u8]) -> Vec<u8> {
        let reply = match open_request(self.inner.identity, request) {
            Ok(request) => self.reply_in_time(request).await.unwrap_or_else(Reply::Refused),
            Err(why) => Reply::Refused(why),
        };
        seal_reply(&reply)
    }

    /// Handles a request within the time limit. After the limit, openraft may still complete it, but the peer
    /// does not learn the outcome.
    async fn reply_in_time(&self, request: Request) -> Result<Reply, String> {
        let limit = self.inner.answer_limit;
        let late = |_| format!("no answer within {limit:?}");
        tokio::time::timeout(limit, self.reply(request)).await.map_err(late)?
    }

    async fn reply(&self, request: Request) -> Result<Reply, String> {
        let raft = &self.inner.raft;
        match request {
            Request::Append { vote, previous, committed, entries } => {
                self.check_leader(vote)?;
                check_id(committed, vote)?;
                let entries: Vec<Entry> = entries.into_iter().map(Entry::from).collect();
                check_sequence(previous, &entries, vote)?;
                let ids: Vec<LogId> =
                    previous.into_iter().chain(entries.iter().map(|entry| entry.id)).collect();
                check_one_log(&ids, committed)?;
                self.check_size(entries.iter().map(|entry| entry.data.len()))?;
                self.check_committed(&ids).await?;
                let entries = entries.iter().map(decode).collect::<io::Result<_>>();
                let request = AppendEntriesRequest {
                    vote: raft_vote(vote),
                    prev_log_id: previous.map(raft_id),
                    leader_commit: committed.map(raft_id),
                    entries: entries.map_err(|error| error.to_string())?,
                };
                let response = raft.append_entries(request).await.map_err(|error| error.to_string())?;
                Ok(Reply::Append(append_reply(&response)))
            }
            Request::Vote(ballot) => {
                let request = self.vote_request(&ballot)?;
                let response = raft.vote(request).await.map_err(|error| error.to_string())?;
                Ok(vote_reply(&response))
            }
            Request::PreVote(ballot) => {
                let request = self.vote_request(&ballot)?;
                let response = raft.pre_vote(request).await.map_err(|error| error.to_string())?;
                Ok(vote_reply(&response))
            }
            Request::Snapshot(piece) => match self.add_piece(piece)? {
                None => Ok(Reply::Snapshot { vote: None }),
                Some(whole) => self.install(whole).await,
            },
            Request::Transfer { from, to, last } => {
                self.check_leader(from)?;
                check_id(last, from)?;
                let request = TransferLeaderRequest::new(raft_vote(from), to, last.map(raft_id));
                let answer = raft.handle_transfer_leader(request).await.map_err(|error| error.to_string())?;
                Ok(Reply::Transfer { accepted: answer.is_ok() })
            }
            Request::Propose(commands) => {
                let proposals = commands.into_iter().map(|data| Proposal::parse(data.into()));
                let proposals: Vec<Proposal<M>> =
                    proposals.collect::<io::Result<_>>().map_err(|error| error.to_string())?;
                self.check_size(proposals.iter().map(|proposal| proposal.data().len()))?;
                Ok(Reply::Propose(propose_here(raft, proposals).await))
            }
            Request::ReadIndex => Ok(Reply::ReadIndex(read_index_here(raft).await)),
        }
    }

    /// Adds a piece. Returns the snapshot when it is complete.
    fn add_piece(&self, piece: Piece) -> Result<Option<Incoming>, String> {
        let Piece { vote, description, offset, total, bytes } = piece;
        self.check_leader(vote)?;
        check_id(description.last, vote)?;
        check_id(description.membership_id, vote)?;
        if total > SNAPSHOT_BYTES_MAX || offset.checked_add(bytes.len() as u64).is_none_or(|end| end > total)
        {
            return Err(format!("a snapshot of {total} bytes; {SNAPSHOT_BYTES_MAX} is the most"));
        }
        let mut slot = self.inner.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let mut incoming = match slot.take() {
            _ if offset == 0 => Incoming { vote, description, bytes: Vec::new() },
            Some(incoming)
                if incoming.vote == vote
                    && incoming.description == description
                    && incoming.bytes.len() as u64 == offset =>
            {
                incoming
            }
            _ => return Err("a piece of a snapshot that does not follow the last one".to_owned()),
        };
        incoming.bytes.extend(bytes);
        if incoming.bytes.len() as u64 == total {
            return Ok(Some(incoming));
        }
        *slot = Some(incoming);
        Ok(None)
    }

    async fn install(&self, whole: Incoming) -> Result<Reply, String> {
        let meta = whole.description.meta().map_err(|error| error.to_string())?;
        self.check_committed(whole.description.last.as_slice()).await?;
        // Openraft would stop this node if the machine could not read the snapshot, so check that first.
        // Reading a large one takes long, so it runs on a blocking thread.
        let read = blocking(move || {
            M::restore(&whole.bytes)?;
            Ok::<_, String>(SnapshotBytes::from(whole.bytes))
        });
        let snapshot = openraft::Snapshot { meta, snapshot: read.await.map_err(|error| error.to_string())?? };
        let response = self.inner.raft.install_full_snapshot(raft_vote(whole.vote), snapshot).await;
        let response = response.map_err(|error| error.to_string())?;
        Ok(Reply::Snapshot { vote: Some(log_vote(&response.vote)) })
    }

    /// Checks that the sender was elected and is another node. Only an elected leader sends entries,
    /// snapshots and a transfer of leadership. A vote for this node itself would make openraft take the
    /// leadership.
    fn check_leader(&self, vote: Vote) -> Result<(), String> {
        check_vote(vote)?;
        if !vote.committed {
            return Err(format!("node {} was not elected in term {}", vote.node, vote.term));
        }
        if vote.node == self.inner.identity.node {
            return Err("another node in this node's own name".to_owned());
        }
        Ok(())
    }

    fn vote_request(&self, ballot: &Ballot) -> Result<VoteRequest<Types<M>>, String> {
        check_vote(ballot.vote)?;
        if ballot.vote.committed || ballot.vote.node == self.inner.identity.node {
            return Err("a request for a vote from an elected leader, or in this node's own name".to_owned());
        }
        check_id(ballot.last, ballot.vote)?;
        let mut request = VoteRequest::new(raft_vote(ballot.vote), ballot.last.map(raft_id));
        request.leadership_transfer = ballot.transfer;
        Ok(request)
    }

    /// Checks the size of the entries. The log would stop at one that is too long.
    fn check_size(&self, mut lengths: impl Iterator<Item = usize>) -> Result<(), String> {
        let most = self.inner.entry_bytes_max;
        match lengths.find(|length| *length > most) {
            Some(length) => Err(format!("an entry of {length} bytes; {most} is the most")),
            None => Ok(()),
        }
    }

    /// Checks that `ids` do not contradict the committed entries: no entry at or before the commit index has
    /// a later term.
    async fn check_committed(&self, ids: &[LogId]) -> Result<(), String> {
        let known = {
            let metrics = self.inner.raft.metrics();
            let metrics = metrics.borrow_watched();
            metrics.local_committed.as_ref().map(|id| log_id(id).term)
        };
        // The metrics may be old, but terms only grow. So this check usually suffices and saves a call of
        // openraft.
        if ids.iter().all(|id| Some(id.term) <= known) {
            return Ok(());
        }
        let committed = self.inner.raft.with_raft_state(|state| state.local_committed().map(log_id)).await;
        let Some(committed) = committed.map_err(|error| error.to_string())? else { return Ok(()) };
        match ids.iter().find(|id| id.index <= committed.index && **id > committed) {
            Some(id) => Err(format!("{id:?} contradicts {committed:?}, which is committed")),
            None => Ok(()),
        }
    }
}

/// The largest term and index that a peer may send; larger ones are rejected. No cluster reaches half of the
/// range, and the other half is room to count on.
const REASONABLE: u64 = u64::MAX / 2;

/// Checks that an entry's term is not later than the term of the sender's `vote`.
fn check_id(id: Option<LogId>, vote: Vote) -> Result<(), String> {
    match id {
        Some(id) if id.index > REASONABLE || id.term > vote.term => {
            Err(format!("in term {} no entry is {id:?}", vote.term))
        }
        _ => Ok(()),
    }
}

fn check_vote(vote: Vote) -> Result<(), String> {
    if vote.term > REASONABLE { Err(format!("no term is {}", vote.term)) } else { Ok(()) }
}

fn check_sequence(previous: Option<LogId>, entries: &[Entry], vote: Vote) -> Result<(), String> {
    check_id(previous, vote)?;
    let (mut next, mut term) = previous.map_or((0, 0), |id| (id.index + 1, id.term));
    for Entry { id, .. } in entries {
        check_id(Some(*id), vote)?;
        if id.index != next || id.term < term {
            return Err(format!("{id:?} where entry {next} of term {term} or later must follow"));
        }
        (next, term) = (id.index + 1, id.term);
    }
    Ok(())
}

/// Checks that `ids` and `committed` can belong to one log, in which terms never decrease.
fn check_one_log(ids: &[LogId], committed: Option<LogId>) -> Result<(), String> {
    let Some(committed) = committed else { return Ok(()) };
    let fits = |id: &&LogId| match id.index.cmp(&committed.index) {
        Ordering::Less => id.term <= committed.term,
        Ordering::Equal => id.term == committed.term,
        Ordering::Greater => id.term >= committed.term,
    };
    match ids.iter().find(|id| !fits(id)) {
        Some(id) => Err(format!("{id:?} and {committed:?}, which is committed, are not of one log")),
        None => Ok(()),
    }
}

fn append_reply<M: Machine>(response: &AppendEntriesResponse<Types<M>>) -> AppendReply {
    match response {
        AppendEntriesResponse::Success => AppendReply::Success,
        AppendEntriesResponse::PartialSuccess(last) => AppendReply::Partial(last.as_ref().map(log_id)),
        AppendEntriesResponse::Conflict => AppendReply::Conflict,
        AppendEntriesResponse::HigherVote(vote) => AppendReply::HigherVote(log_vote(vote)),
    }
}

fn vote_reply<M: Machine>(response: &VoteResponse<Types<M>>) -> Reply {
    Reply::Vote {
        vote: log_vote(&response.vote),
        granted: response.vote_granted,
        last: response.last_log_id.as_ref().map(log_id),
    }
}
