//! The server process of a node: it opens the data folder, starts the node and serves connections.
//!
//! **Intuition.** One TCP port serves all protocols. The first bytes of a connection select one: native
//! frames, frames of another node, or else HTTP (1.1 or 2, and gRPC over it).
//!
//! **Rules.**
//! - Start: the server binds the port first, because other nodes need its address. It then opens the data
//!   folder. A new folder founds a cluster, from a backup if one is configured (`restore`), or joins one
//!   (`membership::join`). The server then serves the port, and a Unix socket for clients on the same
//!   machine.
//! - Stop: a leader transfers its leadership. The server then accepts no connection, sends a last message to
//!   each client, writes the pending replies, and unlocks the data folder.
//! - A local node (`Config::local`) has no port. It listens on a Unix socket in its data folder (`local`).
//!
//! **Bounds.** `limits` bounds the connections of clients and of other nodes; further connections are closed.
//! The server closes a connection that sends nothing for [`FIRST_BYTES`], and one whose other end has been
//! unreachable for [`PEER_TIMEOUT`].

mod accept;
#[cfg(test)]
mod early_grant_tests;
mod limits;
mod local;
mod restore;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use conclave_wire::socket::LocalListener;
use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::driver::{Driver, NodeHandle};
use crate::frontend::http;
use crate::membership::join::{self, JoinServer};
use crate::peers::{Dial, Peers, Tcp};
use crate::replica::disk::{Disk, RealDisk};
use crate::replica::{Identity, Member, OpenError, Replica, Status};
use accept::{Acceptor, Listeners};
use conclave_node::entry::{Batch, Service};
use conclave_node::state::Command;
use conclave_node::state::early_grant::FENCE_GAP;
use limits::{ConnectionLimits, connections_max};
use local::Usage;

/// The longest time until a connection sends its first bytes. The server then closes it.
pub const FIRST_BYTES: Duration = Duration::from_secs(10);
/// The longest wait at a stop: for clients to read their last message, and for the replica to report why it
/// failed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest wait for a single node to become leader. Its start then fails.
const LEAD_LIMIT: Duration = Duration::from_secs(30);
/// The node number of the founder of a cluster.
const FOUNDER: u64 = 1;
/// The idle time of a TCP connection after which the kernel sends keep-alive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// The number of unanswered probes, [`KEEPALIVE_INTERVAL`] apart, after which the kernel closes the
/// connection.
const KEEPALIVE_PROBES: u32 = 3;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The longest time without an acknowledgement from the other end. The kernel then closes the connection,
/// whether the other end vanished or data sent to it did not arrive.
pub const PEER_TIMEOUT: Duration =
    Duration::from_secs(KEEPALIVE_IDLE.as_secs() + KEEPALIVE_PROBES as u64 * KEEPALIVE_INTERVAL.as_secs());

/// The TCP address of a local node, which does not listen on TCP.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A boxed future, so that the code of the node is compiled once, in this crate. Unboxed, each program that
/// awaits it would compile the code again (estimate: half a minute each).
pub type Boxed<T> = BoxFuture<'static, T>;

/// A running node. A dropped `Server` runs on in the background until the process ends; [`Server::shutdown`]
/// stops it.
pub struct Server {
    address: SocketAddr,
    replica: Replica<Service>,
    node: NodeHandle,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    driver: JoinHandle<()>,
    announcing: JoinHandle<()>,
    usage: Usage,
}

/// The disk and the network that a node uses: those of the system, or those of a test that injects faults.
pub struct Environment {
    /// The data folder.
    pub disk: Arc<dyn Disk>,
    /// The dialer for connections to other nodes.
    pub dial: Arc<dyn Dial>,
}

/// The reason why a server did not start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration is invalid.
    Config(String),
    /// The data folder cannot be opened.
    Data(OpenError),
    /// The TCP port cannot be bound.
    Listen(SocketAddr, io::Error),
    /// The Unix socket of a local node cannot be bound.
    LocalListen(PathBuf, io::Error),
    /// The data folder belongs to another cluster or to the other kind of node, or founding or joining a
    /// cluster failed.
    Cluster(String),
    /// The file is not a backup that can be restored.
    Backup(PathBuf, String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(what) | Self::Cluster(what) => f.write_str(what),
            Self::Data(error) => error.fmt(f),
            Self::Backup(file, why) => write!(f, "{}: {why}", file.display()),
            Self::Listen(address, error) => {
                write!(f, "cannot listen on {address}: {error}; choose another address with --listen")
            }
            Self::LocalListen(folder, error) => {
                write!(f, "cannot listen on a Unix socket in {}: {error}", folder.display())
            }
        }
    }
}

impl std::error::Error for StartError {}

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> Self {
        Self::Data(error)
    }
}

impl Server {
    /// Starts a node on the configured data folder and the network of the system. If the start fails or its
    /// future is dropped, a data folder that it created is removed.
    ///
    /// # Errors
    /// [`StartError`] is the reason.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let folder = config.data.clone();
        if !config.local && local::is_marked(&folder) {
            // Checked before the folder is opened: a running local node holds the lock of the folder.
            return Err(local::belongs_to_local());
        }
        let disk = Arc::new(blocking(move || RealDisk::open_provisional(folder)).await?);
        let environment = Environment { disk: disk.clone(), dial: Arc::new(Tcp) };
        let server = Self::start_in(config, environment).await?;
        disk.keep();
        Ok(server)
    }

    /// Starts a node on the given disk and network. An existing data folder is continued; a new one founds a
    /// cluster or joins one.
    ///
    /// # Errors
    /// [`StartError`] is the reason.
    pub fn start_in(config: Config, environment: Environment) -> Boxed<Result<Self, StartError>> {
        Box::pin(Self::boot(config, environment))
    }

    async fn boot(config: Config, environment: Environment) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let Environment { disk, dial } = environment;
        let folder = disk.clone();
        blocking(move || local::check_and_mark(&*folder, config.local)).await??;
        let listener = listen(&config).await?;
        let address = listener.as_ref().map_or(Ok(NO_ADDRESS), TcpListener::local_addr);
        let address = address.map_err(|error| StartError::Listen(config.listen, error))?;
        let advertised = match config.advertise.clone() {
            Some(advertised) => advertised,
            None if config.local => local::ADDRESS.to_owned(),
            None => address.to_string(),
        };
        let identity = identify(&config, &disk, &*dial, &advertised).await?;
        let peers = Arc::new(Peers::new(identity.cluster, dial.clone()));
        let (replica, deliveries) =
            Replica::open(disk.clone(), identity, peers.clone(), Service::new(), config.replica()).await?;
        if let Err(error) = begin(&replica, &disk, &advertised).await {
            // Stop the replica, so that nothing writes to the data folder after the error is returned.
            replica.shutdown().await;
            return Err(error);
        }
        let (driver, node) = Driver::new(replica.clone(), deliveries, peers, config.timing());
        let usage = Usage::new(driver.quiet());
        let driver = tokio::spawn(driver.run());
        let (stop, stopped) = watch::channel(false);
        let join_server = Arc::new(JoinServer::new(replica.clone()));
        let clients_max = connections_max(config.connections_max);
        let acceptor = Acceptor {
            limits: ConnectionLimits::new(clients_max),
            router: http::router(replica.clone(), node.clone(), clients_max),
            join_server: join_server.clone(),
            node: node.clone(),
            usage: config.local.then(|| usage.clone()),
            stopped,
        };
        let local = match config.local {
            true => Some(
                LocalListener::bind_in(&config.data)
                    .map_err(|error| StartError::LocalListen(config.data.clone(), error))?,
            ),
            false => LocalListener::bind(address)
                .inspect_err(
                    |error| tracing::debug!(%error, "cannot listen on a Unix socket; clients on this machine use TCP"),
                )
                .ok(),
        };
        let accepting = tokio::spawn(acceptor.run(Listeners { tcp: listener, local }));
        let on_accepted = move || {
            // If this fails, the folder only keeps its mark of a fresh folder.
            drop(tokio::task::spawn_blocking(move || unmark_fresh(&*disk)));
        };
        let announcing =
            tokio::spawn(join::announce(join_server, dial, config.join, advertised, on_accepted));
        Ok(Self { address, replica, node, stop, accepting, driver, announcing, usage })
    }

    /// Returns the identity of this node: its cluster and its node number.
    pub fn identity(&self) -> Identity {
        self.replica.identity()
    }

    /// Returns the status of this node in the cluster.
    pub fn status(&self) -> Status {
        self.replica.status()
    }

    /// Waits until `wanted` accepts the status. Returns `None` if the node stops first.
    pub async fn wait_for(&self, wanted: impl FnMut(&Status) -> bool) -> Option<Status> {
        self.replica.wait_for(wanted).await
    }

    /// Returns when a local node is to end. Either no connection, session or lock-delay has existed for
    /// `limit`, or a newer command has requested the end of the unused node.
    pub async fn unused(&self, limit: Duration) {
        self.usage.clone().over(limit).await;
    }

    /// Returns the TCP address, with the port that the system chose if the configured port is 0. For a local
    /// node it is `0.0.0.0:0`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the reason when the node has stopped because of an error, for example of its disk. The process
    /// should then end and be restarted.
    pub async fn failed(&self) -> String {
        self.replica.failed().await
    }

    /// Stops the node: sends a last message to each client, then unlocks the data folder.
    pub fn shutdown(self) -> Boxed<()> {
        Box::pin(async move {
            self.announcing.abort();
            self.replica.transfer_leadership().await;
            self.stop.send_replace(true);
            self.node.stop().await;
            drop(tokio::time::timeout(CLOSE_TIMEOUT, self.accepting).await);
            drop(self.driver.await);
            self.replica.shutdown().await;
        })
    }

    /// Stops the node without a message to any client, as if the process were killed. Tests of recovery use
    /// it. Afterwards the data folder is unlocked.
    pub fn kill(self) -> Boxed<()> {
        Box::pin(async move {
            for task in [self.announcing, self.accepting, self.driver] {
                task.abort();
                // The error means that the task was aborted, as intended.
                drop(task.await);
            }
            self.replica.shutdown().await;
        })
    }
}

/// Binds the TCP port. Returns `None` for a local node.
async fn listen(config: &Config) -> Result<Option<TcpListener>, StartError> {
    if config.local {
        return Ok(None);
    }
    let listener = TcpListener::bind(config.listen).await;
    listener.map(Some).map_err(|error| StartError::Listen(config.listen, error))
}

/// Returns the identity of this node. In this order, it comes from the configured backup, the data folder, a
/// newly founded cluster, or the member that admits the node.
async fn identify(
    config: &Config,
    disk: &Arc<dyn Disk>,
    dial: &dyn Dial,
    advertised: &str,
) -> Result<Identity, StartError> {
    if let Some(backup) = &config.restore {
        return restore::restore(backup, disk, advertised).await;
    }
    let folder = disk.clone();
    if let Some(identity) = blocking(move || Identity::load(&*folder)).await? {
        join::check_hints(dial, &config.join, identity).await.map_err(StartError::Cluster)?;
        return Ok(identity);
    }
    let folder = disk.clone();
    if config.join.is_empty() {
        return blocking(move || {
            Identity::mark_fresh(&*folder)?;
            Identity::new_cluster(&*folder)
        })
        .await;
    }
    if config.join.iter().any(|member| member == advertised) {
        return Err(StartError::Config(format!(
            "{advertised} is the address of this node, which cannot join itself; give the address of another one"
        )));
    }
    blocking(move || Identity::mark_fresh(&*folder)).await?;
    join::admit(dial, &config.join, advertised).await.map_err(StartError::Cluster)
}

/// Starts the log. A founder bootstraps a cluster of one node; a new member receives its log from the leader.
async fn begin(replica: &Replica<Service>, disk: &Arc<dyn Disk>, advertised: &str) -> Result<(), StartError> {
    let Identity { node, .. } = replica.identity();
    let folder = disk.clone();
    let fresh = blocking(move || Identity::is_fresh(&*folder)).await?;
    let status = replica.status();
    if !fresh && status.last.is_none() && status.snapshot.is_none() {
        let text = "the data folder has the identity of a node but no log; restore the log, or join with an empty folder";
        return Err(StartError::Data(OpenError::Invalid(text.to_owned())));
    }
    if fresh && node == FOUNDER {
        let founder = BTreeMap::from([(node, Member { address: advertised.to_owned() })]);
        let founded = replica.bootstrap(founder).await;
        founded.map_err(|error| StartError::Cluster(error.to_string()))?;
    }
    if replica.status().membership.nodes.keys().eq([&node]) {
        // A single node becomes leader without other votes. Wait for that, so that the first clients are
        // served at once.
        let leads = tokio::time::timeout(LEAD_LIMIT, replica.wait_for(Status::leads)).await;
        match leads {
            Ok(Some(_)) => {}
            Ok(None) => {
                // The node has stopped. The log reports the reason, for example a full disk.
                let why = tokio::time::timeout(CLOSE_TIMEOUT, replica.failed()).await;
                let why = why.unwrap_or_else(|_| "consensus has stopped".to_owned());
                return Err(StartError::Cluster(format!("the node stopped before it could lead: {why}")));
            }
            Err(_) => {
                let text = "the only node of the cluster has not become leader in time; read its log, then start it again";
                return Err(StartError::Cluster(text.to_owned()));
            }
        }
        raise_fences(replica).await?;
    }
    Ok(())
}

/// A single node may have sent early grants that its log lost. Reorders the queues and raises the fences
/// before the node serves.
async fn raise_fences(replica: &Replica<Service>) -> Result<(), StartError> {
    let stuck = |error: &dyn fmt::Display| {
        StartError::Cluster(format!("the node cannot apply its first command: {error}"))
    };
    let applied = replica.read(|service| service.state().applied()).await.map_err(|error| stuck(&error))?;
    if applied > 0 {
        let commands = vec![Command::SingleNodeRestarted { fences: FENCE_GAP }];
        let proposed = replica.propose(Batch { wall_ms: 0, commands }).await;
        proposed.map_err(|error| stuck(&error))?;
    }
    Ok(())
}

fn unmark_fresh(disk: &dyn Disk) -> io::Result<()> {
    if Identity::is_fresh(disk)? { Identity::unmark_fresh(disk) } else { Ok(()) }
}

/// Runs a disk operation on a thread where blocking is allowed.
async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StartError> {
    let done = tokio::task::spawn_blocking(act).await.map_err(io::Error::other).flatten();
    done.map_err(|error| StartError::Data(OpenError::Io(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::disk::SimDisk;
    use crate::replica::log::is_segment;
    use crate::replica::tests::support::{Act, Hooked};

    async fn start(disk: impl Disk + 'static) -> Result<Server, StartError> {
        let config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
        Server::start_in(config, Environment { disk: Arc::new(disk), dial: Arc::new(Tcp) }).await
    }

    #[tokio::test]
    async fn a_single_node_that_cannot_write_reports_the_error_of_the_disk() {
        let disk = SimDisk::new(1);
        start(disk.handle()).await.unwrap().shutdown().await;
        let full = Hooked::new(disk.handle(), |act, name| match act {
            Act::Write if is_segment(name) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        });
        let Err(error) = start(full).await else { panic!("the disk is full") };
        let text = error.to_string();
        let reason = io::Error::from(io::ErrorKind::StorageFull).to_string();
        assert!(text.contains(&reason), "{text}");
    }
}
