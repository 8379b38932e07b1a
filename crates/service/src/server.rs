//! The server process: one port, everything behind it.
//!
//! The first bytes of a connection say what it is: our native frames, another node, or else HTTP (1.1 or 2, and gRPC with
//! it). A connection that says nothing is closed after [`FIRST_BYTES`].
//!
//! **Starting.** The data folder is opened, a new one becomes the first node of a new cluster, and the port is listened
//! to only when the node can serve. **Stopping.** Nothing more is accepted, every client is told goodbye, what is being
//! written is written, and the data folder is free again.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use conclave_api::proto::frame::{CLIENT_MAGIC, PEER_MAGIC};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::config::Config;
use crate::frontend::hub::{Door, Hub};
use crate::frontend::{http, metrics, native};
use crate::machine::Service;
use crate::peers::{self, Peers};
use crate::replica::disk::RealDisk;
use crate::replica::{Identity, Member, OpenError, Options, Replica, Status};

/// How long a connection may take to say what it is.
pub const FIRST_BYTES: Duration = Duration::from_secs(10);
/// How long clients have to take the last word when the server stops.
const LAST_WORD: Duration = Duration::from_secs(3);

/// How long a node that is alone may take to lead.
const LEAD_LIMIT: Duration = Duration::from_secs(30);

/// A node that serves. Dropped, it goes on in the background until the process ends; see [`Server::shutdown`].
pub struct Server {
    address: SocketAddr,
    replica: Replica<Service>,
    door: Door,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    hub: JoinHandle<()>,
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
    /// The node belongs to a cluster, or could not found one.
    Cluster(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(what) | Self::Cluster(what) => f.write_str(what),
            Self::Data(error) => error.fmt(f),
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
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
    /// Starts a node: opens its data folder, or founds a cluster of one in a new one, and serves.
    ///
    /// # Errors
    /// [`StartError`] says why it did not.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.map_err(|error| StartError::Listen(config.listen, error))?;
        let address = listener.local_addr().map_err(|error| StartError::Listen(config.listen, error))?;
        let peers = Arc::new(Peers::new());
        let (replica, hub, door) = open(&config, address, peers).await?;
        let hub = tokio::spawn(hub.run());
        let (stop, stopped) = watch::channel(false);
        let acceptor = Acceptor {
            room: Arc::new(Semaphore::new(config.connections_max)),
            router: http::router(replica.clone(), door.clone()),
            replica: replica.clone(),
            door: door.clone(),
            stopped,
        };
        let accepting = tokio::spawn(acceptor.run(listener));
        Ok(Self { address, replica, door, stop, accepting, hub })
    }

    /// Where it listens: the port that was chosen, if the configuration left that open.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns only when the node has stopped by itself, and says why: its disk failed, most likely. The process should
    /// then end and be started anew.
    pub async fn failed(&self) -> String {
        self.replica.failed().await
    }

    /// Stops: clients are told goodbye, the data folder is free afterwards.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        self.door.stop().await;
        drop(tokio::time::timeout(LAST_WORD, self.accepting).await);
        drop(self.hub.await);
        self.replica.shutdown().await;
    }
}

/// Everything behind the port.
async fn open(
    config: &Config,
    address: SocketAddr,
    peers: Arc<Peers>,
) -> Result<(Replica<Service>, Hub, Door), StartError> {
    let folder = config.data.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let disk = RealDisk::open(folder)?;
        let known = Identity::load(&disk)?;
        let identity = known.map_or_else(|| Identity::found(&disk), Ok)?;
        Ok::<_, io::Error>((disk, identity))
    });
    let opened = opened.await.map_err(io::Error::other).and_then(|opened| opened);
    let (disk, identity) = opened.map_err(OpenError::Io)?;
    let options = Options { heartbeat: config.heartbeat, election: config.election, ..Options::default() };
    let (replica, deliveries) =
        Replica::open(Arc::new(disk), identity, peers.clone(), Service::new(), options).await?;
    let member = Member { address: config.advertise.clone().unwrap_or_else(|| address.to_string()) };
    let founded = replica.bootstrap(BTreeMap::from([(identity.node, member)])).await;
    founded.map_err(|error| StartError::Cluster(error.to_string()))?;
    if replica.status().membership.nodes.len() <= 1 {
        // Alone there is nobody to wait for but oneself: whoever connects from now on is served at once.
        let leads = tokio::time::timeout(LEAD_LIMIT, replica.wait_for(Status::leads)).await;
        if !matches!(leads, Ok(Some(_))) {
            return Err(StartError::Cluster(
                "the node does not come to lead, although it is alone".to_owned(),
            ));
        }
    }
    let (hub, door) = Hub::new(replica.clone(), deliveries, peers, config.timing());
    Ok((replica, hub, door))
}

/// Takes connections in.
struct Acceptor {
    room: Arc<Semaphore>,
    router: Router,
    replica: Replica<Service>,
    door: Door,
    stopped: watch::Receiver<bool>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        let mut stopped = self.stopped.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.take(stream, &mut connections),
                    // Out of descriptors, most likely: wait until some connection ends.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                () = until(&mut stopped) => break,
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    fn take(&self, stream: TcpStream, connections: &mut JoinSet<()>) {
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            metrics::add(&self.door.metrics.connections_refused_total, 1);
            return;
        };
        let (router, replica, door) = (self.router.clone(), self.replica.clone(), self.door.clone());
        let stopped = self.stopped.clone();
        connections.spawn(async move {
            // How a stranger's connection ended is of interest to nobody but the stranger.
            drop(serve(stream, router, replica, door, stopped, permit).await);
        });
    }
}

async fn serve(
    mut stream: TcpStream,
    router: Router,
    replica: Replica<Service>,
    door: Door,
    mut stopped: watch::Receiver<bool>,
    _room: OwnedSemaphorePermit,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0];
    let seen = tokio::select! {
        seen = tokio::time::timeout(FIRST_BYTES, stream.peek(&mut first)) => seen??,
        () = until(&mut stopped) => return Ok(()),
    };
    if seen == 0 {
        return Ok(());
    }
    if first[0] != CLIENT_MAGIC[0] {
        return serve_http(stream, router, stopped).await;
    }
    let [magic @ .., version] =
        tokio::time::timeout(FIRST_BYTES, native::read_preface(&mut stream)).await??;
    match magic {
        CLIENT_MAGIC => native::serve(stream, version, door).await,
        PEER_MAGIC => tokio::select! {
            ended = peers::serve(stream, version, replica, door) => ended,
            () = until(&mut stopped) => Ok(()),
        },
        _ => Ok(()),
    }
}

async fn serve_http(stream: TcpStream, router: Router, mut stopped: watch::Receiver<bool>) -> io::Result<()> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(FIRST_BYTES);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(256);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = until(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(io::Error::other)
}

/// Returns when the server is to stop.
async fn until(stopped: &mut watch::Receiver<bool>) {
    // A sender that is gone is a server that was dropped: it goes on.
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}
