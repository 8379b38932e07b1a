//! Tests of the driver with a node that belongs to no cluster.

use conclave_node::entry::Service;
use conclave_node::leases::Timing;

use super::*;
use crate::peers::Tcp;
use crate::replica::disk::SimDisk;
use crate::replica::{Identity, Options};

/// Returns a driver that does not run, so that its events stay in the queue.
pub(crate) async fn unserved() -> (Driver, NodeHandle) {
    let peers = Arc::new(Peers::new(7, Arc::new(Tcp)));
    let identity = Identity { cluster: 7, node: 1 };
    let disk = Arc::new(SimDisk::new(1).handle());
    let opened = Replica::open(disk, identity, peers.clone(), Service::new(), Options::default());
    let (replica, deliveries) = opened.await.unwrap();
    Driver::new(replica, deliveries, peers, Timing::default())
}

#[tokio::test]
async fn a_driver_that_is_stopped_closes_every_connection_and_ends() {
    let (driver, node) = unserved().await;
    let connection = node.attach(None).await.unwrap();
    let (done, stopped) = oneshot::channel();
    assert!(node.sender.try_send(Event::Stop { done }).is_ok());
    driver.run().await;
    assert_eq!(stopped.await, Ok(()));
    let frames = std::future::poll_fn(|cx| connection.outbox.poll_take(cx)).await;
    assert!(frames.is_some(), "the last message");
    assert_eq!(std::future::poll_fn(|cx| connection.outbox.poll_take(cx)).await, None);
    assert!(node.attach(None).await.is_err());
}
