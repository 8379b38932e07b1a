//! What happened, step by step; and the same in 64 bits.
//!
//! A trace is self-describing: its header says which code, algorithm, scenario and seed made it. Vector
//! clocks are not carried, they are derived by the reader from the message ids.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

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

/// A recorded run: steps and marks in the order in which they happened. Effects are kept in one flat list,
/// so that recording a step allocates nothing of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace<P: Protocol> {
    /// Which run this is.
    pub header: Header,
    steps: Vec<Step<P>>,
    effects: Vec<Effect<P>>,
    marks: Vec<Mark>,
}

/// One input, handled.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<P: Protocol> {
    /// The world's time.
    pub at: Time,
    /// The site that stepped.
    pub node: NodeId,
    /// What its own clock said.
    pub clock: Time,
    /// The Lamport stamp of the step.
    pub stamp: u64,
    /// The id of the message received, if the input is one.
    pub received: Option<u64>,
    /// The id of the first message sent by this step; the others follow, in the order of effects and, within
    /// one effect, of receivers' ids.
    pub first_sent: u64,
    /// What came in.
    pub input: Input<P>,
    effects_end: usize,
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
        Self { header, steps: Vec::new(), effects: Vec::new(), marks: Vec::new() }
    }

    /// Appends a step and its effects.
    #[inline]
    pub fn push(&mut self, step: StepHead, input: Input<P>, effects: &[Effect<P>]) {
        self.effects.extend_from_slice(effects);
        let StepHead { at, node, clock, stamp, received, first_sent } = step;
        let effects_end = self.effects.len();
        self.steps.push(Step { at, node, clock, stamp, received, first_sent, input, effects_end });
    }

    /// Appends a mark.
    pub fn mark(&mut self, at: Time, what: What) {
        self.marks.push(Mark { at, what });
    }

    /// How many steps it has.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps, each with its effects.
    pub fn steps(&self) -> impl Iterator<Item = (&Step<P>, &[Effect<P>])> {
        let mut start = 0;
        self.steps.iter().map(move |step| {
            let effects = &self.effects[start..step.effects_end];
            start = step.effects_end;
            (step, effects)
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
                (Some((step, _)), Some(mark)) => mark.at <= step.at,
                (None, mark) => mark.is_some(),
                (_, None) => false,
            };
            if mark_first {
                return marks.next().map(|mark| Record::Mark(Cow::Borrowed(mark)));
            }
            steps.next().map(|(step, effects)| Record::Step {
                at: step.at,
                node: step.node,
                clock: step.clock,
                stamp: step.stamp,
                received: step.received,
                first_sent: step.first_sent,
                input: Cow::Borrowed(&step.input),
                effects: Cow::Borrowed(effects),
            })
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
