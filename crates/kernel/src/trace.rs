//! What happened, step by step; and the same in 64 bits.
//!
//! A trace is self-describing: its header says which code, algorithm, scenario and seed made it. Vector
//! clocks are not carried, they are derived by the reader from the message ids.
//!
//! Steps are kept as bytes, about thirty each: a run spends its time with memory, and a trace that is a
//! fifth of the size is recorded in half the time.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::effect::Effect;
use crate::node::NodeId;
use crate::prng::mix;
use crate::protocol::{Input, Protocol};
use crate::time::Time;

/// The version of the trace format that this code writes and reads.
pub const FORMAT: u32 = 1;

/// Which run a trace is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The format's version.
    pub format: u32,
    /// The version of the code that wrote it.
    pub code: String,
    /// `room/name` of the algorithm.
    pub algorithm: String,
    /// How many sites.
    pub nodes: u32,
    /// The seed.
    pub seed: u64,
    /// Everything else that is needed to run it again, as the world wrote it.
    pub scenario: String,
}

/// A recorded run: steps and marks in the order in which they happened.
#[derive(Clone, Debug)]
pub struct Trace<P: Protocol> {
    /// Which run this is.
    pub header: Header,
    bytes: Vec<u8>,
    len: usize,
    last: Previous,
    /// Where a step is put together; most fit.
    scratch: [u8; SCRATCH],
    marks: Vec<Mark>,
    protocol: PhantomData<fn() -> P>,
}

const SCRATCH: usize = 192;

/// What the next step's numbers are counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Previous {
    at: u64,
    first_sent: u64,
}

/// One input, handled.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<P: Protocol> {
    /// When, where, and which messages.
    pub head: StepHead,
    /// What came in.
    pub input: Input<P>,
    /// What went out.
    pub effects: Vec<Effect<P>>,
}

/// What the world did to a site, a link or a message: not a step of the algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The world's time.
    pub at: Time,
    /// What was done.
    pub what: What,
}

/// The kinds of [`Mark`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The site died.
    Crash(NodeId),
    /// The site came back.
    Recover(NodeId),
    /// The site stopped handling input.
    Pause(NodeId),
    /// The site went on.
    Resume(NodeId),
    /// Links between this group and the rest were cut.
    Cut(Vec<NodeId>),
    /// They were restored.
    Heal(Vec<NodeId>),
    /// The message of that id never arrived.
    Lose(u64),
    /// The message of that id arrived more than once.
    Duplicate(u64),
}

/// One line of a trace: a step with its effects, or a mark. What a trace file holds after its header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum Record<'a, P: Protocol> {
    /// The algorithm did something.
    Step {
        /// The world's time.
        at: Time,
        /// The site that stepped.
        node: NodeId,
        /// What its own clock said.
        clock: Time,
        /// The Lamport stamp of the step.
        stamp: u64,
        /// The id of the message received.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        received: Option<u64>,
        /// The id of the first message sent.
        first_sent: u64,
        /// What came in.
        input: Cow<'a, Input<P>>,
        /// What went out.
        effects: Cow<'a, [Effect<P>]>,
    },
    /// The world did something.
    Mark(Cow<'a, Mark>),
}

impl<P: Protocol> Trace<P> {
    /// An empty trace of that run.
    pub const fn new(header: Header) -> Self {
        let last = Previous { at: 0, first_sent: 0 };
        let scratch = [0; SCRATCH];
        Self { header, bytes: Vec::new(), len: 0, last, scratch, marks: Vec::new(), protocol: PhantomData }
    }

    /// Appends a step and its effects. Steps come in the order of time and of message ids.
    #[inline]
    pub fn push(&mut self, head: StepHead, input: &Input<P>, effects: &[Effect<P>]) {
        let line = Line {
            after: head.at.0.wrapping_sub(self.last.at),
            node: head.node,
            ahead: head.clock.0.wrapping_sub(head.at.0),
            stamp: head.stamp,
            received: head.received.map_or(0, |id| head.first_sent.wrapping_sub(id)),
            sent_before: head.first_sent.wrapping_sub(self.last.first_sent),
        };
        self.last = Previous { at: head.at.0, first_sent: head.first_sent };
        self.len += 1;
        line.write(&mut self.bytes);
        match postcard::to_slice(&(input, effects), &mut self.scratch) {
            Ok(bytes) => self.bytes.extend_from_slice(bytes),
            Err(_) => self.push_long(&(input, effects)),
        }
    }

    /// Appends a mark.
    pub fn mark(&mut self, at: Time, what: What) {
        self.marks.push(Mark { at, what });
    }

    /// How many steps it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The steps.
    pub fn steps(&self) -> impl Iterator<Item = Step<P>> + '_ {
        let mut rest = self.bytes.as_slice();
        let mut last = Previous::default();
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let line = Line::read(&mut rest)?;
            let ((input, effects), after): ((Input<P>, Vec<Effect<P>>), _) =
                postcard::take_from_bytes(rest).expect("the bytes are what push wrote");
            rest = after;
            let (at, first_sent) =
                (last.at.wrapping_add(line.after), last.first_sent.wrapping_add(line.sent_before));
            last = Previous { at, first_sent };
            let head = StepHead {
                at: Time(at),
                node: line.node,
                clock: Time(at.wrapping_add(line.ahead)),
                stamp: line.stamp,
                received: (line.received != 0).then(|| first_sent.wrapping_sub(line.received)),
                first_sent,
            };
            Some(Step { head, input, effects })
        })
    }

    /// The marks.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Steps and marks merged by time, as a file holds them.
    pub fn records(&self) -> impl Iterator<Item = Record<'_, P>> {
        let mut steps = self.steps().peekable();
        let mut marks = self.marks.iter().peekable();
        core::iter::from_fn(move || {
            let mark_first = match (steps.peek(), marks.peek()) {
                (Some(step), Some(mark)) => mark.at <= step.head.at,
                (None, mark) => mark.is_some(),
                (_, None) => false,
            };
            if mark_first {
                return marks.next().map(|mark| Record::Mark(Cow::Borrowed(mark)));
            }
            steps.next().map(|Step { head, input, effects }| Record::Step {
                at: head.at,
                node: head.node,
                clock: head.clock,
                stamp: head.stamp,
                received: head.received,
                first_sent: head.first_sent,
                input: Cow::Owned(input),
                effects: Cow::Owned(effects),
            })
        })
    }

    #[cold]
    fn push_long(&mut self, step: &impl Serialize) {
        let bytes = postcard::to_allocvec(step).expect("what travels serialises");
        self.bytes.extend_from_slice(&bytes);
    }
}

/// The numbers of a step as they are stored: small, because each is counted from one nearby. A message is
/// received after it was sent, so its id is below the next one by at least 1; 0 stands for none.
struct Line {
    after: u64,
    node: NodeId,
    ahead: u64,
    stamp: u64,
    received: u64,
    sent_before: u64,
}

impl Line {
    const WORDS: usize = 6;

    /// Six words of four bytes where they fit, which is nearly always; else of eight. A byte says which.
    #[inline]
    fn write(&self, bytes: &mut Vec<u8>) {
        let words =
            [self.after, u64::from(self.node.0), self.ahead, self.stamp, self.received, self.sent_before];
        if words.iter().fold(0, |all, word| all | word) >> 32 != 0 {
            bytes.push(8);
            return words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        let mut short = [4; 1 + 4 * Self::WORDS];
        for (slot, word) in short[1..].chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&(word as u32).to_le_bytes());
        }
        bytes.extend_from_slice(&short);
    }

    /// Reads what `write` wrote; `None` at the end.
    fn read(rest: &mut &[u8]) -> Option<Self> {
        let (width, numbers) = rest.split_first()?;
        let width = usize::from(*width);
        let (numbers, after) = numbers.split_at_checked(width * Self::WORDS)?;
        *rest = after;
        let word = |index: usize| {
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(&numbers[index * width..][..width]);
            u64::from_le_bytes(wide)
        };
        let node = NodeId(word(1) as u32);
        Some(Self {
            after: word(0),
            node,
            ahead: word(2),
            stamp: word(3),
            received: word(4),
            sent_before: word(5),
        })
    }
}

/// A step without its input and effects: what the world knows before the handler ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepHead {
    /// The world's time.
    pub at: Time,
    /// The site that steps.
    pub node: NodeId,
    /// What its own clock says.
    pub clock: Time,
    /// The Lamport stamp of the step.
    pub stamp: u64,
    /// The id of the message received, if the input is one.
    pub received: Option<u64>,
    /// The id that the first message sent will have.
    pub first_sent: u64,
}

/// A fingerprint of everything that happened, in order. Two runs with the same digest took the same steps.
///
/// A [`Hasher`] of our own (multiply and rotate, finished by a full mix): the standard one is slow and its
/// output may change between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// The digest of nothing.
    pub const fn new() -> Self {
        Self(0x6a09_e667_f3bc_c908)
    }

    /// Takes one more thing in.
    #[inline]
    pub fn absorb(&mut self, thing: &impl Hash) {
        thing.hash(self);
    }

    /// Takes one more word in.
    #[inline]
    pub const fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// The fingerprint so far.
    pub const fn value(self) -> u64 {
        mix(self.0)
    }
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.value()
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.word(u64::from_le_bytes(chunk.try_into().expect("chunks of eight are eight long")));
        }
        let mut last = [0; 8];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        self.word(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.word(u64::from(n));
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.word(u64::from(n));
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }

    #[inline]
    fn write_isize(&mut self, n: isize) {
        self.word(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Cx;
    use crate::protocol::Never;

    #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    struct Talker;

    impl Protocol for Talker {
        type Message = String;
        type Timer = Never;
        type Command = ();
        type Event = ();
        fn on_message(&mut self, _: NodeId, _: String, _: &mut Cx<'_, Self>) {}
    }

    #[test]
    fn steps_are_read_as_they_were_pushed() {
        let header = Header {
            format: FORMAT,
            code: String::new(),
            algorithm: String::new(),
            nodes: 2,
            seed: 1,
            scenario: String::new(),
        };
        let head = |at, clock, received, first_sent| StepHead {
            at: Time(at),
            node: NodeId(1),
            clock: Time(clock),
            stamp: 9,
            received,
            first_sent,
        };
        let long = "long ".repeat(100);
        let steps = [
            (head(5, 3, None, 0), Input::Start, [Effect::Send { to: NodeId(0), message: long.clone() }]),
            (
                head(5, 900, Some(0), 1),
                Input::Message { from: NodeId(0), message: long },
                [Effect::Emit { event: () }],
            ),
        ];
        let mut trace = Trace::<Talker>::new(header);
        for (head, input, effects) in &steps {
            trace.push(*head, input, effects);
        }
        let read: Vec<_> = trace.steps().map(|step| (step.head, step.input, step.effects)).collect();
        assert_eq!(trace.len(), 2);
        for (read, pushed) in read.into_iter().zip(steps) {
            assert_eq!((read.0, read.1, read.2.as_slice()), (pushed.0, pushed.1, pushed.2.as_slice()));
        }
    }

    #[test]
    fn the_order_of_what_happened_is_in_the_digest() {
        let digest = |things: &[&str]| {
            let mut digest = Digest::new();
            for thing in things {
                digest.absorb(thing);
            }
            digest.value()
        };
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["b", "a"]));
        assert_ne!(digest(&["ab"]), digest(&["a", "b"]));
        assert_ne!(digest(&["a"]), digest(&["a\0"]));
    }
}
