//! The task that owns the socket: it connects, writes the messages of the core, and passes received messages
//! to the core.
//!
//! **Rules.**
//! - One write carries everything that was submitted since the last one.
//! - Reads and writes never wait for each other. Otherwise the client and the server could each wait for
//!   the other to read, for ever.
//! - After a lost connection the task tries all known nodes, each [`NEXT_AFTER`] after the one before. It
//!   pauses between rounds. The pause grows until a connection is productive; a connection that the server closes
//!   at once is not.
//! - A caller writes by itself if it completes a burst as large as the last one. No further request is then
//!   expected to share the write, and waking the task costs time. The task writes the bytes that the socket
//!   does not accept at once.
//! - A large burst is written in parts, so that the server reads one while the next is submitted.
//!
//! **End.** All requests fail if no connection is productive until the deadline of the lease, or, without a session,
//! for the client's `retry_timeout`. The session ends by itself, and the next request starts anew. If the task
//! ends with its runtime or by a panic, all requests fail at once, present and future ones.
//!
//! **Trap.** Leases count the time of a suspension, but timers of the runtime do not (`clock.rs`). The
//! machine sleeps for an hour; a timer that was set for the deadline goes off an hour too late, and the guard
//! learns of its loss that late. So while a grant is held, no timer is longer than [`LOOK_EVERY`].

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use conclave_core::{Code, Error};
use conclave_wire::frame::{self, CLIENT_MAGIC, Frames, PREFACE_BYTES};
use conclave_wire::socket::{Socket, Writer};
use conclave_wire::v1;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::clock;
use crate::core::Core;
use crate::lease::Now;

/// The time limit for connecting to one node; then the attempt fails.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
/// The delay after which the next node is tried too. A machine that is gone does not reject a connection, and
/// a lease may be running.
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// The longest time between two checks of the clock while a grant is held.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The first and the longest pause between rounds through all nodes.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The state that the handles and the task share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// The write half of the connection; `None` without a connection. Locked before `core`, never after it,
    /// and during each write. So messages are written in the order in which the core returned them.
    write_half: Mutex<Option<WriteHalf>>,
    wake: Notify,
    /// True if the present connection, or the last one, uses a Unix socket.
    is_local: AtomicBool,
}

impl Shared {
    pub(crate) fn new(core: Core) -> Self {
        Self {
            core: Mutex::new(core),
            write_half: Mutex::new(None),
            wake: Notify::new(),
            is_local: AtomicBool::new(false),
        }
    }

    /// Calls `act` with the core and the time.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        act(&mut self.lock(), clock::now())
    }

    /// Calls `act` like [`Shared::with`], then writes the new messages or wakes the task to write them.
    pub(crate) fn ask<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        // Another thread that writes may have drained the core before this call: then the task writes.
        let mut half = self.write_half.try_lock().ok();
        let mut half = half.as_deref_mut().and_then(Option::as_mut);
        let result = self.with(|core, now| {
            let result = act(core, now);
            half = half.take().filter(|_| core.is_worth_a_write());
            if let Some(half) = &mut half {
                core.drain(&mut half.output);
            }
            result
        });
        // After a write error the task finds the broken connection too.
        let is_sent = half.is_some_and(|half| half.send().is_ok() && half.output.bytes().is_empty());
        if !is_sent {
            self.wake.notify_one();
        }
        result
    }

    /// Calls `act`, then writes the messages of the core.
    fn flush(&self, act: impl FnOnce(&mut Core, Now)) -> io::Result<Flushed> {
        let mut half = self.write_half();
        let Some(half) = half.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        let is_closed = self.with(|core, now| {
            act(core, now);
            core.drain(&mut half.output);
            core.is_closed()
        });
        half.send()?;
        Ok(match half.output.bytes() {
            [] if is_closed => Flushed::Last,
            [] => Flushed::All,
            _ => Flushed::InPart,
        })
    }

    /// Returns whether the present connection, or the last one, uses a Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // No code panics while it holds the lock. If some did, the tables would still be complete.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_half(&self) -> MutexGuard<'_, Option<WriteHalf>> {
        self.write_half.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a write.
#[derive(PartialEq)]
enum Flushed {
    All,
    InPart,
    /// Everything is written, and nothing more will follow.
    Last,
}

/// The write half of a connection, and the bytes that are not written yet.
struct WriteHalf {
    writer: Arc<Writer>,
    output: Frames,
}

impl WriteHalf {
    fn new(writer: Arc<Writer>) -> Self {
        Self { writer, output: Frames::behind(frame::preface(CLIENT_MAGIC)) }
    }

    /// Writes as many bytes as the socket accepts now.
    fn send(&mut self) -> io::Result<()> {
        while !self.output.bytes().is_empty() {
            match self.writer.try_write(self.output.bytes()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.output.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A way to connect that replaces the usual one; [`crate::Options::connector`] sets it.
pub trait Connector: Send + Sync {
    /// Connects to one server, from the list of the client or from a list that the service has sent since.
    ///
    /// The client sets no time limit for this future. It may drop the future at any time, and call the method
    /// again later.
    fn connect(&self, server: String) -> Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;
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
            ended = attempts.join_next() => match ended {
                Some(Ok((Ok(connected), node))) => return Ok((connected, node)),
                Some(Ok((Err(error), node))) => failures.push(format!("{node}: {error}")),
                // The runtime is shutting down.
                Some(Err(error)) => failures.push(error.to_string()),
                None => break,
            },
            () = sleep(NEXT_AFTER), if untried.len() > 0 => {}
        }
    }
    Err(Error::new(Code::Unreachable, format!("no server can be reached ({})", failures.join("; "))))
}

/// The task of a client. It runs until the last handle is dropped.
pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    /// The servers that the user named.
    pub(crate) seeds: Vec<String>,
    pub(crate) connector: Arc<dyn Connector>,
}

impl Driver {
    pub(crate) async fn run(self, (mut socket, mut node): (Socket, String)) {
        let mut pause = Duration::ZERO;
        loop {
            self.shared.is_local.store(matches!(socket, Socket::Unix(_)), Ordering::Relaxed);
            self.shared.with(Core::on_connected);
            let served = serve(socket, &self.shared).await;
            *self.shared.write_half() = None;
            let is_productive = self.shared.with(|core, now| core.on_disconnected(now, why(&node, served)));
            pause = if is_productive { Duration::ZERO } else { longer(pause) };
            let reconnected = tokio::select! {
                reconnected = self.reconnect(&node, &mut pause) => reconnected,
                never = self.keep_looking() => match never {},
            };
            match reconnected {
                Some(connected) => (socket, node) = connected,
                None => break,
            }
        }
    }

    /// Tries all nodes until one replies, and `last` after the others: it may be alive but not productive. Returns
    /// `None` if the last handle was dropped.
    async fn reconnect(&self, last: &str, pause: &mut Duration) -> Option<(Socket, String)> {
        while !self.shared.with(|core, _| core.is_closing()) {
            if !pause.is_zero() {
                // Do not wait for `wake`: it announces new requests or the last handle's drop, and both can
                // wait.
                sleep(jittered(*pause)).await;
            }
            let mut nodes = self.shared.with(|core, _| core.nodes().to_vec());
            nodes.extend(self.seeds.iter().filter(|seed| !nodes.contains(seed)).cloned().collect::<Vec<_>>());
            nodes.sort_by_key(|node| node == last);
            match connect(&nodes, &*self.connector).await {
                Ok(connected) => return Some(connected),
                Err(error) => self.shared.with(|core, now| core.on_failed_attempt(now, &error)),
            }
            *pause = longer(*pause);
        }
        None
    }

    /// Checks the clock while there is no connection.
    async fn keep_looking(&self) -> Infallible {
        loop {
            sleep(LOOK_EVERY).await;
            self.shared.with(Core::on_tick);
        }
    }
}

impl Drop for Driver {
    /// Runs also if the runtime shuts down or the task panics. Without it, the requests would wait for ever.
    fn drop(&mut self) {
        *self.shared.write_half() = None;
        self.shared.with(|core, _| core.stop());
    }
}

/// The error of the requests that fail because the connection ended.
fn why(node: &str, served: io::Result<()>) -> Error {
    let text = match served {
        Ok(()) => format!("{node} closed the connection"),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => format!("{node} {error}"),
        Err(error) => format!("the connection to {node} broke: {error}"),
    };
    Error::new(Code::Disconnected, text)
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).clamp(PAUSE.0, PAUSE.1)
}

/// A random time from half the pause to all of it. The many clients of a server that returns then do not all
/// connect at once.
fn jittered(pause: Duration) -> Duration {
    let salt = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), pause);
    pause / 2 + pause.mul_f64((salt % 1_000) as f64 / 2_000.0)
}

/// Serves one connection until it ends, or until the last handle is dropped and everything is written.
async fn serve(socket: Socket, shared: &Shared) -> io::Result<()> {
    let (mut reader, writer) = socket.into_split();
    let writer = Arc::new(writer);
    *shared.write_half() = Some(WriteHalf::new(writer.clone()));
    let mut input = BytesMut::new();
    let mut greeted = false;
    let mut alarm = std::pin::pin!(sleep_until(Instant::now()));
    let mut due = Due::default();
    loop {
        let mut is_silent = false;
        let flushed = shared.flush(|core, now| {
            core.on_tick(now);
            is_silent = core.is_silent(now);
            if let Some(after) = due.set(core.next_tick(now), core.is_holding(), now) {
                alarm.as_mut().reset(Instant::now() + after);
            }
        })?;
        if flushed == Flushed::Last {
            return writer.shutdown();
        }
        if is_silent {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the server sends nothing"));
        }
        frame::make_room(&mut input);
        tokio::select! {
            biased;
            ready = writer.writable(), if flushed == Flushed::InPart => ready?,
            read = reader.read_buf(&mut input) => {
                if read? == 0 {
                    return Ok(());
                }
                greeted = greeted || greet(&mut input, shared)?;
                if greeted {
                    take(&mut input, shared)?;
                }
            }
            () = shared.wake.notified() => {}
            () = alarm.as_mut(), if due.at.is_some() => due = Due::default(),
        }
    }
}

/// The time for which the alarm of a connection is set.
#[derive(Default)]
struct Due {
    at: Option<Now>,
    /// True if the alarm goes off within [`LOOK_EVERY`] in any case.
    is_near: bool,
}

impl Due {
    /// Returns the time after which the alarm must go off, or `None` if it stays as it is. A near alarm stays
    /// set after the last release: a client that acquires and releases in a loop would otherwise set it again
    /// each time.
    fn set(&mut self, next: Option<Now>, is_holding: bool, now: Now) -> Option<Duration> {
        if self.at == next && (self.is_near || !is_holding) {
            return None;
        }
        *self = Self { at: next, is_near: is_holding };
        let after = next?.saturating_sub(now);
        Some(if is_holding { after.min(LOOK_EVERY) } else { after })
    }
}

fn greet(input: &mut BytesMut, shared: &Shared) -> io::Result<bool> {
    if input.len() < PREFACE_BYTES {
        return Ok(false);
    }
    if input[..PREFACE_BYTES - 1] != CLIENT_MAGIC {
        shared.with(|core, _| core.on_refused());
        let said = String::from_utf8_lossy(&input[..PREFACE_BYTES]);
        let text = format!("is not a conclave server: its first bytes are {said:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    // After another version the server sends a `Goodbye` with the reason.
    input.advance(PREFACE_BYTES);
    shared.with(Core::on_greeted);
    Ok(true)
}

fn take(input: &mut BytesMut, shared: &Shared) -> io::Result<()> {
    while let Some(frame) = frame::decode::<v1::ServerFrame>(input)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("sent a wrong frame: {error}")))?
    {
        shared.with(|core, now| frame.messages.into_iter().for_each(|message| core.on_message(now, message)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    use super::*;
    use crate::core::{Opening, Reply};

    /// Creates a client on a connection without its task. Returns it with the server's end.
    async fn connected() -> (Shared, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_, writer) = Socket::Tcp(client).into_split();
        writer.writable().await.unwrap();
        let shared = Shared::new(Core::new(Opening::default(), Duration::from_secs(10)));
        shared.with(Core::on_connected);
        *shared.write_half() = Some(WriteHalf { writer: Arc::new(writer), output: Frames::default() });
        (shared, listener.accept().await.unwrap().0)
    }

    /// Runs one iteration of the task.
    fn turn(shared: &Shared) -> Flushed {
        let look = |core: &mut Core, now| {
            core.next_tick(now);
        };
        shared.flush(look).unwrap()
    }

    fn ask(shared: &Shared) -> u64 {
        ask_about(shared, "x")
    }

    fn ask_about(shared: &Shared, name: &str) -> u64 {
        let what = v1::query::What::Why(v1::Why { name: name.into() });
        let (sender, _) = oneshot::channel();
        shared.ask(|core, now| core.query(now, what, Reply::Once(sender))).unwrap()
    }

    fn answer(shared: &Shared, id: u64) {
        let result = v1::answer::Result::Done(v1::Done {});
        let answer = v1::Answer { id, result: Some(result) };
        shared.with(|core, now| core.on_message(now, answer.into()));
    }

    /// Returns whether the task was woken since the last call.
    fn is_woken(shared: &Shared) -> bool {
        std::pin::pin!(shared.wake.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn ids(frame: v1::ClientFrame) -> Vec<u64> {
        let id = |message: v1::ClientMessage| match message.message {
            Some(v1::client_message::Message::Query(query)) => query.id,
            other => panic!("nobody said {other:?}"),
        };
        frame.messages.into_iter().map(id).collect()
    }

    /// Reads the next frame and returns the numbers of its queries.
    async fn read(server: &mut TcpStream) -> Vec<u64> {
        let mut input = BytesMut::new();
        loop {
            if let Some(frame) = frame::decode(&mut input).unwrap() {
                return ids(frame);
            }
            assert_ne!(server.read_buf(&mut input).await.unwrap(), 0, "the connection ended");
        }
    }

    #[tokio::test]
    async fn a_caller_that_has_asked_as_much_as_the_last_time_writes_it_itself() {
        for usual in 1..=3 {
            let (shared, mut server) = connected().await;
            let first: Vec<u64> = (0..usual).map(|_| ask(&shared)).collect();
            assert!(is_woken(&shared), "nobody knows yet how many there will be");
            assert!(turn(&shared) == Flushed::All);
            assert_eq!(read(&mut server).await, first);
            first.into_iter().for_each(|id| answer(&shared, id));
            for _ in 0..3 {
                let most: Vec<u64> = (1..usual).map(|_| ask(&shared)).collect();
                // The task has no chance to run.
                assert_eq!(is_woken(&shared), usual > 1);
                let next = most.into_iter().chain([ask(&shared)]).collect::<Vec<_>>();
                assert!(!is_woken(&shared));
                assert_eq!(read(&mut server).await, next, "in one write");
                next.into_iter().for_each(|id| answer(&shared, id));
            }
            // A burst that is larger than the last one: its first part cannot be recognised in time.
            let as_usual: Vec<u64> = (0..usual).map(|_| ask(&shared)).collect();
            assert_eq!(is_woken(&shared), usual > 1);
            assert_eq!(read(&mut server).await, as_usual);
            let more = [ask(&shared), ask(&shared)];
            assert!(is_woken(&shared));
            turn(&shared);
            assert_eq!(read(&mut server).await, more, "in one write");
            as_usual.into_iter().chain(more).for_each(|id| answer(&shared, id));
            ask(&shared);
            assert!(is_woken(&shared), "there were more a moment ago");
        }
    }

    /// The first node replies only after the second was tried. Trying one node at a time would wait for ever.
    #[tokio::test]
    async fn a_node_that_says_nothing_does_not_keep_the_next_from_being_tried() {
        let asked = Arc::new(Notify::new());
        let attempt = |node: String| {
            let asked = asked.clone();
            async move {
                match node.as_str() {
                    "first" => asked.notified().await,
                    _ => {
                        asked.notify_one();
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

    #[test]
    fn the_alarm_is_near_while_something_is_held_and_not_set_anew_for_every_grant() {
        let (mut due, next, now) = (Due::default(), Some(Duration::from_secs(9)), Duration::from_secs(1));
        assert_eq!(due.set(next, false, now), Some(Duration::from_secs(8)));
        assert_eq!(due.set(next, false, now), None);
        assert_eq!(due.set(next, true, now), Some(LOOK_EVERY));
        assert_eq!(due.set(next, false, now), None);
        assert_eq!(due.set(next, true, now), None);
        assert_eq!(due.set(Some(now + LOOK_EVERY / 2), true, now), Some(LOOK_EVERY / 2));
        assert_eq!(due.set(None, false, now), None);
        assert!(due.at.is_none());
    }

    #[test]
    fn the_pause_grows_to_its_bound() {
        let pauses: Vec<Duration> =
            std::iter::successors(Some(longer(Duration::ZERO)), |pause| Some(longer(*pause)))
                .take_while(|pause| *pause < PAUSE.1)
                .collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640].map(Duration::from_millis));
        assert_eq!(longer(PAUSE.1), PAUSE.1);
    }

    #[tokio::test]
    async fn what_does_not_go_through_is_left_to_the_task() {
        let (shared, mut server) = connected().await;
        let first = ask(&shared);
        assert!(is_woken(&shared));
        turn(&shared);
        assert_eq!(read(&mut server).await, [first]);
        answer(&shared, first);
        // Fill the socket: the server does not read.
        let writer = shared.write_half().as_ref().unwrap().writer.clone();
        let mut filled = 0;
        while let Ok(written) = writer.try_write(&[0; 1 << 16]) {
            filled += written;
        }
        let next = ask(&shared);
        assert!(is_woken(&shared));
        assert!(turn(&shared) == Flushed::InPart);
        let task = async {
            while turn(&shared) == Flushed::InPart {
                writer.writable().await.unwrap();
            }
        };
        let mut filling = vec![1; filled];
        let (_, all) = tokio::join!(task, server.read_exact(&mut filling));
        all.unwrap();
        assert_eq!(read(&mut server).await, [next]);
    }

    #[tokio::test]
    async fn everything_is_said_before_the_end_though_it_does_not_go_through_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut server = listener.accept().await.unwrap().0;
        let shared = Shared::new(Core::new(Opening::default(), Duration::from_secs(10)));
        shared.with(Core::on_connected);
        // More than the system buffers for a server that does not read.
        let name = "n".repeat(900_000);
        let asked: Vec<u64> = (0..20).map(|_| ask_about(&shared, &name)).collect();
        shared.ask(Core::close);
        let mut heard = Vec::new();
        let both =
            async { tokio::join!(serve(Socket::Tcp(client), &shared), server.read_to_end(&mut heard)) };
        let forever = Duration::from_secs(60);
        let (served, read) = timeout(forever, both).await.expect("somebody waits for ever");
        served.unwrap();
        read.unwrap();
        let mut heard = BytesMut::from(&heard[PREFACE_BYTES..]);
        let frames = std::iter::from_fn(|| frame::decode(&mut heard).unwrap());
        assert_eq!(frames.flat_map(ids).collect::<Vec<_>>(), asked);
        assert!(heard.is_empty());
    }
}
