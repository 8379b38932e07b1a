//! HTTP on the same port: health, metrics, and the state of the service as JSON.
//!
//! | path | response |
//! |---|---|
//! | `/healthz` | 200 while the process works |
//! | `/readyz` | 200 if a majority confirms a leader within a second, else 503 |
//! | `/metrics` | counters and gauges in the Prometheus text format |
//! | `/v1/locks` `/v1/sessions` | pages: `?after=`, `?limit=` (1 to 1,000); the last page is empty |
//! | `/v1/why/NAME` | the holders and the waiting requests of a name, or of each name of an expression |
//! | `/v1/cluster` | the nodes, as this node sees them, also without a majority |
//! | `/v1/backup` | the data that outlives the cluster, in the format of `state/backup.rs` |
//!
//! `/v1/cluster` shows this node's view; all other paths under `/v1` are linearizable. With `?stale=true`,
//! locks, sessions and why are read from this node's own state. Names, sessions and reports have the form of
//! `conclave locks`, `sessions` and `why` with `--json`. No path changes anything. The body of every error is
//! a [`conclave_core::failure::Failure`].
//!
//! **Bound.** A backup is as large as all files together, and its reader may be slow. At most [`BACKUPS_MAX`]
//! are sent at a time; further requests get 503.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use conclave_core::expr::names_in;
use conclave_core::report::ClusterStatus;
use conclave_core::{Code, Error, LockName, SessionId};
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::driver::NodeHandle;
use conclave_node::node::query;

use super::{grpc, metrics};
use crate::replica::Replica;
use conclave_node::entry::Service;
use conclave_node::state;

/// The longest wait for a majority to confirm a read. The response is then an error.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest wait of `/readyz` for a majority to confirm the leader.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// The longest time for making a backup. The response is then an error.
const BACKUP_LIMIT: Duration = Duration::from_secs(60);
/// The most backups that are sent at a time. A further request gets 503.
const BACKUPS_MAX: usize = 2;
/// The number of bytes in one piece of a backup.
const PIECE: usize = 64 * 1024;

/// The advice in the response for an unknown path.
const PATHS: &str =
    "use one of /healthz, /readyz, /metrics, /v1/locks, /v1/sessions, /v1/why/NAME, /v1/cluster, /v1/backup";

/// The routes of HTTP and gRPC; at most `streams_max` gRPC streams are open at a time.
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
        .method_not_allowed_fallback(only_get)
        .with_state(Arc::new(Node { replica, handle, backups: Arc::new(Semaphore::new(BACKUPS_MAX)) }));
    // The fallback of gRPC replies with a gRPC status, which does not help a user of HTTP.
    plain.merge(grpc.reset_fallback()).fallback(nothing)
}

async fn nothing(uri: Uri) -> Failure {
    let error = Error::new(Code::Unsupported, format!("there is nothing at {}", uri.path().escape_debug()));
    Failure { advice: Some(PATHS), ..Failure::new(StatusCode::NOT_FOUND, error) }
}

async fn only_get(method: Method, uri: Uri) -> Failure {
    let error = Error::new(Code::Unsupported, format!("{} does not accept {method}", uri.path()));
    Failure { advice: Some("use GET"), ..Failure::new(StatusCode::METHOD_NOT_ALLOWED, error) }
}

struct Node {
    replica: Replica<Service>,
    handle: NodeHandle,
    /// One permit for each backup that may be sent at the same time.
    backups: Arc<Semaphore>,
}

#[derive(Deserialize)]
struct Page {
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    stale: bool,
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
            Err(_) => Err(no_majority(LIMIT)),
        }
    }
}

impl Page {
    fn limit(&self) -> usize {
        // An empty page would look like the last one.
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

async fn ready(State(node): State<Arc<Node>>) -> Result<&'static str, Failure> {
    match tokio::time::timeout(READY_LIMIT, node.replica.read_index()).await {
        Ok(Ok(_)) => Ok("ready\n"),
        Ok(Err(error)) => Err(Error::new(Code::NoQuorum, error.to_string()).into()),
        Err(_) => Err(no_majority(READY_LIMIT)),
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
    Ok(Json(locks.items).into_response())
}

async fn sessions(State(node): State<Arc<Node>>, page: Page) -> Result<Response, Failure> {
    let number = |text: &str| text.parse().map(SessionId);
    let after = page.after.as_deref().map(number).transpose();
    let after =
        after.map_err(|_| Error::new(Code::InvalidArgument, "`after` must be the number of a session"))?;
    let sessions = node.read(page.stale, |state| state.sessions(after, page.limit())).await?;
    Ok(Json(sessions.items).into_response())
}

async fn why(
    State(node): State<Arc<Node>>,
    name: Result<Path<String>, PathRejection>,
    page: Page,
) -> Result<Response, Failure> {
    let Path(name) = name.map_err(|refused| Error::new(Code::InvalidName, refused.body_text()))?;
    let mut reports = Vec::new();
    for name in names_in(&name)? {
        reports.push(node.read(page.stale, |state| state.why(&name)).await?);
    }
    Ok(match &reports[..] {
        [report] => Json(report).into_response(),
        _ => Json(reports).into_response(),
    })
}

async fn cluster(State(node): State<Arc<Node>>) -> Json<ClusterStatus> {
    Json(query::cluster(&node.replica.status(), node.replica.identity().cluster))
}

async fn backup(State(node): State<Arc<Node>>) -> Result<Response, Failure> {
    let Ok(permit) = node.backups.clone().try_acquire_owned() else {
        let message = format!("this node already sends {BACKUPS_MAX} backups");
        return Err(Error::new(Code::Overloaded, message).into());
    };
    let made = node.replica.read_on_blocking_thread(|service| service.state().to_backup());
    let made = tokio::time::timeout(BACKUP_LIMIT, made).await.map_err(|_| no_majority(BACKUP_LIMIT))?;
    let bytes = Bytes::from(made.map_err(|error| Error::new(Code::NoQuorum, error.to_string()))?);
    let head =
        [(CONTENT_TYPE, "application/octet-stream".to_owned()), (CONTENT_LENGTH, bytes.len().to_string())];
    // The stream owns the permit and returns it after the last piece.
    let pieces = stream::unfold((bytes, permit), |(mut left, permit)| async move {
        let piece = left.split_to(PIECE.min(left.len()));
        (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (left, permit)))
    });
    Ok((head, Body::from_stream(pieces)).into_response())
}

/// An error as an HTTP response.
struct Failure {
    status: StatusCode,
    error: Error,
    /// The advice that replaces the default advice of the error code; `None` for the default.
    advice: Option<&'static str>,
}

impl Failure {
    fn new(status: StatusCode, error: Error) -> Self {
        Self { status, error, advice: None }
    }
}

fn no_majority(limit: Duration) -> Failure {
    Error::new(Code::NoQuorum, format!("no majority has replied within {} s", limit.as_secs())).into()
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let status = match error.code {
            Code::NoQuorum | Code::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut body = conclave_core::failure::Failure::from(&self.error);
        if let Some(advice) = self.advice {
            body.error.advice = advice.into();
        }
        (self.status, Json(body)).into_response()
    }
}
