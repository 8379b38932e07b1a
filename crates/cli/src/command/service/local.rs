//! The server named `local`: a node of this user on this machine, which starts on demand and ends when nobody uses it.
//!
//! **Intuition.** The data folder is the identity of the node (`place`). A client looks for the Unix socket in that folder. If
//! no node listens, the client starts one (`start`) and connects to it (`node` is that process).
//!
//! **Rules.**
//! - A client starts a node only while it holds the lock of the file `starter`. The new node inherits this lock and releases it
//!   when it listens. So clients that come together start one node, even if the starting client is killed.
//! - The new node waits for the lock of the data folder, at most [`node::FOLDER_LIMIT`]: a node that ends needs a moment.
//! - A client that loses its connection connects in the same way again, so it also starts the next node.
//! - A newer command replaces an older node if nothing is held (`about`).
//!
//! **Trap.** A client connects while the node is ending. Its connection is accepted by the system and closed without a
//! reply. The client library then connects again, finds no listener, and starts the next node.

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

use conclave_api::proto::frame::{END_MAGIC, ENDING, preface};
use conclave_client::{Client, Code, Connector, Options, Socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::about::{About, Age};
pub use self::node::{Args, run};
use super::{NO_SERVER, failure};
use crate::output::Failure;

/// The name of the server, in place of an address.
pub const NAME: &str = "local";
/// Rounds of looking for a node and starting one. Each further round means that a node ended in between.
const ROUNDS: u32 = 5;
/// The time that an older node has to reply to the request to end.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Connects a client to the local node, which is started if it does not run.
pub async fn open(options: Options) -> Result<Client, Failure> {
    let node = Local::find()?;
    let first = Mutex::new(Some(node.connect().await?));
    options.connector(Arc::new(OnDemand { node, first })).connect(NAME).await.map_err(failure)
}

/// Whether a list of servers is the local node.
pub fn is_named(servers: &str) -> bool {
    servers.trim() == NAME
}

/// The local node, by its data folder.
#[derive(Clone)]
pub struct Local {
    folder: PathBuf,
}

impl Local {
    /// The node of this user on this machine.
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

    /// Connects to the node that runs, if it is of use to this version.
    async fn reach(&self) -> Result<Reached, Failure> {
        let socket = match Socket::connect_in(&self.folder).await {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let folder = self.folder.display();
                return Err(unusable(format!("{folder}: {error}; make the folder yours alone (chmod 700)")));
            }
            Err(error) => return Ok(Reached::Nobody(error)),
        };
        // Read after connecting: a node writes this file before it listens.
        let Some(about) = About::read(&self.folder) else { return Ok(Reached::Node(socket)) };
        let speaks = about.protocol == About::ours().protocol;
        match about.age() {
            Age::Older => match self.ask_to_end().await {
                Ok(true) => Ok(Reached::Nobody(io::ErrorKind::ConnectionRefused.into())),
                Ok(false) if speaks => Ok(Reached::Node(socket)),
                Ok(false) => Err(unusable(format!(
                    "the local node is of the older version {} with another protocol, and its locks are in use; try again \
                     when they are released",
                    about.version
                ))),
                // The node has ended in between.
                Err(error) => Ok(Reached::Nobody(error)),
            },
            Age::Newer if !speaks => Err(unusable(format!(
                "the local node is of the newer version {} with another protocol; use that version of conclave",
                about.version
            ))),
            Age::Same | Age::Newer => Ok(Reached::Node(socket)),
        }
    }

    /// Asks an older node to end. Returns whether it does; it does not while something is held.
    async fn ask_to_end(&self) -> io::Result<bool> {
        let Socket::Unix(socket) = Socket::connect_in(&self.folder).await? else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut stream = socket.into_stream()?;
        let exchange = async {
            stream.write_all(&preface(END_MAGIC)).await?;
            stream.read_u8().await
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the older node does not reply");
        Ok(tokio::time::timeout(END_LIMIT, exchange).await.map_err(late)?? == ENDING)
    }
}

/// The result of looking for a node.
enum Reached {
    Node(Socket),
    /// No node listens, for this reason.
    Nobody(io::Error),
}

/// Connects a client, each time it needs a connection. Starts the node if it does not run.
struct OnDemand {
    node: Local,
    /// The connection that [`open`] has made already.
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

/// A failure to find, start or use the local node.
fn unusable(message: String) -> Failure {
    Failure::new(NO_SERVER, Code::Unreachable.name(), message)
}

/// A failure of the system in the data folder.
fn folder_failure(what: &str, path: &Path, error: &io::Error) -> Failure {
    unusable(format!(
        "{what} {}: {error}; correct that, or set {} to another folder",
        path.display(),
        place::VARIABLE
    ))
}
