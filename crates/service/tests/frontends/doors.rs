//! Tests of bad input to every frontend: the error is clear, no data is lost, nothing panics. Also tests of
//! HTTP and gRPC.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use bytes::{BufMut, BytesMut};
use conclave_client::Client;
use conclave_service::server::{Server, StartError};
use conclave_wire::frame::{self, CLIENT_MAGIC, PEER_MAGIC};
use conclave_wire::socket::Socket;
use conclave_wire::v1;
use conclave_wire::v1::answer::Result as Answer;
use conclave_wire::v1::conclave_client::ConclaveClient;
use conclave_wire::v1::server_message::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::support::{Folder, Native, error, fence, http_get, start};

/// Pseudo-random bytes (splitmix64), the same in every run.
pub struct Noise(pub u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.next() % most).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// A server with a client that holds a lock. Other connections must not affect that lock.
pub struct Scene {
    _folder: Folder,
    pub server: Server,
    holder: Native,
    held: u64,
    fence: u64,
}

impl Scene {
    pub async fn new() -> Self {
        let folder = Folder::new();
        let server = start(&folder).await;
        let (mut holder, _) = Native::with_session(&server).await;
        let held = holder.acquire("x").await;
        let fence = fence(&holder.answer(held).await);
        Self { _folder: folder, server, holder, held, fence }
    }

    pub async fn assert_unharmed(mut self) {
        let why = v1::query::Kind::Why(v1::Why { name: "x".into() });
        let Answer::Report(report) = self.holder.query(false, why).await else { panic!("no report") };
        assert_eq!(report.holders[0].fence, self.fence);
        let released = self.holder.release(self.held).await;
        assert!(matches!(self.holder.answer(released).await, Answer::Done(_)));
        drop(self.holder);
        self.server.shutdown().await;
    }
}

pub async fn raw(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads until the connection ends. A reset counts as the end.
async fn ends(mut stream: TcpStream) {
    drop(stream.shutdown().await);
    let mut rest = Vec::new();
    drop(stream.read_to_end(&mut rest).await);
}

#[tokio::test]
async fn random_bytes_at_every_frontend_do_no_harm() {
    let scene = Scene::new().await;
    let mut noise = Noise(1);
    for round in 0..60 {
        let mut input = match round % 4 {
            0 => Vec::new(),
            1 => frame::preface(CLIENT_MAGIC).to_vec(),
            2 => frame::preface(PEER_MAGIC).to_vec(),
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        };
        input.extend(noise.bytes(2000));
        ends(raw(&scene.server, &input).await).await;
    }
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn random_bytes_at_the_unix_socket_do_no_harm() {
    let scene = Scene::new().await;
    let mut noise = Noise(4);
    for round in 0..40 {
        let mut input = if round % 2 == 0 { Vec::new() } else { frame::preface(CLIENT_MAGIC).to_vec() };
        input.extend(noise.bytes(2000));
        let socket = Socket::connect(&scene.server.address().to_string()).await.unwrap();
        assert!(matches!(socket, Socket::Unix(_)));
        let (mut reader, writer) = socket.into_split();
        // The server may have closed the connection already.
        drop(writer.write_all(&input).await);
        drop(writer.shutdown());
        drop(reader.read_to_end(&mut Vec::new()).await);
    }
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_local_client_uses_the_unix_socket_by_default() {
    let folder = Folder::new();
    let server = start(&folder).await;
    let address = server.address().to_string();
    let local = Client::connect(&address).await.unwrap();
    let guard = local.lock("x").await.unwrap();
    assert!(local.is_local());
    let far = Client::connect(&format!("tcp:{address}")).await.unwrap();
    assert!(far.lock("x").try_now().await.unwrap().is_none(), "both are clients of one server");
    assert!(!far.is_local());
    let (_, text) = http_get(&server, "/metrics").await;
    assert!(text.contains("\nconclave_connections_total 2\n"), "{text}");
    assert!(text.contains("\nconclave_local_connections_total 1\n"), "{text}");
    guard.release().await.unwrap();
    server.shutdown().await;
    assert!(
        matches!(Socket::connect(&address).await, Err(error) if error.kind() == ErrorKind::ConnectionRefused)
    );
}

#[tokio::test]
async fn random_messages_in_whole_frames_do_no_harm() {
    let scene = Scene::new().await;
    let mut noise = Noise(2);
    for _ in 0..60 {
        let garbage = noise.bytes(300);
        let mut input = BytesMut::from(&frame::preface(CLIENT_MAGIC)[..]);
        input.put_u32(u32::try_from(garbage.len()).unwrap());
        input.extend_from_slice(&garbage);
        ends(raw(&scene.server, &input).await).await;
    }
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_frame_that_is_too_long_is_answered_and_the_connection_closed() {
    let scene = Scene::new().await;
    let mut client = Native::connect(&scene.server).await;
    client.stream.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    let goodbye = client.expect_goodbye().await;
    assert_eq!((goodbye.name.as_str(), goodbye.definite), ("too-large", true));
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn another_version_is_rejected_with_the_supported_one() {
    let scene = Scene::new().await;
    let mut preface = frame::preface(CLIENT_MAGIC);
    preface[7] = 9;
    let mut client = Native::on(raw(&scene.server, &preface).await);
    client.read_preface().await;
    let goodbye = client.expect_goodbye().await;
    assert_eq!(goodbye.name, "unsupported");
    assert!(goodbye.message.contains("version 9"), "{}", goodbye.message);
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_preface_that_is_none_of_ours_is_closed() {
    let scene = Scene::new().await;
    let mut stream = raw(&scene.server, b"\xC1nonsense").await;
    let mut rest = Vec::new();
    drop(stream.read_to_end(&mut rest).await);
    assert!(rest.is_empty());
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn unknown_sessions_and_wrong_secrets_are_refused() {
    let scene = Scene::new().await;
    let (_, opened) = Native::with_session(&scene.server).await;
    for (session, secret, name) in [
        (999_999, vec![0; 16], "session-ended"),
        (opened.session, vec![0; 16], "wrong-secret"),
        (opened.session, vec![1, 2], "wrong-secret"),
    ] {
        let mut client = Native::connect(&scene.server).await;
        client.send([v1::Resume { session, secret, lowest: 1 }]).await;
        assert_eq!(client.expect_goodbye().await.name, name);
    }
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn nonsense_is_answered_under_its_number_and_the_connection_goes_on() {
    let scene = Scene::new().await;
    let (mut client, _) = Native::with_session(&scene.server).await;
    let deep = format!("{}a{}", "(".repeat(2000), ")".repeat(2000));
    let acquires =
        [("a &", "invalid-expression"), (deep.as_str(), "invalid-expression"), ("pool*3", "not-a-semaphore")];
    for (expr, name) in acquires {
        let id = client.acquire(expr).await;
        assert_eq!(error(client.answer(id).await).name, name, "{expr}");
    }
    let policy = v1::Acquire { policy: 77, ..v1::Acquire::of("a") };
    let id = client.request(v1::request::Op::Acquire(policy)).await;
    assert_eq!(error(client.answer(id).await).name, "unsupported");
    client.send([v1::Request { id: 50, lowest: 1, op: None }]).await;
    assert_eq!(error(client.answer(50).await).name, "unsupported");
    client.send([v1::Request { id: 0, lowest: 0, op: Some(v1::request::Op::Close(v1::Close {})) }]).await;
    assert_eq!(error(client.answer(0).await).name, "invalid-argument");
    let path = v1::query::Kind::File(v1::ReadFile { path: "../etc".into() });
    assert_eq!(error(client.query(false, path).await).name, "invalid-name");
    let prefix = v1::ReadLocks { prefix: "x".repeat(513), ..Default::default() };
    let after = v1::ReadChildren { path: "/".into(), after: "x".repeat(1025) };
    for list in [v1::query::Kind::Locks(prefix), v1::query::Kind::Children(after)] {
        assert_eq!(error(client.query(false, list).await).name, "invalid-name");
    }
    let id = client.acquire("fine").await;
    fence(&client.answer(id).await);
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn requests_without_a_session_are_refused_and_a_second_open_ends_the_connection() {
    let scene = Scene::new().await;
    let mut client = Native::connect(&scene.server).await;
    let id = client.acquire("y").await;
    assert_eq!(error(client.answer(id).await).name, "session-ended");
    client.send([v1::Open::default()]).await;
    client.expect_opened().await;
    client.send([v1::Open::default()]).await;
    assert_eq!(client.expect_goodbye().await.name, "invalid-argument");
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_lease_out_of_range_is_refused() {
    let scene = Scene::new().await;
    let mut client = Native::connect(&scene.server).await;
    client.send([v1::Open { ttl_ms: 1, ..Default::default() }]).await;
    assert_eq!(client.expect_goodbye().await.name, "invalid-argument");
    scene.assert_unharmed().await;
}

async fn grpc(server: &Server) -> ConclaveClient<Channel> {
    let channel = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    ConclaveClient::new(channel.connect().await.unwrap())
}

/// Sends these messages on a new gRPC stream, closes the sending half, and returns all replies.
async fn told_by_grpc(server: &Server, messages: Vec<v1::ClientMessage>) -> Vec<Message> {
    let outbound = futures_util::stream::iter([v1::ClientFrame { messages }]);
    let mut answers = grpc(server).await.session(outbound).await.unwrap().into_inner();
    let mut received = Vec::new();
    while let Some(frame) = answers.message().await.unwrap() {
        received.extend(frame.messages.into_iter().filter_map(|message| message.message));
    }
    received
}

#[tokio::test]
async fn the_same_messages_travel_over_grpc() {
    let scene = Scene::new().await;
    let mut client = grpc(&scene.server).await;
    let (sender, receiver) = tokio::sync::mpsc::channel(8);
    let acquire = v1::Request { id: 1, lowest: 1, op: Some(v1::request::Op::Acquire(v1::Acquire::of("x"))) };
    let messages = vec![v1::Open::default().into(), acquire.into()];
    sender.send(v1::ClientFrame { messages }).await.unwrap();
    let outbound = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|frame| (frame, receiver))
    });
    let mut answers = client.session(outbound).await.unwrap().into_inner();
    let mut received = Vec::new();
    while received.len() < 2 {
        received.extend(answers.message().await.unwrap().unwrap().messages);
    }
    assert!(matches!(received[0].message, Some(Message::Opened(_))));
    let Some(Message::Answer(answer)) = &received[1].message else { panic!("no answer: {received:?}") };
    assert!(matches!(answer.result, Some(Answer::Queued(_))));
    drop(sender);
    let last = answers.message().await.unwrap().unwrap();
    assert!(matches!(last.messages[0].message, Some(Message::Goodbye(_))));
    assert!(answers.message().await.unwrap().is_none());
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_grpc_stream_that_the_client_has_ended_is_answered_to_the_end() {
    let scene = Scene::new().await;
    let acquire =
        v1::Request { id: 1, lowest: 1, op: Some(v1::request::Op::Acquire(v1::Acquire::of("free"))) };
    let messages = vec![v1::Open::default().into(), acquire.into()];
    let received = told_by_grpc(&scene.server, messages).await;
    let [Message::Opened(_), Message::Answer(answer), Message::Goodbye(_)] = &received[..] else {
        panic!("{received:?}")
    };
    assert!(matches!(answer.result, Some(Answer::Granted(_))));
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_grpc_frame_out_of_bounds_is_answered_as_a_native_one() {
    let scene = Scene::new().await;
    let many = vec![v1::ClientMessage::default(); 100_000];
    let large = v1::Break { reason: "x".repeat(frame::MAX_FRAME_BYTES), ..Default::default() };
    let large = v1::Request { id: 1, lowest: 1, op: Some(v1::request::Op::Break(large)) };
    for messages in [many, vec![large.into()]] {
        let mut input = BytesMut::new();
        let is_sent = frame::encode(&v1::ClientFrame { messages: messages.clone() }, &mut input).is_ok();
        let received = told_by_grpc(&scene.server, messages).await;
        let [Message::Goodbye(v1::Goodbye { error: Some(error) })] = &received[..] else {
            panic!("{received:?}")
        };
        assert_eq!((error.name.as_str(), error.definite), ("too-large", true), "{}", error.message);
        if is_sent {
            let mut client = Native::connect(&scene.server).await;
            client.stream.write_all(&input).await.unwrap();
            assert_eq!(client.expect_goodbye().await.name, error.name);
        }
    }
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_grpc_stream_that_the_client_has_ended_is_kept_alive_by_a_node_that_follows_too() {
    let scene = Scene::new().await;
    let folder = Folder::new();
    let mut config = folder.config();
    config.join = vec![scene.server.address().to_string()];
    let follower = Server::start(config).await.unwrap();
    let me = follower.identity().node;
    follower.wait_for(|status| status.votes(me) && !status.leads()).await.unwrap();
    let messages = vec![v1::Open::default().into(), v1::KeepAlive { token: 7 }.into()];
    let received = told_by_grpc(&follower, messages).await;
    let [Message::Opened(_), Message::KeptAlive(kept), Message::Goodbye(_)] = &received[..] else {
        panic!("{received:?}")
    };
    assert_eq!(kept.token, 7);
    scene.assert_unharmed().await;
    follower.kill().await;
}

#[tokio::test]
async fn streams_that_share_a_connection_are_no_more_than_there_may_be_connections() {
    let folder = Folder::new();
    let mut config = folder.config();
    config.connections_max = 2;
    let server = Server::start(config).await.unwrap();
    let mut client = grpc(&server).await;
    // A stream without a request, which ends when its sender is dropped.
    let stream = || {
        let (sender, mut asks) = tokio::sync::mpsc::channel(1);
        (sender, futures_util::stream::poll_fn(move |cx| asks.poll_recv(cx)))
    };
    let mut open = Vec::new();
    for _ in 0..2 {
        let (sender, asks) = stream();
        open.push((sender, client.session(asks).await.unwrap()));
    }
    let (_sender, asks) = stream();
    let refused = client.session(asks).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
    // A stream that ends frees its place.
    open.pop();
    loop {
        let (_sender, asks) = stream();
        if client.session(asks).await.is_ok() {
            break;
        }
    }
    server.kill().await;
}

/// Checks the form of a failure and returns its code.
fn failure_code(text: &str) -> String {
    let body: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    let fields: BTreeSet<&str> = body["error"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, BTreeSet::from(["advice", "code", "definite", "exit", "message"]), "{text}");
    let text_of = |field: &str| body["error"][field].as_str().unwrap().to_owned();
    assert!(!text_of("message").contains(&text_of("advice")), "{text}");
    assert!(body["error"]["definite"].is_boolean() && body["error"]["exit"].is_u64(), "{text}");
    text_of("code")
}

#[tokio::test]
async fn all_errors_over_http_have_one_form() {
    let scene = Scene::new().await;
    for (path, status, error) in [
        ("/v1/why/a%20&", 400, "invalid-expression"),
        ("/v1/why/%0a", 400, "invalid-name"),
        ("/v1/why/%ff", 400, "invalid-name"),
        ("/v1/locks?limit=x", 400, "invalid-argument"),
        ("/v1/locks?stale=1", 400, "invalid-argument"),
        ("/v1/why/x?stale=perhaps", 400, "invalid-argument"),
        ("/v1/sessions?after=x", 400, "invalid-argument"),
        ("/v1/nothing", 404, "unsupported"),
        ("/nothing", 404, "unsupported"),
        ("/", 404, "unsupported"),
    ] {
        let (answered, text) = http_get(&scene.server, path).await;
        assert_eq!((answered, failure_code(&text).as_str()), (status, error), "{path}: {text}");
    }
    for path in ["/v1/locks", "/metrics"] {
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        let mut text = String::new();
        raw(&scene.server, request.as_bytes()).await.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
        assert_eq!(failure_code(text.split_once("\r\n\r\n").unwrap().1), "unsupported");
    }
    let (status, text) = http_get(&scene.server, "/v1/locks?limit=0").await;
    let locks: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &locks[0]["name"]), (200, &"x".into()), "an empty page would be the last");
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn an_unknown_path_over_http_lists_the_known_ones() {
    let scene = Scene::new().await;
    let (status, text) = http_get(&scene.server, "/").await;
    assert_eq!(status, 404);
    let body: serde_json::Value = serde_json::from_str(&text).unwrap();
    let advice = body["error"]["advice"].as_str().unwrap();
    let paths: Vec<_> = advice.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
    assert_eq!(paths.len(), 8, "{text}");
    for path in paths {
        let path = path.replace("NAME", "x");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        raw(&scene.server, request.as_bytes()).await.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{path}: {}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn health_metrics_and_status_are_served() {
    let scene = Scene::new().await;
    assert_eq!(http_get(&scene.server, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(http_get(&scene.server, "/readyz").await.0, 200);
    let (status, text) = http_get(&scene.server, "/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("\nconclave_grants 1\n"), "{text}");
    assert!(text.contains("\nconclave_leads 1\n"), "{text}");
    let (status, text) = http_get(&scene.server, "/v1/why/x").await;
    let why: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, why["holders"][0]["fence"].as_u64()), (200, Some(scene.fence)));
    let (_, text) = http_get(&scene.server, "/v1/locks?limit=5&stale=true").await;
    let locks: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(locks[0]["name"], "x");
    let (_, text) = http_get(&scene.server, "/v1/sessions").await;
    let sessions: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(sessions[0]["grants"], 1);
    let (_, text) = http_get(&scene.server, "/v1/cluster").await;
    let cluster: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(cluster["leader"], cluster["node"]);
    assert_eq!(http_get(&scene.server, "/nothing").await.0, 404);
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_folder_serves_one_process_and_an_open_port_needs_its_flag() {
    let folder = Folder::new();
    let server = start(&folder).await;
    assert!(matches!(Server::start(folder.config()).await, Err(StartError::Data(_))));
    let mut open = folder.config();
    open.listen = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(Server::start(open).await, Err(StartError::Config(_))));
    server.shutdown().await;
}
