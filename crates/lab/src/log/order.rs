//! The order of a whole log: the number of concurrent pairs, its longest causal chain, one
//! event's past. All in one pass over the events, forwards or backwards, without a clock for every event.
//!
//! The pairs that are ordered are counted by the sizes of pasts: the sum of an event's vector clock is how
//! many events lie in its past, itself included. The pass keeps one vector a site, and one for every event
//! whose message is still on its way: a million events at a hundred sites need a few megabytes, not four
//! hundred.
//!
//! Two events are compared without any clock: a pass backwards from the later one marks its past.
//!
//! **Bound**: vectors of events whose messages are on their way take at most 1 GiB; a log that needs more is
//! refused with what it needs.

use super::{Log, Relation};

/// The causal order of a log in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Pairs of events of which one happened before the other.
    pub ordered_pairs: u128,
    /// Pairs of which neither did.
    pub concurrent_pairs: u128,
    /// Some of the latter, from all over the log.
    pub concurrent_sample: Vec<(usize, usize)>,
    /// The longest chain of events each of which happened before the next. Its length is the largest Lamport
    /// stamp.
    pub longest_chain: Vec<usize>,
}

/// The most entries of vectors that wait for their messages: 1 GiB of them.
const MOST_ENTRIES: usize = 1 << 28;

impl Order {
    /// Goes through a log once. Keeps at most so many concurrent pairs as a sample.
    pub fn of(log: &Log, sample: usize) -> Result<Self, String> {
        let events = log.events().len();
        let mut pass = Pass::new(log);
        let mut ordered_pairs = 0_u128;
        let mut concurrent_sample = Vec::new();
        let stride = (events / sample.max(1)).max(1);
        for index in 0..events {
            // An event is not in its own past.
            ordered_pairs += u128::from(pass.take(log, index)? - 1);
            if index % stride == stride - 1 && concurrent_sample.len() < sample {
                concurrent_sample.extend(pass.concurrent_with_last(log, index));
            }
        }
        let events = events as u128;
        Ok(Self {
            ordered_pairs,
            concurrent_pairs: events * events.saturating_sub(1) / 2 - ordered_pairs,
            concurrent_sample,
            longest_chain: pass.longest_chain(),
        })
    }
}

/// The past of an event, itself included: a bit an event.
#[derive(Clone, Debug)]
pub struct Past {
    bits: Vec<u64>,
    of: usize,
}

impl Past {
    /// Marks the past of an event, backwards.
    pub fn of(log: &Log, event: usize) -> Self {
        let mut past = Self { bits: vec![0; event / 64 + 1], of: event };
        past.mark(event);
        // A site's events are in order, so that one mark a site stands for all before it.
        let mut covered = vec![false; log.sites() as usize];
        for index in (0..=event).rev() {
            let site = log.events()[index].site.index();
            if covered[site] || past.contains(index) {
                covered[site] = true;
                past.mark(index);
                for message in log.received(index) {
                    past.mark(log.messages()[*message as usize].sent_by as usize);
                }
            }
        }
        past
    }

    /// Whether an event is in it.
    pub fn contains(&self, event: usize) -> bool {
        self.bits.get(event / 64).is_some_and(|word| word >> (event % 64) & 1 == 1)
    }

    /// All of it, in the order of the log, without the event itself.
    pub fn events(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.of).filter(|event| self.contains(*event))
    }

    /// How many events of each site are in it: the event's vector clock.
    pub fn vector(&self, log: &Log) -> Vec<u32> {
        let mut vector = vec![0; log.sites() as usize];
        self.events().chain([self.of]).for_each(|event| vector[log.events()[event].site.index()] += 1);
        vector
    }

    /// The longest causal chain that ends with the event: its Lamport stamp.
    pub fn lamport(&self, log: &Log) -> u64 {
        let mut stamps = vec![0_u64; self.of + 1];
        let mut last = vec![0_u64; log.sites() as usize];
        for event in self.events().chain([self.of]) {
            let site = log.events()[event].site.index();
            let heard = log.received(event).iter().map(|id| log.messages()[*id as usize].sent_by as usize);
            stamps[event] = heard.map(|sender| stamps[sender]).max().unwrap_or(0).max(last[site]) + 1;
            last[site] = stamps[event];
        }
        stamps[self.of]
    }

    fn mark(&mut self, event: usize) {
        self.bits[event / 64] |= 1 << (event % 64);
    }
}

/// How two events stand to each other. Linear in the log: for two events, not for all pairs.
pub fn relation(log: &Log, e: usize, f: usize) -> Relation {
    match e.cmp(&f) {
        std::cmp::Ordering::Equal => Relation::Equal,
        // The log is in an order that causality allows: what comes later happened before nothing earlier.
        std::cmp::Ordering::Less if Past::of(log, f).contains(e) => Relation::Before,
        std::cmp::Ordering::Greater if Past::of(log, e).contains(f) => Relation::After,
        _ => Relation::Concurrent,
    }
}

/// The state of the pass forwards.
struct Pass {
    sites: usize,
    /// The vector of each site's latest event, a row a site.
    latest: Vec<u32>,
    /// Each site's latest event, and the sum of its vector.
    last: Vec<Option<(usize, u64)>>,
    /// Vectors of events whose messages are still to be received, and the places that are free again.
    waiting: Vec<u32>,
    free: Vec<u32>,
    /// For every event: its place among these; and how many receipts are still to come.
    place: Vec<u32>,
    receipts: Vec<u32>,
    /// Lamport stamps, and the event before each on its longest chain.
    lamport: Vec<u32>,
    before: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl Pass {
    fn new(log: &Log) -> Self {
        let (sites, events) = (log.sites() as usize, log.events().len());
        let mut receipts = vec![0; events];
        for index in 0..events {
            for message in log.received(index) {
                receipts[log.messages()[*message as usize].sent_by as usize] += 1;
            }
        }
        // Rows only for sites that have events: a header may name millions.
        Self {
            sites,
            latest: Vec::new(),
            last: vec![None; sites],
            waiting: Vec::new(),
            free: Vec::new(),
            place: vec![NONE; events],
            receipts,
            lamport: Vec::with_capacity(events),
            before: Vec::with_capacity(events),
        }
    }

    /// Takes the next event; the answer is the size of its past, itself included.
    fn take(&mut self, log: &Log, index: usize) -> Result<u64, String> {
        if self.latest.is_empty() {
            let entries = self.sites.checked_mul(self.sites).filter(|entries| *entries <= MOST_ENTRIES);
            let entries = entries.ok_or_else(|| {
                format!("{} sites are too many for vector clocks: give a log with at most 16384", self.sites)
            })?;
            self.latest = vec![0; entries];
        }
        let site = log.events()[index].site.index();
        let own = self.last[site];
        let (mut stamp, mut before) = own.map_or((0, NONE), |(own, _)| (self.lamport[own], own as u32));
        let row = site * self.sites..(site + 1) * self.sites;
        let received = log.received(index);
        for message in received {
            let sender = log.messages()[*message as usize].sent_by as usize;
            if self.lamport[sender] > stamp {
                (stamp, before) = (self.lamport[sender], sender as u32);
            }
            let place = self.place[sender] as usize;
            let theirs = &self.waiting[place * self.sites..(place + 1) * self.sites];
            for (mine, theirs) in self.latest[row.clone()].iter_mut().zip(theirs) {
                *mine = (*mine).max(*theirs);
            }
            self.receipts[sender] -= 1;
            if self.receipts[sender] == 0 {
                self.free.push(place as u32);
            }
        }
        self.latest[row.start + site] += 1;
        let sum = match own {
            Some((_, sum)) if received.is_empty() => sum + 1,
            _ => self.latest[row].iter().map(|count| u64::from(*count)).sum(),
        };
        self.lamport.push(stamp + 1);
        self.before.push(before);
        self.last[site] = Some((index, sum));
        if self.receipts[index] > 0 {
            self.keep(index, site)?;
        }
        Ok(sum)
    }

    /// Keeps an event's vector until its messages are received.
    fn keep(&mut self, index: usize, site: usize) -> Result<(), String> {
        let row = site * self.sites..(site + 1) * self.sites;
        let place = match self.free.pop() {
            Some(place) => {
                let start = place as usize * self.sites;
                self.waiting[start..start + self.sites].copy_from_slice(&self.latest[row]);
                place
            }
            None if self.waiting.len() + self.sites > MOST_ENTRIES => {
                let events = self.waiting.len() / self.sites.max(1);
                return Err(format!(
                    "more than {events} events with messages on their way at {} sites",
                    self.sites
                ));
            }
            None => {
                let place = (self.waiting.len() / self.sites) as u32;
                self.waiting.extend_from_slice(&self.latest[row]);
                place
            }
        };
        self.place[index] = place;
        Ok(())
    }

    /// An earlier event of another site that the event just taken knows nothing of.
    fn concurrent_with_last(&self, log: &Log, index: usize) -> Option<(usize, usize)> {
        let site = log.events()[index].site.index();
        let row = &self.latest[site * self.sites..(site + 1) * self.sites];
        let unknown = |other: &usize| row[*other] < self.latest[*other * self.sites + *other];
        let other = (1..self.sites).map(|ahead| (site + ahead) % self.sites).find(unknown)?;
        self.last[other].map(|(event, _)| (event, index))
    }

    fn longest_chain(&self) -> Vec<usize> {
        // The first of those with the largest stamp.
        let last =
            (0..self.lamport.len()).max_by_key(|event| (self.lamport[*event], std::cmp::Reverse(*event)));
        let step = |event: &usize| (self.before[*event] != NONE).then(|| self.before[*event] as usize);
        let mut chain: Vec<usize> = std::iter::successors(last, step).collect();
        chain.reverse();
        chain
    }
}
