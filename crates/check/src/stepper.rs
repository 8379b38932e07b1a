//! The successors of a state: every step of every site, and every fault within the budget.
//!
//! A state is a short list of numbers: the state and the inbox of each site, then the monitor, then the rest
//! of the fault budget. Each thread has a stepper, which remembers the result of every *local* step. So the
//! code of the protocol runs once for each pair of a site's state and an input, however many global states
//! contain it. The exploration then computes with a few words, and updates fingerprints for the words that
//! changed.

mod moves;
mod rename;

use conclave_kernel::NodeId;
use conclave_kernel::prng::mix;

use crate::inbox::Slot;
use crate::memo::Memo;
use crate::model::Breach;
use crate::options::Timing;
use crate::registry::{Ground, NOTHING, Packet};
use crate::system::{Judged, Offered, Post, System};

pub(crate) use moves::{Action, Edge, Kind, Outlook};

/// The steps that one thread knows.
pub(crate) struct Stepper<'r> {
    pub(crate) system: &'r dyn System,
    pub(crate) ground: &'r Ground,
    /// (site's state, input) to the first of its outcomes.
    steps: Memo,
    outcomes: Vec<Outcome>,
    posts: Vec<Post>,
    rearmed: Vec<u32>,
    /// (inbox, packet) to inbox.
    pushes: Memo,
    inboxes: Vec<Option<InboxInfo>>,
    deliveries: Vec<Delivery>,
    packets: Vec<Packet>,
    locals: Vec<Option<LocalInfo>>,
    timers: Vec<u32>,
    /// (monitor, sight) to a judgement; a sight is an observation and the note that came with the message.
    judgements: Memo,
    sights: Memo,
    judged: Vec<Judgement>,
    breaches: Vec<Breach>,
    monitors: Vec<Option<MonitorInfo>>,
    offers: Vec<Offered>,
    /// (site's state or inbox, mode) to the same one tick later, plus one; 0 if the tick must wait.
    ticks: [Memo; 2],
    renamed: rename::Renamings,
    /// The model's `sometimes` that were seen, one bit each.
    pub(crate) seen: u64,
    pub(crate) crossing: bool,
    /// A site with too many combinations of random choices, if there is one.
    pub(crate) trouble: Option<NodeId>,
    base: Vec<u32>,
    draft: Vec<u32>,
}

/// A part of a list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    fn of<T>(self, list: &[T]) -> &[T] {
        &list[self.start as usize..][..self.len as usize]
    }

    fn range(self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

/// Appends to a list, and returns the span of the new items.
fn extend<T>(list: &mut Vec<T>, items: impl IntoIterator<Item = T>) -> Span {
    let start = list.len() as u32;
    list.extend(items);
    Span { start, len: list.len() as u32 - start }
}

/// The result of a local step for one combination of random choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    local: u32,
    observation: u32,
    posts: Span,
    rearmed: Span,
    /// Whether the next outcome belongs to the same step, with other random choices.
    more: bool,
}

#[derive(Clone, Copy, Debug)]
struct InboxInfo {
    deliveries: Span,
    copies: Span,
    senders: u64,
}

#[derive(Clone, Copy, Debug)]
struct Delivery {
    packet: u32,
    /// The inbox after the delivery.
    rest: u32,
}

#[derive(Clone, Copy, Debug)]
struct LocalInfo {
    up: bool,
    timers: Span,
}

#[derive(Clone, Copy, Debug)]
struct Judgement {
    monitor: u32,
    /// An index of `breaches` plus one.
    breach: u32,
    posts: Span,
}

#[derive(Clone, Copy, Debug)]
struct MonitorInfo {
    offers: Span,
    pending: u64,
}

/// The outcome of a step with too many combinations of random choices.
const NO_OUTCOME: u32 = u32::MAX;

/// Returns the contribution of a word to the fingerprint of a state. Words are numbers of distinct items. A
/// bijection that mixes the bits turns them into numbers that look independent.
#[inline]
fn contribution(slot: usize, word: u32) -> u64 {
    mix(((slot as u64 + 1) << 32 | u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl<'r> Stepper<'r> {
    pub(crate) fn new(system: &'r dyn System) -> Self {
        let ground = system.ground();
        Self {
            system,
            ground,
            steps: Memo::new(),
            outcomes: Vec::new(),
            posts: Vec::new(),
            rearmed: Vec::new(),
            pushes: Memo::new(),
            inboxes: Vec::new(),
            deliveries: Vec::new(),
            packets: Vec::new(),
            locals: Vec::new(),
            timers: Vec::new(),
            judgements: Memo::new(),
            sights: Memo::new(),
            judged: Vec::new(),
            breaches: Vec::new(),
            monitors: Vec::new(),
            offers: Vec::new(),
            ticks: [Memo::new(), Memo::new()],
            renamed: rename::Renamings::new(ground.symmetries.len()),
            seen: 0,
            crossing: false,
            trouble: None,
            base: Vec::new(),
            draft: Vec::new(),
        }
    }

    /// Returns the number of words of a state.
    pub(crate) fn width(&self) -> usize {
        2 * self.ground.nodes as usize + 2
    }

    /// Returns the states in which all sites have started. There are several if the start makes random
    /// choices.
    pub(crate) fn initial(&mut self) -> Vec<Vec<u32>> {
        let start = self.system.start();
        (0..self.ground.nodes).fold(vec![self.before_start()], |states, node| {
            let mut started = Vec::new();
            for state in states {
                self.start(&state, node, start, &mut |edge| started.push(edge.words.to_vec()));
            }
            started
        })
    }

    /// Returns the state before any site has started.
    pub(crate) fn before_start(&mut self) -> Vec<u32> {
        let mut words = vec![NOTHING; self.width()];
        let (locals, first) = self.system.beginning();
        words[..locals.len()].copy_from_slice(&locals);
        let faults = self.ground.faults;
        let left = [faults.loss, faults.duplication, faults.crash, 0];
        let (monitor, budget) = (self.monitor_slot(), self.budget_slot());
        words[budget] = u32::from_le_bytes(left);
        words[monitor] = first;
        self.monitor(first);
        words
    }

    /// Returns the fingerprint of a state, never 0. Symmetric states have the same fingerprint.
    pub(crate) fn fingerprint(&mut self, words: &[u32]) -> u64 {
        match self.ground.symmetries.len() {
            0 => nonzero(plain_fingerprint(words)),
            _ => self.canonical_fingerprint(words),
        }
    }

    /// Returns the open obligations of a state, one bit each.
    pub(crate) fn pending(&mut self, words: &[u32]) -> u64 {
        self.monitor(words[self.monitor_slot()]).pending
    }

    /// Judges a state without possible steps.
    pub(crate) fn at_rest(&self, words: &[u32]) -> Option<Breach> {
        self.system.at_rest(&words[..self.ground.nodes as usize], words[self.monitor_slot()])
    }

    /// Returns the violation on an edge.
    pub(crate) fn breach(&self, number: u32) -> Option<&Breach> {
        self.breaches.get((number as usize).checked_sub(1)?)
    }

    pub(crate) fn packet(&mut self, number: u32) -> Packet {
        while self.packets.len() <= number as usize {
            self.packets.push(self.ground.packets.get(self.packets.len() as u32));
        }
        self.packets[number as usize]
    }

    /// Returns the timers that an outcome postponed, as inputs.
    pub(crate) fn rearmed(&self, outcome: Outcome) -> &[u32] {
        outcome.rearmed.of(&self.rearmed)
    }

    /// Returns the approximate size of the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let memos =
            [&self.steps, &self.pushes, &self.judgements, &self.sights, &self.ticks[0], &self.ticks[1]];
        memos.iter().map(|memo| memo.bytes()).sum::<usize>()
            + self.outcomes.capacity() * size_of::<Outcome>()
            + self.posts.capacity() * size_of::<Post>()
            + self.inboxes.capacity() * size_of::<Option<InboxInfo>>()
            + self.deliveries.capacity() * size_of::<Delivery>()
            + self.packets.capacity() * size_of::<Packet>()
            + self.locals.capacity() * size_of::<Option<LocalInfo>>()
            + self.judged.capacity() * size_of::<Judgement>()
    }

    fn monitor_slot(&self) -> usize {
        2 * self.ground.nodes as usize
    }

    fn budget_slot(&self) -> usize {
        2 * self.ground.nodes as usize + 1
    }

    fn inbox_slot(&self, node: u32) -> usize {
        (self.ground.nodes + node) as usize
    }
}

/// The methods that compute a result once and remember it.
impl Stepper<'_> {
    /// Returns the first outcome of an input in a site's state; none if there are too many.
    #[inline]
    fn first_outcome(&mut self, local: u32, input: u32) -> Option<usize> {
        let first = self.steps.get(local, input);
        let first = first.unwrap_or_else(|| self.compute_outcomes(local, input));
        (first != NO_OUTCOME).then_some(first as usize)
    }

    #[cold]
    fn compute_outcomes(&mut self, number: u32, input: u32) -> u32 {
        let steps = self.system.step(number, input).unwrap_or_else(|node| {
            self.trouble = Some(node);
            Vec::new()
        });
        let first = if steps.is_empty() { NO_OUTCOME } else { self.outcomes.len() as u32 };
        let last = steps.len().saturating_sub(1);
        for (fall, step) in steps.into_iter().enumerate() {
            self.seen |= step.shows;
            let outcome = Outcome {
                local: step.local,
                observation: step.observation,
                posts: extend(&mut self.posts, step.posts),
                rearmed: extend(&mut self.rearmed, step.rearmed),
                more: fall < last,
            };
            self.outcomes.push(outcome);
        }
        self.steps.insert(number, input, first);
        first
    }

    /// Returns the monitor's judgement of a step.
    #[inline]
    fn judge(&mut self, monitor: u32, observation: u32, note: u32) -> Judgement {
        let sight = if self.ground.notes { self.sight(observation, note) } else { observation };
        match self.judgements.get(monitor, sight) {
            Some(index) => self.judged[index as usize],
            None => self.compute_judgement(monitor, sight, observation, note),
        }
    }

    fn sight(&mut self, observation: u32, note: u32) -> u32 {
        if let Some(sight) = self.sights.get(observation, note) {
            return sight;
        }
        let sight = self.sights.len() as u32;
        self.sights.insert(observation, note, sight);
        sight
    }

    #[cold]
    fn compute_judgement(&mut self, number: u32, sight: u32, observation: u32, note: u32) -> Judgement {
        let Judged { monitor, breach, posts } = self.system.judge(number, observation, note);
        let breach = breach.map_or(0, |breach| {
            self.breaches.push(breach);
            self.breaches.len() as u32
        });
        let judgement = Judgement { monitor, breach, posts: extend(&mut self.posts, posts) };
        self.monitor(monitor);
        self.judgements.insert(number, sight, self.judged.len() as u32);
        self.judged.push(judgement);
        judgement
    }

    /// Returns the inbox with one more packet.
    #[inline]
    fn push(&mut self, inbox: u32, packet: u32) -> u32 {
        match self.pushes.get(inbox, packet) {
            Some(more) => more,
            None => self.compute_push(inbox, packet),
        }
    }

    #[cold]
    fn compute_push(&mut self, inbox: u32, packet: u32) -> u32 {
        let from = self.packet(packet).from;
        let more = self.ground.inboxes.get(inbox).push(Slot { from, age: 0, packet }, self.ground.order);
        let number = self.ground.inboxes.intern(more);
        self.pushes.insert(inbox, packet, number);
        number
    }

    #[inline]
    fn inbox(&mut self, number: u32) -> InboxInfo {
        match self.inboxes.get(number as usize) {
            Some(Some(info)) => *info,
            _ => self.compute_inbox(number),
        }
    }

    #[cold]
    fn compute_inbox(&mut self, number: u32) -> InboxInfo {
        let ground = self.ground;
        let inbox = ground.inboxes.get(number);
        let mut deliveries = Vec::new();
        let mut copies = Vec::new();
        for place in inbox.deliverable(ground.order) {
            let packet = inbox.slots()[place].packet;
            self.packet(packet);
            deliveries.push(Delivery { packet, rest: ground.inboxes.intern(inbox.without(place)) });
            if ground.faults.duplication > 0 {
                for copy in inbox.with_copy(place, ground.order) {
                    copies.push(Delivery { packet, rest: ground.inboxes.intern(copy) });
                }
            }
        }
        let info = InboxInfo {
            deliveries: extend(&mut self.deliveries, deliveries),
            copies: extend(&mut self.deliveries, copies),
            senders: inbox.slots().iter().fold(0, |senders, slot| senders | 1 << slot.from),
        };
        remember(&mut self.inboxes, number, info);
        info
    }

    #[inline]
    fn local(&mut self, number: u32) -> LocalInfo {
        match self.locals.get(number as usize) {
            Some(Some(info)) => *info,
            _ => self.compute_local(number),
        }
    }

    #[cold]
    fn compute_local(&mut self, number: u32) -> LocalInfo {
        let (up, timers) = self.system.site(number);
        let info = LocalInfo { up, timers: extend(&mut self.timers, timers) };
        remember(&mut self.locals, number, info);
        info
    }

    #[inline]
    fn monitor(&mut self, number: u32) -> MonitorInfo {
        match self.monitors.get(number as usize) {
            Some(Some(info)) => *info,
            _ => self.compute_monitor(number),
        }
    }

    #[cold]
    fn compute_monitor(&mut self, number: u32) -> MonitorInfo {
        let watch = self.system.watch(number);
        self.seen |= watch.shows;
        let info = MonitorInfo { offers: extend(&mut self.offers, watch.offers), pending: watch.pending };
        remember(&mut self.monitors, number, info);
        info
    }

    /// Returns a site's state one tick later.
    fn tick_local(&mut self, number: u32) -> Option<u32> {
        if let Some(later) = self.ticks[0].get(number, 0) {
            return later.checked_sub(1);
        }
        let later = self.system.tick(number);
        self.ticks[0].insert(number, 0, later.map_or(0, |later| later + 1));
        later
    }

    /// Returns an inbox one tick later.
    fn tick_inbox(&mut self, number: u32) -> Option<u32> {
        if let Some(later) = self.ticks[1].get(number, 0) {
            return later.checked_sub(1);
        }
        let Timing::Sync { delay, .. } = self.ground.timing else { return Some(number) };
        let later = self.ground.inboxes.get(number).tick(delay);
        let later = later.map(|inbox| self.ground.inboxes.intern(inbox));
        self.ticks[1].insert(number, 0, later.map_or(0, |later| later + 1));
        later
    }
}

fn remember<T: Copy>(list: &mut Vec<Option<T>>, number: u32, thing: T) {
    if list.len() <= number as usize {
        list.resize(number as usize + 1, None);
    }
    list[number as usize] = Some(thing);
}

fn plain_fingerprint(words: &[u32]) -> u64 {
    words.iter().enumerate().fold(0, |sum, (slot, word)| sum.wrapping_add(contribution(slot, *word)))
}

/// Avoids 0, which marks a free place in the table of states.
#[inline]
fn nonzero(fingerprint: u64) -> u64 {
    fingerprint | u64::from(fingerprint == 0)
}
