//! What a replica answers to its peers.
//!
//! Every request becomes a call of openraft and its result a reply. Whatever the bytes are, there is an answer: what
//! openraft would take for granted (entries that follow each other, numbers that can still grow, a snapshot that the
//! machine can read) is checked here, where the peer can still be refused.
//!
//! Bounds: one snapshot is gathered at a time, of at most [`SNAPSHOT_BYTES_MAX`]; another one replaces it. An answer takes at
//! most [`super::Options::answer_limit`]: a node that leads without a majority waits for one, perhaps for ever, and the peer
//! has long given up.

use std::io;
use std::sync::PoisonError;

use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};

use super::Replica;
use super::batch::{propose_here, read_index_here};
use super::log::{LogId, Vote};
use super::machine::Machine;
use super::network::{
    AppendReply, Ballot, Piece, Reply, Request, SNAPSHOT_BYTES_MAX, open_request, seal_reply,
};
use super::snapshot::Description;
use super::types::{Proposal, Types, decode, log_id, log_vote, raft_id, raft_vote};

/// The snapshot that a leader is sending.
pub(super) struct Incoming {
    vote: Vote,
    description: Description,
    bytes: Vec<u8>,
}

impl<M: Machine> Replica<M> {
    /// Answers a request that a peer's [`super::Transport`] brought.
    pub async fn answer(&self, request: &[u8]) -> Vec<u8> {
        let reply = match open_request(self.inner.identity, request) {
            Ok(request) => self.reply_in_time(request).await.unwrap_or_else(Reply::Refused),
            Err(why) => Reply::Refused(why),
        };
        seal_reply(&reply)
    }

    /// What was begun and is not waited for any more goes on: the peer is told nothing about its fate.
    async fn reply_in_time(&self, request: Request) -> Result<Reply, String> {
        let limit = self.inner.answer_limit;
        let late = |_| format!("no answer within {limit:?}");
        tokio::time::timeout(limit, self.reply(request)).await.map_err(late)?
    }

    async fn reply(&self, request: Request) -> Result<Reply, String> {
        let raft = &self.inner.raft;
        match request {
            Request::Append { vote, previous, committed, entries } => {
                check_vote(vote)?;
                check_id(committed)?;
                let entries = entries.into_iter().map(|entry| decode(&entry.into()));
                let request = AppendEntriesRequest {
                    vote: raft_vote(vote),
                    prev_log_id: previous.map(raft_id),
                    leader_commit: committed.map(raft_id),
                    entries: entries.collect::<io::Result<_>>().map_err(|error| error.to_string())?,
                };
                check_sequence(previous, &request)?;
                let response = raft.append_entries(request).await.map_err(|error| error.to_string())?;
                Ok(Reply::Append(append_reply(&response)))
            }
            Request::Vote(ballot) => {
                let response = raft.vote(vote_request(&ballot)?).await.map_err(|error| error.to_string())?;
                Ok(vote_reply(&response))
            }
            Request::PreVote(ballot) => {
                let response =
                    raft.pre_vote(vote_request(&ballot)?).await.map_err(|error| error.to_string())?;
                Ok(vote_reply(&response))
            }
            Request::Snapshot(piece) => match self.gather(piece)? {
                None => Ok(Reply::Snapshot { vote: None }),
                Some(whole) => self.install(whole).await,
            },
            Request::Transfer { from, to, last } => {
                check_vote(from)?;
                check_id(last)?;
                let request = TransferLeaderRequest::new(raft_vote(from), to, last.map(raft_id));
                let answer = raft.handle_transfer_leader(request).await.map_err(|error| error.to_string())?;
                Ok(Reply::Transfer { accepted: answer.is_ok() })
            }
            Request::Propose(commands) => {
                let proposals = commands.into_iter().map(|data| Proposal::parse(data.into()));
                let proposals: Vec<Proposal<M>> =
                    proposals.collect::<io::Result<_>>().map_err(|error| error.to_string())?;
                if proposals.iter().any(|proposal| proposal.data().len() > self.inner.entry_bytes_max) {
                    return Err("a command larger than an entry may be".to_owned());
                }
                Ok(Reply::Propose(propose_here(raft, proposals).await))
            }
            Request::ReadIndex => Ok(Reply::ReadIndex(read_index_here(raft).await)),
        }
    }

    /// Adds a piece; returns the snapshot when it is whole.
    fn gather(&self, piece: Piece) -> Result<Option<Incoming>, String> {
        let Piece { vote, description, offset, total, bytes } = piece;
        check_vote(vote)?;
        check_id(description.last)?;
        check_id(description.membership_id)?;
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
        // A snapshot that the machine cannot read would stop this node when it is installed.
        M::restore(&whole.bytes)?;
        let snapshot = openraft::Snapshot { meta, snapshot: whole.bytes.into() };
        let response = self.inner.raft.install_full_snapshot(raft_vote(whole.vote), snapshot).await;
        let response = response.map_err(|error| error.to_string())?;
        Ok(Reply::Snapshot { vote: Some(log_vote(&response.vote)) })
    }
}

/// Half of what the numbers can hold is far beyond what any cluster reaches, and leaves room to count on.
const REASONABLE: u64 = u64::MAX / 2;

fn check_id(id: Option<LogId>) -> Result<(), String> {
    match id {
        Some(id) if id.index > REASONABLE || id.term > REASONABLE => Err(format!("no entry is {id:?}")),
        _ => Ok(()),
    }
}

fn check_vote(vote: Vote) -> Result<(), String> {
    if vote.term > REASONABLE { Err(format!("no term is {}", vote.term)) } else { Ok(()) }
}

fn check_sequence<M: Machine>(
    previous: Option<LogId>,
    request: &AppendEntriesRequest<Types<M>>,
) -> Result<(), String> {
    check_id(previous)?;
    let first = previous.map_or(0, |id| id.index + 1);
    for (next, entry) in (first..).zip(&request.entries) {
        if entry.log_id.index() != next {
            return Err(format!("entry {} where entry {next} must follow", entry.log_id.index()));
        }
    }
    Ok(())
}

fn append_reply<M: Machine>(response: &AppendEntriesResponse<Types<M>>) -> AppendReply {
    match response {
        AppendEntriesResponse::Success => AppendReply::Success,
        AppendEntriesResponse::PartialSuccess(last) => AppendReply::Partial(last.as_ref().map(log_id)),
        AppendEntriesResponse::Conflict => AppendReply::Conflict,
        AppendEntriesResponse::HigherVote(vote) => AppendReply::HigherVote(log_vote(vote)),
    }
}

fn vote_request<M: Machine>(ballot: &Ballot) -> Result<VoteRequest<Types<M>>, String> {
    check_vote(ballot.vote)?;
    check_id(ballot.last)?;
    let mut request = VoteRequest::new(raft_vote(ballot.vote), ballot.last.map(raft_id));
    request.leadership_transfer = ballot.transfer;
    Ok(request)
}

fn vote_reply<M: Machine>(response: &VoteResponse<Types<M>>) -> Reply {
    Reply::Vote {
        vote: log_vote(&response.vote),
        granted: response.vote_granted,
        last: response.last_log_id.as_ref().map(log_id),
    }
}
