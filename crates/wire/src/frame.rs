//! The native framing: the same protobuf messages as gRPC, for much less CPU time.
//!
//! ```text
//! preface   C1 'c' 'o' 'n' 'c' 'l' 'v' VERSION        each side sends it once, the client first
//! frame     LENGTH (4 bytes, big-endian)  MESSAGE     a ClientFrame or a ServerFrame of LENGTH bytes
//! ```
//!
//! **Intuition.** Each side collects its messages and writes them at once, and a reader takes all frames that
//! one read returned. So all requests in flight share the cost of a system call.
//!
//! **Rules.** A frame of length 0 is allowed, and has no messages. The first byte of the preface is not a
//! letter, so no HTTP request begins with it, and one port serves both protocols.
//!
//! **Trap.** An attacker sends a length of 4 GiB and no further bytes. A reader that reserves the memory at
//! once may run out of it. So the length is checked first, and memory is reserved as the bytes arrive. Then
//! the attacker sends one frame of empty messages, each with two bytes on the wire and hundreds in memory. So
//! the messages are counted before they are decoded.

use std::fmt;

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;
use prost::encoding::{DecodeContext, skip_field};

/// The preface of a client's connection, without the version.
pub const CLIENT_MAGIC: [u8; 7] = [0xC1, b'c', b'o', b'n', b'c', b'l', b'v'];
/// The preface of a connection between nodes, without the version.
pub const PEER_MAGIC: [u8; 7] = [0xC1, b'c', b'o', b'n', b'p', b'e', b'r'];
/// The preface of a request to a local node to serve this connection, without the version. The node replies
/// with the byte [`SERVING`], does not end while the connection is open, and reads the preface of a client
/// next. A node that is ending closes the connection without a reply, so the client knows that nothing was
/// done.
pub const USE_MAGIC: [u8; 7] = [0xC1, b'c', b'o', b'n', b'c', b'u', b's'];
/// The preface of a request to a local node to end, without the version. The node replies with one byte,
/// [`ENDING`] or [`IN_USE`], and closes the connection. All versions keep this exchange: a newer command
/// must be able to replace an older node.
pub const END_MAGIC: [u8; 7] = [0xC1, b'c', b'o', b'n', b'c', b'e', b'n'];
/// The reply of a local node that goes on, because a session, a lock-delay or another connection exists.
pub const IN_USE: u8 = 0;
/// The reply of a local node that ends now.
pub const ENDING: u8 = 1;
/// The reply of a local node that serves the connection.
pub const SERVING: u8 = 2;
/// The version of the protocol, for clients and between nodes.
pub const VERSION: u8 = 1;
/// The length of a preface, in bytes.
pub const PREFACE_BYTES: usize = 8;
/// The longest frame, in bytes without its length field. A longer one ends the connection.
pub const MAX_FRAME_BYTES: usize = 1024 * 1024;
/// The free space for one read, in bytes.
pub const READ_BYTES: usize = 16 * 1024;

/// The preface with its version. The client sends it first, and the server replies with its own.
pub const fn preface(magic: [u8; 7]) -> [u8; PREFACE_BYTES] {
    let [a, b, c, d, e, f, g] = magic;
    [a, b, c, d, e, f, g, VERSION]
}

/// Appends one frame.
///
/// # Errors
/// [`FrameError::TooLong`] if the message is longer than [`MAX_FRAME_BYTES`]; then nothing is appended.
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

/// The size at which a frame is full, in bytes. It is far below [`MAX_FRAME_BYTES`], and large enough to
/// share the cost of a frame.
const FRAME_BYTES: usize = 64 * 1024;
/// The capacity above which an empty buffer is freed, in bytes.
const KEEP_BYTES: usize = 256 * 1024;
/// The largest capacity that is reserved at once for a frame that has not arrived, in bytes.
const STEP_BYTES: usize = 64 * 1024;
/// The maximum number of messages in one frame; more are rejected. [`Frames`] never reaches it, because the
/// shortest message has four bytes.
const MAX_MESSAGES: usize = FRAME_BYTES / 4;
/// The key of `messages`, the only field of both kinds of frame.
const MESSAGES: u8 = 1 << 3 | 2;

/// Messages to send, as the bytes of their frames. Each message is encoded once, directly into the buffer.
///
/// ```
/// use conclave_wire::frame::{self, Frames};
/// use conclave_wire::v1::{ServerFrame, ServerMessage, KeptAlive};
///
/// let message: ServerMessage = KeptAlive { token: 7 }.into();
/// let mut frames = Frames::default();
/// frames.push(&message)?;
/// frames.push(&message)?;
/// let frame = frame::decode::<ServerFrame>(&mut frames.take())?;
/// assert_eq!(frame, Some(ServerFrame { messages: vec![message.clone(), message] }));
/// # Ok::<(), frame::FrameError>(())
/// ```
#[derive(Debug, Default)]
pub struct Frames {
    bytes: BytesMut,
    /// The position of the last frame in `bytes`, while it can still grow.
    open: Option<usize>,
}

impl Frames {
    /// An empty buffer after a preface.
    pub fn behind(preface: [u8; PREFACE_BYTES]) -> Self {
        Self { bytes: BytesMut::from(&preface[..]), open: None }
    }

    /// Appends a message to the last frame, or to a new frame if that one is full.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if the message does not fit into any frame; then nothing is appended.
    pub fn push(&mut self, message: &impl Message) -> Result<(), FrameError> {
        let length = message.encoded_len();
        let more = 1 + prost::length_delimiter_len(length) + length;
        if more > MAX_FRAME_BYTES {
            return Err(FrameError::TooLong { bytes: more });
        }
        let open = self.open.filter(|open| self.bytes.len() - open + more <= FRAME_BYTES);
        let begin = open.unwrap_or(self.bytes.len());
        self.bytes.reserve(4 + more);
        if open.is_none() {
            self.bytes.put_u32(0);
            self.open = Some(begin);
        }
        self.bytes.put_u8(MESSAGES);
        prost::encode_length_delimiter(length, &mut self.bytes).expect("the buffer grows");
        message.encode_raw(&mut self.bytes);
        let (header, frame) =
            self.bytes[begin..].split_first_chunk_mut::<4>().expect("a frame begins with its length");
        *header = u32::try_from(frame.len()).expect("MAX_FRAME_BYTES fits").to_be_bytes();
        Ok(())
    }

    /// All bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes the first `sent` bytes. If they include a part of the last frame, the next message starts a
    /// new frame.
    ///
    /// # Panics
    /// If the buffer has fewer bytes.
    pub fn advance(&mut self, sent: usize) {
        if sent == self.bytes.len() {
            return self.clear();
        }
        self.bytes.advance(sent);
        self.open = self.open.and_then(|open| open.checked_sub(sent));
    }

    /// Takes all bytes out of the buffer.
    pub fn take(&mut self) -> BytesMut {
        std::mem::take(self).bytes
    }

    /// Removes all bytes, and keeps the memory unless it is large.
    pub fn clear(&mut self) {
        if self.bytes.capacity() > KEEP_BYTES {
            self.bytes = BytesMut::new();
        }
        self.bytes.clear();
        self.open = None;
    }
}

/// Provides space for the next read: at least a quarter of [`READ_BYTES`]. If less is left, it reserves
/// [`READ_BYTES`].
pub fn make_room(input: &mut BytesMut) {
    // If all bytes were consumed, this reuses the memory from its start.
    if !input.try_reclaim(READ_BYTES) && input.capacity() - input.len() < READ_BYTES / 4 {
        input.reserve(READ_BYTES);
    }
    if input.is_empty() && input.capacity() > KEEP_BYTES {
        *input = BytesMut::with_capacity(READ_BYTES);
    }
}

/// Takes one frame from the front if it is complete. The rest stays.
///
/// # Errors
/// [`FrameError`]: the stream cannot be read further.
pub fn decode<M: Message + Default>(input: &mut BytesMut) -> Result<Option<M>, FrameError> {
    let Some(header) = input.first_chunk::<4>() else { return Ok(None) };
    let bytes = usize::try_from(u32::from_be_bytes(*header)).unwrap_or(usize::MAX);
    if bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong { bytes });
    }
    if input.len() < 4 + bytes {
        input.reserve((4 + bytes - input.len()).min(STEP_BYTES));
        return Ok(None);
    }
    let frame = &input[4..4 + bytes];
    if has_too_many(frame) {
        return Err(FrameError::TooMany);
    }
    let message = M::decode(frame).map_err(FrameError::Garbled)?;
    input.advance(4 + bytes);
    Ok(Some(message))
}

/// Returns whether a frame has more than [`MAX_MESSAGES`] messages. A malformed frame returns `false`; its
/// decoding reports the error.
pub(super) fn has_too_many(mut frame: &[u8]) -> bool {
    if frame.len() <= 2 * MAX_MESSAGES {
        return false;
    }
    for _ in 0..MAX_MESSAGES {
        let skipped = prost::encoding::decode_key(&mut frame)
            .and_then(|(tag, wire)| skip_field(wire, tag, &mut frame, DecodeContext::default()));
        if skipped.is_err() {
            return false;
        }
    }
    !frame.is_empty()
}

/// The reason why a stream of frames cannot be read further.
#[derive(Clone, Debug)]
pub enum FrameError {
    /// A frame is longer than [`MAX_FRAME_BYTES`].
    TooLong {
        /// The length of the frame, from its length field or its message.
        bytes: usize,
    },
    /// A frame has more messages than allowed.
    TooMany,
    /// A frame does not contain the expected message.
    Garbled(prost::DecodeError),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(f, "a frame has {bytes} bytes; at most {MAX_FRAME_BYTES} are allowed")
            }
            Self::TooMany => write!(f, "a frame has more than {MAX_MESSAGES} messages"),
            Self::Garbled(error) => write!(f, "a frame cannot be read: {error}"),
        }
    }
}

impl std::error::Error for FrameError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::v1::{ClientFrame, ClientMessage, File, KeepAlive};

    fn keep_alive(token: u64) -> ClientMessage {
        KeepAlive { token }.into()
    }

    fn keep_alives(tokens: &[u64]) -> ClientFrame {
        ClientFrame { messages: tokens.iter().copied().map(keep_alive).collect() }
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
    fn room_for_a_frame_is_made_as_it_arrives() {
        let mut input = BytesMut::from(&u32::try_from(MAX_FRAME_BYTES).unwrap().to_be_bytes()[..]);
        assert!(matches!(decode::<ClientFrame>(&mut input), Ok(None)));
        assert!(input.capacity() <= 2 * STEP_BYTES);
        assert!(input.capacity() - input.len() >= STEP_BYTES);
    }

    #[test]
    fn a_message_beyond_the_bound_is_not_sent() {
        let large = File { data: vec![7; MAX_FRAME_BYTES], ..Default::default() };
        let mut out = BytesMut::new();
        assert!(matches!(encode(&large, &mut out), Err(FrameError::TooLong { .. })));
        assert!(out.is_empty());
        let mut frames = Frames::default();
        assert!(matches!(frames.push(&large), Err(FrameError::TooLong { .. })));
        assert!(frames.bytes().is_empty());
    }

    #[test]
    fn messages_are_counted_before_they_are_read() {
        let empty = |count| {
            let mut wire = BytesMut::new();
            encode(&ClientFrame { messages: vec![ClientMessage::default(); count] }, &mut wire).unwrap();
            decode::<ClientFrame>(&mut wire).map(|frame| frame.map(|frame| frame.messages.len()))
        };
        assert!(matches!(empty(MAX_MESSAGES), Ok(Some(MAX_MESSAGES))));
        assert!(matches!(empty(MAX_MESSAGES + 1), Err(FrameError::TooMany)));
        assert!(matches!(empty(MAX_FRAME_BYTES / 2), Err(FrameError::TooMany)));
        // A sender that uses `Frames` is never rejected, however many messages it sends.
        let mut frames = Frames::default();
        for _ in 0..3 * MAX_MESSAGES {
            frames.push(&keep_alive(0)).unwrap();
        }
        let (mut wire, mut received) = (frames.take(), 0);
        while let Some(frame) = decode::<ClientFrame>(&mut wire).unwrap() {
            received += frame.messages.len();
        }
        assert_eq!(received, 3 * MAX_MESSAGES);
    }

    /// The largest message that fits into a frame; one byte more is rejected.
    #[test]
    fn a_message_up_to_the_bound_has_a_frame_of_its_own() {
        // In the message and in the frame, the data has a tag and a length of three bytes before it.
        let largest = File { data: vec![7; MAX_FRAME_BYTES - 8], ..Default::default() };
        let mut frames = Frames::default();
        frames.push(&keep_alive(1)).unwrap();
        frames.push(&largest).unwrap();
        frames.push(&keep_alive(2)).unwrap();
        let one_more = File { data: vec![7; MAX_FRAME_BYTES - 7], ..Default::default() };
        assert!(matches!(frames.push(&one_more), Err(FrameError::TooLong { .. })));
        let mut wire = frames.take();
        assert_eq!(decode::<ClientFrame>(&mut wire).unwrap(), Some(keep_alives(&[1])));
        assert_eq!(wire[..4], u32::try_from(MAX_FRAME_BYTES).unwrap().to_be_bytes());
        wire.advance(4 + MAX_FRAME_BYTES);
        assert_eq!(decode::<ClientFrame>(&mut wire).unwrap(), Some(keep_alives(&[2])));
        assert!(wire.is_empty());
    }

    #[test]
    fn room_for_something_large_is_not_kept() {
        let mut frames = Frames::default();
        frames.push(&File { data: vec![7; KEEP_BYTES], ..Default::default() }).unwrap();
        frames.clear();
        assert_eq!(frames.bytes.capacity(), 0);
        frames.push(&keep_alive(1)).unwrap();
        let room = frames.bytes.capacity();
        frames.clear();
        assert!(frames.bytes().is_empty());
        assert_eq!(frames.bytes.capacity(), room);
    }

    #[test]
    fn there_is_always_room_to_read_and_no_memory_is_kept_for_something_large() {
        let room = |input: &BytesMut| input.capacity() - input.len();
        let mut input = BytesMut::new();
        make_room(&mut input);
        assert_eq!(room(&input), READ_BYTES);
        let start = input.as_ptr();
        for _ in 0..10 {
            // Most of the space is filled, and consumed.
            input.put_bytes(0, READ_BYTES - 100);
            input.advance(READ_BYTES - 100);
            make_room(&mut input);
            assert_eq!((room(&input), input.as_ptr()), (READ_BYTES, start), "in the same memory");
        }
        // Half a frame stays, and space follows it.
        input.put_bytes(7, READ_BYTES - 100);
        make_room(&mut input);
        assert!(room(&input) >= READ_BYTES);
        assert_eq!(input[..], [7; READ_BYTES - 100]);
        input.put_bytes(7, 2 * KEEP_BYTES);
        input.advance(input.len());
        make_room(&mut input);
        assert_eq!((input.capacity(), input.len()), (READ_BYTES, 0));
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
        fn messages_put_together_are_those_of_whole_frames(tokens in prop::collection::vec(any::<u64>(), 1..100)) {
            let (mut frames, mut whole) = (Frames::default(), BytesMut::new());
            for token in &tokens {
                frames.push(&keep_alive(*token)).unwrap();
            }
            encode(&keep_alives(&tokens), &mut whole).unwrap();
            prop_assert_eq!(frames.bytes(), &whole[..]);
        }

        #[test]
        fn frames_survive_any_pace_of_sending(tokens in prop::collection::vec(any::<u64>(), 0..50), steps in prop::collection::vec(0_usize..40, 1..50)) {
            let (mut frames, mut wire) = (Frames::behind(preface(CLIENT_MAGIC)), BytesMut::new());
            let mut send = |frames: &mut Frames, most: usize| {
                let sent = most.min(frames.bytes().len());
                wire.extend_from_slice(&frames.bytes()[..sent]);
                frames.advance(sent);
            };
            for (token, step) in tokens.iter().zip(steps.iter().cycle()) {
                frames.push(&keep_alive(*token)).unwrap();
                send(&mut frames, *step);
            }
            send(&mut frames, usize::MAX);
            prop_assert_eq!(&wire.split_to(PREFACE_BYTES)[..], &preface(CLIENT_MAGIC)[..]);
            let mut received = Vec::new();
            while let Some(frame) = decode::<ClientFrame>(&mut wire).unwrap() {
                received.extend(frame.messages);
            }
            prop_assert!(wire.is_empty());
            prop_assert_eq!(received, keep_alives(&tokens).messages);
        }

        #[test]
        fn random_bytes_are_refused_or_read_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = decode::<ClientFrame>(&mut input) {}
            prop_assert!(input.len() <= bytes.len());
        }
    }
}
