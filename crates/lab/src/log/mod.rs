//! A recorded run without its types: the source of pictures, exports and causality.
//!
//! A [`Log`] is built from a recorded run in memory ([`Log::from_trace`]), from a trace file
//! ([`read_log`]), or from the log of another program
//! ([`shiviz::read`](crate::diagram::shiviz::read)). It holds sites, events and messages in flat tables; what
//! a message or an event said stays one slice of a common text, as JSON, and is put into words only when
//! somebody looks ([`Log::short`], [`Log::words`], [`Log::describe`]). A million events take about 150 MB.
//!
//! **Rules**: events are in an order that causality allows, and times never run backwards. A message is sent
//! by one event, to one site, and received by none, one, or (if the network duplicated it) several.
//!
//! **Trap**: within one moment a trace file puts marks before steps, so a message may be reported lost on the
//! line before the step that sends it. Fates are settled when everything has been read.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | [`Log`] and its tables |
//! | `build` | how a log is put together, and what is refused |
//! | `file` | trace files: JSON lines |
//! | `causality` | [`Causality`]: Lamport and vector clocks of every event, happened-before |
//! | `order` | [`Order`] and [`Past`]: the same questions for a log of millions, without a clock for every event |
//! | `cuts` | cuts of a log, and the execution that passes through one |
//! | `states` | the recorded states of the sites, and what a step changed |
//! | `words` | JSON in the words of the papers |

mod build;
mod causality;
mod cuts;
mod file;
mod order;
mod states;
#[cfg(test)]
mod tests;
mod words;

use std::ops::Range;
use std::time::Duration;

use conclave_kernel::trace::{Mark, WorldKind};
use conclave_kernel::{NodeId, Time};

pub(crate) use build::Builder;
pub use causality::{Causality, Relation};
pub(crate) use file::Lines;
pub use file::{Error, read_log, read_trace, write_trace};
pub use order::{Order, Past, relation};
pub use states::Field;
use words::Detail;

/// A recorded run: sites, events, messages, and what the world did to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The description of the run.
    pub about: About,
    sites: u32,
    /// The sites' names, if they are not `n0`, `n1`, ...
    names: Vec<String>,
    /// The number of each event, if it is not the event's index.
    numbers: Vec<u32>,
    events: Vec<Event>,
    /// The messages received, event by event.
    received: Vec<u32>,
    /// In the order of sending: those of one event lie together.
    messages: Vec<Message>,
    /// The events that the sites emitted to the layer above, step by step.
    emitted: Vec<Text>,
    /// The timers that were set, event by event.
    timers: Vec<TimerChange>,
    /// The state of the site after each event; empty if the states were not recorded.
    states: Vec<Text>,
    /// Whether words contain the fields that the papers do not have.
    is_verbose: bool,
    marks: Vec<Mark>,
    kinds: Vec<String>,
    texts: String,
}

/// The description of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// `problem/name` of the algorithm, or the name of a foreign log.
    pub algorithm: String,
    /// The seed, if there was one.
    pub seed: Option<u64>,
    /// The kind of world that recorded the run.
    pub world: WorldKind,
    /// The experiment, as JSON.
    pub scenario: String,
    /// The meaning of the times.
    pub timescale: Timescale,
}

/// The meaning of the times of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timescale {
    /// Nanoseconds of the world.
    #[default]
    World,
    /// Lamport stamps: the log said nothing of time.
    Logical,
}

/// One step of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The world's time.
    pub at: Time,
    /// The reading of the site's own clock.
    pub clock: Time,
    /// The Lamport stamp that was recorded.
    pub stamp: u64,
    /// The site.
    pub site: NodeId,
    /// Why it stepped.
    pub cause: Cause,
    received_end: u32,
    sent_end: u32,
    emitted_end: u32,
    timers_end: u32,
}

/// A new deadline of a timer, or its cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerChange {
    /// The name of the timer.
    pub timer: Text,
    /// The shortest time until it fires, on the local clock; `None` if the timer was cancelled.
    pub after: Option<Duration>,
}

/// Why a site stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It booted.
    Start,
    /// It came back after a crash.
    Recover,
    /// A message came in: see [`Log::received`].
    Message,
    /// A deadline passed.
    Timer(Text),
    /// The layer above wanted something.
    Command(Text),
    /// Another program's event, in that program's words.
    Foreign(Text),
}

/// A message from one site to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The event that sent it.
    pub sent_by: u32,
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// Its content.
    pub text: Text,
    /// Its kind, an index into [`Log::kinds`].
    pub kind: u8,
    /// Whether the network made a copy of it.
    pub duplicated: bool,
    /// Its fate.
    pub fate: Fate,
}

/// The fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was still on its way when the log ended.
    InFlight,
    /// It was first received by that event.
    Received(u32),
    /// It was lost, and that was known at that time.
    Lost(Time),
}

/// A piece of the log's common text. Only the log that made it can read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text {
    start: usize,
    len: u32,
}

impl Log {
    /// How many sites there are.
    pub fn sites(&self) -> u32 {
        self.sites
    }

    /// A site's name.
    pub fn name(&self, site: NodeId) -> String {
        self.names.get(site.index()).cloned().unwrap_or_else(|| site.to_string())
    }

    /// Whether the sites have names of their own, other than `n0`, `n1`, ...
    pub fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// The site with that name.
    pub fn site(&self, name: &str) -> Option<NodeId> {
        (0..self.sites).map(NodeId).find(|site| self.name(*site) == name)
    }

    /// Whether the messages were derived from the clocks of the events. Such a log lacks every message that
    /// no site received, and every message from which its receiver learnt nothing new.
    pub fn has_inferred_messages(&self) -> bool {
        self.about.timescale == Timescale::Logical
    }

    /// The number by which readers name an event: its place in the file, from 0. Logs of other programs may
    /// list events in an order that causality does not allow, so the number may differ from the index.
    pub fn number(&self, event: usize) -> usize {
        self.numbers.get(event).map_or(event, |number| *number as usize)
    }

    /// The event with that number.
    pub fn numbered(&self, number: usize) -> Option<usize> {
        match self.numbers.is_empty() {
            true => (number < self.events.len()).then_some(number),
            false => self.numbers.iter().position(|known| *known as usize == number),
        }
    }

    /// All events, in an order that causality allows.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// All messages, in the order of sending.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages that an event received: at most one in a trace, any number in a foreign log.
    pub fn received(&self, event: usize) -> &[u32] {
        let start = self.before(event).map_or(0, |event| event.received_end);
        &self.received[start as usize..self.events[event].received_end as usize]
    }

    /// The messages that an event sent, as a range of [`Log::messages`].
    pub fn sent(&self, event: usize) -> Range<usize> {
        let start = self.before(event).map_or(0, |event| event.sent_end);
        start as usize..self.events[event].sent_end as usize
    }

    /// The events that a step emitted to the layer above.
    pub fn emitted(&self, event: usize) -> &[Text] {
        let start = self.before(event).map_or(0, |event| event.emitted_end);
        &self.emitted[start as usize..self.events[event].emitted_end as usize]
    }

    /// The timers that an event set or cancelled.
    pub fn timers(&self, event: usize) -> &[TimerChange] {
        let start = self.before(event).map_or(0, |event| event.timers_end);
        &self.timers[start as usize..self.events[event].timers_end as usize]
    }

    /// The name of a timer in the words of its paper.
    pub fn timer_name(&self, timer: Text) -> String {
        words::timer(self.raw(timer))
    }

    /// Crashes, pauses, partitions and their ends, in order of time. The fates of messages are in
    /// [`Message::fate`].
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The kinds of messages, in order of appearance; at most [`MOST_KINDS`].
    pub fn kinds(&self) -> &[String] {
        &self.kinds
    }

    /// The time of the last event or mark.
    pub fn end(&self) -> Time {
        let event = self.events.last().map_or(Time::ZERO, |event| event.at);
        event.max(self.marks.last().map_or(Time::ZERO, |mark| mark.at))
    }

    /// The time at which a message was sent.
    pub fn sent_at(&self, message: &Message) -> Time {
        self.events[message.sent_by as usize].at
    }

    /// A text as it was recorded: JSON, unless it is of a foreign program.
    pub fn raw(&self, text: Text) -> &str {
        &self.texts[text.start..text.start + text.len as usize]
    }

    /// The name of what a text says: its variant, without what it carries.
    pub fn kind(&self, text: Text) -> &str {
        words::kind_in(&self.about.algorithm, self.raw(text))
    }

    /// Lets words contain every field, also those that the papers do not have: fences, echoes of requests,
    /// numbers of rounds.
    pub fn set_verbose(&mut self, is_verbose: bool) {
        self.is_verbose = is_verbose;
    }

    fn detail(&self) -> Detail {
        if self.is_verbose { Detail::Full } else { Detail::Paper }
    }

    /// A text in a word or two, for the label of an arrow: `request(3,0)`.
    pub fn short(&self, text: Text) -> String {
        match (self.kind(text), words::kind(self.raw(text))) {
            // A message that is no enum is all ours.
            (kind, plain) if kind != plain => kind.to_owned(),
            _ => words::short(self.raw(text)),
        }
    }

    /// A text in words: `request time 3, site 0`.
    pub fn words(&self, text: Text) -> String {
        words::long(self.raw(text), self.detail())
    }

    /// A text in words, with every field.
    pub fn words_in_full(&self, text: Text) -> String {
        words::long(self.raw(text), Detail::Full)
    }

    /// A whole step in words, without its site and time: `receives request time 3, site 0 from n0; sends
    /// ...`.
    pub fn describe(&self, event: usize) -> String {
        let mut parts = Vec::new();
        match self.events[event].cause {
            Cause::Start => parts.push("starts".to_owned()),
            Cause::Recover => parts.push("recovers".to_owned()),
            Cause::Message => {}
            Cause::Timer(text) => parts.push(format!("timer {}", self.timer_name(text))),
            Cause::Command(text) => parts.push(format!("is asked to {}", self.words(text))),
            Cause::Foreign(text) => return self.raw(text).to_owned(),
        }
        for message in self.received(event).iter().map(|index| &self.messages[*index as usize]) {
            parts.push(format!("receives {} from {}", self.words(message.text), self.name(message.from)));
        }
        let sent = &self.messages[self.sent(event)];
        for group in sent.chunk_by(|a, b| self.raw(a.text) == self.raw(b.text)) {
            parts.push(format!("sends {} to {}", self.words(group[0].text), self.receivers(group)));
        }
        for text in self.emitted(event) {
            parts.push(format!("reports {}", self.words(*text)));
        }
        parts.join("; ")
    }

    fn receivers(&self, group: &[Message]) -> String {
        const NAMED: usize = 6;
        if group.len() > NAMED {
            return format!("{} sites", group.len());
        }
        group.iter().map(|message| self.name(message.to)).collect::<Vec<_>>().join(", ")
    }

    fn before(&self, event: usize) -> Option<&Event> {
        event.checked_sub(1).map(|previous| &self.events[previous])
    }
}

/// At most so many kinds of messages are told apart; the rest are one kind, `other`.
pub const MOST_KINDS: usize = 64;
