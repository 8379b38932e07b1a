//! How a log is put together, and what is refused.

use std::collections::BTreeMap;

use conclave_kernel::trace::{Header, Mark, RawEffect, RawInput, RawRecord, RawStep, What};
use conclave_kernel::{NodeId, Recording, StepHead, Time};

use super::{About, Cause, Event, Fate, Log, MOST_KINDS, Message, Text, TimerChange, Timescale};

/// The most messages of a log: a broadcast of one line is a message a site, so that a small hostile file
/// could otherwise ask for all memory.
const MOST_MESSAGES: usize = 1 << 25;

impl Log {
    /// Returns the log of a recorded run. Fails only if the trace contradicts itself; no world records such a
    /// trace.
    pub fn from_trace(trace: &Recording) -> Result<Self, String> {
        let mut build = Builder::of(&trace.header);
        trace.records().try_for_each(|record| build.record(record))?;
        build.finish()
    }
}

/// A log in the making: one step after the other, each followed by what it sent and told.
pub(crate) struct Builder {
    log: Log,
    /// Message ids to indices: ids that follow each other are one run, and a simulator's all do.
    ids: BTreeMap<u64, Run>,
    next_id: u64,
    most_messages: usize,
    /// Fates of messages, settled at the end.
    fates: Vec<(Time, What)>,
}

struct Run {
    index: u32,
    len: u32,
}

impl Builder {
    /// Creates the empty log of the run that a header describes.
    pub(crate) fn of(header: &Header) -> Self {
        let about = About {
            algorithm: header.algorithm.clone(),
            seed: Some(header.seed),
            world: header.world,
            scenario: header.scenario.clone(),
            timescale: Timescale::World,
        };
        Self::new(about, header.nodes)
    }

    /// Appends a record of a trace.
    pub(crate) fn record(&mut self, record: RawRecord) -> Result<(), String> {
        let RawStep { head, input, effects, state } = match record {
            RawRecord::Step(step) => step,
            RawRecord::Mark(mark) => return self.mark(mark),
        };
        let (cause, from) = match input {
            RawInput::Start => (Cause::Start, None),
            RawInput::Recover => (Cause::Recover, None),
            RawInput::Message { from, .. } => (Cause::Message, Some(from)),
            RawInput::Timer(timer) => (Cause::Timer(self.text(timer.text())), None),
            RawInput::Command(command) => (Cause::Command(self.text(command.text())), None),
        };
        self.step(head, cause, from)?;
        for effect in effects {
            match effect {
                RawEffect::Send { to, message } => {
                    let text = self.text(message.text());
                    self.send([to], text)?;
                }
                RawEffect::SendTo { to, message } => {
                    let text = self.text(message.text());
                    self.send(to.iter().filter(|to| *to != head.node), text)?;
                }
                RawEffect::Broadcast { message } => {
                    let text = self.text(message.text());
                    self.broadcast(text)?;
                }
                RawEffect::Emit { event } => {
                    let text = self.text(event.text());
                    self.emit(text);
                }
                RawEffect::Arm { timer, min, .. } => {
                    let timer = self.text(timer.text());
                    self.timer(TimerChange { timer, after: Some(min) });
                }
                RawEffect::Disarm { timer } => {
                    let timer = self.text(timer.text());
                    self.timer(TimerChange { timer, after: None });
                }
            }
        }
        match state {
            Some(state) => self.state(state.text()),
            None => Ok(()),
        }
    }

    pub(crate) fn new(about: About, sites: u32) -> Self {
        let log = Log { about, sites, ..Log::default() };
        Self { log, ids: BTreeMap::new(), next_id: 0, most_messages: MOST_MESSAGES, fates: Vec::new() }
    }

    /// Sets the names of the sites, if they are not known from the start.
    pub(crate) fn name_sites(&mut self, names: Vec<String>) {
        self.log.sites = u32::try_from(names.len()).expect("the reader bounds the number of hosts");
        self.log.names = names;
    }

    /// Sets the number of each event: the place of the event in the file, from 0.
    pub(crate) fn number_events(&mut self, numbers: Vec<u32>) {
        self.log.numbers = numbers;
    }

    /// Makes room for so many events and messages.
    pub(crate) fn reserve(&mut self, events: usize, messages: usize) {
        self.log.events.reserve_exact(events);
        let messages = messages.min(self.most_messages);
        self.log.messages.reserve_exact(messages);
        self.log.received.reserve_exact(messages);
    }

    /// The same with another bound on messages.
    #[cfg(test)]
    pub(crate) fn holding(self, most_messages: usize) -> Self {
        Self { most_messages, ..self }
    }

    /// Keeps a text.
    pub(crate) fn text(&mut self, text: &str) -> Text {
        let start = self.log.texts.len();
        let end = text.floor_char_boundary(u32::MAX as usize);
        self.log.texts.push_str(&text[..end]);
        Text { start, len: end as u32 }
    }

    /// Begins a step. `from` is who sent the message that it received, where the record says so.
    pub(crate) fn step(&mut self, head: StepHead, cause: Cause, from: Option<NodeId>) -> Result<(), String> {
        self.check_site(head.node)?;
        if let Some(last) = self.log.events.last()
            && head.at < last.at
        {
            return Err(format!("time runs backwards, from {} to {}", last.at, head.at));
        }
        match (cause, head.received) {
            (Cause::Message, None) => {
                return Err("a message is received, but `received` does not say which".into());
            }
            (Cause::Message | Cause::Foreign(_), _) | (_, None) => {}
            (_, Some(id)) => return Err(format!("message {id} is received, but the input is not a message")),
        }
        let event = u32::try_from(self.log.events.len()).map_err(|_| "too many events")?;
        if let Some(id) = head.received {
            let index =
                self.index(id).ok_or_else(|| format!("message {id} is received before it is sent"))?;
            let message = &self.log.messages[index as usize];
            if message.to != head.node || from.is_some_and(|from| from != message.from) {
                let Message { from, to, .. } = message;
                return Err(format!("message {id} was sent by {from} to {to}, and cannot be received here"));
            }
            self.receive(event, index);
        }
        self.log.events.push(Event {
            at: head.at,
            clock: head.clock,
            stamp: head.stamp,
            site: head.node,
            cause,
            received_end: self.log.received.len() as u32,
            sent_end: self.log.messages.len() as u32,
            emitted_end: self.log.emitted.len() as u32,
            timers_end: self.log.timers.len() as u32,
        });
        self.next_id = head.first_sent;
        Ok(())
    }

    /// The step that was begun last received one more message, known by its index.
    pub(crate) fn also_receives(&mut self, index: u32) {
        let event = self.log.events.len() - 1;
        self.receive(event as u32, index);
        self.log.events[event].received_end = self.log.received.len() as u32;
    }

    /// The step that was begun last sent a message.
    pub(crate) fn send(&mut self, to: impl IntoIterator<Item = NodeId>, text: Text) -> Result<(), String> {
        let kind = self.kind_of(text);
        let sent_by = self.log.events.len() - 1;
        let from = self.log.events[sent_by].site;
        for to in to {
            self.check_site(to)?;
            self.check_room(1)?;
            self.remember_id()?;
            self.log.messages.push(Message {
                sent_by: sent_by as u32,
                from,
                to,
                text,
                kind,
                duplicated: false,
                fate: Fate::InFlight,
            });
        }
        self.log.events[sent_by].sent_end = self.log.messages.len() as u32;
        Ok(())
    }

    /// The step that was begun last sent a message to everybody else.
    pub(crate) fn broadcast(&mut self, text: Text) -> Result<(), String> {
        // Before it is expanded: one line may stand for millions of messages.
        self.check_room(self.log.sites as usize - 1)?;
        let from = self.log.events.last().map(|event| event.site);
        self.send((0..self.log.sites).map(NodeId).filter(|to| Some(*to) != from), text)
    }

    /// The step that was begun last told the layer above something.
    pub(crate) fn emit(&mut self, text: Text) {
        self.log.emitted.push(text);
        let event = self.log.events.last_mut().expect("a step was begun");
        event.emitted_end = self.log.emitted.len() as u32;
    }

    /// The step that was begun last set or cancelled a timer.
    pub(crate) fn timer(&mut self, change: TimerChange) {
        self.log.timers.push(change);
        let event = self.log.events.last_mut().expect("a step was begun");
        event.timers_end = self.log.timers.len() as u32;
    }

    /// The state of the site after the step that was begun last. Either all steps have one or none.
    pub(crate) fn state(&mut self, json: &str) -> Result<(), String> {
        if self.log.states.len() + 1 != self.log.events.len() {
            return Err("a step has a state, but a step before it has none".into());
        }
        let text = self.text(json);
        self.log.states.push(text);
        Ok(())
    }

    /// The world did something.
    pub(crate) fn mark(&mut self, mark: Mark) -> Result<(), String> {
        match &mark.what {
            What::Crash(node) | What::Recover(node) | What::Pause(node) | What::Resume(node) => {
                self.check_site(*node)?;
            }
            What::Cut(group) | What::Heal(group) => {
                group.iter().try_for_each(|node| self.check_site(*node))?;
            }
            What::Lose(_) | What::Duplicate(_) => {
                self.fates.push((mark.at, mark.what));
                return Ok(());
            }
        }
        if self.log.marks.last().is_some_and(|last| mark.at < last.at) {
            return Err(format!("time runs backwards, to {}", mark.at));
        }
        self.log.marks.push(mark);
        Ok(())
    }

    /// Settles what became of the messages.
    pub(crate) fn finish(mut self) -> Result<Log, String> {
        for (at, what) in std::mem::take(&mut self.fates) {
            let (What::Lose(id) | What::Duplicate(id)) = what else { continue };
            let index =
                self.index(id).ok_or_else(|| format!("a mark names message {id}, which nobody sent"))?;
            let message = &mut self.log.messages[index as usize];
            match what {
                What::Lose(_) if message.fate == Fate::InFlight => message.fate = Fate::Lost(at),
                What::Lose(_) => {}
                _ => message.duplicated = true,
            }
        }
        self.log.texts.shrink_to_fit();
        Ok(self.log)
    }

    fn receive(&mut self, event: u32, index: u32) {
        self.log.received.push(index);
        let message = &mut self.log.messages[index as usize];
        match message.fate {
            Fate::Received(_) => message.duplicated = true,
            Fate::InFlight | Fate::Lost(_) => message.fate = Fate::Received(event),
        }
    }

    fn kind_of(&mut self, text: Text) -> u8 {
        let kind = self.log.kind(text);
        let known = self.log.kinds.iter().position(|known| known == kind);
        let index = known.unwrap_or_else(|| self.log.kinds.len().min(MOST_KINDS - 1));
        if index == self.log.kinds.len() {
            let last = index == MOST_KINDS - 1;
            let kind = if last { "other" } else { kind }.to_owned();
            self.log.kinds.push(kind);
        }
        index as u8
    }

    fn remember_id(&mut self) -> Result<(), String> {
        let (id, index) = (self.next_id, self.log.messages.len() as u32);
        if self.index(id).is_some() {
            return Err(format!("two messages have the id {id}"));
        }
        self.next_id = id.checked_add(1).ok_or("a message id is too large")?;
        match self.ids.range_mut(..=id).next_back() {
            Some((first, run)) if first + u64::from(run.len) == id && run.index + run.len == index => {
                run.len += 1;
            }
            _ => _ = self.ids.insert(id, Run { index, len: 1 }),
        }
        Ok(())
    }

    fn index(&self, id: u64) -> Option<u32> {
        let (first, run) = self.ids.range(..=id).next_back()?;
        let offset = u32::try_from(id - first).ok()?;
        (offset < run.len).then(|| run.index + offset)
    }

    fn check_room(&self, messages: usize) -> Result<(), String> {
        if self.log.messages.len() + messages <= self.most_messages {
            return Ok(());
        }
        Err(format!("more than {} messages", self.most_messages))
    }

    fn check_site(&self, site: NodeId) -> Result<(), String> {
        if site.0 < self.log.sites {
            return Ok(());
        }
        Err(format!("there is no site {}: the header says {} nodes", site.0, self.log.sites))
    }
}
