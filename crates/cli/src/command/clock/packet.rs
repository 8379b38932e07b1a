//! The NTP packet, 48 bytes \[RFC5905 §7.3\]:
//!
//! ```text
//!  0       leap (2 bits), version (3), mode (3)      16..24  reference stamp: when the clock was last set
//!  1       stratum                                   24..32  origin stamp: T1, echoed
//!  2       poll, log2 s                              32..40  receive stamp: T2
//!  3       precision, log2 s                         40..48  transmit stamp: T3 (of a question: T1)
//!  4..8    root delay, 16.16 s                       48..    extensions and a digest: ignored
//!  8..12   root dispersion, 16.16 s
//! 12..16   reference id; of stratum 0 the kiss code
//! ```
//!
//! All fields are big-endian. A stamp counts seconds since 1900 in 32.32 bits and wraps every 136 years. Only
//! differences have a meaning; they are computed modulo 2^64.
//!
//! No crate fits. The one maintained crate that writes packets, ntp-proto, declares its interface private and
//! needs a TLS stack; ntp-parser only reads.

use std::fmt;

/// The length of a packet without extensions.
pub const LENGTH: usize = 48;

/// The mode of a request.
pub const CLIENT: u8 = 3;
/// The mode of a reply.
pub const SERVER: u8 = 4;
/// The leap indicator of a clock that is not synchronised.
pub const ALARM: u8 = 3;
/// The stratum of a clock that is not synchronised.
pub const UNSYNCHRONISED: u8 = 16;

/// An NTP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub leap: u8,
    pub version: u8,
    pub mode: u8,
    pub stratum: u8,
    pub poll: i8,
    pub precision: i8,
    pub root_delay: Short,
    pub root_dispersion: Short,
    pub reference_id: [u8; 4],
    pub reference: Stamp,
    pub origin: Stamp,
    pub receive: Stamp,
    pub transmit: Stamp,
}

impl Packet {
    /// A client's request. The only data about the client is a random number for the server to echo.
    pub const fn question(nonce: Stamp) -> Self {
        Self {
            leap: 0,
            version: 4,
            mode: CLIENT,
            stratum: 0,
            poll: 0,
            precision: 0,
            root_delay: Short(0),
            root_dispersion: Short(0),
            reference_id: [0; 4],
            reference: Stamp(0),
            origin: Stamp(0),
            receive: Stamp(0),
            transmit: nonce,
        }
    }

    /// Reads a packet; `None` if it is too short. Bytes after the first 48 are ignored.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let stamp = |at: usize| Stamp(u64::from(word(at)) << 32 | u64::from(word(at + 4)));
        Some(Self {
            leap: bytes[0] >> 6,
            version: bytes[0] >> 3 & 7,
            mode: bytes[0] & 7,
            stratum: bytes[1],
            poll: bytes[2].cast_signed(),
            precision: bytes[3].cast_signed(),
            root_delay: Short(word(4)),
            root_dispersion: Short(word(8)),
            reference_id: [bytes[12], bytes[13], bytes[14], bytes[15]],
            reference: stamp(16),
            origin: stamp(24),
            receive: stamp(32),
            transmit: stamp(40),
        })
    }

    /// Returns the packet as bytes.
    pub fn write(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = self.leap << 6 | (self.version & 7) << 3 | self.mode & 7;
        bytes[1] = self.stratum;
        bytes[2] = self.poll.cast_unsigned();
        bytes[3] = self.precision.cast_unsigned();
        bytes[4..8].copy_from_slice(&self.root_delay.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.root_dispersion.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.reference_id);
        for (at, stamp) in [(16, self.reference), (24, self.origin), (32, self.receive), (40, self.transmit)]
        {
            bytes[at..at + 8].copy_from_slice(&stamp.0.to_be_bytes());
        }
        bytes
    }

    /// The kiss code of a reply without a time: `RATE`, `DENY`. Some servers, such as chronyd, send stratum 0
    /// without a code if they do not know the time.
    pub fn kiss(&self) -> Option<String> {
        let is_code = self.stratum == 0 && self.reference_id[0].is_ascii_alphabetic();
        is_code.then(|| self.reference_id.escape_ascii().to_string().replace("\\x00", ""))
    }
}

/// A span of time in 16.16 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short(pub u32);

impl Short {
    /// Converts nanoseconds, rounded up because the span is a bound. Saturates after 18 hours.
    pub fn from_nanos(ns: u64) -> Self {
        Self(u32::try_from((u128::from(ns) << 16).div_ceil(1_000_000_000)).unwrap_or(u32::MAX))
    }

    /// The span in nanoseconds, rounded up.
    pub fn nanos(self) -> u64 {
        (u64::from(self.0) * 1_000_000_000).div_ceil(1 << 16)
    }
}

/// A moment in 32.32 seconds since 1900, modulo 2^32 seconds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Converts nanoseconds since 1970.
    pub fn from_unix(ns: i64) -> Self {
        const FROM_1900: i128 = 2_208_988_800;
        const BILLION: i128 = 1_000_000_000;
        let ns = i128::from(ns) + FROM_1900 * BILLION;
        let (seconds, rest) = (ns.div_euclid(BILLION), ns.rem_euclid(BILLION));
        // Rounds to the nearest value; the era is dropped.
        Self(((seconds << 32) + ((rest << 32) + BILLION / 2) / BILLION) as u64)
    }

    /// The nanoseconds by which this stamp is later than another one, at most 68 years away.
    pub fn since(self, other: Self) -> i64 {
        let apart = self.0.wrapping_sub(other.0).cast_signed();
        ((i128::from(apart) * 1_000_000_000) >> 32) as i64
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}.{:08x}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_read_as_it_is_written() {
        let packet = Packet {
            leap: 3,
            version: 4,
            mode: SERVER,
            stratum: 2,
            poll: 6,
            precision: -23,
            root_delay: Short(0x0001_8000),
            root_dispersion: Short(7),
            reference_id: *b"GPS\0",
            reference: Stamp(1),
            origin: Stamp(0x0123_4567_89ab_cdef),
            receive: Stamp(u64::MAX),
            transmit: Stamp(1 << 63),
        };
        let bytes = packet.write();
        assert_eq!(Packet::read(&bytes), Some(packet));
        // [RFC5905 §7.3]: leap 3, version 4, mode 4; precision two's complement; stamps in order.
        assert_eq!((bytes[0], bytes[1], bytes[3]), (0b11_100_100, 2, 0xe9));
        assert_eq!(bytes[4..8], [0, 1, 0x80, 0]);
        assert_eq!(bytes[24..32], 0x0123_4567_89ab_cdef_u64.to_be_bytes());
    }

    #[test]
    fn what_is_too_short_is_no_packet_and_extensions_are_ignored() {
        assert_eq!(Packet::read(&[0x23; LENGTH - 1]), None);
        assert!(Packet::read(&[0x23; LENGTH + 20]).is_some_and(|packet| packet.mode == CLIENT));
    }

    #[test]
    fn a_kiss_has_its_code() {
        let packet = Packet { reference_id: *b"RATE", ..Packet::question(Stamp(1)) };
        assert_eq!(packet.kiss().as_deref(), Some("RATE"));
        assert_eq!(Packet { stratum: 1, ..packet }.kiss(), None);
        assert_eq!(
            Packet { reference_id: [0; 4], ..packet }.kiss(),
            None,
            "the server does not know the time"
        );
    }

    #[test]
    fn the_stamps_of_known_moments() {
        assert_eq!(Stamp::from_unix(0).0, 2_208_988_800 << 32);
        assert_eq!(Stamp::from_unix(500_000_000).0, 2_208_988_800 << 32 | 1 << 31);
        // The first era ends at 2036-02-07 06:28:16.
        assert_eq!(Stamp::from_unix(2_085_978_496_000_000_000).0, 0);
    }

    #[test]
    fn differences_survive_the_end_of_the_era() {
        let wrap = 2_085_978_496_000_000_000;
        for (later, earlier) in [(wrap + 5_000_000_000, wrap - 7_000_000_000), (wrap, wrap - 1), (3, -4)] {
            let apart = Stamp::from_unix(later).since(Stamp::from_unix(earlier));
            assert!(apart.abs_diff(later - earlier) <= 1, "{apart}");
        }
    }

    #[test]
    fn a_bound_is_rounded_up() {
        assert_eq!(Short::from_nanos(1), Short(1));
        assert_eq!(Short::from_nanos(u64::MAX), Short(u32::MAX));
        assert!(Short::from_nanos(123_456_789).nanos() >= 123_456_789);
    }
}
