//! Tests of connections from other nodes. A false node gets an error with a reason and harms nothing.

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, BytesMut};
use conclave_service::membership::join::MAX_NODES;
use conclave_service::server::Server;
use conclave_wire::frame::{self, PEER_MAGIC, PREFACE_BYTES};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::doors::{Noise, Scene, raw};

const CONSENSUS: u8 = 0;
const KEEP_ALIVE: u8 = 1;
const JOINING: u8 = 2;
const REFUSED: u8 = 255;

/// A false node, which can send any frame.
struct Stranger {
    stream: TcpStream,
    input: BytesMut,
    number: u64,
}

/// A join request, as it is encoded.
#[derive(Serialize)]
enum JoinRequest<'a> {
    Hello { cluster: u128 },
    Admit { address: &'a str },
    Announce { cluster: u128, node: u64, address: &'a str },
}

#[derive(Debug, PartialEq, Deserialize)]
enum Answer {
    Admitted { cluster: u128, node: u64 },
    Accepted,
    NotLeader { leader: Option<String> },
    TryLater(String),
    Refused(String),
}

impl Stranger {
    async fn connect(server: &Server) -> Self {
        let stream = raw(server, &frame::preface(PEER_MAGIC)).await;
        let mut stranger = Self { stream, input: BytesMut::new(), number: 0 };
        stranger.read_preface().await;
        stranger
    }

    async fn read_preface(&mut self) {
        while self.input.len() < PREFACE_BYTES {
            assert_ne!(self.stream.read_buf(&mut self.input).await.unwrap(), 0, "closed before the preface");
        }
        assert_eq!(self.input.split_to(PREFACE_BYTES)[..], frame::preface(PEER_MAGIC));
    }

    async fn call(&mut self, kind: u8, body: &[u8]) -> (u8, Vec<u8>) {
        self.number += 1;
        let mut output = BytesMut::new();
        output.put_u32(u32::try_from(9 + body.len()).unwrap());
        output.put_u64(self.number);
        output.put_u8(kind);
        output.put_slice(body);
        self.stream.write_all(&output).await.unwrap();
        let (number, kind, body) = self.frame().await.expect("an answer");
        assert_eq!(number, self.number);
        (kind, body)
    }

    /// Returns the next frame; `None` if the connection has ended.
    async fn frame(&mut self) -> Option<(u64, u8, Vec<u8>)> {
        loop {
            if let Some(length) =
                self.input.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize)
                && self.input.len() >= 4 + length
            {
                self.input.advance(4);
                let mut frame = self.input.split_to(length);
                return Some((frame.get_u64(), frame.get_u8(), frame.to_vec()));
            }
            if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    async fn join(&mut self, request: &JoinRequest<'_>) -> Answer {
        let (kind, body) = self.call(JOINING, &postcard::to_stdvec(request).unwrap()).await;
        assert_eq!(kind, JOINING, "{}", String::from_utf8_lossy(&body));
        postcard::from_bytes(&body).unwrap()
    }

    async fn refused(&mut self, kind: u8, body: &[u8]) -> String {
        let (answered, body) = self.call(kind, body).await;
        assert_eq!(answered, REFUSED);
        String::from_utf8(body).unwrap()
    }
}

#[tokio::test]
async fn random_requests_of_every_kind_are_answered() {
    let scene = Scene::new().await;
    let mut stranger = Stranger::connect(&scene.server).await;
    let mut noise = Noise(3);
    for round in 0..300_u32 {
        let kind = [CONSENSUS, KEEP_ALIVE, JOINING, 3, 77, REFUSED][round as usize % 6];
        stranger.call(kind, &noise.bytes(300)).await;
    }
    assert!(stranger.refused(77, b"").await.contains("kind 77"));
    assert!(stranger.refused(KEEP_ALIVE, &[0xff; 40]).await.contains("cannot be read"));
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_frame_out_of_bounds_gets_a_last_word() {
    let scene = Scene::new().await;
    for length in [0_u32, 8, 64 * 1024 * 1024 + 1, u32::MAX] {
        let mut stranger = Stranger::connect(&scene.server).await;
        stranger.stream.write_all(&length.to_be_bytes()).await.unwrap();
        let (number, kind, why) = stranger.frame().await.expect("a last word");
        assert_eq!((number, kind), (0, REFUSED));
        assert!(String::from_utf8(why).unwrap().contains(&length.to_string()));
        assert_eq!(stranger.frame().await, None);
    }
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn another_version_is_rejected_with_the_supported_one() {
    let scene = Scene::new().await;
    let mut preface = frame::preface(PEER_MAGIC);
    preface[7] = 9;
    let mut stranger =
        Stranger { stream: raw(&scene.server, &preface).await, input: BytesMut::new(), number: 0 };
    stranger.read_preface().await;
    let (_, kind, why) = stranger.frame().await.expect("a last word");
    assert_eq!(kind, REFUSED);
    assert!(String::from_utf8(why).unwrap().contains("version 9"));
    assert_eq!(stranger.frame().await, None);
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_node_of_another_cluster_is_rejected() {
    let scene = Scene::new().await;
    let me = scene.server.identity();
    let other = me.cluster ^ 1;
    let mut stranger = Stranger::connect(&scene.server).await;
    let alive = postcard::to_stdvec(&(other, me.node, vec![1_u64])).unwrap();
    assert!(stranger.refused(KEEP_ALIVE, &alive).await.contains("another cluster"));
    let elsewhere = postcard::to_stdvec(&(me.cluster, me.node + 1, vec![1_u64])).unwrap();
    assert!(stranger.refused(KEEP_ALIVE, &elsewhere).await.contains("this is node"));
    // The envelope of a consensus message: version, cluster, addressee, and the kind of "confirm that you
    // lead".
    let envelope = postcard::to_stdvec(&(1_u8, other, me.node, 6_u8)).unwrap();
    let (_, reply) = stranger.call(CONSENSUS, &envelope).await;
    assert!(String::from_utf8_lossy(&reply).contains("another cluster"));
    for ask in [
        JoinRequest::Hello { cluster: other },
        JoinRequest::Announce { cluster: other, node: 1, address: "host:1" },
    ] {
        assert!(matches!(stranger.join(&ask).await, Answer::Refused(why) if why.contains("cluster")));
    }
    assert_eq!(stranger.join(&JoinRequest::Hello { cluster: me.cluster }).await, Answer::Accepted);
    scene.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_at_the_same_moment_have_different_numbers() {
    // Each address repeats its request, each time as a new node. If the leader chose a number before the last
    // change is committed, about one number in a hundred would be assigned twice.
    const TIMES: usize = 40;
    let scene = Scene::new().await;
    let mut strangers = Vec::new();
    for port in 1..MAX_NODES {
        let mut stranger = Stranger::connect(&scene.server).await;
        strangers.push(tokio::spawn(async move {
            let address = format!("127.0.0.1:{port}");
            let mut numbers = Vec::new();
            for _ in 0..TIMES {
                match stranger.join(&JoinRequest::Admit { address: &address }).await {
                    Answer::Admitted { node, .. } => numbers.push(node),
                    other => panic!("{other:?}"),
                }
            }
            numbers
        }));
    }
    let mut numbers = BTreeSet::new();
    for stranger in strangers {
        for node in stranger.await.unwrap() {
            assert!(numbers.insert(node), "two nodes got the number {node}");
        }
    }
    assert_eq!(numbers.len(), TIMES * (MAX_NODES - 1));
    assert_eq!(scene.server.status().membership.nodes.len(), MAX_NODES);
    scene.assert_unharmed().await;
}

#[tokio::test]
async fn a_node_with_an_invalid_address_is_not_admitted() {
    let scene = Scene::new().await;
    let me = scene.server.identity();
    let mut stranger = Stranger::connect(&scene.server).await;
    for address in ["", "nowhere", "host:0", "a b:1", &"x".repeat(1000)] {
        assert!(
            matches!(stranger.join(&JoinRequest::Admit { address }).await, Answer::Refused(_)),
            "{address:?}"
        );
    }
    let own = scene.server.address().to_string();
    assert!(
        matches!(stranger.join(&JoinRequest::Admit { address: &own }).await, Answer::Refused(why) if why.contains("node 1"))
    );
    let unknown = JoinRequest::Announce { cluster: me.cluster, node: 77, address: "host:1" };
    assert!(matches!(stranger.join(&unknown).await, Answer::Refused(why) if why.contains("77")));
    // The new node is a learner. A second request from the same address gets a new number, and the first
    // learner is removed.
    let admitted = |node| Answer::Admitted { cluster: me.cluster, node };
    assert_eq!(stranger.join(&JoinRequest::Admit { address: "127.0.0.1:1" }).await, admitted(2));
    assert_eq!(stranger.join(&JoinRequest::Admit { address: "127.0.0.1:1" }).await, admitted(3));
    let nodes: Vec<u64> = scene.server.status().membership.nodes.keys().copied().collect();
    assert_eq!(nodes, [1, 3]);
    assert!(!scene.server.status().votes(3));
    scene.assert_unharmed().await;
}
