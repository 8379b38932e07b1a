//! The task that owns the socket: it connects, reads, and writes what the callers leave to it.
//!
//! **Rules.**
//! - After a lost connection the task tries all known nodes. It tries the next one when an attempt fails, or
//!   after 250 ms. It pauses between rounds. The pause grows until a connection is productive; a connection
//!   that the server closes at once is not.
//! - Reads and writes never wait for each other. Otherwise the client and the server could each wait for
//!   the other to read, for ever.
//!
//! **End.** All requests fail if no connection is productive until the deadline of the lease, or, without a
//! session, for the client's `retry_timeout`. The session ends by itself, and the next request starts anew.
//! If the task ends with its runtime or by a panic, all requests fail at once, present and future ones.
//!
//! **Trap.** Leases count the time of a suspension, but timers of the runtime do not (`clock.rs`). The
//! machine is suspended for an hour. A timer for the deadline then fires an hour too late, and so does
//! `Guard::lost`. So while a grant is held, no timer is longer than [`CLOCK_CHECK_INTERVAL`].

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use conclave_core::{Code, Error};
use conclave_wire::socket::Socket;
use tokio::time::{Instant, sleep, sleep_until};

use super::read_half::ReadHalf;
use super::{Connector, Flushed, Shared, WriteHalf, connect};
use crate::core::Core;
use crate::lease::Now;

/// The longest time between two checks of the clock while a grant is held or there is no connection.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The first and the longest pause between rounds through all nodes.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

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
            self.shared.is_local.store(socket.is_local(), Ordering::Relaxed);
            self.shared.with(Core::on_connected);
            let served = serve(socket, &self.shared).await;
            self.shared.disconnect();
            let is_productive = self.shared.with(|core, now| core.on_disconnected(now, why(&node, served)));
            pause = if is_productive { Duration::ZERO } else { longer(pause) };
            let reconnected = tokio::select! {
                biased;
                reconnected = self.reconnect(&node, &mut pause) => reconnected,
                never = self.check_clock() => match never {},
            };
            match reconnected {
                Some(connected) => (socket, node) = connected,
                None => break,
            }
        }
    }

    /// Tries all nodes until one replies, and `last` after the others: it may be alive but not productive.
    /// Returns `None` if the last handle was dropped.
    async fn reconnect(&self, last: &str, pause: &mut Duration) -> Option<(Socket, String)> {
        while !self.shared.with(|core, _| core.is_closing()) {
            if !pause.is_zero() {
                // Do not wait for `wake`: it announces new requests, or the drop of the last handle. Both
                // can wait.
                sleep(jittered(*pause, self.shared.clock().now())).await;
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
    async fn check_clock(&self) -> Infallible {
        loop {
            sleep(CLOCK_CHECK_INTERVAL).await;
            self.shared.with(Core::on_tick);
        }
    }
}

impl Drop for Driver {
    /// Runs also if the runtime shuts down or the task panics. Without it, the requests would wait for ever.
    fn drop(&mut self) {
        self.shared.disconnect();
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

/// A time from half the pause to all of it. So the clients of a restarted server do not all connect at once.
/// It follows from the nanoseconds of the clock: in a test with a paused clock it is the same in each run.
fn jittered(pause: Duration, now: Now) -> Duration {
    // The upper bits of the product depend on all bits of the time.
    let salt = (now.as_nanos() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    pause / 2 + pause.mul_f64(salt as f64 / 2_048.0)
}

/// Serves one connection until it ends, or until the last handle is dropped and everything is written.
async fn serve(socket: Socket, shared: &Arc<Shared>) -> io::Result<()> {
    let (reader, writer) = socket.into_split();
    let writer = Arc::new(writer);
    *shared.read_half() = Some(ReadHalf::new(reader));
    *shared.write_half() = Some(WriteHalf::new(writer.clone()));
    let mut alarm = std::pin::pin!(sleep_until(Instant::now()));
    let mut due = AlarmTime::default();
    loop {
        let (mut is_silent, mut first_check) = (false, None);
        let flushed = shared.flush(|core, now| {
            core.on_tick(now);
            is_silent = core.is_silent(now);
            first_check = shared.plan_keep_alive(core, now);
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
        if let Some(at) = first_check {
            shared.start_keep_alive(at);
        }
        tokio::select! {
            biased;
            ready = writer.writable(), if flushed == Flushed::InPart => ready?,
            is_open = poll_fn(|cx| shared.poll_receive(cx)) => if !is_open? {
                return Ok(());
            },
            () = shared.wake.notified() => {}
            () = alarm.as_mut(), if due.at.is_some() => due = AlarmTime::default(),
        }
    }
}

/// The time for which the alarm of a connection is set.
#[derive(Default)]
struct AlarmTime {
    at: Option<Now>,
    /// True if the alarm goes off within [`CLOCK_CHECK_INTERVAL`] in any case.
    is_near: bool,
}

impl AlarmTime {
    /// Returns the time after which the alarm must go off, or `None` if it stays as it is. A near alarm stays
    /// set after the last release: a client that acquires and releases in a loop would otherwise set it again
    /// each time.
    fn set(&mut self, next: Option<Now>, is_holding: bool, now: Now) -> Option<Duration> {
        if self.at == next && (self.is_near || !is_holding) {
            return None;
        }
        *self = Self { at: next, is_near: is_holding };
        let after = next?.saturating_sub(now);
        Some(if is_holding { after.min(CLOCK_CHECK_INTERVAL) } else { after })
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use conclave_wire::frame::{self, PREFACE_BYTES};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::super::tests::{ids, send_query_of};
    use super::*;
    use crate::core::Opening;

    #[test]
    fn the_alarm_is_near_while_something_is_held_and_not_set_anew_for_every_grant() {
        let (mut due, next, now) =
            (AlarmTime::default(), Some(Duration::from_secs(9)), Duration::from_secs(1));
        assert_eq!(due.set(next, false, now), Some(Duration::from_secs(8)));
        assert_eq!(due.set(next, false, now), None);
        assert_eq!(due.set(next, true, now), Some(CLOCK_CHECK_INTERVAL));
        assert_eq!(due.set(next, false, now), None);
        assert_eq!(due.set(next, true, now), None);
        assert_eq!(due.set(Some(now + CLOCK_CHECK_INTERVAL / 2), true, now), Some(CLOCK_CHECK_INTERVAL / 2));
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

    #[test]
    fn clients_that_lost_a_server_at_almost_the_same_time_do_not_connect_at_the_same_time() {
        let at = |nanos| jittered(PAUSE.1, Duration::from_secs(7) + Duration::from_nanos(nanos));
        let pauses: std::collections::BTreeSet<Duration> = (0..100).map(at).collect();
        assert!(pauses.len() > 50, "{pauses:?}");
        assert!(pauses.iter().all(|pause| (PAUSE.1 / 2..=PAUSE.1).contains(pause)), "{pauses:?}");
    }

    #[tokio::test]
    async fn all_messages_are_written_before_the_connection_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut server = listener.accept().await.unwrap().0;
        let shared = Arc::new(Shared::new(Core::new(Opening::default(), Duration::from_secs(10))));
        shared.with(Core::on_connected);
        // More than the system buffers for a server that does not read.
        let name = "n".repeat(900_000);
        let sent: Vec<u64> = (0..20).map(|_| send_query_of(&shared, &name)).collect();
        shared.submit(Core::close);
        let mut received = Vec::new();
        let both =
            async { tokio::join!(serve(Socket::Tcp(client), &shared), server.read_to_end(&mut received)) };
        let forever = Duration::from_secs(60);
        let (served, read) = timeout(forever, both).await.expect("the client or the server waits for ever");
        served.unwrap();
        read.unwrap();
        let mut received = BytesMut::from(&received[PREFACE_BYTES..]);
        let frames = std::iter::from_fn(|| frame::decode(&mut received).unwrap());
        assert_eq!(frames.flat_map(ids).collect::<Vec<_>>(), sent);
        assert!(received.is_empty());
    }
}
