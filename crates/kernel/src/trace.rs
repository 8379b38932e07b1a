//! Recorded runs: a [`Trace`] with every step, and a [`Digest`] in 64 bits.
//!
//! A trace is self-describing: its header names the code, algorithm, scenario and seed of the run. Vector
//! clocks are not stored: the reader derives them from the message ids.
//!
//! Steps are stored as bytes, about twenty each, because memory traffic limits the speed of recording. For
//! the same reason the content of a message is stored once, at the step that sends it. The step that receives
//! the message stores only its id, and the reader looks up the content.
//!
//! A world writes typed steps into a [`Trace`]. Every reader gets a [`Recording`], whose steps have JSON in
//! place of the algorithm's types.

mod digest;
mod raw;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::effect::Effect;
use crate::node::NodeId;
use crate::protocol::{Input, Protocol};
use crate::time::Time;

pub use digest::Digest;
pub use raw::{Json, RawEffect, RawInput, RawRecord, RawStep, Recording, Steps};

use raw::Encoded;

/// The version of the trace format that this code writes. Readers also accept version 1, which differs in the
/// header only: it has no field `world`, and its scenario has another form.
pub const FORMAT: u32 = 2;

/// The most bytes of the states in a trace. A trace with more has no states.
pub const MOST_STATE_BYTES: usize = 256 << 20;

/// The description of the run that a trace records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    pub format: u32,
    /// The version of the code that wrote the trace.
    pub code: String,
    /// `problem/name` of the algorithm.
    pub algorithm: String,
    /// The number of sites.
    pub nodes: u32,
    /// The seed of the run.
    pub seed: u64,
    /// The world that recorded the run.
    #[serde(default)]
    pub world: WorldKind,
    /// All other data that is needed to repeat the run, in the world's own notation.
    pub scenario: String,
}

/// The kinds of worlds that record runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorldKind {
    /// The simulator.
    #[default]
    Sim,
    /// The checker: the run is a counterexample.
    Check,
}

/// A recorded run: steps and marks in the order in which they happened.
#[derive(Clone, Debug)]
pub struct Trace<P: Protocol> {
    /// The description of the run.
    pub header: Header,
    chunks: Vec<Chunk>,
    len: usize,
    last: Previous,
    marks: Vec<Mark>,
    /// The state of the site after each step; empty if the world does not record states.
    states: Vec<Json>,
    state_bytes: usize,
    protocol: PhantomData<fn() -> P>,
}

/// A piece of a trace's bytes; it holds whole steps. `bytes` has its full length from the start, and steps
/// are written in place.
#[derive(Clone, Debug)]
struct Chunk {
    bytes: Vec<u8>,
    used: usize,
}

/// The size of the first chunk in bytes. Each later chunk is twice as large as the one before, up to
/// `LARGEST_CHUNK`. A longer step gets a larger chunk.
const FIRST_CHUNK: usize = 1 << 12;
const LARGEST_CHUNK: usize = 1 << 20;

/// The numbers of the previous step. The next step is stored as differences from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Previous {
    at: u64,
    first_sent: u64,
}

/// An action of the world on a site, a link or a message. It is not a step of the algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The moment, in the world's time.
    pub at: Time,
    /// The action.
    pub what: What,
}

/// The kinds of [`Mark`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The site crashed.
    Crash(NodeId),
    /// The site recovered.
    Recover(NodeId),
    /// The site stopped handling inputs.
    Pause(NodeId),
    /// The site handles inputs again.
    Resume(NodeId),
    /// The links between this group and all other sites were cut.
    Cut(Vec<NodeId>),
    /// These links were restored.
    Heal(Vec<NodeId>),
    /// The message with this id was lost.
    Lose(u64),
    /// The network duplicated the message with this id.
    Duplicate(u64),
}

impl<P: Protocol> Trace<P> {
    /// Creates an empty trace of the run that `header` describes.
    pub const fn new(header: Header) -> Self {
        let last = Previous { at: 0, first_sent: 0 };
        Self {
            header,
            chunks: Vec::new(),
            len: 0,
            last,
            marks: Vec::new(),
            states: Vec::new(),
            state_bytes: 0,
            protocol: PhantomData,
        }
    }

    /// Appends a step and its effects. Callers append steps in the order of time and of message ids.
    pub fn push(&mut self, head: StepHead, input: &Input<P>, effects: &[Effect<P>]) {
        self.write(head, Some(input), effects);
    }

    /// Appends a step whose input is the message with the id `head.received`. An earlier step of this trace
    /// must have sent that message: its content is not stored again, and a reader needs it.
    #[inline]
    pub fn push_received(&mut self, head: StepHead, effects: &[Effect<P>]) {
        debug_assert!(head.received.is_some_and(|id| id < head.first_sent), "sent before it was received");
        self.write(head, None, effects);
    }

    /// Appends a mark.
    pub fn mark(&mut self, at: Time, what: What) {
        self.marks.push(Mark { at, what });
    }

    /// Appends the state of the site after the last step. Callers append it after every step, or never. A
    /// trace whose states take more than [`MOST_STATE_BYTES`] has none.
    pub fn push_state(&mut self, site: &P) {
        if self.state_bytes > MOST_STATE_BYTES {
            return;
        }
        let state = Json::of(site);
        self.state_bytes += state.text().len();
        self.states.push(state);
        if self.state_bytes > MOST_STATE_BYTES {
            self.states = Vec::new();
        }
    }

    /// Returns the number of steps.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the trace has no steps.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the run without its types.
    pub fn into_recording(self) -> Recording {
        let Self { header, chunks, len, marks, states, .. } = self;
        let steps = Encoded::<P> { nodes: header.nodes, chunks, len, states, protocol: PhantomData };
        Recording { header, marks, steps: Box::new(steps) }
    }

    #[inline]
    fn write(&mut self, head: StepHead, input: Option<&Input<P>>, effects: &[Effect<P>]) {
        let line = Line {
            after: head.at.0.wrapping_sub(self.last.at),
            node: head.node,
            ahead: head.clock.0.wrapping_sub(head.at.0),
            stamp: head.stamp,
            received: head.received.map_or(0, |id| head.first_sent.wrapping_sub(id)),
            sent_before: head.first_sent.wrapping_sub(self.last.first_sent),
            has_input: input.is_some(),
        };
        self.last = Previous { at: head.at.0, first_sent: head.first_sent };
        self.len += 1;
        let written = self.chunks.last_mut().and_then(|chunk| chunk.write(&line, input, effects));
        if written.is_none() {
            self.write_in_next_chunk(&line, input, effects);
        }
    }

    #[cold]
    #[inline(never)]
    fn write_in_next_chunk(&mut self, line: &Line, input: Option<&Input<P>>, effects: &[Effect<P>]) {
        let content = postcard::experimental::serialized_size(&(input, effects));
        let needed = Line::LONGEST + content.expect("messages and effects can be serialised");
        let usual = self.chunks.last().map_or(FIRST_CHUNK, |chunk| LARGEST_CHUNK.min(2 * chunk.bytes.len()));
        let mut chunk = Chunk { bytes: vec![0; needed.max(usual)], used: 0 };
        chunk.write(line, input, effects).expect("the new chunk is large enough");
        self.chunks.push(chunk);
    }
}

impl Chunk {
    /// Appends a step. Returns `None`, and appends nothing, if the step does not fit.
    #[inline]
    fn write<P: Protocol>(
        &mut self,
        line: &Line,
        input: Option<&Input<P>>,
        effects: &[Effect<P>],
    ) -> Option<()> {
        let rest = self.bytes.get_mut(self.used..)?;
        let mut written = line.write(rest.first_chunk_mut()?);
        if let Some(input) = input {
            written += postcard::to_slice(input, &mut rest[written..]).ok()?.len();
        }
        match effects {
            [] => *rest.get_mut(written)? = 0,
            _ => written += postcard::to_slice(effects, &mut rest[written..]).ok()?.len() - 1,
        }
        self.used += written + 1;
        Some(())
    }
}

/// The numbers of a step in stored form. Each is small, because it is the difference from a number nearby.
/// The id of a received message is below the next id by at least 1; the value 0 stands for "no message".
struct Line {
    after: u64,
    node: NodeId,
    ahead: u64,
    stamp: u64,
    received: u64,
    sent_before: u64,
    /// Whether the input follows. If not, the input is the received message.
    has_input: bool,
}

impl Line {
    const WORDS: usize = 6;
    const LONGEST: usize = 2 + 8 * Self::WORDS;
    const HAS_INPUT: u16 = 1 << (2 * Self::WORDS);

    /// Writes six words of one, two, four or eight bytes each, after two bytes that hold their sizes. Each
    /// word is written with eight bytes, and the next word overwrites those that are not needed. So no branch
    /// depends on a size.
    #[inline]
    fn write(&self, bytes: &mut [u8; Self::LONGEST]) -> usize {
        let words =
            [self.after, u64::from(self.node.0), self.ahead, self.stamp, self.received, self.sent_before];
        let mut sizes = if self.has_input { Self::HAS_INPUT } else { 0 };
        let mut at = 2;
        for (index, word) in words.into_iter().enumerate() {
            let size = u16::from(word > 0xff) + u16::from(word > 0xffff) + u16::from(word > 0xffff_ffff);
            sizes |= size << (2 * index);
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            at += 1 << size;
        }
        bytes[..2].copy_from_slice(&sizes.to_le_bytes());
        at
    }

    /// Reads the bytes that `write` wrote. Returns `None` at the end.
    fn read(rest: &mut &[u8]) -> Option<Self> {
        let (sizes, mut after) = rest.split_first_chunk()?;
        let sizes = u16::from_le_bytes(*sizes);
        let mut words = [0; Self::WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            let size = 1 << (sizes >> (2 * index) & 3);
            let (bytes, beyond) = after.split_at_checked(size)?;
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(bytes);
            (*word, after) = (u64::from_le_bytes(wide), beyond);
        }
        *rest = after;
        let [after, node, ahead, stamp, received, sent_before] = words;
        let has_input = sizes & Self::HAS_INPUT != 0;
        Some(Self { after, node: NodeId(node as u32), ahead, stamp, received, sent_before, has_input })
    }

    /// Returns the absolute numbers, computed from those of the previous step.
    fn head(&self, last: Previous) -> StepHead {
        let at = last.at.wrapping_add(self.after);
        let first_sent = last.first_sent.wrapping_add(self.sent_before);
        StepHead {
            at: Time(at),
            node: self.node,
            clock: Time(at.wrapping_add(self.ahead)),
            stamp: self.stamp,
            received: (self.received != 0).then(|| first_sent.wrapping_sub(self.received)),
            first_sent,
        }
    }
}

/// A step without its input and effects: the part that the world has before the handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepHead {
    /// The world's time.
    pub at: Time,
    /// The site that executes the step.
    pub node: NodeId,
    /// The reading of the site's own clock.
    pub clock: Time,
    /// The Lamport stamp of the step.
    pub stamp: u64,
    /// The id of the received message, if the input is a message.
    pub received: Option<u64>,
    /// The id of the first message that the step sends. Its further messages have the next ids.
    pub first_sent: u64,
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

    fn trace(nodes: u32) -> Trace<Talker> {
        Trace::new(Header {
            format: FORMAT,
            code: String::new(),
            algorithm: String::new(),
            nodes,
            seed: 1,
            world: WorldKind::Sim,
            scenario: String::new(),
        })
    }

    fn head(at: u64, node: u32, received: Option<u64>, first_sent: u64) -> StepHead {
        StepHead {
            at: Time(at),
            node: NodeId(node),
            clock: Time(at ^ 3),
            stamp: at ^ 9,
            received,
            first_sent,
        }
    }

    fn said(from: u32, message: &str) -> Input<Talker> {
        Input::Message { from: NodeId(from), message: message.into() }
    }

    fn raw(input: &Input<Talker>) -> RawInput {
        RawInput::from(input)
    }

    fn raw_steps(trace: Trace<Talker>) -> Vec<RawStep> {
        trace.into_recording().steps.iter().collect()
    }

    #[test]
    fn steps_are_read_as_they_were_pushed() {
        let long = "long ".repeat(2 * FIRST_CHUNK);
        let large = u64::MAX - 7;
        let steps = [
            (head(5, 1, None, 0), Input::Start, vec![Effect::Send { to: NodeId(0), message: long.clone() }]),
            (head(5, 0, Some(0), 1), said(1, &long), vec![Effect::Emit { event: () }]),
            (head(1 << 20, 1, None, 70_000), Input::Command(()), vec![]),
            // A file may hold numbers of another world, which need not be consistent.
            (head(large, 0, Some(69_000), 70_000), said(0, "who?"), vec![]),
        ];
        let mut trace = trace(2);
        for (head, input, effects) in &steps {
            trace.push(*head, input, effects);
        }
        assert_eq!(trace.len(), steps.len());
        let pushed = steps.map(|(head, input, effects)| RawStep {
            head,
            input: raw(&input),
            effects: effects.iter().map(RawEffect::from).collect(),
            state: None,
        });
        assert_eq!(raw_steps(trace), pushed);
    }

    #[test]
    fn a_message_is_looked_up_where_it_was_sent() {
        let say = |message: &str| message.into();
        let (two, to_all) = ([NodeId(0), NodeId(2)].into_iter().collect(), say("to all"));
        let effects = vec![
            Effect::Send { to: NodeId(1), message: say("to one") },
            Effect::Emit { event: () },
            // The sender is in the set and is skipped.
            Effect::SendTo { to: two, message: say("to two") },
            Effect::Broadcast { message: to_all },
            Effect::Send { to: NodeId(0), message: say("to myself") },
        ];
        let mut trace = trace(4);
        trace.push(head(1, 0, None, 10), &Input::Start, &effects);
        let received = [(15, "to myself"), (10, "to one"), (11, "to two"), (12, "to all"), (14, "to all")];
        for (id, _) in received {
            trace.push_received(head(2, 1, Some(id), 16), &[]);
        }
        let inputs: Vec<_> = raw_steps(trace).into_iter().skip(1).map(|step| step.input).collect();
        assert_eq!(inputs, received.map(|(_, message)| raw(&said(0, message))));
    }

    #[test]
    fn steps_fill_one_chunk_after_the_other() {
        let mut trace = trace(2);
        let steps = 2000_u64;
        for id in 0..steps {
            let received = id.checked_sub(1);
            let message = "x".repeat(id as usize % 50);
            let effects = [Effect::Send { to: NodeId(1), message }];
            match received {
                None => trace.push(head(id, 0, None, id), &Input::Start, &effects),
                Some(_) => trace.push_received(head(id, 0, received, id), &effects),
            }
        }
        assert!(trace.chunks.len() > 2, "{} chunks", trace.chunks.len());
        let mut last = None;
        let read = raw_steps(trace);
        assert_eq!(read.len(), steps as usize);
        for (id, step) in (0..steps).zip(read) {
            assert_eq!(step.head, head(id, 0, id.checked_sub(1), id));
            let expected = last.map_or(Input::Start, |message: String| said(0, &message));
            assert_eq!(step.input, raw(&expected));
            last = Some("x".repeat(id as usize % 50));
        }
    }

    #[test]
    fn a_line_of_a_file_is_read_as_it_is_written() {
        let effects = [
            Effect::Send { to: NodeId(1), message: "\"quoted\"".into() },
            Effect::SendTo { to: [NodeId(0), NodeId(2)].into_iter().collect(), message: "to two".into() },
            Effect::Emit { event: () },
        ];
        let mut trace = trace(3);
        trace.push(head(1, 0, None, 10), &Input::Command(()), &effects);
        trace.push_received(head(2, 1, Some(10), 13), &[]);
        trace.mark(Time(2), What::Lose(11));
        let lines: Vec<_> = trace
            .into_recording()
            .records()
            .map(|record| {
                let line = serde_json::to_string(&record).unwrap();
                assert_eq!(serde_json::from_str::<RawRecord>(&line).unwrap(), record, "{line}");
                line
            })
            .collect();
        let sent = r#"{"at":1,"node":0,"clock":2,"stamp":8,"first_sent":10,"input":{"command":null},"effects":[{"send":{"to":1,"message":"\"quoted\""}},{"send_to":{"to":[0,2],"message":"to two"}},{"emit":{"event":null}}]}"#;
        let received = r#"{"at":2,"node":1,"clock":1,"stamp":11,"received":10,"first_sent":13,"input":{"message":{"from":0,"message":"\"quoted\""}},"effects":[]}"#;
        assert_eq!(lines[0], alloc::format!(r#"{{"step":{sent}}}"#));
        assert_eq!(lines[1], r#"{"mark":{"at":2,"what":{"lose":11}}}"#);
        assert_eq!(lines[2], alloc::format!(r#"{{"step":{received}}}"#));
    }
}
