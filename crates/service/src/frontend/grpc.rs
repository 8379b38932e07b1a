//! The gRPC frontend: the same messages as the native one, one bidirectional stream a session, for every other language.
//!
//! With it come health (`grpc.health.v1`) and reflection, so that general tools can look at a server without the `.proto`.
//!
//! **Rules.** One task a stream, which does what the native one does for a connection. HTTP takes the answers from it one frame at a
//! time: it requests for more only while the client reads.
//!
//! **Bounds.** As many streams as there may be connections, however few of these they share: beyond them a stream is refused. Whoever
//! does not take a frame within [`PROGRESS_LIMIT`] is forgotten, except for that frame: only the client can end the connection that it
//! shares with other streams.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use conclave_api::proto::DESCRIPTORS;
use conclave_api::proto::frame::{self, MAX_FRAME_BYTES};
use conclave_api::proto::v1::conclave_server::{Conclave, ConclaveServer};
use conclave_api::proto::v1::{ClientFrame, ServerFrame};
use conclave_api::{Code, Error};
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::native::PROGRESS_LIMIT;
use crate::driver::Outbox;
use crate::driver::{ConnectionHandle, NodeHandle};
use conclave_node::node::ClientRequest;
use conclave_node::node::metrics;

/// Frames that wait until HTTP takes them: the next is taken out of the outbox when the client has read, not before.
const READY_FRAMES: usize = 1;

/// The gRPC services of a node. So many streams may be open at a time, on all connections together; one more is refused as
/// `resource_exhausted`.
pub(crate) fn routes(node: NodeHandle, streams_max: usize) -> Routes {
    let conclave = ConclaveServer::new(Native { node, room: Arc::new(Semaphore::new(streams_max)) })
        .max_decoding_message_size(MAX_FRAME_BYTES)
        .max_encoding_message_size(MAX_FRAME_BYTES);
    let (reporter, health) = tonic_health::server::health_reporter();
    // A node that cannot serve says goodbye on the stream: there is nothing more to tell here than that it is up.
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

/// One stream a session.
struct Native {
    node: NodeHandle,
    room: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Conclave for Native {
    type SessionStream = Answers;

    async fn session(&self, request: Request<Streaming<ClientFrame>>) -> Result<Response<Answers>, Status> {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
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
        Ok(Response::new(Answers { frames, _room: room }))
    }
}

/// The answers of a session, as HTTP takes them. Dropped when the stream is over, for whatever reason.
pub(crate) struct Answers {
    frames: mpsc::Receiver<Result<ServerFrame, Status>>,
    _room: OwnedSemaphorePermit,
}

impl Stream for Answers {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.frames.poll_recv(cx)
    }
}

/// Serves one stream until it ends, or the client takes nothing for as long as the limit.
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
                    // A node that has stopped has closed the outbox.
                    Some(Ok(frame)) => drop(connection.send(frame.messages.into_iter().map(ClientRequest::from).collect()).await),
                    Some(Err(status)) => connection.fail(unreadable(&status)).await,
                    None => connection.finish().await,
                }
            }
        }
    }
}

/// Reads, unless the node has paused reading. A caller that also waits for the outbox is woken when reading resumes.
async fn read<F>(outbox: &Outbox, mut requests: Pin<&mut impl Stream<Item = F>>) -> Option<F> {
    poll_fn(|_| if outbox.is_reading_paused() { Poll::Pending } else { Poll::Ready(()) }).await;
    requests.next().await
}

/// Hands over frames, each when the one before was taken; `false` if one was not.
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
        // So says gRPC of too many bytes, and our codec of too many messages.
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => Code::TooLarge,
        _ => Code::Unsupported,
    };
    Error::new(code, format!("the message cannot be read: {}", status.message()))
}

#[cfg(test)]
mod tests {
    use conclave_api::proto::codec::FrameCodec;
    use conclave_api::proto::v1;
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
        // One frame is handed over; the next is one too many.
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
        let native = Native { node, room: Arc::new(Semaphore::new(2)) };
        let ask = || {
            let decoder = FrameCodec::<ServerFrame, ClientFrame>::default().decoder();
            Request::new(Streaming::new_request(decoder, tonic::body::Body::empty(), None, None))
        };
        let first = native.session(ask()).await.unwrap();
        let _second = native.session(ask()).await.unwrap();
        let refused = native.session(ask()).await.err().unwrap();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        drop(first);
        assert!(native.session(ask()).await.is_ok(), "one has ended");
    }
}
