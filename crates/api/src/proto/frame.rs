//! The native framing: the same protobuf messages as gRPC, at a fraction of its cost.
//!
//! ```text
//! preface   C1 'c' 'o' 'n' 'c' 'l' 'v' VERSION        each side sends it once, the client first
//! frame     LENGTH (4 bytes, big-endian)  MESSAGE     a ClientFrame or a ServerFrame of LENGTH bytes
//! ```
//!
//! **Intuition.** Both sides gather what they have to say and write it at once; the reader takes as many frames from one
//! read as there are. So the cost of a system call is shared by all requests in flight.
//!
//! **Rules.** A length of 0 is an empty frame and is allowed. The first byte of the preface is no letter, so that no HTTP
//! request begins like it: one port serves both.
//!
//! **The trap.** The length is checked before anything is reserved for it: four bytes from a stranger must not cost a
//! gigabyte.

use std::fmt;

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;

/// How a client's connection begins, without the version.
pub const CLIENT_MAGIC: [u8; 7] = [0xC1, b'c', b'o', b'n', b'c', b'l', b'v'];
/// How a connection between nodes begins, without the version.
pub const PEER_MAGIC: [u8; 7] = [0xC1, b'c', b'o', b'n', b'p', b'e', b'r'];
/// The version of both.
pub const VERSION: u8 = 1;
/// The length of a preface.
pub const PREFACE_BYTES: usize = 8;
/// The longest frame, without its length.
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;

/// What a client sends first, and what a server answers.
pub const fn preface(magic: [u8; 7]) -> [u8; PREFACE_BYTES] {
    let [a, b, c, d, e, f, g] = magic;
    [a, b, c, d, e, f, g, VERSION]
}

/// Appends one frame.
///
/// # Errors
/// [`FrameError::TooLong`] if the message has more than [`MAX_FRAME_BYTES`]; then nothing is appended.
pub fn encode(message: &impl Message, out: &mut BytesMut) -> Result<(), FrameError> {
    let bytes = message.encoded_len();
    if bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong { bytes });
    }
    out.reserve(4 + bytes);
    out.put_u32(u32::try_from(bytes).expect("MAX_FRAME_BYTES fits"));
    message.encode_raw(out);
    Ok(())
}

/// Takes one frame from the front, if it is there whole; what is left stays.
///
/// # Errors
/// [`FrameError`]: the stream can not be read further.
pub fn decode<M: Message + Default>(input: &mut BytesMut) -> Result<Option<M>, FrameError> {
    let Some(header) = input.first_chunk::<4>() else { return Ok(None) };
    let bytes = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
    if bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong { bytes });
    }
    if input.len() < 4 + bytes {
        input.reserve(4 + bytes - input.len());
        return Ok(None);
    }
    let message = M::decode(&input[4..4 + bytes]).map_err(FrameError::Garbled)?;
    input.advance(4 + bytes);
    Ok(Some(message))
}

/// Why a stream of frames can not be read further.
#[derive(Clone, Debug)]
pub enum FrameError {
    /// A frame is longer than [`MAX_FRAME_BYTES`].
    TooLong {
        /// The length it has, or says it has.
        bytes: usize,
    },
    /// A frame does not contain the message it should.
    Garbled(prost::DecodeError),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "a frame of {bytes} bytes: at most {MAX_FRAME_BYTES} are allowed")
            }
            Self::Garbled(error) => write!(f, "a frame that is no message: {error}"),
        }
    }
}

impl std::error::Error for FrameError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::v1::{ClientFrame, ClientMessage, KeepAlive, client_message};

    fn keep_alives(tokens: &[u64]) -> ClientFrame {
        let message = |token: &u64| ClientMessage {
            message: Some(client_message::Message::KeepAlive(KeepAlive { token: *token })),
        };
        ClientFrame { messages: tokens.iter().map(message).collect() }
    }

    #[test]
    fn no_http_request_begins_like_a_preface() {
        assert!(!preface(CLIENT_MAGIC)[0].is_ascii());
        assert_ne!(preface(CLIENT_MAGIC), preface(PEER_MAGIC));
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_anything_is_reserved() {
        let mut input = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        let before = input.capacity();
        assert!(matches!(decode::<ClientFrame>(&mut input), Err(FrameError::TooLong { .. })));
        assert_eq!(input.capacity(), before);
    }

    #[test]
    fn a_message_beyond_the_bound_is_not_sent() {
        let large = crate::proto::v1::File { data: vec![7; MAX_FRAME_BYTES], ..Default::default() };
        let mut out = BytesMut::new();
        assert!(matches!(encode(&large, &mut out), Err(FrameError::TooLong { .. })));
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(batches in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..4), 0..8),
                                      step in 1_usize..40) {
            let sent: Vec<ClientFrame> = batches.iter().map(|tokens| keep_alives(tokens)).collect();
            let mut wire = BytesMut::new();
            for frame in &sent {
                encode(frame, &mut wire).unwrap();
            }
            let (mut input, mut received) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(step) {
                input.extend_from_slice(piece);
                while let Some(frame) = decode::<ClientFrame>(&mut input).unwrap() {
                    received.push(frame);
                }
            }
            prop_assert!(input.is_empty());
            prop_assert_eq!(received, sent);
        }

        #[test]
        fn random_bytes_are_refused_or_read_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = decode::<ClientFrame>(&mut input) {}
            prop_assert!(input.len() <= bytes.len());
        }
    }
}
