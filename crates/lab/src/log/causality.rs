//! The happened-before relation: Lamport and vector clocks of a whole log, derived from its messages.
//!
//! Three rules make happened-before \[L78\]: the order of each site; sending before receiving; and what follows
//! from these. A vector clock counts, for every site, how many of its events lie in an event's past (itself
//! included): a receipt takes the componentwise maximum, *then* adds one to its own entry. From that the
//! question "did e happen before f?" is one comparison: f knows at least as many events of e's site as e does.
//!
//! **Trap**: the Lamport stamp is no substitute: C(e) < C(f) does not imply that e happened before f.
//!
//! **Bound**: N entries of 4 bytes an event, at most 1 GiB; larger logs are refused with what would fit.

use super::Log;

/// The clocks of all events of a log.
#[derive(Clone, Debug)]
pub struct Causality {
    sites: usize,
    /// One row an event.
    vectors: Vec<u32>,
    lamport: Vec<u64>,
    site_of: Vec<u32>,
}

/// How two events stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They are the same event.
    Equal,
    /// The first happened before the second.
    Before,
    /// The second happened before the first.
    After,
    /// Neither could have caused the other.
    Concurrent,
}

/// The most vector entries: 1 GiB of them.
const MOST_ENTRIES: usize = 1 << 28;

impl Causality {
    /// Derives the clocks of every event, in one pass over the log.
    pub fn of(log: &Log) -> Result<Self, String> {
        let (sites, events) = (log.sites() as usize, log.events().len());
        let entries = sites.checked_mul(events).filter(|entries| *entries <= MOST_ENTRIES);
        let entries = entries.ok_or_else(|| {
            let fit = MOST_ENTRIES / sites.max(1);
            format!(
                "{events} events at {sites} sites are too many for vector clocks: at most {fit} events fit"
            )
        })?;
        let mut vectors = Vec::with_capacity(entries);
        let mut lamport: Vec<u64> = Vec::with_capacity(events);
        let mut last: Vec<Option<usize>> = vec![None; sites];
        for (index, event) in log.events().iter().enumerate() {
            let site = event.site.index();
            let mut stamp = 0;
            match last[site] {
                Some(own) => {
                    vectors.extend_from_within(own * sites..(own + 1) * sites);
                    stamp = lamport[own];
                }
                None => vectors.resize((index + 1) * sites, 0),
            }
            let (past, row) = vectors.split_at_mut(index * sites);
            for message in log.received(index) {
                let sender = log.messages()[*message as usize].sent_by as usize;
                for (mine, theirs) in row.iter_mut().zip(&past[sender * sites..(sender + 1) * sites]) {
                    *mine = (*mine).max(*theirs);
                }
                stamp = stamp.max(lamport[sender]);
            }
            row[site] += 1;
            lamport.push(stamp + 1);
            last[site] = Some(index);
        }
        let site_of = log.events().iter().map(|event| event.site.0).collect();
        Ok(Self { sites, vectors, lamport, site_of })
    }

    /// An event's vector clock: one entry a site.
    pub fn vector(&self, event: usize) -> &[u32] {
        &self.vectors[event * self.sites..(event + 1) * self.sites]
    }

    /// An event's Lamport stamp.
    pub fn lamport(&self, event: usize) -> u64 {
        self.lamport[event]
    }

    /// Whether `e` happened before `f`: one comparison.
    pub fn happened_before(&self, e: usize, f: usize) -> bool {
        let site = self.site_of[e] as usize;
        e != f && self.vector(e)[site] <= self.vector(f)[site]
    }

    /// How two events stand to each other.
    pub fn relation(&self, e: usize, f: usize) -> Relation {
        match (e == f, self.happened_before(e, f), self.happened_before(f, e)) {
            (true, ..) => Relation::Equal,
            (_, true, _) => Relation::Before,
            (_, _, true) => Relation::After,
            _ => Relation::Concurrent,
        }
    }
}
