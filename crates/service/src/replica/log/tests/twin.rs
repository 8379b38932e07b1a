//! Random changes and crashes, compared with a simple model of the log; and random damage.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Random batches over several boots, with a power failure at any operation. After each crash the log
    /// holds the result of some prefix of the batches, and that prefix includes every acknowledged batch.
    #[test]
    fn after_any_crash_every_acknowledged_batch_is_there(
        seed in any::<u64>(),
        bytewise in any::<bool>(),
        lives in prop::collection::vec(
            (prop::collection::vec(prop::collection::vec(step(), 1..5), 1..25), 0..80u64),
            1..4,
        ),
    ) {
        let disk = SimDisk::new(seed);
        if bytewise {
            disk.tear_bytes();
        }
        let mut twin = Twin::default();
        for (life, (batches, operations)) in lives.iter().enumerate() {
            let mut log = Bare::open(&disk).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(&Twin::of(&log), &twin);
            disk.lose_power_after(*operations);
            // The states that the log may have after a crash from here on: the acknowledged one, or one batch
            // more.
            let mut possible = vec![twin.clone()];
            for (at, steps) in batches.iter().enumerate() {
                let term = (life * 1000 + at) as u64;
                let mut after = twin.clone();
                let mut changes = Vec::new();
                for step in steps {
                    let change = step.change(&after, term);
                    after.apply(&change);
                    changes.push(change);
                }
                if log.commit(&changes).is_ok() {
                    twin = after;
                    possible = vec![twin.clone()];
                } else {
                    // The changes may have been split into several batches, so any prefix of them may be
                    // there.
                    let mut part = twin.clone();
                    for change in &changes {
                        for change in parts(change) {
                            part.apply(&change);
                            possible.push(part.clone());
                        }
                    }
                    break;
                }
            }
            drop(log);
            disk.crash();
            let found = Twin::of(&Bare::open(&disk).map_err(|error| TestCaseError::fail(error.to_string()))?);
            prop_assert!(possible.contains(&found), "found {:?}\nexpected {:?}", found, twin);
            twin = found;
        }
    }

    /// Opening a folder with any bytes returns a log or a clear error.
    #[test]
    fn no_bytes_make_recovery_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        seed in any::<u64>(),
    ) {
        let disk = SimDisk::new(seed);
        let mut log = Bare::open(&disk).unwrap();
        for index in 0..40 {
            log.commit(&[vote(index, 1), entries(1, index..index + 1, 60)]).unwrap();
        }
        drop(log);
        for name in segments(&disk) {
            disk.edit(&name, |bytes| {
                for (at, value) in &damage {
                    let at = at.index(bytes.len());
                    bytes[at] = *value;
                }
            });
        }
        if let Ok(mut log) = Bare::open(&disk) {
            let next = log.index.lock().unwrap().next.unwrap();
            log.commit(&[entries(9, next..next + 1, 10)]).unwrap();
        }
    }
}

/// A simple model of what the log must hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Twin {
    vote: Option<Vote>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

impl Twin {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Vote(vote) => self.vote = Some(*vote),
            Change::Append(entries) => {
                for entry in entries {
                    self.entries.insert(entry.id.index, entry.clone());
                    self.next = entry.id.index + 1;
                }
            }
            Change::Truncate { from } => {
                self.entries.split_off(from);
                self.next = self.next.min(*from);
            }
            Change::Purge(id) => {
                self.entries = self.entries.split_off(&(id.index + 1));
                self.purged = self.purged.max(Some(*id));
                self.next = self.next.max(id.index + 1);
            }
            Change::Committed(_) => {}
        }
    }

    fn of(log: &Bare) -> Self {
        let entries = log.entries().into_iter().map(|entry| (entry.id.index, entry)).collect();
        let index = lock(&log.index);
        Self { vote: index.vote, purged: index.purged, entries, next: index.next.unwrap() }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Vote(u64),
    Append(usize, usize),
    Truncate(u64),
    Purge(u64),
    Committed,
}

impl Step {
    /// Returns the step as a change that is valid for a log in this state.
    fn change(&self, twin: &Twin, term: u64) -> Change {
        let floor = twin.purged.map_or(0, |id| id.index + 1);
        match *self {
            Self::Vote(node) => vote(term, node),
            Self::Append(count, bytes) => entries(term, twin.next..twin.next + count as u64, bytes),
            Self::Truncate(back) => Change::Truncate { from: twin.next.saturating_sub(back).max(floor) },
            Self::Purge(ahead) => Change::Purge(id(term, floor + ahead)),
            Self::Committed => Change::Committed(id(term, twin.next)),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..5u64).prop_map(Step::Vote),
        8 => (1..6usize, 0..300usize).prop_map(|(count, bytes)| Step::Append(count, bytes)),
        2 => (0..8u64).prop_map(Step::Truncate),
        2 => (0..12u64).prop_map(Step::Purge),
        1 => Just(Step::Committed),
    ]
}

fn parts(change: &Change) -> Vec<Change> {
    match change {
        Change::Append(entries) => entries.iter().map(|entry| Change::Append(vec![entry.clone()])).collect(),
        other => vec![other.clone()],
    }
}
