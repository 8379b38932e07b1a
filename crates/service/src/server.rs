//! The server process: one port, everything behind it.
//!
//! The first bytes of a connection say what it is: our native frames, another node, or else HTTP (1.1 or 2, and gRPC with
//! it). A connection that says nothing is closed after [`FIRST_BYTES`], one whose other end is gone after [`GONE`].
//!
//! **Bounds.** So many clients as are configured, and so many nodes (`limits`); who comes then is refused.
//!
//! A local node (`Config::local`) has no port. It listens on a Unix socket in its data folder, see `local`.
//!
//! **Starting.** The port is taken first, so that others can be told where this node is. The data folder is opened; a new one
//! founds a cluster, from a backup if told so (`restore`), or joins one (`membership::join`). Then the port is served, and beside
//! it a Unix socket for clients of this machine.
//!
//! **Stopping.** A leader hands its office over. Nothing more is accepted, every client is told goodbye, what is being
//! written is written, and the data folder is free again.

mod accept;
#[cfg(test)]
mod handover_tests;
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

use conclave_api::socket::LocalListener;
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
use conclave_node::state::handover::FENCE_LEAP;
use limits::{ConnectionLimits, connections_max};
use local::Usage;

/// How long a connection may take to say what it is.
pub const FIRST_BYTES: Duration = Duration::from_secs(10);
/// How long clients have to take the last word when the server stops.
const LAST_WORD: Duration = Duration::from_secs(3);

/// How long a node that is alone may take to lead.
const LEAD_LIMIT: Duration = Duration::from_secs(30);
/// The number of the node that founds a cluster.
const FOUNDER: u64 = 1;
/// When a connection is silent for so long, the system begins to ask whether the other end is still there.
const SILENCE: Duration = Duration::from_secs(10);
/// It asks so often, in this time each.
const QUESTIONS: u32 = 3;
const QUESTION: Duration = Duration::from_secs(5);
/// Who does not answer for so long is gone, whether it left without a word or something that was sent to it never arrived.
pub const GONE: Duration = Duration::from_secs(SILENCE.as_secs() + QUESTIONS as u64 * QUESTION.as_secs());

/// The TCP address of a local node, which has none.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a program that starts a node awaits. In a box, the node is compiled with this crate; else once more with every
/// program, half a minute each.
pub type Boxed<T> = BoxFuture<'static, T>;

/// A node that serves. Dropped, it goes on in the background until the process ends; see [`Server::shutdown`].
pub struct Server {
    address: SocketAddr,
    replica: Replica<Service>,
    node: NodeHandle,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    driver: JoinHandle<()>,
    presenting: JoinHandle<()>,
    usage: Usage,
}

/// What a node stands on: the system's, or what a test can damage.
pub struct Environment {
    /// The data folder.
    pub disk: Arc<dyn Disk>,
    /// The way to other nodes.
    pub dial: Arc<dyn Dial>,
}

/// Why a server did not start.
#[derive(Debug)]
pub enum StartError {
    /// What was asked makes no sense.
    Config(String),
    /// The data folder cannot be opened.
    Data(OpenError),
    /// The port cannot be listened to.
    Listen(SocketAddr, io::Error),
    /// The Unix socket of a local node cannot be listened to.
    LocalListen(PathBuf, io::Error),
    /// The node belongs to another cluster, or could neither found nor join one.
    Cluster(String),
    /// The file is no backup that can be restored.
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
    /// Starts a node on the data folder and the network that the configuration names. A start that fails, or
    /// whose future is dropped, removes the data folder if it has created it.
    ///
    /// # Errors
    /// [`StartError`] is the reason.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let folder = config.data.clone();
        if !config.local && local::is_marked(&folder) {
            // Checked before the folder is locked: a local node that runs has locked it.
            return Err(local::belongs_to_local());
        }
        let disk = Arc::new(blocking(move || RealDisk::open_provisional(folder)).await?);
        let environment = Environment { disk: disk.clone(), dial: Arc::new(Tcp) };
        let server = Self::start_in(config, environment).await?;
        disk.keep();
        Ok(server)
    }

    /// Starts a node: goes on in its data folder, or in a new one founds a cluster or joins one, and serves.
    ///
    /// # Errors
    /// [`StartError`] says why it did not.
    pub fn start_in(config: Config, environment: Environment) -> Boxed<Result<Self, StartError>> {
        Box::pin(Self::boot(config, environment))
    }

    async fn boot(config: Config, environment: Environment) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let Environment { disk, dial } = environment;
        let folder = disk.clone();
        blocking(move || local::claim(&*folder, config.local)).await??;
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
            // Nothing writes to the data folder afterwards.
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
        let settled = move || {
            // Should it fail, the folder is merely still called fresh.
            drop(tokio::task::spawn_blocking(move || unmark_fresh(&*disk)));
        };
        let presenting = tokio::spawn(join::present(join_server, dial, config.join, advertised, settled));
        Ok(Self { address, replica, node, stop, accepting, driver, presenting, usage })
    }

    /// Which node of which cluster this is.
    pub fn identity(&self) -> Identity {
        self.replica.identity()
    }

    /// How the node stands among the others.
    pub fn status(&self) -> Status {
        self.replica.status()
    }

    /// Waits until the status is as asked; `None` if the node stops before it is.
    pub async fn wait_for(&self, wanted: impl FnMut(&Status) -> bool) -> Option<Status> {
        self.replica.wait_for(wanted).await
    }

    /// Returns when a local node is to end: no connection, session or lock-delay has existed for `limit`,
    /// or a newer command has asked for the end while nothing was held.
    pub async fn unused(&self, limit: Duration) {
        self.usage.clone().over(limit).await;
    }

    /// The TCP address, with the port that was chosen if the configuration left that open. A local node has
    /// none: `0.0.0.0:0`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns only when the node has stopped by itself, and says why: its disk failed, most likely. The process should
    /// then end and be started anew.
    pub async fn failed(&self) -> String {
        self.replica.failed().await
    }

    /// Stops: clients are told goodbye, the data folder is free afterwards.
    pub fn shutdown(self) -> Boxed<()> {
        Box::pin(async move {
            self.presenting.abort();
            self.replica.transfer_leadership().await;
            self.stop.send_replace(true);
            self.node.stop().await;
            drop(tokio::time::timeout(LAST_WORD, self.accepting).await);
            drop(self.driver.await);
            self.replica.shutdown().await;
        })
    }

    /// Stops without a word to anybody, as if the process was killed: what a test of recovery wants. The data folder is free
    /// afterwards.
    pub fn kill(self) -> Boxed<()> {
        Box::pin(async move {
            for task in [self.presenting, self.accepting, self.driver] {
                task.abort();
                // An error says that it was aborted, which is what is wanted.
                drop(task.await);
            }
            self.replica.shutdown().await;
        })
    }
}

/// The TCP port; a local node has none.
async fn listen(config: &Config) -> Result<Option<TcpListener>, StartError> {
    if config.local {
        return Ok(None);
    }
    let listener = TcpListener::bind(config.listen).await;
    listener.map(Some).map_err(|error| StartError::Listen(config.listen, error))
}

/// Who this node is: the first of a cluster that a backup founds, if that is wanted, else what the folder says, else the
/// first node of a new cluster, else what a member says.
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
            Identity::found(&*folder)
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

/// The log of a founder begins here, with a cluster of one; that of a newcomer begins with what the leader sends.
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
        // Alone there is nobody to wait for but oneself: whoever connects from now on is served at once.
        let leads = tokio::time::timeout(LEAD_LIMIT, replica.wait_for(Status::leads)).await;
        match leads {
            Ok(Some(_)) => {}
            Ok(None) => {
                // The node has stopped, and its log knows why: the disk is full, for example.
                let why = tokio::time::timeout(LAST_WORD, replica.failed()).await;
                let why = why.unwrap_or_else(|_| "consensus has stopped".to_owned());
                return Err(StartError::Cluster(format!("the node stopped before it could lead: {why}")));
            }
            Err(_) => {
                let text = "the only node of the cluster has not become leader in time; read its log, then start it again";
                return Err(StartError::Cluster(text.to_owned()));
            }
        }
        restart(replica).await?;
    }
    Ok(())
}

/// A node that is alone may have handed over what its log does not say: that is seen to before anybody is served.
async fn restart(replica: &Replica<Service>) -> Result<(), StartError> {
    let stuck = |error: &dyn fmt::Display| {
        StartError::Cluster(format!("the node cannot apply its first command: {error}"))
    };
    let applied = replica.read(|service| service.state().applied()).await.map_err(|error| stuck(&error))?;
    if applied > 0 {
        let commands = vec![Command::Restarted { fences: FENCE_LEAP }];
        let proposed = replica.propose(Batch { wall_ms: 0, commands }).await;
        proposed.map_err(|error| stuck(&error))?;
    }
    Ok(())
}

fn unmark_fresh(disk: &dyn Disk) -> io::Result<()> {
    if Identity::is_fresh(disk)? { Identity::unmark_fresh(disk) } else { Ok(()) }
}

/// Does something with the data folder where waiting for a disk holds nobody up.
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
