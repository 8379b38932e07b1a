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
//!
//! All else under `/v1` is linearizable; `?stale=true` takes what this node knows. Names, sessions and reports are as `conclave locks`,
//! `sessions` and `why` print them with `--json`. Nothing here changes anything. What goes wrong under `/v1` is told as JSON too:
//! `{"error": CODE, "message": TEXT}`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use conclave_api::{Code, Error, LockName, SessionId, json};
use serde::{Deserialize, Serialize};

use super::hub::Door;
use super::{grpc, metrics, wire};
use crate::machine::Service;
use crate::replica::{NodeId, Replica};
use crate::state;

/// How long a majority may take to confirm a read.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a majority may take to confirm that the node is of use.
const READY_LIMIT: Duration = Duration::from_secs(1);

/// Everything that is spoken over HTTP, gRPC included, with so many streams of that at a time.
pub(crate) fn router(replica: Replica<Service>, door: Door, streams_max: usize) -> Router {
    let grpc = grpc::routes(door.clone(), streams_max).into_axum_router();
    let plain = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render_metrics))
        .route("/v1/locks", get(locks))
        .route("/v1/sessions", get(sessions))
        .route("/v1/why/{*name}", get(why))
        .route("/v1/cluster", get(cluster))
        .method_not_allowed_fallback(|| async {
            failure(StatusCode::METHOD_NOT_ALLOWED, Code::Unsupported, "there is only GET here")
        })
        .with_state(Arc::new(Node { replica, door }));
    // What gRPC does not know it answers in its own way, which is no help to a browser.
    plain.merge(grpc.reset_fallback()).fallback(nothing)
}

async fn nothing(uri: Uri) -> Response {
    match uri.path().starts_with("/v1/") {
        true => failure(StatusCode::NOT_FOUND, Code::Unsupported, "there is nothing here").into_response(),
        false => (StatusCode::NOT_FOUND, "there is nothing here\n").into_response(),
    }
}

struct Node {
    replica: Replica<Service>,
    door: Door,
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
    let text = metrics::render(&node.door.metrics, totals, &node.replica.status());
    ([("content-type", "text/plain; version=0.0.4")], text).into_response()
}

async fn locks(State(node): State<Arc<Node>>, page: Page) -> Result<Response, Failure> {
    let after = page.after.as_deref().map(LockName::new).transpose()?;
    let locks = node.read(page.stale, |state| state.locks("", after.as_ref(), page.limit())).await?;
    let locks: Vec<_> = locks.items.iter().map(wire::lock).collect();
    Ok(Json(locks.iter().map(json::Lock::from).collect::<Vec<_>>()).into_response())
}

async fn sessions(State(node): State<Arc<Node>>, page: Page) -> Result<Response, Failure> {
    let number = |text: &str| text.parse().map(SessionId);
    let after = page.after.as_deref().map(number).transpose();
    let after = after.map_err(|_| Error::new(Code::InvalidArgument, "`after` is the number of a session"))?;
    let sessions = node.read(page.stale, |state| state.sessions(after, page.limit())).await?;
    let sessions: Vec<_> = sessions.items.iter().map(wire::session).collect();
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
            Ok(Json(json::Report::from(&wire::report(&name, Some(why), index))).into_response())
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
