//! The task that owns the socket: connects, writes what the core has to say, and tells it what arrives.
//!
//! **Rules.** Everything that was asked since the last write goes out in one write. Reading and writing never wait for each
//! other: a server that waits for us to read, while we wait for it to read, would wait for ever. After a lost
//! connection all known nodes are tried in turn, with a growing pause after each round.
//!
//! **The end.** Who cannot reach any node until the lease is past its deadline, or for the client's patience if there is no
//! lease, gives up: everything that was asked fails, and the session ends by itself. The next request starts anew.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use conclave_api::proto::frame::{self, CLIENT_MAGIC, Frames, PREFACE_BYTES};
use conclave_api::proto::v1;
use conclave_api::socket::{Socket, Writer};
use conclave_api::{Code, Error};
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock;
use crate::core::Core;
use crate::lease::Now;

/// What is read at once.
const READ_BYTES: usize = 16 * 1024;
/// How long one node may take to be connected to.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// The first and the longest pause between rounds through all nodes.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What handles and the task share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    wake: Notify,
    /// Whether the connection, or the last one, is within the machine.
    is_local: AtomicBool,
}

impl Shared {
    pub(crate) fn new(core: Core) -> Self {
        Self { core: Mutex::new(core), wake: Notify::new(), is_local: AtomicBool::new(false) }
    }

    /// Looks into the core, or asks something of it.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        act(&mut self.lock(), clock::now())
    }

    /// As [`Shared::with`]; what it has to say goes out.
    pub(crate) fn ask<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        let result = self.with(act);
        self.wake.notify_one();
        result
    }

    /// Whether the server was last reached by its Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // Nothing panics while it is held; should it happen, the tables are still whole.
        self.core.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Connects to the first node that answers, and says which.
pub(crate) async fn connect(nodes: &[String]) -> Result<(Socket, String), Error> {
    let mut failures = Vec::new();
    for node in nodes {
        match tokio::time::timeout(CONNECT_WITHIN, Socket::connect(node)).await {
            Ok(Ok(socket)) => return Ok((socket, node.clone())),
            Ok(Err(error)) => failures.push(format!("{node}: {error}")),
            Err(_) => failures.push(format!("{node}: no answer")),
        }
    }
    Err(Error::new(Code::Unreachable, format!("no server can be reached ({})", failures.join("; "))))
}

/// Serves a client until its last handle is gone.
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    /// Where the user said servers are.
    pub(crate) seeds: Vec<String>,
    pub(crate) patience: Duration,
}

impl Driver {
    pub(crate) async fn run(self, (mut socket, mut node): (Socket, String)) {
        loop {
            self.shared.is_local.store(matches!(socket, Socket::Unix(_)), Ordering::Relaxed);
            self.shared.with(Core::on_connected);
            // Why it broke is of no interest: it is made anew, and what was asked is asked again.
            drop(serve(socket, &self.shared).await);
            self.shared.with(|core, _| core.on_disconnected());
            match self.reconnect(&node).await {
                Some(connected) => (socket, node) = connected,
                None => break,
            }
        }
        let gone = Error::new(Code::Disconnected, "the client was closed");
        self.shared.with(|core, _| core.give_up(&gone));
    }

    /// Tries all nodes until one answers, `last` the last of them: it may be alive and of no use. `None` if nobody needs a
    /// connection any more.
    async fn reconnect(&self, last: &str) -> Option<(Socket, String)> {
        let mut pause = PAUSE.0;
        let began = clock::now();
        while !self.shared.with(|core, _| core.is_closing()) {
            let mut nodes = self.shared.with(|core, _| core.nodes().to_vec());
            nodes.extend(self.seeds.iter().filter(|seed| !nodes.contains(seed)).cloned().collect::<Vec<_>>());
            nodes.sort_by_key(|node| node == last);
            match connect(&nodes).await {
                Ok(connected) => return Some(connected),
                Err(error) => self.shared.with(|core, now| {
                    core.on_tick(now);
                    let until = core.deadline().unwrap_or(began + self.patience);
                    if now >= until {
                        let text = format!("the connection was lost, and {}", error.message);
                        core.give_up(&Error::new(Code::Disconnected, text));
                    }
                }),
            }
            // The wake tells of new requests, which can wait, and of the last handle's end, which can too.
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(PAUSE.1);
        }
        None
    }
}

/// Between half the pause and all of it, so that many clients of a server that returns do not all come at once.
fn jittered(pause: Duration) -> Duration {
    let salt = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), pause);
    pause / 2 + pause.mul_f64((salt % 1_000) as f64 / 2_000.0)
}

/// Speaks on one connection until it ends, or until the last handle is gone and everything is said.
async fn serve(socket: Socket, shared: &Shared) -> io::Result<()> {
    let (mut reader, writer) = socket.into_split();
    let mut input = BytesMut::with_capacity(READ_BYTES);
    let mut output = Frames::behind(frame::preface(CLIENT_MAGIC));
    let mut greeted = false;
    let mut sleep = std::pin::pin!(sleep_until(Instant::now()));
    let mut due = None;
    loop {
        let is_closed = shared.with(|core, now| {
            core.on_tick(now);
            core.drain(&mut output);
            set(sleep.as_mut(), &mut due, core.next_tick(now), now);
            core.is_closed()
        });
        send(&writer, &mut output)?;
        if is_closed && output.bytes().is_empty() {
            return writer.shutdown();
        }
        tokio::select! {
            biased;
            ready = writer.writable(), if !output.bytes().is_empty() => ready?,
            read = reader.read_buf(&mut input) => {
                if read? == 0 {
                    return Ok(());
                }
                greeted = greeted || greet(&mut input)?;
                if greeted {
                    take(&mut input, shared)?;
                }
                if input.capacity() - input.len() < READ_BYTES / 4 {
                    input.reserve(READ_BYTES);
                }
            }
            () = shared.wake.notified() => {}
            () = sleep.as_mut(), if due.is_some() => due = None,
        }
    }
}

/// Writes what can be written at once.
fn send(writer: &Writer, output: &mut Frames) -> io::Result<()> {
    while !output.bytes().is_empty() {
        match writer.try_write(output.bytes()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => output.advance(sent),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sets the alarm, unless it is set so already.
fn set(sleep: std::pin::Pin<&mut Sleep>, due: &mut Option<Now>, next: Option<Now>, now: Now) {
    if *due == next {
        return;
    }
    *due = next;
    if let Some(next) = next {
        sleep.reset(Instant::now() + next.saturating_sub(now));
    }
}

fn greet(input: &mut BytesMut) -> io::Result<bool> {
    if input.len() < PREFACE_BYTES {
        return Ok(false);
    }
    if input[..PREFACE_BYTES - 1] != CLIENT_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no server of ours"));
    }
    // Another version is explained by the goodbye that follows.
    input.advance(PREFACE_BYTES);
    Ok(true)
}

fn take(input: &mut BytesMut, shared: &Shared) -> io::Result<()> {
    while let Some(frame) = frame::decode::<v1::ServerFrame>(input)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?
    {
        shared.with(|core, now| frame.messages.into_iter().for_each(|message| core.on_message(now, message)));
    }
    Ok(())
}
