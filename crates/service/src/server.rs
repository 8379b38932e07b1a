//! The server process: one port, everything behind it.
//!
//! The first bytes of a connection say what it is: our native frames, another node, or else HTTP (1.1 or 2, and gRPC with
//! it). A connection that says nothing is closed after [`FIRST_BYTES`], one whose other end is gone after [`GONE`].
//!
//! **Bounds.** So many clients as are configured, and so many nodes (`room`); who comes then is refused.
//!
//! **Starting.** The port is taken first, so that others can be told where this node is. The data folder is opened; a new one
//! founds a cluster, from a backup if told so (`restoring`), or joins one (`joining`). Then the port is served, and beside
//! it a Unix socket for clients of this machine.
//!
//! **Stopping.** A leader hands its office over. Nothing more is accepted, every client is told goodbye, what is being
//! written is written, and the data folder is free again.

#[cfg(test)]
mod handover_tests;
mod restoring;
mod room;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::map_request;
use conclave_api::proto::frame::{CLIENT_MAGIC, PEER_MAGIC};
use conclave_api::socket::{LocalListener, Socket};
use futures_util::future::BoxFuture;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::config::Config;
use crate::frontend::hub::{Door, Hub};
use crate::frontend::{http, metrics, native};
use crate::joining::{self, Desk};
use crate::machine::{Service, Stamped};
use crate::peers::{self, Dial, Peers, Tcp};
use crate::replica::disk::{Disk, RealDisk};
use crate::replica::{Identity, Member, OpenError, Replica, Status};
use crate::state::Command;
use crate::state::handover::FENCE_LEAP;
use room::{Room, Unknown, connections_max};

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

/// What a program that starts a node awaits. In a box, the node is compiled with this crate; else once more with every
/// program, half a minute each.
pub type Boxed<T> = BoxFuture<'static, T>;

/// A node that serves. Dropped, it goes on in the background until the process ends; see [`Server::shutdown`].
pub struct Server {
    address: SocketAddr,
    replica: Replica<Service>,
    door: Door,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    hub: JoinHandle<()>,
    presenting: JoinHandle<()>,
}

/// What a node stands on: the system's, or what a test can damage.
pub struct Surroundings {
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
        let disk = Arc::new(blocking(move || RealDisk::open_provisional(folder)).await?);
        let surroundings = Surroundings { disk: disk.clone(), dial: Arc::new(Tcp) };
        let server = Self::start_in(config, surroundings).await?;
        disk.keep();
        Ok(server)
    }

    /// Starts a node: goes on in its data folder, or in a new one founds a cluster or joins one, and serves.
    ///
    /// # Errors
    /// [`StartError`] says why it did not.
    pub fn start_in(config: Config, surroundings: Surroundings) -> Boxed<Result<Self, StartError>> {
        Box::pin(Self::boot(config, surroundings))
    }

    async fn boot(config: Config, surroundings: Surroundings) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        let Surroundings { disk, dial } = surroundings;
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.map_err(|error| StartError::Listen(config.listen, error))?;
        let address = listener.local_addr().map_err(|error| StartError::Listen(config.listen, error))?;
        let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
        let identity = identify(&config, &disk, &*dial, &advertised).await?;
        let peers = Arc::new(Peers::new(identity.cluster, dial.clone()));
        let (replica, deliveries) =
            Replica::open(disk.clone(), identity, peers.clone(), Service::new(), config.replica()).await?;
        if let Err(error) = begin(&replica, &disk, &advertised).await {
            // Nothing writes to the data folder afterwards.
            replica.shutdown().await;
            return Err(error);
        }
        let (hub, door) = Hub::new(replica.clone(), deliveries, peers, config.timing());
        let hub = tokio::spawn(hub.run());
        let (stop, stopped) = watch::channel(false);
        let desk = Arc::new(Desk::new(replica.clone()));
        let clients_max = connections_max(config.connections_max);
        let acceptor = Acceptor {
            room: Room::new(clients_max),
            router: http::router(replica.clone(), door.clone(), clients_max),
            desk: desk.clone(),
            door: door.clone(),
            stopped,
        };
        let local = LocalListener::bind(address)
            .inspect_err(|error| tracing::debug!(%error, "cannot listen on a Unix socket; clients on this machine use TCP"));
        let accepting = tokio::spawn(acceptor.run(listener, local.ok()));
        let settled = move || {
            // Should it fail, the folder is merely still called fresh.
            drop(tokio::task::spawn_blocking(move || unmark_fresh(&*disk)));
        };
        let presenting = tokio::spawn(joining::present(desk, dial, config.join, advertised, settled));
        Ok(Self { address, replica, door, stop, accepting, hub, presenting })
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
    pub fn shutdown(self) -> Boxed<()> {
        Box::pin(async move {
            self.presenting.abort();
            self.replica.hand_over().await;
            self.stop.send_replace(true);
            self.door.stop().await;
            drop(tokio::time::timeout(LAST_WORD, self.accepting).await);
            drop(self.hub.await);
            self.replica.shutdown().await;
        })
    }

    /// Stops without a word to anybody, as if the process was killed: what a test of recovery wants. The data folder is free
    /// afterwards.
    pub fn kill(self) -> Boxed<()> {
        Box::pin(async move {
            for task in [self.presenting, self.accepting, self.hub] {
                task.abort();
                // An error says that it was aborted, which is what is wanted.
                drop(task.await);
            }
            self.replica.shutdown().await;
        })
    }
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
        return restoring::restore(backup, disk, advertised).await;
    }
    let folder = disk.clone();
    if let Some(identity) = blocking(move || Identity::load(&*folder)).await? {
        joining::check_hints(dial, &config.join, identity).await.map_err(StartError::Cluster)?;
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
    joining::admit(dial, &config.join, advertised).await.map_err(StartError::Cluster)
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
        if !matches!(leads, Ok(Some(_))) {
            return Err(StartError::Cluster(
                "the only node of the cluster has not become leader in time; read its log, then start it again".to_owned(),
            ));
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
        let proposed = replica.propose(Stamped { wall_ms: 0, commands }).await;
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

/// Takes connections in.
#[derive(Clone)]
struct Acceptor {
    room: Room,
    router: Router,
    desk: Arc<Desk>,
    door: Door,
    stopped: watch::Receiver<bool>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener, local: Option<LocalListener>) {
        let mut stopped = self.stopped.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = accept(&listener, local.as_ref()) => match accepted {
                    Ok(socket) => self.take(socket, &mut connections),
                    // Out of descriptors, most likely: wait until some connection ends.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                () = until(&mut stopped) => break,
            }
        }
        // In this order: when the address is free, the next server on it may have taken the name of the socket.
        drop(local);
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    fn take(&self, socket: Socket, connections: &mut JoinSet<()>) {
        let acceptor = self.clone();
        // How a stranger's connection ended is of interest to nobody but the stranger.
        match socket {
            Socket::Tcp(stream) => {
                let Some(permit) = self.admit(self.room.unknown()) else { return };
                connections.spawn(async move { drop(acceptor.serve(stream, permit).await) });
            }
            Socket::Unix(_) => {
                let Some(permit) = self.admit(self.room.client()) else { return };
                connections.spawn(async move { drop(acceptor.serve_local(socket, permit).await) });
            }
        }
    }

    /// Counts those for whom there is no room.
    fn admit<P>(&self, permit: Option<P>) -> Option<P> {
        if permit.is_none() {
            metrics::add(&self.door.metrics.connections_refused_total, 1);
        }
        permit
    }

    /// On a Unix socket there are only clients, and they know the protocol.
    async fn serve_local(mut self, socket: Socket, _permit: OwnedSemaphorePermit) -> io::Result<()> {
        let (mut reader, writer) = socket.into_split();
        let [magic @ .., version] = tokio::select! {
            preface = tokio::time::timeout(FIRST_BYTES, native::read_preface(&mut reader)) => preface??,
            () = until(&mut self.stopped) => return Ok(()),
        };
        if magic != CLIENT_MAGIC {
            return Ok(());
        }
        metrics::add(&self.door.metrics.local_connections_total, 1);
        native::serve((reader, writer), version, self.door).await
    }

    async fn serve(mut self, mut stream: TcpStream, permit: Unknown) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut first = [0];
        let seen = tokio::select! {
            seen = tokio::time::timeout(FIRST_BYTES, stream.peek(&mut first)) => seen??,
            () = until(&mut self.stopped) => return Ok(()),
        };
        if seen == 0 {
            return Ok(());
        }
        if first[0] != CLIENT_MAGIC[0] {
            let Some(_permit) = self.admit(self.room.as_client(permit)) else { return Ok(()) };
            return serve_http(stream, self.router, self.stopped).await;
        }
        let [magic @ .., version] =
            tokio::time::timeout(FIRST_BYTES, native::read_preface(&mut stream)).await??;
        match magic {
            CLIENT_MAGIC => {
                let Some(_permit) = self.admit(self.room.as_client(permit)) else { return Ok(()) };
                native::serve(Socket::Tcp(stream).into_split(), version, self.door).await
            }
            PEER_MAGIC => {
                let Some(_permit) = self.admit(self.room.as_node(permit)) else { return Ok(()) };
                tokio::select! {
                    ended = peers::serve(stream, version, self.desk, self.door) => ended,
                    () = until(&mut self.stopped) => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

/// The next connection, by either way.
async fn accept(listener: &TcpListener, local: Option<&LocalListener>) -> io::Result<Socket> {
    let local = async {
        match local {
            Some(local) => local.accept().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        accepted = listener.accept() => {
            let (stream, _) = accepted?;
            // Refused only where the connection is over already, which shows as soon as it is read.
            drop(notice_the_end(&stream));
            Ok(Socket::Tcp(stream))
        }
        accepted = local => accepted,
    }
}

/// Lets the system notice when the other end is gone without a word: a machine that lost its power, a cable that was pulled.
/// Otherwise its place would be taken for ever.
fn notice_the_end(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, QUESTION)?;
    sockopt::set_tcp_keepcnt(stream, QUESTIONS)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // While something is on its way to the other end, nothing is asked.
    let limit = u32::try_from(GONE.as_millis()).expect("a few seconds");
    Ok(sockopt::set_tcp_user_timeout(stream, limit)?)
}

/// Who asks nothing within [`FIRST_BYTES`] is not served: hyper itself would wait for ever for the rest of a preface.
async fn serve_http(stream: TcpStream, router: Router, mut stopped: watch::Receiver<bool>) -> io::Result<()> {
    let has_asked = Arc::new(AtomicBool::new(false));
    let asked = has_asked.clone();
    let router = router.layer(map_request(move |request: Request| {
        asked.store(true, Ordering::Relaxed);
        std::future::ready(request)
    }));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(FIRST_BYTES);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(256);
    // Of a peer that is gone without a word nothing else is heard.
    http2.keep_alive_interval(FIRST_BYTES).keep_alive_timeout(FIRST_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let mut silence = std::pin::pin!(tokio::time::sleep(FIRST_BYTES));
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            () = until(&mut stopped) => {
                connection.as_mut().graceful_shutdown();
                return connection.await.map_err(io::Error::other);
            }
            () = silence.as_mut(), if !silence.is_elapsed() => {
                if !has_asked.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns when the server is to stop.
async fn until(stopped: &mut watch::Receiver<bool>) {
    // A sender that is gone is a server that was dropped: it goes on.
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use conclave_api::proto::frame::{PREFACE_BYTES, preface};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::room::NODES_MAX;
    use super::*;
    use crate::replica::disk::SimDisk;

    async fn server(connections_max: usize) -> Server {
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = Config { listen, connections_max, ..Config::default() };
        let disk = Arc::new(SimDisk::new(1).handle());
        Server::start_in(config, Surroundings { disk, dial: Arc::new(Tcp) }).await.unwrap()
    }

    /// Says what it is, and whether it is answered in kind or not at all.
    async fn is_served(server: &Server, magic: [u8; PREFACE_BYTES - 1]) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(&preface(magic)).await.unwrap();
        let mut answer = [0; PREFACE_BYTES];
        let answered = stream.read_exact(&mut answer).await;
        answered.is_ok().then(|| {
            assert_eq!(answer, preface(magic));
            stream
        })
    }

    #[tokio::test]
    async fn a_node_full_of_clients_hears_other_nodes() {
        let server = server(2).await;
        let first = is_served(&server, CLIENT_MAGIC).await;
        let _second = is_served(&server, CLIENT_MAGIC).await.expect("there is room for two");
        assert!(is_served(&server, CLIENT_MAGIC).await.is_none(), "a client too many");
        let mut nodes = Vec::new();
        for _ in 0..NODES_MAX {
            nodes.push(is_served(&server, PEER_MAGIC).await.expect("there is room for nodes"));
        }
        assert!(is_served(&server, PEER_MAGIC).await.is_none(), "a node too many");
        // Whoever leaves makes room for its like.
        drop((first, nodes));
        while is_served(&server, CLIENT_MAGIC).await.is_none() {}
        while is_served(&server, PEER_MAGIC).await.is_none() {}
        server.kill().await;
    }

    #[tokio::test]
    async fn nodes_take_no_room_from_clients() {
        let server = server(1).await;
        let _node = is_served(&server, PEER_MAGIC).await.expect("there is room for nodes");
        assert!(is_served(&server, CLIENT_MAGIC).await.is_some());
        server.kill().await;
    }

    #[tokio::test]
    async fn the_end_of_who_left_without_a_word_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_there, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), accept(&listener, None));
        let Socket::Tcp(stream) = accepted.unwrap() else { panic!("not by TCP") };
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), SILENCE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), QUESTION);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), QUESTIONS);
        assert_eq!(Duration::from_millis(sockopt::tcp_user_timeout(&stream).unwrap().into()), GONE);
    }
}
