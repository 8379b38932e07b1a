//! The client: sends requests to NTP servers, and combines their replies.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use conclave_algorithms::timesync::Interval;
use conclave_algorithms::timesync::interval::drift;
use conclave_algorithms::timesync::marzullo::agreed;
use conclave_algorithms::timesync::ntp::{Filter, Sample, exchange};
use conclave_kernel::{Time, time};
use serde::Serialize;

use super::packet::{ALARM, LENGTH, Packet, SERVER, Stamp, UNSYNCHRONISED};

/// PHI: the largest drift of a clock, in parts per million \[RFC5905 §7.2\].
const DRIFT_PPM: u32 = 15;

/// The error of a reading of our own clock in nanoseconds, caused by the system call and the scheduler.
const PRECISION: u64 = 1_000;

/// The way in which a server is asked.
#[derive(Clone, Copy)]
pub struct Manners {
    /// The number of requests.
    pub samples: u32,
    /// The time from one request to the next.
    pub interval: Duration,
    /// The longest time to wait for a reply.
    pub timeout: Duration,
    /// The bound at which no further request is sent.
    pub wanted: Option<Duration>,
}

/// The result for one server.
#[derive(Debug, Serialize)]
pub struct Asked {
    /// The server as the user named it.
    pub server: String,
    /// The address of the server.
    pub address: Option<SocketAddr>,
    /// The number of requests.
    pub sent: u32,
    /// The number of usable replies.
    pub received: u32,
    /// The measurement, if there is one.
    #[serde(flatten)]
    pub measured: Option<Measured>,
    /// Whether there is a measurement within `wanted`.
    #[serde(skip)]
    pub is_good_enough: bool,
    /// The reason why the measurement is missing or not good enough.
    pub error: Option<String>,
}

/// The best of several exchanges with a server. All times are in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The server's clock minus ours.
    pub offset_ns: i64,
    /// The time of the round trip.
    pub delay_ns: u64,
    /// The possible drift of the clocks, and the error of their readings.
    pub dispersion_ns: u64,
    /// The root mean square of the differences to the best exchange, as in ntpd.
    pub jitter_ns: u64,
    /// The largest error of the offset against stratum 1, if the server keeps its promises.
    pub bound_ns: u64,
    /// The distance of the server from a reference clock.
    pub stratum: u8,
    /// The server's source: a name at stratum 1, else an address.
    pub reference: String,
    /// The server's round trip to the root.
    pub root_delay_ns: u64,
    /// The server's dispersion to the root.
    pub root_dispersion_ns: u64,
    /// The announced leap second: 0 none, 1 inserted, 2 deleted.
    pub leap: u8,
}

impl Measured {
    /// The interval that contains the true offset.
    pub fn interval(&self) -> Interval {
        Interval::around(self.offset_ns, self.bound_ns)
    }
}

/// Asks all servers at the same time.
pub fn ask_all(servers: &[String], manners: Manners) -> Vec<Asked> {
    thread::scope(|scope| {
        let asking: Vec<_> = servers.iter().map(|server| scope.spawn(move || ask(server, manners))).collect();
        asking.into_iter().map(|asked| asked.join().expect("a request does not panic")).collect()
    })
}

/// The interval that the servers with a reply agree on, if at most `faulty` of them are wrong.
pub fn agreement(asked: &[Asked], faulty: usize) -> Option<Interval> {
    let intervals: Vec<Interval> =
        asked.iter().filter_map(|asked| asked.measured.as_ref()).map(Measured::interval).collect();
    agreed(&intervals, faulty)
}

fn ask(server: &str, manners: Manners) -> Asked {
    let mut asked = Asked {
        server: server.into(),
        address: None,
        sent: 0,
        received: 0,
        measured: None,
        is_good_enough: false,
        error: None,
    };
    let (socket, address) = match connect(server) {
        Ok(connected) => connected,
        Err(error) => return Asked { error: Some(error.to_string()), ..asked },
    };
    asked.address = Some(address);
    let mut filter = Filter::default();
    let (mut best, mut last) = (None::<(Sample, Packet)>, None);
    let wanted = manners.wanted.map_or(u64::MAX, time::nanos);
    for number in 0..manners.samples {
        if number > 0 {
            thread::sleep(manners.interval);
        }
        asked.sent += 1;
        match exchange_once(&socket, manners.timeout) {
            Ok((sample, answer)) => {
                asked.received += 1;
                last = Some(sample.at);
                let used_at = best.as_ref().map(|(best, _)| best.at);
                let period = manners.interval.max(Duration::from_millis(1));
                let now = sample.at;
                if let Some(used) = filter.push(sample, used_at, period, DRIFT_PPM) {
                    best = Some((used, answer));
                }
                let bound = best.as_ref().map(|(best, _)| best.root_distance(now, DRIFT_PPM));
                if manners.wanted.is_some() && bound.is_some_and(|bound| bound <= wanted) {
                    break;
                }
            }
            Err(Failed::Kissed(code)) => {
                // The server wants no more requests, so none is sent.
                asked.error = Some(format!("the server refuses: {code}"));
                break;
            }
            Err(failed) => {
                filter.miss();
                asked.error = Some(failed.to_string());
            }
        }
    }
    asked.measured = best.zip(last).map(|((sample, answer), now)| measured(&sample, &answer, &filter, now));
    let bound = asked.measured.as_ref().map(|measured| measured.bound_ns);
    asked.is_good_enough = bound.is_some_and(|bound| bound <= wanted);
    if bound.is_some() && !asked.is_good_enough {
        asked.error = Some("less exact than wanted".into());
    }
    asked
}

fn measured(sample: &Sample, answer: &Packet, filter: &Filter, now: Time) -> Measured {
    Measured {
        offset_ns: sample.theta,
        delay_ns: sample.delta,
        dispersion_ns: sample.dispersion_at(now, DRIFT_PPM),
        jitter_ns: filter.jitter(now, DRIFT_PPM),
        bound_ns: sample.root_distance(now, DRIFT_PPM),
        stratum: sample.stratum,
        reference: reference(answer),
        root_delay_ns: sample.root_delay,
        root_dispersion_ns: sample.root_dispersion,
        leap: answer.leap,
    }
}

/// The reference: a name at stratum 1, else an address, or the digest of a long address.
fn reference(answer: &Packet) -> String {
    let id = answer.reference_id;
    if answer.stratum == 1 {
        return id
            .iter()
            .take_while(|byte| **byte != 0)
            .map(|byte| byte.escape_ascii().to_string())
            .collect();
    }
    std::net::Ipv4Addr::from(id).to_string()
}

/// Opens a socket to `HOST`, `HOST:PORT` or `[V6]:PORT`; the default port is 123.
fn connect(server: &str) -> io::Result<(UdpSocket, SocketAddr)> {
    const PORT: u16 = 123;
    let bare = || (server.trim_start_matches('[').trim_end_matches(']'), PORT).to_socket_addrs();
    let open = |address: SocketAddr| {
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        // A connected socket receives only the packets of this address.
        socket.connect(address)?;
        Ok((socket, address))
    };
    // A name may have addresses that this machine cannot reach. Use the first address that can be opened.
    let mut opened = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for address in server.to_socket_addrs().or_else(|_| bare())? {
        opened = open(address);
        if opened.is_ok() {
            break;
        }
    }
    opened
}

/// The reason why an exchange failed.
enum Failed {
    Io(io::Error),
    NoAnswer,
    Kissed(String),
    Unsynchronised,
    Impossible,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                f.write_str("no server listens at this address")
            }
            Self::Io(error) => write!(f, "{error}"),
            Self::NoAnswer => f.write_str("no answer"),
            Self::Kissed(code) => write!(f, "the server refuses: {code}"),
            Self::Unsynchronised => f.write_str("the server does not know the time"),
            Self::Impossible => f.write_str("the reply claims a processing time longer than the round trip"),
        }
    }
}

fn exchange_once(socket: &UdpSocket, timeout: Duration) -> Result<(Sample, Packet), Failed> {
    let nonce = Stamp(nonce().map_err(Failed::Io)?);
    let question = Packet::question(nonce).write();
    // The round trip is measured on the monotonic clock, because the system clock may be stepped meanwhile.
    let (sent, started) = (unix_now(), Instant::now());
    socket.send(&question).map_err(Failed::Io)?;
    let (answer, elapsed) = loop {
        let left =
            timeout.checked_sub(started.elapsed()).filter(|left| !left.is_zero()).ok_or(Failed::NoAnswer)?;
        socket.set_read_timeout(Some(left)).map_err(Failed::Io)?;
        let mut bytes = [0; 4 * LENGTH];
        let length = match socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(Failed::NoAnswer);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failed::Io(error)),
        };
        let elapsed = started.elapsed();
        // Ignore a forged, late or duplicate reply: it does not echo this request.
        match Packet::read(&bytes[..length]) {
            Some(answer) if answer.mode == SERVER && answer.origin == nonce => break (answer, elapsed),
            _ => {}
        }
    };
    sample(sent, elapsed, &answer).map(|sample| (sample, answer))
}

/// The sample of a reply; `sent` is in nanoseconds since 1970.
fn sample(sent: i64, elapsed: Duration, answer: &Packet) -> Result<Sample, Failed> {
    if let Some(code) = answer.kiss() {
        return Err(Failed::Kissed(code));
    }
    let has_stratum = (1..UNSYNCHRONISED).contains(&answer.stratum);
    if answer.leap == ALARM || !has_stratum || answer.transmit.0 == 0 {
        return Err(Failed::Unsynchronised);
    }
    let received = sent.saturating_add_unsigned(time::nanos(elapsed));
    let ours = Stamp::from_unix(sent);
    let theirs = |stamp: Stamp| sent.saturating_add(stamp.since(ours));
    let (theta, delta) = exchange(sent, theirs(answer.receive), theirs(answer.transmit), received);
    // 2^precision seconds, limited to the range of real clocks.
    let precision = 1_000_000_000_u64 >> answer.precision.clamp(-30, 0).unsigned_abs();
    let epsilon = drift(elapsed, DRIFT_PPM) + PRECISION + precision;
    // Without this minimum, a round trip of 0 would promise an exact offset.
    let thought = answer.transmit.since(answer.receive);
    if thought > i64::try_from(time::nanos(elapsed).saturating_add(epsilon)).unwrap_or(i64::MAX) {
        return Err(Failed::Impossible);
    }
    Ok(Sample {
        theta,
        delta,
        epsilon,
        at: Time(received.cast_unsigned()),
        stratum: answer.stratum,
        root_delay: answer.root_delay.nanos(),
        root_dispersion: answer.root_dispersion.nanos(),
    })
}

/// The system clock in nanoseconds since 1970.
pub fn unix_now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}

/// A number that an attacker who has not seen the request cannot guess.
fn nonce() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::clock::packet::Short;

    /// The reply of a server whose clock is ahead by `ahead`, after a one-way delay of `there`, with 1 ms of
    /// processing.
    fn answer(sent: i64, ahead: i64, there: i64) -> Packet {
        Packet {
            mode: SERVER,
            stratum: 2,
            precision: -20,
            root_delay: Short::from_nanos(2_000_000),
            root_dispersion: Short::from_nanos(500_000),
            receive: Stamp::from_unix(sent + there + ahead),
            transmit: Stamp::from_unix(sent + there + ahead + 1_000_000),
            ..Packet::question(Stamp(1))
        }
    }

    const NOW: i64 = 1_800_000_000_000_000_000;

    #[test]
    fn the_true_offset_is_within_the_bound_however_asymmetric_the_ways() {
        for (there, back) in [(1, 1), (0, 40), (40, 0)] {
            let (there, back) = (there * 1_000_000, back * 1_000_000);
            for ahead in [-3_600_000_000_000, 0, 7] {
                let elapsed = Duration::from_nanos((there + back + 1_000_000) as u64);
                let Ok(sample) = sample(NOW, elapsed, &answer(NOW, ahead, there)) else { panic!("usable") };
                let bound = sample.root_distance(sample.at, DRIFT_PPM);
                assert!(sample.theta.abs_diff(ahead) <= bound);
                // The bound is half the round trip, half the root delay and the root dispersion, and little
                // more.
                let expected = (there + back) as u64 / 2 + 1_000_000 + 500_000;
                assert!((expected..expected + 40_000).contains(&bound), "{bound} for {expected}");
            }
        }
    }

    #[test]
    fn who_does_not_know_the_time_or_refuses_is_not_believed() {
        let second = Duration::from_secs(1);
        let good = answer(NOW, 0, 0);
        assert!(matches!(sample(NOW, second, &Packet { leap: ALARM, ..good }), Err(Failed::Unsynchronised)));
        for stratum in [0, 16, 255] {
            let without = Packet { stratum, ..good };
            assert!(matches!(sample(NOW, second, &without), Err(Failed::Unsynchronised)), "{stratum}");
        }
        let never = Packet { transmit: Stamp(0), ..good };
        assert!(matches!(sample(NOW, second, &never), Err(Failed::Unsynchronised)));
        let slow = Packet { transmit: Stamp::from_unix(NOW + 1_100_000_000), ..good };
        assert!(matches!(sample(NOW, second, &slow), Err(Failed::Impossible)));
        let kiss = Packet { stratum: 0, reference_id: *b"DENY", ..good };
        assert!(matches!(sample(NOW, second, &kiss), Err(Failed::Kissed(code)) if code == "DENY"));
    }
}
