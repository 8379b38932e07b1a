//! Sends arbitrary bytes from a peer to consensus. The node must reply and continue. Twin in CI:
//! `crates/service/src/replica/tests/rpc.rs`, `crates/service/tests/frontends/peers.rs`.

#![no_main]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use conclave_node::entry::Service;
use conclave_service::replica::disk::SimDisk;
use conclave_service::replica::{Identity, Member, NodeId, Options, Replica, Status, Transport};
use futures_util::future::BoxFuture;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

struct Nobody;

impl Transport for Nobody {
    fn call(&self, _: NodeId, _: &Member, _: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) })
    }
}

static NODE: LazyLock<(Runtime, Replica<Service>)> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime");
    let replica = runtime.block_on(async {
        let (disk, identity) = (Arc::new(SimDisk::new(1).handle()), Identity { cluster: 9, node: 1 });
        // A forged entry may make this node a leader without a majority. It then replies with an error within a limit.
        let options = Options { answer_limit: Duration::from_millis(20), ..Options::default() };
        let opened = Replica::open(disk, identity, Arc::new(Nobody), Service::new(), options).await;
        let (replica, deliveries) = opened.expect("an empty disk");
        drop(deliveries);
        let alone = BTreeMap::from([(1, Member { address: "node-1:1".to_owned() })]);
        replica.bootstrap(alone).await.expect("a new cluster");
        replica.wait_for(Status::leads).await.expect("alone");
        replica
    });
    (runtime, replica)
});

/// The version, cluster and addressee of an envelope that this node accepts.
const ENVELOPE: [u8; 3] = [1, 9, 1];

fuzz_target!(|bytes: &[u8]| {
    let (runtime, replica) = &*NODE;
    runtime.block_on(async {
        assert!(!replica.answer(bytes).await.is_empty());
        assert!(!replica.answer(&[&ENVELOPE, bytes].concat()).await.is_empty());
    });
    assert!(replica.status().running);
});
