//! Counters of messages, delays, bypass and fairness.

use conclave_algorithms::mutex::{Bill, Phase};
use conclave_kernel::{NodeId, Time};

/// All meters of one run.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    sites: Vec<Site>,
    /// The tallies of each site, the most recently charged one first. They are separate from `sites`, because
    /// every message needs them.
    tallies: Vec<[Tally; TALLIES]>,
    pub(super) kinds: Vec<(&'static str, u64)>,
    /// The index of the last message's kind. The next message usually has the same kind.
    last_kind: usize,
    pub(super) enter_messages: u64,
    pub(super) exit_messages: u64,
    pub(super) multicasts: u64,
    pub(super) per_entry: Extremes,
    /// Messages since the last entry that serve no particular request.
    shared_messages: u64,
    shares_messages: bool,
    asking: u64,
    inside: u64,
    entries: u64,
    pub(super) contended: u64,
    last_exit: Option<(Time, u64)>,
    pub(super) client_delay: Sample,
    pub(super) sync_delay_one: Sample,
    pub(super) sync_delay_high: Sample,
    pub(super) response_time: Sample,
    pub(super) max_bypass: u64,
}

/// A count, a sum, and the extremes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) count: u64,
    sum: u128,
    pub(super) min: u64,
    pub(super) max: u64,
}

/// The minimum and the maximum.
pub(super) type Extremes = Sample;

impl Sample {
    const EMPTY: Self = Self { count: 0, sum: 0, min: u64::MAX, max: 0 };

    fn take(&mut self, value: u64) {
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }
}

/// The number of latest requests per site that have a tally. A late message may serve a request that is over.
const TALLIES: usize = 4;

#[derive(Clone, Debug, Default)]
struct Site {
    /// The time of the request, until the site leaves.
    asked: Option<Time>,
    inside: bool,
    /// Whether no site was inside or waiting at the request.
    alone: bool,
    /// Entries of all sites before the request.
    entries_before: u64,
    entries: u64,
    billed_requests: u64,
}

/// Messages that served one request.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    request: u64,
    messages: u64,
}

impl Meter {
    pub(super) fn new(nodes: u32) -> Self {
        Self {
            sites: vec![Site::default(); nodes as usize],
            tallies: vec![[Tally::default(); TALLIES]; nodes as usize],
            kinds: Vec::new(),
            last_kind: 0,
            enter_messages: 0,
            exit_messages: 0,
            multicasts: 0,
            per_entry: Sample::EMPTY,
            shared_messages: 0,
            shares_messages: false,
            asking: 0,
            inside: 0,
            entries: 0,
            contended: 0,
            last_exit: None,
            client_delay: Sample::EMPTY,
            sync_delay_one: Sample::EMPTY,
            sync_delay_high: Sample::EMPTY,
            response_time: Sample::EMPTY,
            max_bypass: 0,
        }
    }

    pub(super) fn asks(&mut self, node: NodeId, now: Time) {
        let alone = self.asking + self.inside == 0;
        self.contended += u64::from(!alone);
        self.asking += 1;
        let site = &mut self.sites[node.index()];
        site.asked = Some(now);
        site.alone = alone;
        site.entries_before = self.entries;
    }

    /// Records an entry. Returns whether it is the first one for a request of the site.
    pub(super) fn enters(&mut self, node: NodeId, now: Time) -> bool {
        self.entries += 1;
        let site = &mut self.sites[node.index()];
        // A crash ends the request for the meter, but the recovered site may still be granted it.
        self.asking = self.asking.saturating_sub(u64::from(site.asked.is_some()));
        let is_first = !std::mem::replace(&mut site.inside, true);
        self.inside += u64::from(is_first);
        site.entries += 1;
        let Some(asked) = site.asked else { return false };
        // A request of another site in the meantime makes this a contended entry.
        if site.alone && self.asking == 0 {
            self.client_delay.take(now.0 - asked.0);
        }
        self.max_bypass = self.max_bypass.max(self.entries - 1 - site.entries_before);
        if let Some((exit, waiting)) = self.last_exit.take() {
            let delay = now.0 - exit.0;
            match waiting {
                0 => {}
                1 => self.sync_delay_one.take(delay),
                _ => self.sync_delay_high.take(delay),
            }
        }
        if self.shares_messages {
            self.per_entry.take(self.shared_messages);
            self.shared_messages = 0;
        }
        is_first
    }

    pub(super) fn leaves(&mut self, node: NodeId, now: Time) {
        let site = &mut self.sites[node.index()];
        self.inside -= u64::from(std::mem::take(&mut site.inside));
        self.last_exit = Some((now, self.asking));
        if let Some(asked) = site.asked.take() {
            self.response_time.take(now.0 - asked.0);
        }
    }

    /// Records a crash. The site neither waits nor is inside any more, and no delay is measured across the
    /// crash.
    pub(super) fn crashes(&mut self, node: NodeId) {
        let site = &mut self.sites[node.index()];
        let asked = site.asked.take().is_some();
        match std::mem::take(&mut site.inside) {
            true => self.inside -= 1,
            false => self.asking = self.asking.saturating_sub(u64::from(asked)),
        }
        self.last_exit = None;
    }

    #[inline]
    pub(super) fn multicast(&mut self) {
        self.multicasts += 1;
    }

    #[inline(always)]
    pub(super) fn message(&mut self, bill: Bill) {
        match self.kinds.get_mut(self.last_kind) {
            Some((kind, count)) if std::ptr::eq(*kind, bill.kind) => *count += 1,
            _ => self.another_kind(bill.kind),
        }
        match bill.phase {
            Phase::Enter => self.enter_messages += 1,
            Phase::Exit => self.exit_messages += 1,
        }
        match bill.request {
            Some((node, request)) => self.charge(node, request),
            None => {
                self.shares_messages = true;
                self.shared_messages += 1;
            }
        }
    }

    /// Counts a message of another kind than the last one.
    #[inline(never)]
    fn another_kind(&mut self, kind: &'static str) {
        self.last_kind = self.kinds.iter().position(|(known, _)| *known == kind).unwrap_or_else(|| {
            self.kinds.push((kind, 0));
            self.kinds.len() - 1
        });
        self.kinds[self.last_kind].1 += 1;
    }

    /// Charges a message to a request. Most messages serve the request that the site was last charged for.
    #[inline(always)]
    fn charge(&mut self, node: NodeId, request: u64) {
        let tally = &mut self.tallies[node.index()][0];
        if tally.request == request && tally.messages > 0 {
            tally.messages += 1;
        } else {
            self.charge_another(node, request);
        }
    }

    #[inline(never)]
    fn charge_another(&mut self, node: NodeId, request: u64) {
        let tallies = &mut self.tallies[node.index()];
        let known = tallies.iter().position(|tally| tally.messages > 0 && tally.request == request);
        let slot = known.unwrap_or_else(|| {
            self.sites[node.index()].billed_requests += 1;
            let slots = (0..TALLIES).min_by_key(|slot| (tallies[*slot].messages > 0, tallies[*slot].request));
            let oldest = slots.expect("every site has at least one tally");
            let finished = std::mem::replace(&mut tallies[oldest], Tally { request, messages: 0 });
            if finished.messages > 0 {
                self.per_entry.take(finished.messages);
            }
            oldest
        });
        tallies[slot].messages += 1;
        tallies.swap(0, slot);
    }

    /// Ends the run: counts the open tallies, and the entries without messages.
    pub(super) fn close(&mut self) {
        for (site, tallies) in self.sites.iter().zip(&mut self.tallies) {
            for tally in std::mem::take(tallies).iter().filter(|tally| tally.messages > 0) {
                self.per_entry.take(tally.messages);
            }
            if !self.shares_messages && site.entries > site.billed_requests {
                self.per_entry.take(0);
            }
        }
    }

    pub(super) fn entries_per_site(&self) -> impl Iterator<Item = u64> + '_ {
        self.sites.iter().map(|site| site.entries)
    }
}
