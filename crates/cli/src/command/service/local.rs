//! The server named `local`: a node of this user on this machine, which starts on demand and ends when it is
//! unused.
//!
//! **Intuition.** The data folder identifies the node (`place`). A client connects to the Unix socket in that
//! folder. If no node listens, the client starts one (`start`) and connects to it (`node` is that process).
//!
//! **Rules.**
//! - A client starts a node only while it holds the lock of the file `starter`. The new node inherits this
//!   lock and releases it when it listens. So several clients start only one node, even if the starting
//!   client is killed.
//! - The new node waits for the lock of the data folder for at most [`node::FOLDER_LIMIT`], because the
//!   previous node may still be ending.
//! - A client that loses its connection connects in the same way again, so it may start the next node.
//! - A newer command replaces an older node if nothing is held (`about`).
//!
//! **Trap.** A node is about to end, but the kernel still accepts a connection and a request for it. The
//! client then does not know whether the request was applied. So a client first requests service
//! ([`USE_MAGIC`]). A node that agrees does not end while the connection is open. Without that reply no
//! request was sent, and the client starts the next node.

mod about;
mod log;
mod node;
mod place;
mod start;

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conclave_client::{Client, ClientBuilder, Code, Connector, Socket};
use conclave_wire::frame::{END_MAGIC, ENDING, IN_USE, SERVING, USE_MAGIC, preface};

use self::about::{About, Age};
pub use self::node::run_if_node;
use super::{NO_SERVER, failure};
use crate::output::Failure;

/// The name of the server, in place of an address.
pub const NAME: &str = "local";
/// The most attempts to find or start a node. Each further attempt means that a node ended in between.
const ROUNDS: u32 = 5;
/// The longest wait for the node's reply to a request to serve a connection or to end.
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// Connects a client to the local node, and starts the node if it does not run.
pub async fn open(options: ClientBuilder) -> Result<Client, Failure> {
    let node = Local::find()?;
    let first = Mutex::new(Some(node.connect().await?));
    options.connector(Arc::new(OnDemand { node, first })).connect(NAME).await.map_err(failure)
}

/// Returns whether a list of servers names the local node.
pub fn is_named(servers: &str) -> bool {
    servers.trim() == NAME
}

/// The local node, identified by its data folder.
#[derive(Clone)]
pub struct Local {
    folder: PathBuf,
}

impl Local {
    /// Returns the node of this user on this machine.
    pub fn find() -> Result<Self, Failure> {
        Ok(Self { folder: place::folder()? })
    }

    /// Connects to the node. Starts it first if it does not run.
    pub async fn connect(&self) -> Result<Socket, Failure> {
        let mut last = None;
        for _ in 0..ROUNDS {
            match self.reach().await? {
                Reached::Node(socket) => return Ok(socket),
                Reached::Nobody(_) => {}
            }
            let starter = start::lock(&self.folder).await?;
            match self.reach().await? {
                Reached::Node(socket) => return Ok(socket),
                Reached::Nobody(error) => start::node(&self.folder, starter, &error).await?,
            }
            match self.reach().await? {
                Reached::Node(socket) => return Ok(socket),
                Reached::Nobody(error) => last = Some(error),
            }
        }
        let why = last.map_or_else(String::new, |error| format!(" ({error})"));
        let log = self.folder.join(log::NAME);
        Err(unusable(format!("the local node ends as soon as it has started{why}; see {}", log.display())))
    }

    /// Connects to the running node, if this version can use it.
    async fn reach(&self) -> Result<Reached, Failure> {
        let socket = match self.exchange(USE_MAGIC).await? {
            Reply::Byte(socket, SERVING) => socket,
            other => return Ok(Reached::Nobody(other.refusal())),
        };
        // Read after connecting: a node writes this file before it listens.
        let Some(about) = About::read(&self.folder) else { return Ok(Reached::Node(socket)) };
        let speaks = about.protocol == About::ours().protocol;
        match about.age() {
            Age::Older => {
                // Close the connection, because the node does not end while it is open.
                drop(socket);
                self.replace(&about, speaks).await
            }
            Age::Newer if !speaks => Err(unusable(format!(
                "the local node is of the newer version {} with another protocol; use that version",
                about.version
            ))),
            Age::Same | Age::Newer => Ok(Reached::Node(socket)),
        }
    }

    /// Requests that an older node ends. A node that is in use continues; this command then uses it if it
    /// `speaks` the same protocol.
    async fn replace(&self, about: &About, speaks: bool) -> Result<Reached, Failure> {
        match self.exchange(END_MAGIC).await? {
            Reply::Byte(_, IN_USE) if speaks => Ok(match self.exchange(USE_MAGIC).await? {
                Reply::Byte(socket, SERVING) => Reached::Node(socket),
                other => Reached::Nobody(other.refusal()),
            }),
            Reply::Byte(_, IN_USE) => Err(unusable(format!(
                "the local node is of the older version {} with another protocol, and its locks are in use; try \
                 again when they are released",
                about.version
            ))),
            other => Ok(Reached::Nobody(other.refusal())),
        }
    }

    /// Connects to the node, sends one request and reads the reply of one byte.
    async fn exchange(&self, magic: [u8; 7]) -> Result<Reply, Failure> {
        let mut socket = match Socket::connect_in(&self.folder).await {
            Ok(Socket::Unix(socket)) => socket,
            Ok(_) => return Ok(Reply::None(io::ErrorKind::Unsupported.into())),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let folder = self.folder.display();
                return Err(unusable(format!("{folder}: {error}; make the folder yours alone (chmod 700)")));
            }
            Err(error) => return Ok(Reply::None(error)),
        };
        let mut reply = [0];
        let exchange = async {
            socket.send(&preface(magic))?;
            socket.receive(&mut reply).await
        };
        match tokio::time::timeout(REPLY_LIMIT, exchange).await {
            Ok(Ok(())) => Ok(Reply::Byte(Socket::Unix(socket), reply[0])),
            Ok(Err(error)) => Ok(Reply::None(error)),
            Err(_) => Err(unusable(format!(
                "the local node in {} does not reply within {} s; end it if it is stuck, then try again",
                self.folder.display(),
                REPLY_LIMIT.as_secs()
            ))),
        }
    }
}

/// The result of one request to the node.
enum Reply {
    Byte(Socket, u8),
    /// No node listens, or it is ending.
    None(io::Error),
}

impl Reply {
    /// Returns the reason why the node does not serve.
    fn refusal(self) -> io::Error {
        match self {
            Self::Byte(_, ENDING) => io::Error::new(io::ErrorKind::ConnectionRefused, "the node is ending"),
            Self::Byte(_, byte) => io::Error::new(io::ErrorKind::InvalidData, format!("the reply is {byte}")),
            Self::None(error) => error,
        }
    }
}

/// The result of connecting to the node.
enum Reached {
    Node(Socket),
    /// No node listens, for this reason.
    Nobody(io::Error),
}

/// The connector of the client. It starts the node if it does not run.
struct OnDemand {
    node: Local,
    /// The connection that [`open`] has made already; `None` after its use.
    first: Mutex<Option<Socket>>,
}

impl Connector for OnDemand {
    fn connect(&self, server: String) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let node = self.node.clone();
        Box::pin(async move {
            if server != NAME {
                return Err(io::Error::other("not the local node"));
            }
            match first {
                Some(socket) => Ok(socket),
                None => node.connect().await.map_err(|failure| io::Error::other(failure.message)),
            }
        })
    }
}

/// Returns the failure to find, start or use the local node.
fn unusable(message: String) -> Failure {
    Failure::new(NO_SERVER, Code::Unreachable.name(), message)
}

/// Returns the failure of a system call in the data folder.
fn folder_failure(what: &str, path: &Path, error: &io::Error) -> Failure {
    unusable(format!(
        "{what} {}: {error}; correct that, or set {} to another folder",
        path.display(),
        place::VARIABLE
    ))
}
