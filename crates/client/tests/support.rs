//! A server in this process, for tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conclave_client::Client;
use conclave_service::config::Config;
use conclave_service::server::Server;
use tokio::time::timeout;

/// A server on a folder that is removed at the end of the test.
pub struct Service {
    folder: PathBuf,
    pub address: SocketAddr,
    server: Option<Server>,
}

impl Service {
    /// Starts a server on an empty folder.
    pub async fn start() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("conclave-client-{}-{number}", std::process::id()));
        let mut service = Self { folder, address: "127.0.0.1:0".parse().unwrap(), server: None };
        service.start_again().await;
        service
    }

    pub async fn stop(&mut self) {
        self.server.take().unwrap().shutdown().await;
    }

    /// Stops the server without a last message to its clients. Unlike [`Service::stop`], this does not wait for a
    /// client that reads nothing.
    pub async fn kill(&mut self) {
        self.server.take().unwrap().kill().await;
    }

    /// Starts the server on the same folder and address.
    ///
    /// Another test may be starting a process. Between `fork` and `exec`, that process has a copy of the lock
    /// on the data folder, and the folder counts as used. Each attempt waits for the end of such a lock.
    pub async fn start_again(&mut self) {
        let server = loop {
            let config = Config { data: self.folder.clone(), listen: self.address, ..Config::default() };
            match Server::start(config).await {
                Err(error) if error.to_string().contains("in use by another process") => {
                    self.until_unlocked().await;
                }
                started => break started.unwrap(),
            }
        };
        self.address = server.address();
        self.server = Some(server);
    }

    async fn until_unlocked(&self) {
        let file = File::open(self.folder.join("lock")).unwrap();
        let locked = tokio::task::spawn_blocking(move || file.lock());
        timeout(Duration::from_secs(60), locked).await.expect("no process keeps the lock").unwrap().unwrap();
    }

    /// Connects with a TTL that no test outlasts.
    pub async fn client(&self) -> Client {
        Client::builder().ttl(Duration::from_secs(60)).connect(&self.address.to_string()).await.unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
