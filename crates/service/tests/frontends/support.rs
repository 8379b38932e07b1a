//! A server in this process, and a minimal client.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BytesMut};
use conclave_service::config::Config;
use conclave_service::server::Server;
use conclave_wire::{frame, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A folder that is deleted when the value is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("conclave-frontends-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    pub fn config(&self) -> Config {
        Config { data: self.0.clone(), listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

pub async fn start(folder: &Folder) -> Server {
    Server::start(folder.config()).await.unwrap()
}

/// A client that uses native frames.
pub struct Native {
    pub stream: TcpStream,
    input: BytesMut,
    received: VecDeque<v1::ServerMessage>,
    next: u64,
}

impl Native {
    pub async fn connect(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(&frame::preface(frame::CLIENT_MAGIC)).await.unwrap();
        let mut client = Self { stream, input: BytesMut::new(), received: VecDeque::new(), next: 1 };
        client.read_preface().await;
        client
    }

    pub async fn read_preface(&mut self) {
        while self.input.len() < frame::PREFACE_BYTES {
            assert_ne!(self.stream.read_buf(&mut self.input).await.unwrap(), 0, "closed before the preface");
        }
        assert_eq!(self.input[..frame::PREFACE_BYTES], frame::preface(frame::CLIENT_MAGIC));
        self.input.advance(frame::PREFACE_BYTES);
    }

    pub fn on(stream: TcpStream) -> Self {
        Self { stream, input: BytesMut::new(), received: VecDeque::new(), next: 1 }
    }

    /// Returns a client with a session, and the data to resume the session.
    pub async fn with_session(server: &Server) -> (Self, v1::Opened) {
        let mut client = Self::connect(server).await;
        client.send([v1::Open { ttl_ms: 60_000, ..Default::default() }]).await;
        let opened = client.expect_opened().await;
        (client, opened)
    }

    /// Sends messages in one frame.
    pub async fn send<M: Into<v1::ClientMessage>>(&mut self, messages: impl IntoIterator<Item = M>) {
        let frame = v1::ClientFrame { messages: messages.into_iter().map(Into::into).collect() };
        let mut out = BytesMut::new();
        frame::encode(&frame, &mut out).unwrap();
        self.stream.write_all(&out).await.unwrap();
    }

    /// Sends a request with the next number and returns that number.
    pub async fn request(&mut self, op: v1::request::Op) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send([v1::Request { id, lowest: 1, op: Some(op) }]).await;
        id
    }

    pub async fn acquire(&mut self, expr: &str) -> u64 {
        self.request(v1::request::Op::Acquire(v1::Acquire::of(expr))).await
    }

    pub async fn release(&mut self, grant: u64) -> u64 {
        self.request(v1::request::Op::Release(v1::Release { grant })).await
    }

    pub async fn query(&mut self, stale: bool, query: v1::query::Kind) -> v1::answer::Result {
        let id = self.next;
        self.next += 1;
        self.send([v1::Query { id, stale, kind: Some(query) }]).await;
        self.answer(id).await
    }

    /// Returns the next message; `None` at the end.
    pub async fn receive(&mut self) -> Option<v1::server_message::Message> {
        loop {
            if let Some(message) = self.received.pop_front() {
                return Some(message.message.expect("the server sends no empty messages"));
            }
            while let Some(frame) = frame::decode::<v1::ServerFrame>(&mut self.input).unwrap() {
                self.received.extend(frame.messages);
            }
            if self.received.is_empty() && self.stream.read_buf(&mut self.input).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Returns the next reply, which must have this number.
    pub async fn answer(&mut self, id: u64) -> v1::answer::Result {
        match self.receive().await {
            Some(v1::server_message::Message::Answer(answer)) if answer.id == id => answer.result.unwrap(),
            other => panic!("expected an answer to {id}, got {other:?}"),
        }
    }

    pub async fn expect_opened(&mut self) -> v1::Opened {
        match self.receive().await {
            Some(v1::server_message::Message::Opened(opened)) => opened,
            other => panic!("expected an opened session, got {other:?}"),
        }
    }

    /// Returns the error of the last message and checks that the connection then ends.
    pub async fn expect_goodbye(&mut self) -> v1::Error {
        let goodbye = match self.receive().await {
            Some(v1::server_message::Message::Goodbye(goodbye)) => goodbye,
            other => panic!("expected a goodbye, got {other:?}"),
        };
        assert!(self.receive().await.is_none(), "something came after the goodbye");
        goodbye.error.unwrap()
    }
}

/// Returns the fence of a grant.
pub fn fence(result: &v1::answer::Result) -> u64 {
    match result {
        v1::answer::Result::Granted(granted) => granted.names[0].fence,
        other => panic!("expected a grant, got {other:?}"),
    }
}

pub fn error(result: v1::answer::Result) -> v1::Error {
    match result {
        v1::answer::Result::Error(error) => error,
        other => panic!("expected an error, got {other:?}"),
    }
}

/// Sends a plain HTTP request and returns the status and the body.
pub async fn http_get(server: &Server, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
