//! The gRPC frontend: the messages of the native frontend, in one bidirectional stream per session, for other
//! languages.
//!
//! It also serves health (`grpc.health.v1`) and reflection, so that general tools can use a server without
//! the `.proto`.
//!
//! **Rules.** Each stream has one task, like a native connection. HTTP takes one frame of replies at a time,
//! and takes the next only while the client reads.
//!
//! **Bounds.** At most as many streams as client connections, counted over all connections; a further stream
//! is refused. If a client does not take a frame within [`PROGRESS_LIMIT`], its task ends. That one frame
//! stays in memory, because only the client can end a connection that it shares with other streams.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use conclave_core::{Code, Error};
use conclave_wire::DESCRIPTORS;
use conclave_wire::frame::{self, MAX_FRAME_BYTES};
use conclave_wire::v1::conclave_server::{Conclave, ConclaveServer};
use conclave_wire::v1::{ClientFrame, ServerFrame};
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::native::PROGRESS_LIMIT;
use crate::driver::Outbox;
use crate::driver::{ConnectionHandle, NodeHandle};
use conclave_node::node::ClientRequest;
use conclave_node::node::metrics;

/// The frames that wait for HTTP. The task takes the next from the outbox only after the client has read.
const READY_FRAMES: usize = 1;

/// Returns the gRPC services of a node. Over `streams_max` open streams on all connections, a stream is
/// refused with `resource_exhausted`.
pub(crate) fn routes(node: NodeHandle, streams_max: usize) -> Routes {
    let conclave = ConclaveServer::new(Native { node, streams: Arc::new(Semaphore::new(streams_max)) })
        .max_decoding_message_size(MAX_FRAME_BYTES)
        .max_encoding_message_size(MAX_FRAME_BYTES);
    let (reporter, health) = tonic_health::server::health_reporter();
    // The health service reports only that the process runs. A node that stops sends its last message on the
    // stream.
    tokio::spawn(async move { reporter.set_serving::<ConclaveServer<Native>>().await });
    let routes = Routes::new(conclave).add_service(health);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = reflection().build_v1().expect("the descriptors are those that this program was built from");
    let v1alpha =
        reflection().build_v1alpha().expect("the descriptors are those that this program was built from");
    routes.add_service(v1).add_service(v1alpha)
}

/// The gRPC service: one session per stream.
struct Native {
    node: NodeHandle,
    streams: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Conclave for Native {
    type SessionStream = Answers;

    async fn session(&self, request: Request<Streaming<ClientFrame>>) -> Result<Response<Answers>, Status> {
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            metrics::add(&self.node.metrics.connections_refused_total, 1);
            return Err(Status::resource_exhausted(
                "this node has the most streams that it allows; use another node",
            ));
        };
        let Ok(connection) = self.node.attach(None).await else {
            return Err(Status::unavailable("this node stops; use another node"));
        };
        let (sender, frames) = mpsc::channel(READY_FRAMES);
        tokio::spawn(serve(connection, request.into_inner(), sender, PROGRESS_LIMIT));
        Ok(Response::new(Answers { frames, _permit: permit }))
    }
}

/// The replies of a session, as a stream for HTTP. It is dropped when the gRPC stream ends for any reason.
pub(crate) struct Answers {
    frames: mpsc::Receiver<Result<ServerFrame, Status>>,
    _permit: OwnedSemaphorePermit,
}

impl Stream for Answers {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.frames.poll_recv(cx)
    }
}

/// Serves one stream until it ends, or the client takes no frame for `limit`.
async fn serve(
    connection: ConnectionHandle,
    requests: impl Stream<Item = Result<ClientFrame, Status>>,
    answers: mpsc::Sender<Result<ServerFrame, Status>>,
    limit: Duration,
) {
    let mut requests = std::pin::pin!(requests);
    let mut readable = true;
    loop {
        tokio::select! {
            biased;
            () = answers.closed() => return,
            frames = poll_fn(|cx| connection.outbox.poll_take(cx)) => {
                let Some(frames) = frames else { return };
                if !send(frames, &answers, limit).await {
                    return;
                }
                connection.on_sent();
            }
            frame = read(&connection.outbox, requests.as_mut()), if readable => {
                readable = matches!(frame, Some(Ok(_)));
                match frame {
                    // An error means that the node has stopped; it has then closed the outbox.
                    Some(Ok(frame)) => drop(connection.send(frame.messages.into_iter().map(ClientRequest::from).collect()).await),
                    Some(Err(status)) => connection.fail(unreadable(&status)).await,
                    None => connection.finish().await,
                }
            }
        }
    }
}

/// Reads the next frame, unless the node has paused reading. A caller that also polls the outbox is woken
/// when reading resumes.
async fn read<F>(outbox: &Outbox, mut requests: Pin<&mut impl Stream<Item = F>>) -> Option<F> {
    poll_fn(|_| if outbox.is_reading_paused() { Poll::Pending } else { Poll::Ready(()) }).await;
    requests.next().await
}

/// Sends frames to HTTP, each after the previous one was taken. Returns `false` if one was not taken in time.
async fn send(
    mut frames: BytesMut,
    answers: &mpsc::Sender<Result<ServerFrame, Status>>,
    limit: Duration,
) -> bool {
    loop {
        let frame = match frame::decode(&mut frames) {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => return true,
            Err(error) => Err(Status::internal(error.to_string())),
        };
        let is_last = frame.is_err();
        if answers.send_timeout(frame, limit).await.is_err() || is_last {
            return false;
        }
    }
}

fn unreadable(status: &Status) -> Error {
    let code = match status.code() {
        // gRPC uses the first code for too many bytes, our codec the second for too many messages.
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => Code::TooLarge,
        _ => Code::Unsupported,
    };
    Error::new(code, format!("the message cannot be read: {}", status.message()))
}

#[cfg(test)]
mod tests {
    use conclave_wire::codec::FrameCodec;
    use conclave_wire::v1;
    use futures_util::stream;
    use tonic::codec::Codec;

    use super::*;
    use crate::driver::tests::unserved;

    const MOMENT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_client_that_never_reads_does_not_stay() {
        let (_driver, node) = unserved().await;
        let (connection, (sender, _never_read)) =
            (node.attach(None).await.unwrap(), mpsc::channel(READY_FRAMES));
        let outbox = connection.outbox.clone();
        // The channel takes one frame; the second exceeds it.
        let large = v1::File { data: vec![0; 256 * 1024], ..Default::default() };
        let answer = v1::Answer { id: 1, result: Some(v1::answer::Result::File(large)) };
        (0..2).for_each(|_| _ = outbox.add(&answer.clone().into()));
        serve(connection, stream::pending(), sender, MOMENT).await;
    }

    #[tokio::test]
    async fn a_stream_that_is_gone_is_not_served_any_longer() {
        let (_driver, node) = unserved().await;
        let (connection, (sender, taken)) = (node.attach(None).await.unwrap(), mpsc::channel(READY_FRAMES));
        drop(taken);
        serve(connection, stream::pending(), sender, Duration::MAX).await;
    }

    #[tokio::test]
    async fn streams_are_bounded_whoever_has_them() {
        let (_driver, node) = unserved().await;
        let native = Native { node, streams: Arc::new(Semaphore::new(2)) };
        let request = || {
            let decoder = FrameCodec::<ServerFrame, ClientFrame>::default().decoder();
            Request::new(Streaming::new_request(decoder, tonic::body::Body::empty(), None, None))
        };
        let first = native.session(request()).await.unwrap();
        let _second = native.session(request()).await.unwrap();
        let refused = native.session(request()).await.err().unwrap();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        drop(first);
        assert!(native.session(request()).await.is_ok(), "one has ended");
    }
}
