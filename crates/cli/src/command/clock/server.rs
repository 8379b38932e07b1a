//! The server: replies to NTP clients with the time of the system clock and its quality.
//!
//! A reply is as long as its request, and the server keeps no state for a client. So the server amplifies no
//! attack, and its memory cannot fill up.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use conclave_kernel::time;

use super::client::unix_now;
use super::packet::{ALARM, CLIENT, LENGTH, Packet, SERVER, Short, Stamp, UNSYNCHRONISED};

/// The quality of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quality {
    /// The distance of the clock from a reference clock.
    pub stratum: u8,
    /// The largest error of the clock.
    pub dispersion: Duration,
}

/// Returns the quality that the user promised, or that of the kernel; `None` if neither is known.
pub fn quality(stratum: Option<u8>, vouched: Option<Duration>) -> Option<Quality> {
    let dispersion = vouched.or_else(kernel_error)?;
    Some(Quality { stratum: stratum.unwrap_or(LOCAL_STRATUM), dispersion })
}

/// The default stratum. The kernel knows the error of its clock, but not its distance from the root.
const LOCAL_STRATUM: u8 = 10;

/// Returns the largest error of the clock according to the kernel; `None` if it is not synchronised.
#[allow(unsafe_code, reason = "no safe crate of ours asks the kernel about its clock")]
fn kernel_error() -> Option<Duration> {
    // SAFETY: a `timex` of zeroes is valid, and with `modes` 0 the call changes nothing.
    let (state, clock) = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        let state = libc::adjtimex(&raw mut clock);
        (state, clock)
    };
    let synchronised = (0..libc::TIME_ERROR).contains(&state) && clock.status & libc::STA_UNSYNC == 0;
    synchronised.then(|| Duration::from_micros(u64::try_from(clock.maxerror).unwrap_or(0)))
}

/// Replies until an error. `quality` is called for every reply, because the clock may become better or worse.
pub fn serve(
    address: SocketAddr,
    quality: impl Fn() -> Option<Quality>,
    ready: impl FnOnce(SocketAddr),
) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    ready(socket.local_addr()?);
    let mut bytes = [0; 4 * LENGTH];
    loop {
        let (length, from) = match socket.recv_from(&mut bytes) {
            Ok(received) => received,
            // A client that received a reply has gone, or a signal arrived.
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error),
        };
        let received = unix_now();
        let Some(question) = Packet::read(&bytes[..length]).filter(is_question) else { continue };
        let answer = answer(&question, received, quality(), unix_now);
        // A client that cannot be reached repeats its request.
        _ = socket.send_to(&answer.write(), from);
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted)
}

fn is_question(packet: &Packet) -> bool {
    packet.mode == CLIENT && (1..=4).contains(&packet.version)
}

fn answer(question: &Packet, received: i64, quality: Option<Quality>, now: impl Fn() -> i64) -> Packet {
    let (leap, stratum, dispersion, reference) = match quality {
        Some(quality) => (0, quality.stratum, quality.dispersion, Stamp::from_unix(received)),
        // The time at which the clock was set is unknown.
        None => (ALARM, UNSYNCHRONISED, Duration::from_secs(16), Stamp(0)),
    };
    Packet {
        leap,
        version: question.version,
        mode: SERVER,
        stratum,
        poll: question.poll,
        // About one microsecond.
        precision: -20,
        // The dispersion covers the whole path to the root.
        root_delay: Short(0),
        root_dispersion: Short::from_nanos(time::nanos(dispersion)),
        // The id is no address, so that no client finds a false loop.
        reference_id: *b"LOCL",
        reference,
        origin: question.transmit,
        receive: Stamp::from_unix(received),
        transmit: Stamp::from_unix(now()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Quality = Quality { stratum: 3, dispersion: Duration::from_millis(2) };

    #[test]
    fn an_answer_echoes_the_question_and_says_how_good_the_clock_is() {
        let question = Packet { poll: 6, version: 3, ..Packet::question(Stamp(77)) };
        let answer = answer(&question, 1_000_000, Some(GOOD), || 2_000_000);
        assert_eq!((answer.mode, answer.version, answer.origin, answer.poll), (SERVER, 3, Stamp(77), 6));
        assert_eq!((answer.leap, answer.stratum), (0, 3));
        assert!(answer.root_dispersion.nanos() >= 2_000_000);
        assert!(answer.transmit.since(answer.receive).abs_diff(1_000_000) <= 1);
    }

    #[test]
    fn a_clock_of_which_nobody_knows_anything_is_not_vouched_for() {
        let answer = answer(&Packet::question(Stamp(1)), 0, None, || 0);
        assert_eq!((answer.leap, answer.stratum, answer.reference), (ALARM, UNSYNCHRONISED, Stamp(0)));
        assert_eq!(answer.root_dispersion.nanos(), 16_000_000_000);
    }

    #[test]
    fn only_questions_are_answered() {
        let question = Packet::question(Stamp(1));
        assert!(is_question(&question));
        // A reply, a control message and an unknown version get no reply. So two servers never exchange
        // packets without end.
        for (mode, version) in [(SERVER, 4), (6, 4), (7, 2), (CLIENT, 0), (CLIENT, 5)] {
            assert!(!is_question(&Packet { mode, version, ..question }), "{mode} {version}");
        }
    }

    #[test]
    fn what_somebody_vouches_for_needs_no_kernel() {
        assert_eq!(quality(Some(3), Some(Duration::from_millis(2))), Some(GOOD));
    }
}
