//! Converts protobuf messages to the types of this crate, and back.
//!
//! Decoding checks everything. An invalid request gets an error under its number, and other requests on the
//! connection are not affected. Encoding cannot fail.

use conclave_core::{Code, Error, Expr, FilePath, LockName, RequestId, SessionId, Version};
use conclave_wire::{claim_to_wire, event_to_wire, secret_from_wire, v1};

use crate::node::query::QueryAnswer;
use crate::node::{ClientRequest, Query, Reply};
use crate::state::query::Page;
use crate::state::session::Broken;
use crate::state::tree::{FileOp, MAX_OPERATIONS};
use crate::state::watch::WatchTarget;
use crate::state::{Acquire, Answer, EndCause, Granted, Op};

/// The lease of a session that requests no length, in milliseconds.
const DEFAULT_TTL_MS: u64 = 10_000;
/// The lock-delay of a session that requests none, in milliseconds.
const DEFAULT_LOCK_DELAY_MS: u64 = 1_000;

impl From<v1::ClientMessage> for ClientRequest {
    fn from(message: v1::ClientMessage) -> Self {
        use v1::client_message::Message;
        let Some(message) = message.message else {
            return Self::Malformed(unsupported("a message without content, or of a later version"));
        };
        match message {
            Message::Request(request) => {
                let (id, lowest) = (RequestId(request.id), RequestId(request.lowest));
                numbered(request.id, op(request.op).map(|op| Self::Request { id, lowest, op }))
            }
            Message::KeepAlive(v1::KeepAlive { token }) => Self::KeepAlive { token },
            Message::Open(open) => Self::Open {
                ttl_ms: if open.ttl_ms == 0 { DEFAULT_TTL_MS } else { open.ttl_ms },
                lock_delay_ms: open.lock_delay_ms.unwrap_or(DEFAULT_LOCK_DELAY_MS),
                label: open.label,
            },
            Message::Resume(resume) => match secret_from_wire(&resume.secret) {
                Ok(secret) => Self::Resume { session: SessionId(resume.session), secret },
                Err(error) => Self::Malformed(error),
            },
            Message::Query(v1::Query { id, stale, kind }) => {
                numbered(id, query(kind).map(|query| Self::Query { id, stale, query }))
            }
            Message::Watch(v1::Watch { id, after, target: wanted }) => {
                numbered(id, target(wanted).map(|target| Self::Watch { id, after, target }))
            }
            Message::Unwatch(v1::Unwatch { id }) => Self::Unwatch { id },
        }
    }
}

fn numbered(id: u64, request: Result<ClientRequest, Error>) -> ClientRequest {
    match request {
        Ok(_) if id == 0 => ClientRequest::Invalid {
            id,
            error: Error::new(Code::InvalidArgument, "the number of a request must be at least 1"),
        },
        Ok(request) => request,
        Err(error) => ClientRequest::Invalid { id, error },
    }
}

fn op(op: Option<v1::request::Op>) -> Result<Op, Error> {
    use v1::request::Op as Wire;
    Ok(match op.ok_or_else(|| unsupported("a request without content, or of a later version"))? {
        Wire::Acquire(acquire) => Op::Acquire(self::acquire(acquire)?),
        Wire::Release(v1::Release { grant }) => Op::Release { grant: RequestId(grant) },
        Wire::Cancel(v1::Cancel { request }) => Op::Cancel { request: RequestId(request) },
        Wire::Downgrade(v1::Downgrade { grant }) => Op::Downgrade { grant: RequestId(grant) },
        Wire::Proclaim(v1::Proclaim { grant, value }) => Op::Proclaim { grant: RequestId(grant), value },
        Wire::Limit(v1::Limit { name, permits }) => Op::Limit { name: LockName::new(&name)?, permits },
        Wire::Break(v1::Break { name, reason }) => Op::Break { name: LockName::new(&name)?, reason },
        Wire::EndSession(v1::EndSession { session }) => Op::EndSession { session: SessionId(session) },
        Wire::Close(v1::Close {}) => Op::Close,
        Wire::SetTtl(v1::SetTtl { ttl_ms }) => Op::SetTtl { ttl_ms },
        Wire::Files(v1::Files { ops }) if ops.len() > MAX_OPERATIONS => {
            let message =
                format!("a request has {} operations; at most {MAX_OPERATIONS} are allowed", ops.len());
            return Err(Error::new(Code::TooLarge, message));
        }
        Wire::Files(v1::Files { ops }) => Op::Files(ops.into_iter().map(file_op).collect::<Result<_, _>>()?),
    })
}

fn acquire(acquire: v1::Acquire) -> Result<Acquire, Error> {
    Ok(Acquire {
        expr: acquire.expr.parse::<Expr>()?,
        owner: acquire.checked_owner()?,
        wait: acquire.wait(),
        priority: acquire.checked_priority(),
        policy: acquire.checked_policy()?,
        value: acquire.value,
    })
}

fn file_op(op: v1::FileOp) -> Result<FileOp, Error> {
    use v1::file_op::{Check, Create, Delete, Op as Wire, Write};
    let path = |path: String| FilePath::new(&path);
    let version = |expected: Option<u64>| expected.map(Version);
    Ok(match op.op.ok_or_else(|| unsupported("a change without content, or of a later version"))? {
        Wire::Create(Create { path: at, data, ephemeral, sequential }) => {
            FileOp::Create { path: path(at)?, data, ephemeral, sequential }
        }
        Wire::Write(Write { path: at, data, expected }) => {
            FileOp::Write { path: path(at)?, data, expected: version(expected) }
        }
        Wire::Delete(Delete { path: at, expected }) => {
            FileOp::Delete { path: path(at)?, expected: version(expected) }
        }
        Wire::Check(Check { path: at, expected }) => {
            FileOp::Check { path: path(at)?, expected: Version(expected) }
        }
    })
}

fn query(kind: Option<v1::query::Kind>) -> Result<Query, Error> {
    use v1::query::Kind as Wire;
    Ok(match kind.ok_or_else(|| unsupported("a query without content, or of a later version"))? {
        Wire::File(v1::ReadFile { path }) => Query::File(FilePath::new(&path)?),
        Wire::Children(v1::ReadChildren { path, after }) => {
            Query::Children { path: FilePath::new(&path)?, after: bounded(after, FilePath::MAX_BYTES)? }
        }
        Wire::Locks(v1::ReadLocks { prefix, after }) => {
            let after = if after.is_empty() { None } else { Some(LockName::new(&after)?) };
            Query::Locks { prefix: bounded(prefix, LockName::MAX_BYTES)?, after }
        }
        Wire::Why(v1::Why { name }) => Query::Why(LockName::new(&name)?),
        Wire::Sessions(v1::ReadSessions { after }) => Query::Sessions { after: Some(SessionId(after)) },
        Wire::Cluster(v1::ReadCluster {}) => Query::Cluster,
    })
}

/// Rejects a prefix or a start position that is longer than any name.
fn bounded(text: String, most: usize) -> Result<String, Error> {
    if text.len() > most {
        return Err(Error::new(Code::InvalidName, format!("a name has at most {most} bytes")));
    }
    Ok(text)
}

fn target(target: Option<v1::watch::Target>) -> Result<WatchTarget, Error> {
    use v1::watch::Target as Wire;
    Ok(match target.ok_or_else(|| unsupported("a watch without content, or of a later version"))? {
        Wire::File(path) => WatchTarget::File(FilePath::new(&path)?),
        Wire::Children(path) => WatchTarget::Directory(FilePath::new(&path)?),
        Wire::Lock(name) => WatchTarget::Lock(LockName::new(&name)?),
    })
}

fn unsupported(what: &str) -> Error {
    Error::new(Code::Unsupported, what)
}

/// Encodes a reply.
pub fn encode(reply: &Reply) -> v1::ServerMessage {
    match reply {
        Reply::Opened { session, secret, terms } => v1::Opened {
            session: session.0,
            secret: secret.to_be_bytes().to_vec(),
            ttl_ms: terms.ttl_ms,
            drift_ppm: terms.drift_ppm,
            nodes: terms.nodes.clone(),
        }
        .into(),
        Reply::Resumed { session, terms } => v1::Resumed {
            session: session.0,
            ttl_ms: terms.ttl_ms,
            drift_ppm: terms.drift_ppm,
            nodes: terms.nodes.clone(),
        }
        .into(),
        Reply::KeptAlive { token } => v1::KeptAlive { token: *token }.into(),
        Reply::Answered { id, answer } => numbered_answer(*id, result(answer)),
        Reply::Read { id, answer } => numbered_answer(*id, query_answer(answer)),
        Reply::Watching { id, index } => {
            numbered_answer(*id, v1::answer::Result::Watching(v1::Watching { index: *index }))
        }
        Reply::Refused { id, error } => refusal(*id, error),
        Reply::Event { watch, event } => event_to_wire(*watch, event),
        Reply::Broken(Broken { grant, name, reason }) => {
            v1::Broken { grant: grant.0, name: name.as_str().into(), reason: reason.clone() }.into()
        }
        Reply::SessionEnded { session, cause } => ended(*session, *cause),
    }
}

fn numbered_answer(id: u64, result: v1::answer::Result) -> v1::ServerMessage {
    v1::Answer { id, result: Some(result) }.into()
}

/// Encodes a refusal with its number.
pub fn refusal(id: u64, error: &Error) -> v1::ServerMessage {
    numbered_answer(id, v1::answer::Result::Error(error.into()))
}

/// Encodes the state's answer to a request.
fn result(answer: &Answer) -> v1::answer::Result {
    use v1::answer::Result as Wire;
    match answer {
        Answer::Done => Wire::Done(v1::Done {}),
        Answer::Queued(position) => Wire::Queued(position.into()),
        Answer::Granted(granted) => Wire::Granted(self::granted(granted)),
        Answer::Cancelled { released } => Wire::Cancelled(v1::Cancelled { released: *released }),
        Answer::Files(done) => Wire::Files(v1::FilesDone { done: done.iter().map(Into::into).collect() }),
        Answer::Refused(error) => Wire::Error(error.into()),
        Answer::Limited { before } => Wire::Limited(v1::Limited { before: *before }),
    }
}

/// Encodes the answer to a query.
fn query_answer(answer: &QueryAnswer) -> v1::answer::Result {
    use v1::answer::Result as Wire;
    match answer {
        QueryAnswer::File { data, stat, index } => {
            Wire::File(v1::File { data: data.clone(), stat: Some(stat.into()), index: *index })
        }
        QueryAnswer::Children { names: Page { items, more }, stat, index } => Wire::Children(v1::Children {
            names: items.clone(),
            stat: Some(stat.into()),
            more: *more,
            index: *index,
        }),
        QueryAnswer::Locks(Page { items, more }, index) => Wire::Locks(v1::Locks {
            locks: items.iter().map(Into::into).collect(),
            more: *more,
            index: *index,
        }),
        QueryAnswer::Why(report) => Wire::Report(report.into()),
        QueryAnswer::Sessions(Page { items, more }, index) => Wire::Sessions(v1::Sessions {
            sessions: items.iter().map(Into::into).collect(),
            more: *more,
            index: *index,
        }),
        QueryAnswer::Cluster(status) => Wire::Cluster(status.into()),
        QueryAnswer::Refused(error) => Wire::Error(error.into()),
    }
}

fn granted(granted: &Granted) -> v1::Granted {
    let name = |granted: &crate::state::GrantedName| v1::GrantedName {
        name: granted.name.as_str().into(),
        fence: granted.fence.0,
        claim: claim_to_wire(granted.claim),
    };
    v1::Granted { names: granted.names.iter().map(name).collect() }
}

/// Encodes the end of a session.
fn ended(session: SessionId, cause: EndCause) -> v1::ServerMessage {
    let cause = match cause {
        EndCause::Closed => v1::EndCause::Closed,
        EndCause::Expired => v1::EndCause::Expired,
        EndCause::Ended => v1::EndCause::Ended,
    };
    v1::SessionEnded { session: session.0, cause: cause.into() }.into()
}
