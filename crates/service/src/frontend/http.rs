//! HTTP on the same port: is the node up, is it of use, what does it count, and what does it know, as JSON to read.
//!
//! | path | what |
//! |---|---|
//! | `/healthz` | 200 while the process works |
//! | `/readyz` | 200 if a leader is confirmed by a majority within a second, else 503 |
//! | `/metrics` | counters and gauges, Prometheus text |
//! | `/v1/locks` `/v1/sessions` | pages: `?after=`, `?limit=` (1 to 1,000, fewer where they are long); the last page is empty |
//! | `/v1/why/NAME` | who holds it, who waits for it |
//! | `/v1/cluster` | the nodes, as this one sees them, majority or not |
//! | `/v1/backup` | what outlives the cluster, as bytes: see `state/backup.rs` |
//!
//! All else under `/v1` is linearizable; `?stale=true` takes what this node knows. Names, sessions and reports are as `conclave locks`,
//! `sessions` and `why` print them with `--json`. Nothing here changes anything. What goes wrong under `/v1` is told as JSON too:
//! `{"error": CODE, "message": TEXT}`.
//!
//! **Bound.** A backup is as large as all files together, and whoever takes it may be slow: [`BACKUPS_MAX`] are on their way at
//! a time, who comes then is refused.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use conclave_api::{Code, Error, LockName, SessionId, json};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::driver::NodeHandle;
use conclave_node::codec;

use super::{grpc, metrics};
use crate::replica::{NodeId, Replica};
use conclave_node::entry::Service;
use conclave_node::state;

/// How long a majority may take to confirm a read.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a majority may take to confirm that the node is of use.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// How long a backup may take to be made.
const BACKUP_LIMIT: Duration = Duration::from_secs(60);
/// Backups on their way at a time.
const BACKUPS_MAX: usize = 2;
/// A backup is sent in pieces of so many bytes.
const PIECE: usize = 64 * 1024;

/// Said to whoever asks for something else.
const NOTHING: &str = "there is nothing here, but there are /healthz, /readyz, /metrics, /v1/locks, /v1/sessions, \
                       /v1/why/NAME, /v1/cluster and /v1/backup";

/// Everything that is spoken over HTTP, gRPC included, with so many streams of that at a time.
pub(crate) fn router(replica: Replica<Service>, handle: NodeHandle, streams_max: usize) -> Router {
    let grpc = grpc::routes(handle.clone(), streams_max).into_axum_router();
    let plain = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render_metrics))
        .route("/v1/locks", get(locks))
        .route("/v1/sessions", get(sessions))
        .route("/v1/why/{*name}", get(why))
        .route("/v1/cluster", get(cluster))
        .route("/v1/backup", get(backup))
        .method_not_allowed_fallback(|| async {
            failure(StatusCode::METHOD_NOT_ALLOWED, Code::Unsupported, "there is only GET here")
        })
        .with_state(Arc::new(Node { replica, handle, backups: Arc::new(Semaphore::new(BACKUPS_MAX)) }));
    // What gRPC does not know it answers in its own way, which is no help to a browser.
    plain.merge(grpc.reset_fallback()).fallback(nothing)
}

async fn nothing(uri: Uri) -> Response {
    match uri.path().starts_with("/v1/") {
        true => failure(StatusCode::NOT_FOUND, Code::Unsupported, NOTHING).into_response(),
        false => (StatusCode::NOT_FOUND, format!("{NOTHING}\n")).into_response(),
    }
}

struct Node {
    replica: Replica<Service>,
    handle: NodeHandle,
    /// Room for backups on their way.
    backups: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Page {
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    stale: bool,
}

#[derive(Serialize)]
struct Cluster {
    node: NodeId,
    leader: Option<NodeId>,
    term: u64,
    applied: Option<u64>,
    members: Vec<Member>,
    version: &'static str,
    cluster: String,
    last: Option<u64>,
    snapshot: Option<u64>,
}

#[derive(Serialize)]
struct Member {
    node: NodeId,
    address: String,
    voter: bool,
    matched: Option<u64>,
}

impl Node {
    async fn read<R>(&self, stale: bool, read: impl FnOnce(&state::State) -> R) -> Result<R, Failure> {
        let read = |service: &Service| read(service.state());
        let answer = async {
            match stale {
                true => self.replica.read_stale(read).await,
                false => self.replica.read(read).await,
            }
        };
        match tokio::time::timeout(LIMIT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Error::new(Code::NoQuorum, error.to_string()).into()),
            Err(_) => Err(Error::new(Code::NoQuorum, "no majority has answered in time").into()),
        }
    }
}

impl Page {
    fn limit(&self) -> usize {
        // A page of none would look like the last.
        self.limit.unwrap_or(100).clamp(1, 1000)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let page: Result<Query<Self>, QueryRejection> = Query::from_request_parts(parts, state).await;
        match page {
            Ok(Query(page)) => Ok(page),
            Err(refused) => Err(Error::new(Code::InvalidArgument, refused.body_text()).into()),
        }
    }
}

async fn ready(State(node): State<Arc<Node>>) -> Response {
    match tokio::time::timeout(READY_LIMIT, node.replica.read_index()).await {
        Ok(Ok(_)) => "ready\n".into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "no leader that a majority confirms\n").into_response(),
    }
}

async fn render_metrics(State(node): State<Arc<Node>>) -> Response {
    let totals = node.replica.peek(|service| service.state().totals());
    let text = metrics::render(&node.handle.metrics, totals, &node.replica.status());
    ([("content-type", "text/plain; version=0.0.4")], text).into_response()
}

async fn locks(State(node): State<Arc<Node>>, page: Page) -> Result<Response, Failure> {
    let after = page.after.as_deref().map(LockName::new).transpose()?;
    let locks = node.read(page.stale, |state| state.locks("", after.as_ref(), page.limit())).await?;
    let locks: Vec<_> = locks.items.iter().map(codec::lock).collect();
    Ok(Json(locks.iter().map(json::Lock::from).collect::<Vec<_>>()).into_response())
}

async fn sessions(State(node): State<Arc<Node>>, page: Page) -> Result<Response, Failure> {
    let number = |text: &str| text.parse().map(SessionId);
    let after = page.after.as_deref().map(number).transpose();
    let after = after.map_err(|_| Error::new(Code::InvalidArgument, "`after` is the number of a session"))?;
    let sessions = node.read(page.stale, |state| state.sessions(after, page.limit())).await?;
    let sessions: Vec<_> = sessions.items.iter().map(codec::session).collect();
    Ok(Json(sessions.iter().map(json::Session::from).collect::<Vec<_>>()).into_response())
}

async fn why(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    page: Page,
) -> Result<Response, Failure> {
    let Path(name) = name.map_err(|refused| Error::new(Code::InvalidName, refused.body_text()))?;
    let name = LockName::new(&name)?;
    match node.read(page.stale, |state| (state.why(&name), state.applied())).await? {
        (Some(why), index) => {
            Ok(Json(json::Report::from(&codec::report(&name, Some(&why), index))).into_response())
        }
        (None, _) => {
            Err(failure(StatusCode::NOT_FOUND, Code::NotHeld, &format!("nothing is known of {name}")))
        }
    }
}

async fn cluster(State(node): State<Arc<Node>>) -> Response {
    let status = node.replica.status();
    let votes = |node: &NodeId| status.membership.voters.iter().any(|voters| voters.contains(node));
    let member = |(node, member): (&NodeId, &crate::replica::Member)| Member {
        node: *node,
        address: member.address.clone(),
        voter: votes(node),
        matched: status.matched.get(node).copied().flatten(),
    };
    Json(Cluster {
        node: status.node,
        leader: status.leader,
        term: status.term,
        applied: status.applied.map(|id| id.index),
        members: status.membership.nodes.iter().map(member).collect(),
        version: env!("CARGO_PKG_VERSION"),
        cluster: format!("{:032x}", node.replica.identity().cluster),
        last: status.last,
        snapshot: status.snapshot.map(|id| id.index),
    })
    .into_response()
}

async fn backup(State(node): State<Arc<Node>>) -> Result<Response, Failure> {
    let Ok(room) = node.backups.clone().try_acquire_owned() else {
        let message = "other backups are on their way: try again when they are through";
        return Err(failure(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message));
    };
    let made = node.replica.read_at_leisure(|service| service.state().to_backup());
    let no_quorum = |why: String| Error::new(Code::NoQuorum, why);
    let made = tokio::time::timeout(BACKUP_LIMIT, made).await;
    let made = made.map_err(|_| no_quorum("no majority has answered in time".to_owned()))?;
    let bytes = Bytes::from(made.map_err(|error| no_quorum(error.to_string()))?);
    let head =
        [(CONTENT_TYPE, "application/octet-stream".to_owned()), (CONTENT_LENGTH, bytes.len().to_string())];
    // The room is taken until the last piece is.
    let pieces = stream::unfold((bytes, room), |(mut left, room)| async move {
        let piece = left.split_to(PIECE.min(left.len()));
        (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (left, room)))
    });
    Ok((head, Body::from_stream(pieces)).into_response())
}

/// An error as an answer.
struct Failure {
    status: StatusCode,
    error: Error,
}

fn failure(status: StatusCode, code: Code, message: &str) -> Failure {
    Failure { status, error: Error::new(code, message) }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let status = match error.code {
            Code::NoQuorum => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self { status, error }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Body<'a> {
            error: &'a str,
            message: &'a str,
        }
        let Self { status, error } = self;
        (status, Json(Body { error: error.code.name(), message: &error.message })).into_response()
    }
}
