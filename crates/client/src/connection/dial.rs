//! Connecting: to the first of several nodes that replies.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use conclave_core::{Code, Error};
use conclave_wire::socket::Socket;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock::Clock;

/// The time limit for connecting to one node; then the attempt fails.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// The delay after which the next node is tried too. A machine that is down sends no rejection, and the lease
/// may end during the wait.
const NEXT_NODE_DELAY: Duration = Duration::from_millis(250);

/// A way to connect that replaces the usual one; [`crate::ClientBuilder::connector`] sets it.
pub trait Connector: Send + Sync {
    /// Connects to one server, from the list of the client or from a list that the service has sent since.
    ///
    /// The client sets no time limit for this future. It may drop the future at any time, and call the method
    /// again later.
    fn connect(&self, server: String) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;

    /// Returns the clock that counts the leases of the client.
    #[doc(hidden)]
    fn clock(&self) -> Clock {
        Clock::System
    }
}

/// The usual way: a Unix socket or TCP, within [`CONNECT_WITHIN`].
pub(crate) struct Direct;

impl Connector for Direct {
    fn connect(&self, server: String) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no reply in time");
        Box::pin(async move { timeout(CONNECT_WITHIN, Socket::connect(&server)).await.map_err(late)? })
    }
}

/// Connects to the first node that replies. Returns the connection and the name of the node.
pub(crate) async fn connect(nodes: &[String], connector: &dyn Connector) -> Result<(Socket, String), Error> {
    first_of(nodes, |node| connector.connect(node)).await
}

/// Returns the result of the first attempt that succeeds, and the name of its node. The other attempts are
/// dropped.
async fn first_of<T, F>(nodes: &[String], attempt: impl Fn(String) -> F) -> Result<(T, String), Error>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut untried = nodes.iter();
    let mut attempts = JoinSet::new();
    let mut failures = Vec::new();
    loop {
        if let Some(node) = untried.next() {
            let (node, attempt) = (node.clone(), attempt(node.clone()));
            attempts.spawn(async move { (attempt.await, node) });
        }
        tokio::select! {
            biased;
            ended = attempts.join_next() => match ended {
                Some(Ok((Ok(connected), node))) => return Ok((connected, node)),
                Some(Ok((Err(error), node))) => failures.push(format!("{node}: {error}")),
                // The runtime is shutting down.
                Some(Err(error)) => failures.push(error.to_string()),
                None => break,
            },
            () = sleep(NEXT_NODE_DELAY), if untried.len() > 0 => {}
        }
    }
    Err(Error::new(Code::Unreachable, format!("no server can be reached ({})", failures.join("; "))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;

    /// The first node replies only after the second was tried. Trying one node at a time would wait for ever.
    #[tokio::test]
    async fn the_next_node_is_tried_while_a_silent_node_does_not_reply() {
        let is_second_tried = Arc::new(Notify::new());
        let attempt = |node: String| {
            let is_second_tried = is_second_tried.clone();
            async move {
                match node.as_str() {
                    "first" => is_second_tried.notified().await,
                    _ => {
                        is_second_tried.notify_one();
                        std::future::pending::<()>().await;
                    }
                }
                Ok(())
            }
        };
        let nodes = ["first", "second"].map(String::from);
        assert_eq!(first_of(&nodes, attempt).await.unwrap().1, "first");
    }

    #[tokio::test]
    async fn every_node_that_refuses_is_named() {
        let refuse = async |_| Err::<(), _>(io::Error::other("refused"));
        let error = first_of(&["a", "b"].map(String::from), refuse).await.unwrap_err();
        assert_eq!(error.code, Code::Unreachable);
        assert!(error.message.contains("a: refused") && error.message.contains("b: refused"), "{error}");
    }
}
