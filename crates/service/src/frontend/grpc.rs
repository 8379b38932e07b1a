//! The gRPC frontend: the same messages as the native one, one bidirectional stream a session, for every other language.
//!
//! With it come health (`grpc.health.v1`) and reflection, so that general tools can look at a server without the `.proto`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use conclave_api::proto::DESCRIPTORS;
use conclave_api::proto::frame::{self, MAX_FRAME_BYTES};
use conclave_api::proto::v1::conclave_server::{Conclave, ConclaveServer};
use conclave_api::proto::v1::{ClientFrame, ServerFrame};
use conclave_api::{Code, Error};
use futures_util::Stream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::hub::{Door, Link};
use super::wire::Ask;

/// The gRPC services of a node.
pub(crate) fn routes(door: Door) -> Routes {
    let conclave = ConclaveServer::new(Native { door })
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
    door: Door,
}

#[tonic::async_trait]
impl Conclave for Native {
    type SessionStream = Answers;

    async fn session(&self, request: Request<Streaming<ClientFrame>>) -> Result<Response<Answers>, Status> {
        let Ok(link) = self.door.attach(None).await else {
            return Err(Status::unavailable("this node stops"));
        };
        let answers = Answers {
            asks: Some(request.into_inner()),
            handing: None,
            ready: BytesMut::new(),
            link: Arc::new(link),
        };
        Ok(Response::new(answers))
    }
}

/// The answers of a session. Polling it also reads what the client asks: so the stream is one task, and ends as one.
pub(crate) struct Answers {
    /// What the client sends; nothing once it has ended or cannot be read.
    asks: Option<Streaming<ClientFrame>>,
    /// A batch on its way to the hub.
    handing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Frames that were taken from the outbox.
    ready: BytesMut,
    link: Arc<Link>,
}

impl Answers {
    /// Reads as much as there is; `true` if it was not looked for more, since the hub is behind with queries.
    fn poll_asks(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            if let Some(handing) = &mut self.handing {
                match handing.as_mut().poll(cx) {
                    Poll::Pending => return false,
                    Poll::Ready(()) => self.handing = None,
                }
            }
            if self.link.outbox.is_behind() {
                return true;
            }
            let Some(asks) = &mut self.asks else { return false };
            let link = self.link.clone();
            match Pin::new(asks).poll_next(cx) {
                Poll::Pending => return false,
                Poll::Ready(Some(Ok(frame))) => {
                    let asks = frame.messages.into_iter().map(Ask::from).collect();
                    // A hub that has stopped has closed the outbox.
                    self.handing = Some(Box::pin(async move { drop(link.send(asks).await) }));
                }
                Poll::Ready(Some(Err(status))) => {
                    self.asks = None;
                    let error =
                        Error::new(Code::Unsupported, format!("cannot be read: {}", status.message()));
                    self.handing = Some(Box::pin(async move { link.fail(error).await }));
                }
                Poll::Ready(None) => {
                    self.asks = None;
                    self.handing = Some(Box::pin(async move { link.finish().await }));
                }
            }
        }
    }
}

impl Stream for Answers {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let was_behind = self.poll_asks(cx);
        loop {
            match frame::decode(&mut self.ready) {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(Status::internal(error.to_string())))),
            }
            match self.link.outbox.poll_take(cx) {
                // Whoever is behind no longer may have woken nobody, before this task was to be woken.
                Poll::Pending if was_behind && !self.link.outbox.is_behind() => return self.poll_next(cx),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(frames)) => {
                    self.ready = frames;
                    self.link.on_sent();
                }
            }
        }
    }
}
