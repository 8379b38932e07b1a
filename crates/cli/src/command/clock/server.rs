//! Answers NTP clients with the system clock, and says honestly how good that is.
//!
//! An answer is as long as its question and needs no memory of who asked: there is nothing to amplify and
//! nothing to fill up.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use conclave_kernel::time;

use super::client::unix_now;
use super::packet::{ALARM, CLIENT, LENGTH, Packet, SERVER, Short, Stamp, UNSYNCHRONISED};

/// What may be said of the system clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quality {
    /// How far it is from a reference clock.
    pub stratum: u8,
    /// The most by which it is wrong.
    pub dispersion: Duration,
}

/// What somebody vouches for, or what the kernel knows; `None` if nobody knows how good the clock is.
pub fn quality(stratum: Option<u8>, vouched: Option<Duration>) -> Option<Quality> {
    let dispersion = vouched.or_else(kernel_error)?;
    Some(Quality { stratum: stratum.unwrap_or(LOCAL_STRATUM), dispersion })
}

/// The stratum if nobody says better: the kernel knows how wrong its clock may be, not how far it is from the root.
const LOCAL_STRATUM: u8 = 10;

/// The most by which the kernel believes its clock to be wrong; `None` if it is not synchronised.
#[allow(unsafe_code, reason = "no safe crate of ours asks the kernel about its clock")]
fn kernel_error() -> Option<Duration> {
    // SAFETY: all zeroes is a valid `timex`, and one whose `modes` is 0 changes nothing.
    let (state, clock) = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        let state = libc::adjtimex(&raw mut clock);
        (state, clock)
    };
    let synchronised = (0..libc::TIME_ERROR).contains(&state) && clock.status & libc::STA_UNSYNC == 0;
    synchronised.then(|| Duration::from_micros(u64::try_from(clock.maxerror).unwrap_or(0)))
}

/// Answers for ever. `quality` is asked anew for every answer: the clock may get better or worse.
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
            // Somebody to whom an answer was sent has gone, or a signal came.
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error),
        };
        let received = unix_now();
        let Some(question) = Packet::read(&bytes[..length]).filter(is_question) else { continue };
        let answer = answer(&question, received, quality(), unix_now);
        // Who cannot be reached will ask again.
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
        // Never set, as far as is known.
        None => (ALARM, UNSYNCHRONISED, Duration::from_secs(16), Stamp(0)),
    };
    Packet {
        leap,
        version: question.version,
        mode: SERVER,
        stratum,
        poll: question.poll,
        // About a microsecond.
        precision: -20,
        // The dispersion covers the whole way to the root.
        root_delay: Short(0),
        root_dispersion: Short::from_nanos(time::nanos(dispersion)),
        // Not an address, so that nobody finds a loop where there is none.
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
        // An answer, a control message, and a version that is none: no two servers talk to each other for ever.
        for (mode, version) in [(SERVER, 4), (6, 4), (7, 2), (CLIENT, 0), (CLIENT, 5)] {
            assert!(!is_question(&Packet { mode, version, ..question }), "{mode} {version}");
        }
    }

    #[test]
    fn what_somebody_vouches_for_needs_no_kernel() {
        assert_eq!(quality(Some(3), Some(Duration::from_millis(2))), Some(GOOD));
    }
}
