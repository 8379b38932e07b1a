//! The server in memory: its handle, its task, and the connections to it.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use conclave_wire::socket::Socket;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::cluster::{NODES, address};
use super::world::{LinkId, Pause, World};
use crate::clock::Clock;
use crate::lease::Now;
use crate::{Client, Connector, Result};

/// The longest time for which a client that is cut off tries to connect. Then the attempt fails, as over a
/// network.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// A service of three nodes in memory, with faults on demand.
///
/// The nodes and the clients are the real ones. Only the network, the disk and the consensus between the
/// nodes are models. Every fault takes effect before its method returns, and lasts until it is ended.
/// Dropping the server breaks all connections.
pub struct Server {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// The state that the handle, the task and the connections share.
struct Shared {
    runtime: Handle,
    /// The start of the clock of the server and of its clients.
    began: Instant,
    world: Mutex<World>,
    /// The number of the last connector.
    last_link: AtomicU64,
    /// Wakes the clients that are cut off, in the order in which they began to wait.
    reconnected: Notify,
}

impl Server {
    /// Starts a server. All its random choices follow from `seed`: which node leads, to which node a client
    /// connects first, how long elections and delays take.
    ///
    /// # Panics
    /// If there is no tokio runtime with a timer.
    pub fn start(seed: u64) -> Self {
        let shared = Arc::new(Shared {
            runtime: Handle::current(),
            began: Instant::now(),
            world: Mutex::new(World::new(seed)),
            last_link: AtomicU64::new(0),
            reconnected: Notify::new(),
        });
        let task = tokio::spawn(run(shared.clone()));
        Self { shared, task }
    }

    /// Connects a client with the default options.
    ///
    /// # Errors
    /// [`crate::Code::Unreachable`] while the server [refuses connections](Self::refuse_connections).
    pub async fn client(&self) -> Result<Client> {
        Client::builder().connector(self.connector()).connect(&self.addresses()).await
    }

    /// Returns a connector for a client with options of its own. Each client needs its own connector.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use conclave_client::{Client, testing::Server};
    /// # async fn example(server: Server) -> conclave_client::Result<()> {
    /// let builder = Client::builder().ttl(Duration::from_secs(30)).connector(server.connector());
    /// let client = builder.connect(&server.addresses()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connector(&self) -> Arc<dyn Connector> {
        let number = self.shared.last_link.fetch_add(1, Ordering::Relaxed);
        Arc::new(Link { shared: self.shared.clone(), number })
    }

    /// Returns the names of the nodes, with commas between. A client connects to the first, which is drawn
    /// from the seed.
    pub fn addresses(&self) -> String {
        let first = self.shared.world().cluster.draw_node();
        let names = (0..NODES).map(|node| address((first + node) % NODES));
        names.collect::<Vec<_>>().join(",")
    }

    /// Stops the server until [`Server::resume`], as the signal STOP would. Its clock goes on. Clients get no
    /// reply, and lose their locks at their deadline. After the pause the server starts all leases anew. So
    /// no other client gets these locks before another TTL has passed.
    pub fn pause(&self) {
        self.with(|world, _| world.pause = Pause::UntilResumed);
    }

    /// Stops the server like [`Server::pause`], for `time`.
    pub fn pause_for(&self, time: Duration) {
        self.with(|world, now| world.pause = Pause::Until(now + time));
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.with(|world, _| world.pause = Pause::No);
    }

    /// Ends the session of a client now, as if its lease had run out. The client loses its locks. Other
    /// clients get them after the lock-delay, which is one second by default.
    ///
    /// Cut the client off first to model a program that is suspended, and does not know that it has lost its
    /// lock.
    ///
    /// # Panics
    /// If the client is not one of this server, or has no session.
    pub fn lose_session(&self, client: &Client) {
        self.link_of(client);
        let session = client.session().expect("the client has a session: it has requested something");
        let has_ended = self.with(|world, _| world.cluster.expire(session));
        assert!(has_ended, "session {session} has ended before");
    }

    /// Cuts a client off from all nodes until [`Server::reconnect`]. The client and the server notice only
    /// that no bytes arrive. The client loses its locks at its deadline, and the server ends the session a
    /// little later.
    ///
    /// # Panics
    /// If the client is not one of this server.
    pub fn cut_off(&self, client: &Client) {
        self.set_cut(client, true);
    }

    /// Ends [`Server::cut_off`].
    ///
    /// # Panics
    /// If the client is not one of this server.
    pub fn reconnect(&self, client: &Client) {
        self.set_cut(client, false);
    }

    /// Lets another node win an election, which takes 1,050 to 1,400 ms. Until its end no node accepts a
    /// request. The outcome of some requests is unknown then, so the clients repeat them. Locks and sessions
    /// survive.
    pub fn change_leader(&self) {
        self.with(|world, now| world.cluster.begin_election(now));
    }

    /// Delays each reply by a time that is drawn from `range`. The replies of one connection keep their
    /// order. `Duration::ZERO..=Duration::ZERO` ends the delays of later replies.
    pub fn delay_replies(&self, range: RangeInclusive<Duration>) {
        self.with(|world, _| world.cluster.delay_replies(range));
    }

    /// Breaks every connection. The bytes under way are lost: a request may have been applied without its
    /// reply. The clients connect again and resume their sessions.
    pub fn drop_connections(&self) {
        self.with(|world, _| world.drop_connections());
    }

    /// Refuses new connections, or accepts them again. The present connections stay.
    pub fn refuse_connections(&self, refuse: bool) {
        self.with(|world, _| world.refuses = refuse);
    }

    /// Restarts all nodes at once. All requests that were answered survive. Connections and the times of
    /// leases are lost, and a request without a reply may be lost. A leader is elected within 1,400 ms, and
    /// starts all leases anew.
    pub fn power_cut(&self) {
        self.with(World::cut_power);
    }

    fn set_cut(&self, client: &Client, is_cut: bool) {
        let link = self.link_of(client);
        self.with(|world, _| world.set_cut(link, is_cut));
        self.shared.reconnected.notify_waiters();
    }

    fn link_of(&self, client: &Client) -> LinkId {
        match client.handle.shared.clock() {
            Clock::Memory(link) if Arc::ptr_eq(&link.shared, &self.shared) => link.number,
            _ => panic!("the client is not connected to this server"),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut World, Now) -> T) -> T {
        let now = self.shared.now();
        let mut world = self.shared.world();
        let result = act(&mut world, now);
        world.wake();
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.with(|world, _| world.stop());
        self.task.abort();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Shared {
    /// Returns the time of the runtime, from any thread. A test may have paused it.
    fn now(&self) -> Now {
        let _entered = self.runtime.enter();
        self.began.elapsed()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the server.
async fn run(shared: Arc<Shared>) {
    let mut alarm = std::pin::pin!(sleep_until(shared.began));
    std::future::poll_fn::<(), _>(|cx| {
        loop {
            let now = shared.now();
            let wake_at = shared.world().poll(now, cx);
            let Some(wake_at) = wake_at else { return Poll::Pending };
            alarm.as_mut().reset(shared.began + wake_at);
            if alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// The way of one client to a server in memory, and the clock of that client.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
    number: LinkId,
}

impl Link {
    pub(crate) fn now(&self) -> Now {
        self.shared.now()
    }

    /// Returns the time of the runtime as an instant. A test may have paused it.
    pub(crate) fn instant(&self) -> std::time::Instant {
        (self.shared.began + self.now()).into_std()
    }

    /// Waits while the client is cut off.
    async fn is_reachable(&self) {
        loop {
            let reconnected = self.shared.reconnected.notified();
            if !self.shared.world().is_cut(self.number) {
                return;
            }
            reconnected.await;
        }
    }
}

impl Connector for Link {
    fn connect(&self, server: String) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>> {
        let link = self.clone();
        Box::pin(async move {
            timeout(CONNECT_WITHIN, link.is_reachable()).await?;
            let now = link.now();
            link.shared.world().connect(now, link.number, &server)
        })
    }

    fn clock(&self) -> Clock {
        Clock::Memory(self.clone())
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("number", &self.number).finish_non_exhaustive()
    }
}
