//! The connections of a server: it accepts them, detects their protocol, and serves them until it stops.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::map_request;
use conclave_wire::frame::{
    CLIENT_MAGIC, END_MAGIC, ENDING, IN_USE, PEER_MAGIC, PREFACE_BYTES, SERVING, USE_MAGIC,
};
use conclave_wire::socket::{Local, LocalListener, Socket};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;

use super::limits::{ConnectionLimits, Unclassified};
use super::local::Usage;
use super::{FIRST_BYTES, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, PEER_TIMEOUT};
use crate::driver::NodeHandle;
use crate::frontend::native;
use crate::membership::join::JoinServer;
use crate::peers;
use conclave_node::node::metrics;

/// The acceptor of connections. It serves each connection on its own task.
#[derive(Clone)]
pub(super) struct Acceptor {
    pub(super) limits: ConnectionLimits,
    pub(super) router: Router,
    pub(super) join_server: Arc<JoinServer>,
    pub(super) node: NodeHandle,
    /// The use of a local node; `None` for other nodes. Clients may then request the end of the node, and its
    /// Unix socket also serves HTTP.
    pub(super) usage: Option<Usage>,
    pub(super) stopped: watch::Receiver<bool>,
}

/// The listening sockets: TCP, Unix, or both.
pub(super) struct Listeners {
    pub(super) tcp: Option<TcpListener>,
    pub(super) local: Option<LocalListener>,
}

impl Acceptor {
    /// Accepts connections until the server stops.
    pub(super) async fn run(self, listeners: Listeners) {
        let mut stopped = self.stopped.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listeners.accept() => match accepted {
                    Ok(socket) => self.take(socket, &mut connections),
                    // Most likely the process has no free descriptor. Retry when a connection may have ended.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                () = until_stopped(&mut stopped) => break,
            }
        }
        // In this order: as soon as the TCP port is free, another server may bind it and create a Unix socket
        // of the same name.
        drop(listeners.local);
        drop(listeners.tcp);
        while connections.join_next().await.is_some() {}
    }

    fn take(&self, socket: Socket, connections: &mut JoinSet<()>) {
        let acceptor = self.clone();
        // An error of a connection concerns only its client. It is ignored here.
        match socket {
            Socket::Tcp(stream) => {
                let Some(permit) = self.admit(self.limits.unclassified()) else { return };
                connections.spawn(async move { drop(acceptor.serve(stream, permit).await) });
            }
            Socket::Unix(local) => {
                let Some(permit) = self.admit(self.limits.client()) else { return };
                connections.spawn(async move { drop(acceptor.serve_unix(local, permit).await) });
            }
            // The listeners accept no other kind.
            _ => {}
        }
    }

    /// Counts the connection as refused if it got no permit.
    fn admit<P>(&self, permit: Option<P>) -> Option<P> {
        if permit.is_none() {
            metrics::add(&self.node.metrics.connections_refused_total, 1);
        }
        permit
    }

    /// Serves a connection of the Unix socket. It carries only native frames, except on a local node, which
    /// has no TCP port.
    async fn serve_unix(mut self, local: Local, _permit: OwnedSemaphorePermit) -> io::Result<()> {
        if let Some(usage) = self.usage.take() {
            return self.serve_local(local, &usage).await;
        }
        let (mut reader, writer) = Socket::Unix(local).into_split();
        let [magic @ .., version] = tokio::select! {
            preface = tokio::time::timeout(FIRST_BYTES, native::read_preface(&mut reader)) => preface??,
            () = until_stopped(&mut self.stopped) => return Ok(()),
        };
        if magic != CLIENT_MAGIC {
            return Ok(());
        }
        metrics::add(&self.node.metrics.local_connections_total, 1);
        native::serve((reader, writer), version, self.node).await
    }

    /// Serves a connection of a local node: native frames, HTTP, or a request [`USE_MAGIC`] or [`END_MAGIC`].
    async fn serve_local(mut self, mut local: Local, usage: &Usage) -> io::Result<()> {
        let mut counted = None;
        loop {
            let first = tokio::select! {
                first = tokio::time::timeout(FIRST_BYTES, local.first_byte()) => first??,
                () = until_stopped(&mut self.stopped) => return Ok(()),
            };
            let mut preface = [0; PREFACE_BYTES];
            if first == CLIENT_MAGIC[0] {
                tokio::time::timeout(FIRST_BYTES, local.receive(&mut preface)).await??;
            }
            let [magic @ .., version] = preface;
            if magic == END_MAGIC {
                return local.send(&[if usage.try_end() { ENDING } else { IN_USE }]);
            }
            // If the node is ending, close the connection without a reply.
            let Some(in_use) = counted.take().or_else(|| usage.begin()) else { return Ok(()) };
            match magic {
                USE_MAGIC => {
                    local.send(&[SERVING])?;
                    counted = Some(in_use);
                }
                CLIENT_MAGIC => {
                    metrics::add(&self.node.metrics.local_connections_total, 1);
                    return native::serve(Socket::Unix(local).into_split(), version, self.node).await;
                }
                _ if first == CLIENT_MAGIC[0] => return Ok(()),
                _ => return serve_http(local.into_stream()?, self.router, self.stopped).await,
            }
        }
    }

    async fn serve(mut self, mut stream: TcpStream, permit: Unclassified) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut first = [0];
        let seen = tokio::select! {
            seen = tokio::time::timeout(FIRST_BYTES, stream.peek(&mut first)) => seen??,
            () = until_stopped(&mut self.stopped) => return Ok(()),
        };
        if seen == 0 {
            return Ok(());
        }
        if first[0] != CLIENT_MAGIC[0] {
            let Some(_permit) = self.admit(self.limits.as_client(permit)) else { return Ok(()) };
            return serve_http(stream, self.router, self.stopped).await;
        }
        let [magic @ .., version] =
            tokio::time::timeout(FIRST_BYTES, native::read_preface(&mut stream)).await??;
        match magic {
            CLIENT_MAGIC => {
                let Some(_permit) = self.admit(self.limits.as_client(permit)) else { return Ok(()) };
                native::serve(Socket::Tcp(stream).into_split(), version, self.node).await
            }
            PEER_MAGIC => {
                let Some(_permit) = self.admit(self.limits.as_node(permit)) else { return Ok(()) };
                tokio::select! {
                    ended = peers::serve(stream, version, self.join_server, self.node) => ended,
                    () = until_stopped(&mut self.stopped) => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }
}

impl Listeners {
    /// Returns the next connection from either socket.
    async fn accept(&self) -> io::Result<Socket> {
        let tcp = async {
            match &self.tcp {
                Some(tcp) => tcp.accept().await,
                None => std::future::pending().await,
            }
        };
        let local = async {
            match &self.local {
                Some(local) => local.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = tcp => {
                let (stream, _) = accepted?;
                // This fails only if the connection has ended; the next read then reports it.
                drop(enable_keepalive(&stream));
                Ok(Socket::Tcp(stream))
            }
            accepted = local => accepted,
        }
    }
}

/// Enables TCP keep-alive, so that the kernel detects a lost peer: a machine without power, an unplugged
/// cable. Without it, the connection would count against the limit for ever.
fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // The kernel sends no probes while sent data is unacknowledged, so this case needs its own limit.
    let limit = u32::try_from(PEER_TIMEOUT.as_millis()).expect("a few seconds");
    Ok(sockopt::set_tcp_user_timeout(stream, limit)?)
}

/// Serves HTTP. Closes a connection that sends no request within [`FIRST_BYTES`]; hyper waits without limit
/// for the rest of a preface.
async fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let has_request = Arc::new(AtomicBool::new(false));
    let seen = has_request.clone();
    let router = router.layer(map_request(move |request: Request| {
        seen.store(true, Ordering::Relaxed);
        std::future::ready(request)
    }));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(FIRST_BYTES);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new()).max_concurrent_streams(256);
    // Pings are the only way to detect an idle HTTP/2 peer that was lost.
    http2.keep_alive_interval(FIRST_BYTES).keep_alive_timeout(FIRST_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let mut silence = std::pin::pin!(tokio::time::sleep(FIRST_BYTES));
    loop {
        tokio::select! {
            ended = connection.as_mut() => return ended.map_err(io::Error::other),
            () = until_stopped(&mut stopped) => {
                connection.as_mut().graceful_shutdown();
                return connection.await.map_err(io::Error::other);
            }
            () = silence.as_mut(), if !silence.is_elapsed() => {
                if !has_request.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns when the server is to stop.
async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    // A dropped sender means that the `Server` was dropped: continue to serve.
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use conclave_wire::frame::{PREFACE_BYTES, preface};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::config::Config;
    use crate::peers::Tcp;
    use crate::replica::disk::SimDisk;
    use crate::server::limits::NODES_MAX;
    use crate::server::{Environment, Server};

    async fn server(connections_max: usize) -> Server {
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = Config { listen, connections_max, ..Config::default() };
        let disk = Arc::new(SimDisk::new(1).handle());
        Server::start_in(config, Environment { disk, dial: Arc::new(Tcp) }).await.unwrap()
    }

    /// Connects and sends a preface. Returns the stream if the server replies with the same preface, or
    /// `None` if it closes.
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
    async fn a_node_with_the_most_clients_accepts_other_nodes() {
        let server = server(2).await;
        let first = is_served(&server, CLIENT_MAGIC).await;
        let _second = is_served(&server, CLIENT_MAGIC).await.expect("there is room for two");
        assert!(is_served(&server, CLIENT_MAGIC).await.is_none(), "a client too many");
        let mut nodes = Vec::new();
        for _ in 0..NODES_MAX {
            nodes.push(is_served(&server, PEER_MAGIC).await.expect("there is room for nodes"));
        }
        assert!(is_served(&server, PEER_MAGIC).await.is_none(), "a node too many");
        // A closed connection returns its permit to the limit of its own kind.
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
    async fn an_accepted_socket_has_keep_alive_options() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listeners = Listeners { tcp: Some(listener), local: None };
        let (_there, accepted) = tokio::join!(TcpStream::connect(address), listeners.accept());
        let Socket::Tcp(stream) = accepted.unwrap() else { panic!("not by TCP") };
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_PROBES);
        assert_eq!(Duration::from_millis(sockopt::tcp_user_timeout(&stream).unwrap().into()), PEER_TIMEOUT);
    }
}
