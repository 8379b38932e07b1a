//! A cluster of a few nodes on disks that can lose unsynced data.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conclave_service::config::Config;
use conclave_service::replica::disk::{Disk, SimDisk};
use conclave_service::replica::{Status, log};
use conclave_service::server::{Environment, Server, StartError};

use crate::wires::{Slot, Wire, Wires};

pub struct Cluster {
    pub wires: Arc<Wires>,
    nodes: Vec<Node>,
}

struct Node {
    disk: SimDisk,
    server: Option<Server>,
    address: String,
}

impl Cluster {
    /// Founds a cluster with one node and lets the others join it. Returns when all nodes vote.
    pub async fn found(seed: u64, nodes: usize) -> Self {
        let mut cluster = Self { wires: Wires::new(seed), nodes: Vec::new() };
        for slot in 0..nodes {
            let disk = SimDisk::new(seed * 10 + slot as u64);
            if nodes == 1 {
                // A single node sends early grants only while a sync is in progress, so make syncs slow.
                disk.slow_down(Duration::from_millis(1 + seed % 4));
            }
            cluster.nodes.push(Node { disk, server: None, address: "127.0.0.1:0".to_owned() });
            cluster.start(slot).await;
        }
        for slot in cluster.slots() {
            let all_vote =
                |status: &Status| matches!(&status.membership.voters[..], [all] if all.len() == nodes);
            cluster.server(slot).expect("just started").wait_for(all_vote).await;
        }
        cluster
    }

    /// Returns the slots of all nodes.
    pub fn slots(&self) -> Range<Slot> {
        0..self.nodes.len()
    }

    /// Starts a node on the content of its disk.
    pub async fn start(&mut self, slot: Slot) {
        let others = self.nodes.iter().filter(|node| node.server.is_some());
        let join: Vec<String> = others.map(|node| node.address.clone()).collect();
        let disk: Arc<dyn Disk> = Arc::new(self.nodes[slot].disk.handle());
        let start = async |listen: &str| {
            let dial = Arc::new(Wire { from: slot, wires: self.wires.clone() });
            Server::start_in(config(listen, join.clone()), Environment { disk: disk.clone(), dial }).await
        };
        let server = match start(&self.nodes[slot].address).await {
            // Another process took the port meanwhile: use a new one, as a real node could.
            Err(StartError::Listen(..)) => start("127.0.0.1:0").await,
            started => started,
        };
        let server = server.unwrap_or_else(|error| panic!("node {slot} does not start: {error}"));
        let node = &mut self.nodes[slot];
        node.address = server.address().to_string();
        self.wires.place(slot, node.address.clone());
        node.server = Some(server);
    }

    /// Simulates a power failure. The seed of the disk decides which unsynced bytes survive.
    pub async fn cut_power(&mut self, slot: Slot) {
        if let Some(server) = self.nodes[slot].server.take() {
            self.nodes[slot].disk.crash();
            server.kill().await;
        }
    }

    /// Kills the process. The operating system keeps everything that it has written.
    pub async fn kill(&mut self, slot: Slot) {
        if let Some(server) = self.nodes[slot].server.take() {
            server.kill().await;
        }
    }

    /// Returns the disk of a node.
    pub fn disk(&self, slot: Slot) -> &SimDisk {
        &self.nodes[slot].disk
    }

    /// Returns the server of a node; `None` if it is down.
    pub fn server(&self, slot: Slot) -> Option<&Server> {
        self.nodes[slot].server.as_ref()
    }

    /// Returns the running node that leads in the highest term; `None` if no node leads.
    pub fn leader(&self) -> Option<Slot> {
        let leads = |slot: &Slot| self.server(*slot).is_some_and(|server| server.status().leads());
        self.slots().filter(leads).max_by_key(|slot| self.server(*slot).map(|server| server.status().term))
    }

    /// Returns the status with the highest term and applied index.
    pub fn status(&self) -> Status {
        let up = self.slots().filter_map(|slot| self.server(slot));
        up.map(Server::status).max_by_key(|status| (status.term, status.applied.map(|id| id.index))).unwrap()
    }

    /// Returns the last known addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.address.clone()).collect()
    }

    /// Writes the content of the disks into a folder.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        for (slot, node) in self.nodes.iter().enumerate() {
            let folder = folder.join(format!("node-{}", slot + 1));
            std::fs::create_dir_all(&folder)?;
            for name in node.disk.handle().list()? {
                std::fs::write(folder.join(&name), node.disk.content(&name).unwrap_or_default())?;
            }
        }
        Ok(())
    }

    pub async fn end(mut self) {
        for slot in self.slots() {
            self.kill(slot).await;
        }
    }
}

/// Short timeouts and small sizes, so that elections, new segments and snapshots all happen within a second.
fn config(listen: &str, join: Vec<String>) -> Config {
    Config {
        listen: listen.parse().unwrap(),
        join,
        heartbeat: Duration::from_millis(50),
        election: (Duration::from_millis(250), Duration::from_millis(500)),
        snapshot_every: 150,
        keep: 20,
        log: log::Options { segment_bytes: 64 * 1024, batch_bytes: 16 * 1024, queue: 64 },
        ..Config::default()
    }
}
