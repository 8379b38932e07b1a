//! Recorded runs without the types of their algorithm.
//!
//! A [`Recording`] yields [`RawStep`]s, in which every value of the algorithm's own types is JSON. Readers,
//! diagrams and the checker work on raw steps, so they are compiled once and not once per algorithm. Only
//! [`decode`] is compiled for each algorithm: it turns the stored bytes of one step into raw values.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::{Chunk, Header, Line, Mark, Previous, StepHead};
use crate::effect::Effect;
use crate::node::{NodeId, NodeSet};
use crate::protocol::{Input, Protocol};
use crate::time::Time;

/// A recorded run.
#[derive(Debug)]
pub struct Recording {
    /// The description of the run.
    pub header: Header,
    /// The actions of the world, in order of time.
    pub marks: Vec<Mark>,
    /// The steps, in order of time.
    pub steps: Box<dyn Steps>,
}

impl Recording {
    /// Iterates over steps and marks, merged by time, in the order of a trace file.
    pub fn records(&self) -> impl Iterator<Item = RawRecord> + '_ {
        let mut steps = self.steps.iter().peekable();
        let mut marks = self.marks.iter().peekable();
        core::iter::from_fn(move || {
            let mark_first = match (steps.peek(), marks.peek()) {
                (Some(step), Some(mark)) => mark.at <= step.head.at,
                (None, mark) => mark.is_some(),
                (_, None) => false,
            };
            match mark_first {
                true => marks.next().cloned().map(RawRecord::Mark),
                false => steps.next().map(RawRecord::Step),
            }
        })
    }
}

/// The steps of a recorded run, in any stored form.
#[expect(clippy::len_without_is_empty, reason = "every run has a step: the start of a site")]
pub trait Steps: fmt::Debug + Send {
    /// Returns the number of steps.
    fn len(&self) -> usize;

    /// Iterates over the steps, in order of time.
    fn iter(&self) -> Box<dyn Iterator<Item = RawStep> + '_>;
}

impl Steps for Vec<RawStep> {
    fn len(&self) -> usize {
        self.len()
    }

    fn iter(&self) -> Box<dyn Iterator<Item = RawStep> + '_> {
        Box::new(self.as_slice().iter().cloned())
    }
}

/// One line of a trace file after its header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawRecord {
    /// A step of the algorithm.
    Step(RawStep),
    /// An action of the world.
    Mark(Mark),
}

/// One step of a site: an input and the effects of its handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStep {
    /// The time, the site and the message ids.
    pub head: StepHead,
    /// The input.
    pub input: RawInput,
    /// The effects, in program order.
    pub effects: Vec<RawEffect>,
    /// The state of the site after the step, if the world recorded states.
    pub state: Option<Json>,
}

/// An [`Input`] with JSON in place of the algorithm's own types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawInput {
    /// The site starts.
    Start,
    /// The site recovers from a crash.
    Recover,
    /// A message of a site arrives.
    Message {
        /// The sender.
        from: NodeId,
        /// The message.
        message: Json,
    },
    /// The deadline of a timer has passed.
    Timer(Json),
    /// The layer above sends a command.
    Command(Json),
}

impl<P: Protocol> From<&Input<P>> for RawInput {
    fn from(input: &Input<P>) -> Self {
        match input {
            Input::Start => Self::Start,
            Input::Recover => Self::Recover,
            Input::Message { from, message } => Self::Message { from: *from, message: Json::of(message) },
            Input::Timer(timer) => Self::Timer(Json::of(timer)),
            Input::Command(command) => Self::Command(Json::of(command)),
        }
    }
}

/// An [`Effect`] with JSON in place of the algorithm's own types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawEffect {
    /// One message to one site.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: Json,
    },
    /// The same message to each site of a set, except the sender.
    SendTo {
        /// The receivers.
        to: NodeSet,
        /// The message.
        message: Json,
    },
    /// The same message to all other sites.
    Broadcast {
        /// The message.
        message: Json,
    },
    /// A new deadline for a timer, between `min` and `max` from now.
    Arm {
        /// The tag of the timer.
        timer: Json,
        /// The shortest delay, on the local clock.
        min: Duration,
        /// The longest delay, on the local clock.
        max: Duration,
    },
    /// The cancellation of a timer.
    Disarm {
        /// The tag of the timer.
        timer: Json,
    },
    /// An event for the layer above.
    Emit {
        /// The event.
        event: Json,
    },
}

impl<P: Protocol> From<&Effect<P>> for RawEffect {
    fn from(effect: &Effect<P>) -> Self {
        match effect {
            Effect::Send { to, message } => Self::Send { to: *to, message: Json::of(message) },
            Effect::SendTo { to, message } => Self::SendTo { to: to.clone(), message: Json::of(message) },
            Effect::Broadcast { message } => Self::Broadcast { message: Json::of(message) },
            Effect::Arm { timer, min, max } => Self::Arm { timer: Json::of(timer), min: *min, max: *max },
            Effect::Disarm { timer } => Self::Disarm { timer: Json::of(timer) },
            Effect::Emit { event } => Self::Emit { event: Json::of(event) },
        }
    }
}

/// A value as JSON text. Equal texts are equal values.
#[derive(Clone)]
pub struct Json(Arc<RawValue>);

impl Json {
    /// Returns a value as JSON. A value that JSON cannot represent, such as a map whose keys are no strings,
    /// becomes a string in Rust's notation.
    pub fn of<T: Serialize + fmt::Debug>(value: &T) -> Self {
        let json = to_raw_value(value).or_else(|_| to_raw_value(&format!("{value:?}")));
        Self(json.expect("a string is valid JSON").into())
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        self.0.get()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Json {}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|json| Self(json.into()))
    }
}

/// A step as a trace file holds it: the fields of the head stand beside the input and the effects.
#[derive(Serialize, Deserialize)]
struct StepLine<'a> {
    at: Time,
    node: NodeId,
    clock: Time,
    stamp: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    received: Option<u64>,
    first_sent: u64,
    input: Cow<'a, RawInput>,
    effects: Cow<'a, [RawEffect]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<Json>,
}

impl Serialize for RawStep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let StepHead { at, node, clock, stamp, received, first_sent } = self.head;
        let (input, effects) = (Cow::Borrowed(&self.input), Cow::Borrowed(&self.effects[..]));
        let state = self.state.clone();
        StepLine { at, node, clock, stamp, received, first_sent, input, effects, state }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawStep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StepLine { at, node, clock, stamp, received, first_sent, input, effects, state } =
            StepLine::deserialize(deserializer)?;
        let head = StepHead { at, node, clock, stamp, received, first_sent };
        Ok(Self { head, input: input.into_owned(), effects: effects.into_owned(), state })
    }
}

/// The bytes that [`Trace::push`](super::Trace::push) wrote.
pub(super) struct Encoded<P> {
    pub(super) nodes: u32,
    pub(super) chunks: Vec<Chunk>,
    pub(super) len: usize,
    pub(super) states: Vec<Json>,
    pub(super) protocol: PhantomData<fn() -> P>,
}

impl<P> fmt::Debug for Encoded<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps", self.len)
    }
}

impl<P: Protocol> Steps for Encoded<P> {
    fn len(&self) -> usize {
        self.len
    }

    fn iter(&self) -> Box<dyn Iterator<Item = RawStep> + '_> {
        Box::new(Decoder {
            nodes: self.nodes,
            chunks: &self.chunks,
            offset: 0,
            last: Previous::default(),
            sent: Vec::new(),
            states: self.states.iter(),
            decode: decode::<P>,
        })
    }
}

/// A function that decodes the effects of a step, and its input if the flag is set.
type Decode = fn(&mut &[u8], bool) -> (Option<RawInput>, Vec<RawEffect>);

fn decode<P: Protocol>(rest: &mut &[u8], has_input: bool) -> (Option<RawInput>, Vec<RawEffect>) {
    let input = has_input.then(|| RawInput::from(&take::<Input<P>>(rest)));
    (input, take::<Vec<Effect<P>>>(rest).iter().map(RawEffect::from).collect())
}

fn take<T: DeserializeOwned>(rest: &mut &[u8]) -> T {
    let (value, after) = postcard::take_from_bytes(rest).expect("push wrote these bytes");
    *rest = after;
    value
}

/// An iterator that decodes steps.
struct Decoder<'a> {
    nodes: u32,
    /// The chunks from the present one on.
    chunks: &'a [Chunk],
    offset: usize,
    last: Previous,
    /// The messages sent so far, in the order of ids. Each entry has the first id of one effect, its sender
    /// and its content.
    sent: Vec<(u64, NodeId, Json)>,
    states: core::slice::Iter<'a, Json>,
    decode: Decode,
}

impl Iterator for Decoder<'_> {
    type Item = RawStep;

    fn next(&mut self) -> Option<RawStep> {
        let mut rest = self.rest()?;
        let whole = rest.len();
        let line = Line::read(&mut rest)?;
        let head = line.head(self.last);
        self.last = Previous { at: head.at.0, first_sent: head.first_sent };
        let (stored, effects) = (self.decode)(&mut rest, line.has_input);
        let input = stored.unwrap_or_else(|| self.message(&head));
        self.offset += whole - rest.len();
        self.remember(&head, &effects);
        Some(RawStep { head, input, effects, state: self.states.next().cloned() })
    }
}

impl<'a> Decoder<'a> {
    fn rest(&mut self) -> Option<&'a [u8]> {
        if self.chunks.first().is_some_and(|chunk| self.offset == chunk.used) {
            (self.chunks, self.offset) = (&self.chunks[1..], 0);
        }
        self.chunks.first().map(|chunk| &chunk.bytes[self.offset..chunk.used])
    }

    fn message(&self, head: &StepHead) -> RawInput {
        let after = self.sent.partition_point(|(first, ..)| Some(*first) <= head.received);
        let (_, from, message) =
            &self.sent[..after].last().expect("push_received names a message that an earlier step sent");
        RawInput::Message { from: *from, message: message.clone() }
    }

    fn remember(&mut self, head: &StepHead, effects: &[RawEffect]) {
        let mut id = head.first_sent;
        for effect in effects {
            let (message, receivers) = match effect {
                RawEffect::Send { message, .. } => (message, 1),
                RawEffect::SendTo { to, message } => {
                    (message, to.len() - usize::from(to.contains(head.node)))
                }
                RawEffect::Broadcast { message } => (message, self.nodes.saturating_sub(1) as usize),
                RawEffect::Arm { .. } | RawEffect::Disarm { .. } | RawEffect::Emit { .. } => continue,
            };
            if receivers > 0 {
                self.sent.push((id, head.node, message.clone()));
                id = id.wrapping_add(receivers as u64);
            }
        }
    }
}
