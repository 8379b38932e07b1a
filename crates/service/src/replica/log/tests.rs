//! The log as a whole, against crashes, decay and a simple twin.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;

use proptest::prelude::*;

use super::record::Record;
use super::recover::recover;
use super::writer::{Keeper, Writer};
use super::*;
use crate::replica::disk::{RealDisk, SimDisk};
use crate::replica::testing::TempFolder;

const SMALL: Options = Options { segment_bytes: 4096, batch_bytes: 4096, queue: 16 };

/// The log without its threads: every step happens when the test says so.
struct Bare {
    writer: Writer,
    index: Arc<Mutex<Index>>,
    state: State,
}

impl Bare {
    fn open(disk: &SimDisk) -> Result<Self, OpenError> {
        Self::open_with(disk, SMALL)
    }

    fn open_with(disk: &SimDisk, options: Options) -> Result<Self, OpenError> {
        let handle: Arc<dyn Disk> = Arc::new(disk.handle());
        let recovered = recover(&*handle, options.first_segment_bytes())?;
        let state = state_of(&recovered.index, recovered.torn.clone());
        let keeper = Keeper::inline(handle, options.segment_bytes);
        let (writer, index) = Writer::new(recovered, &options, keeper);
        Ok(Self { writer, index, state })
    }

    fn commit(&mut self, changes: &[Change]) -> io::Result<()> {
        self.writer.commit(changes.iter())
    }

    fn entries(&self) -> Vec<Entry> {
        let plan = lock(&self.index).plan(0, u64::MAX, usize::MAX);
        index::fetch(&plan).unwrap()
    }
}

fn id(term: u64, index: u64) -> LogId {
    LogId { term, index }
}

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let data = (0..bytes).map(|at| (index as usize * 31 + term as usize * 7 + at) as u8).collect();
    Entry { id: id(term, index), membership: false, data }
}

fn entries(term: u64, range: Range<u64>, bytes: usize) -> Change {
    Change::Append(range.map(|index| entry(term, index, bytes)).collect())
}

fn vote(term: u64, node: u64) -> Change {
    Change::Vote(Vote { term, node, committed: false })
}

fn segments(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.handle().list().unwrap();
    names.retain(|name| segment::number(name).is_some());
    names
}

/// Segment and end of what is written.
fn written(disk: &SimDisk, name: &str) -> usize {
    disk.content(name).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1
}

#[test]
fn a_fresh_log_is_empty_and_what_is_written_is_found_again() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    assert_eq!(log.state, State::default());
    log.commit(&[vote(3, 2), entries(3, 0..5, 20)]).unwrap();
    log.commit(&[Change::Committed(id(3, 2)), entries(3, 5..6, 0)]).unwrap();
    disk.crash();
    let log = Bare::open(&disk).unwrap();
    assert_eq!(log.state.vote, Some(Vote { term: 3, node: 2, committed: false }));
    assert_eq!(log.state.last, Some(id(3, 5)));
    assert_eq!(log.state.committed, Some(id(3, 2)));
    assert_eq!(log.state.torn, None);
    let expected: Vec<Entry> = (0..5).map(|at| entry(3, at, 20)).chain([entry(3, 5, 0)]).collect();
    assert_eq!(log.entries(), expected);
}

#[test]
fn a_batch_torn_at_any_byte_is_cut_whole_and_the_log_goes_on() {
    let origin = SimDisk::new(1);
    let name = segment::name(1);
    let mut log = Bare::open(&origin).unwrap();
    log.commit(&[vote(1, 1), entries(1, 0..3, 10)]).unwrap();
    let whole = written(&origin, &name).next_multiple_of(record::ALIGN);
    log.commit(&[vote(2, 2), entries(2, 3..6, 9), Change::Truncate { from: 5 }]).unwrap();
    let end = written(&origin, &name);
    for kept in whole..end {
        let disk = origin.copy(kept as u64);
        disk.edit(&name, |bytes| bytes[kept..].fill(0));
        let mut log = Bare::open(&disk).unwrap();
        assert_eq!(log.state.last, Some(id(1, 2)), "cut at {kept}");
        assert_eq!(log.state.vote.unwrap().term, 1, "cut at {kept}");
        assert_eq!(log.state.torn.is_some(), kept > whole, "cut at {kept}");
        log.commit(&[entries(4, 3..4, 100)]).unwrap();
        drop(log);
        disk.crash();
        let log = Bare::open(&disk).unwrap();
        assert_eq!((log.state.last, log.state.torn), (Some(id(4, 3)), None), "cut at {kept}");
    }
}

#[test]
fn a_tail_torn_in_the_middle_of_a_batch_is_cut_though_records_of_it_follow() {
    let disk = SimDisk::new(1);
    let name = segment::name(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..3, 10)]).unwrap();
    let whole = written(&disk, &name).next_multiple_of(record::ALIGN);
    log.commit(&[entries(1, 3..9, 10)]).unwrap();
    // The first sector of the batch never arrived, the rest did.
    disk.edit(&name, |bytes| bytes[whole..whole + 48].fill(0));
    let log = Bare::open(&disk).unwrap();
    assert_eq!(log.state.last, Some(id(1, 2)));
    let torn = log.state.torn.unwrap();
    assert_eq!((torn.offset, torn.batch), (whole as u64, 2));
    assert_eq!(written(&disk, &name).next_multiple_of(record::ALIGN), whole, "the remains were not zeroed");
}

#[test]
fn a_flipped_bit_before_the_last_batch_refuses_the_start_and_says_where() {
    let disk = SimDisk::new(1);
    let name = segment::name(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[vote(1, 1), entries(1, 0..3, 16)]).unwrap();
    log.commit(&[entries(1, 3..4, 16)]).unwrap();
    let last_batch = written(&disk, &name).next_multiple_of(record::ALIGN);
    log.commit(&[entries(1, 4..5, 16)]).unwrap();
    for byte in segment::HEADER..last_batch {
        disk.flip(&name, byte, (byte % 8) as u8);
        match Bare::open(&disk.copy(1)) {
            Err(OpenError::Corrupt { file, offset, .. }) => {
                assert_eq!(file, name);
                assert!(offset <= byte as u64 && byte as u64 - offset < 64, "byte {byte}: said {offset}");
            }
            other => panic!("byte {byte}: {:?}", other.map(|log| log.state)),
        }
        disk.flip(&name, byte, (byte % 8) as u8);
    }
}

#[test]
fn a_bad_first_record_of_a_batch_is_torn_but_a_bad_last_record_before_it_is_corruption() {
    // The case that the mark on a batch's last record exists for: between a valid record of batch 1 and a
    // valid record of batch 2 lies a bad one. Whose is it?
    let disk = SimDisk::new(1);
    let name = segment::name(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..2, 16)]).unwrap();
    let border = written(&disk, &name).next_multiple_of(record::ALIGN);
    log.commit(&[entries(1, 2..4, 16)]).unwrap();
    let of_first = disk.copy(1);
    of_first.flip(&name, border - 8, 0);
    assert!(matches!(Bare::open(&of_first), Err(OpenError::Corrupt { .. })));
    let of_second = disk.copy(1);
    of_second.flip(&name, border + 8, 0);
    assert_eq!(Bare::open(&of_second).unwrap().state.last, Some(id(1, 1)));
}

#[test]
fn a_whole_batch_gone_before_another_is_corruption() {
    let disk = SimDisk::new(1);
    let name = segment::name(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[vote(1, 1)]).unwrap();
    let from = written(&disk, &name).next_multiple_of(record::ALIGN);
    log.commit(&[vote(2, 1)]).unwrap();
    let to = written(&disk, &name).next_multiple_of(record::ALIGN);
    log.commit(&[vote(3, 1)]).unwrap();
    disk.edit(&name, |bytes| bytes[from..to].fill(0));
    assert!(matches!(Bare::open(&disk), Err(OpenError::Corrupt { .. })));
}

#[test]
fn bytes_that_look_like_a_later_record_inside_an_entry_do_not_fool_the_judge() {
    let disk = SimDisk::new(1);
    let name = segment::name(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..1, 8)]).unwrap();
    // A client stores bytes that are a record of batch 900, as valid as it can make one without the salt.
    let mut forged = Vec::new();
    Record::Truncate(0).write(900, &mut forged);
    record::seal(&mut forged, &[0], 0, 0);
    let torn_at = written(&disk, &name).next_multiple_of(record::ALIGN);
    let data = forged.repeat(10).into();
    log.commit(&[Change::Append(vec![Entry { id: id(1, 1), membership: false, data }])]).unwrap();
    disk.flip(&name, torn_at, 1);
    let log = Bare::open(&disk).unwrap();
    assert_eq!(log.state.last, Some(id(1, 0)));
    assert!(log.state.torn.is_some());
}

#[test]
fn a_truncation_and_the_entries_after_it_are_found_again() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..10, 8)]).unwrap();
    log.commit(&[Change::Truncate { from: 4 }, entries(2, 4..6, 8)]).unwrap();
    let expected: Vec<Entry> =
        (0..4).map(|at| entry(1, at, 8)).chain((4..6).map(|at| entry(2, at, 8))).collect();
    assert_eq!(log.entries(), expected);
    disk.crash();
    let mut log = Bare::open(&disk).unwrap();
    assert_eq!(log.entries(), expected);
    log.commit(&[Change::Truncate { from: 0 }]).unwrap();
    disk.crash();
    let log = Bare::open(&disk).unwrap();
    assert_eq!((log.state.last, log.entries()), (None, vec![]));
}

#[test]
fn segments_change_and_purged_ones_go_without_losing_vote_or_membership() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    let membership = Entry { id: id(5, 0), membership: true, data: (*b"one two three").into() };
    log.commit(&[vote(5, 3), Change::Append(vec![membership])]).unwrap();
    for index in 1..200 {
        log.commit(&[entries(5, index..index + 1, 100)]).unwrap();
    }
    assert!(segments(&disk).len() > 5);
    log.commit(&[Change::Purge(id(5, 190))]).unwrap();
    assert!(segments(&disk).len() <= 2, "{:?}", segments(&disk));
    assert!(!segments(&disk).contains(&segment::name(1)));
    disk.crash();
    let log = Bare::open(&disk).unwrap();
    assert_eq!(log.state.vote, Some(Vote { term: 5, node: 3, committed: false }));
    assert_eq!(log.state.purged, Some(id(5, 190)));
    let (at, data) = log.state.membership.clone().unwrap();
    assert_eq!((at, &*data), (id(5, 0), &b"one two three"[..]));
    assert_eq!(log.entries(), (191..200).map(|at| entry(5, at, 100)).collect::<Vec<_>>());
}

#[test]
fn a_truncated_membership_gives_way_to_the_one_before_even_in_a_later_segment() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    let member = |index, data: &[u8]| {
        Change::Append(vec![Entry { id: id(1, index), membership: true, data: data.into() }])
    };
    log.commit(&[member(0, b"old"), entries(1, 1..9, 10), member(9, b"new")]).unwrap();
    log.commit(&[entries(1, 10..40, 200)]).unwrap();
    log.commit(&[Change::Truncate { from: 5 }, entries(2, 5..40, 10), Change::Purge(id(2, 39))]).unwrap();
    assert!(!segments(&disk).contains(&segment::name(1)));
    disk.crash();
    let log = Bare::open(&disk).unwrap();
    assert_eq!(&*log.state.membership.unwrap().1, b"old");
}

#[test]
fn a_purge_beyond_the_last_entry_starts_the_log_behind_it() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..3, 8)]).unwrap();
    log.commit(&[Change::Purge(id(4, 100))]).unwrap();
    assert_eq!(log.commit(&[entries(4, 3..4, 8)]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    log.commit(&[entries(4, 101..103, 8)]).unwrap();
    disk.crash();
    let log = Bare::open(&disk).unwrap();
    assert_eq!(log.state.purged, Some(id(4, 100)));
    assert_eq!(log.entries(), vec![entry(4, 101, 8), entry(4, 102, 8)]);
}

#[test]
fn a_hole_and_a_truncation_of_the_purged_are_refused_before_anything_is_written() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..5, 8), Change::Purge(id(1, 2))]).unwrap();
    let before = disk.content(&segment::name(1));
    assert!(log.commit(&[vote(9, 9), entries(1, 6..7, 8)]).is_err());
    assert!(log.commit(&[vote(9, 9), Change::Truncate { from: 2 }]).is_err());
    assert_eq!(disk.content(&segment::name(1)), before);
}

#[test]
fn a_missing_segment_refuses_the_start() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    for index in 0..200 {
        log.commit(&[entries(1, index..index + 1, 100)]).unwrap();
    }
    let names = segments(&disk);
    for (at, name) in names.iter().enumerate().take(names.len() - 1) {
        let copy = disk.copy(1);
        copy.handle().remove(name).unwrap();
        match Bare::open(&copy) {
            Err(OpenError::Corrupt { .. }) => {}
            other => panic!("without segment {at}: {:?}", other.map(|log| log.state)),
        }
    }
}

#[test]
fn the_first_batch_of_the_oldest_segment_is_never_taken_for_a_torn_tail() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[vote(7, 1), entries(7, 0..30, 200)]).unwrap();
    log.commit(&[Change::Purge(id(7, 29))]).unwrap();
    let oldest = segments(&disk).remove(0);
    assert_ne!(oldest, segment::name(1));
    let fresh = disk.copy(1);
    disk.edit(&oldest, |bytes| bytes[segment::HEADER..].fill(0));
    assert!(matches!(Bare::open(&disk), Err(OpenError::Corrupt { .. })), "all was forgotten, the vote too");
    fresh.flip(&oldest, segment::HEADER + 20, 0);
    assert!(matches!(Bare::open(&fresh), Err(OpenError::Corrupt { .. })));
}

#[test]
fn what_a_killed_process_left_unsynced_is_synced_before_it_is_believed() {
    // The batch is in the page cache only; the process restarts, the machine does not.
    let mut believed = 0;
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let mut log = Bare::open(&disk).unwrap();
        log.commit(&[vote(1, 1)]).unwrap();
        disk.lose_power_after(1); // the write, not the sync
        assert!(log.commit(&[vote(2, 2)]).is_err());
        disk.lose_power_after(u64::MAX);
        let reopened = Bare::open(&disk).unwrap().state.vote.unwrap();
        believed += usize::from(reopened.term == 2);
        disk.crash();
        assert_eq!(Bare::open(&disk).unwrap().state.vote.unwrap(), reopened, "seed {seed}");
    }
    assert_eq!(believed, 40);
}

#[test]
fn changes_larger_than_a_batch_are_split_and_still_in_order() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open_with(&disk, Options { batch_bytes: 500, ..SMALL }).unwrap();
    log.commit(&[entries(1, 0..50, 100), Change::Truncate { from: 25 }, entries(2, 25..60, 300)]).unwrap();
    disk.crash();
    let log = Bare::open(&disk).unwrap();
    let expected: Vec<Entry> =
        (0..25).map(|at| entry(1, at, 100)).chain((25..60).map(|at| entry(2, at, 300))).collect();
    assert_eq!(log.entries(), expected);
}

#[test]
fn an_entry_damaged_after_it_was_opened_is_not_returned() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..3, 50)]).unwrap();
    disk.flip(&segment::name(1), segment::HEADER + 120, 1);
    let plan = lock(&log.index).plan(0, 3, usize::MAX);
    let error = index::fetch(&plan).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("entry 1 is damaged"), "{error}");
}

#[test]
fn reading_stops_at_the_bytes_asked_for_but_gives_one_entry_at_least() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..20, 100)]).unwrap();
    let read = |bytes| index::fetch(&lock(&log.index).plan(3, 18, bytes)).unwrap().len();
    assert_eq!((read(1), read(300), read(usize::MAX)), (1, 2, 15));
}

fn wait(log: &Log, change: Change) -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(log.write(change))
}

#[test]
fn a_failed_sync_stops_the_log_for_good_and_everybody_hears_of_it() {
    let disk = SimDisk::new(1);
    let (log, _) = Log::open(Arc::new(disk.handle()), SMALL).unwrap();
    wait(&log, entries(1, 0..1, 8)).unwrap();
    disk.fail_syncs_after(0);
    let error = wait(&log, entries(1, 1..2, 8)).unwrap_err();
    assert!(error.to_string().contains("the log has stopped"), "{error}");
    disk.fail_syncs_after(u64::MAX);
    let error = wait(&log, vote(1, 1)).unwrap_err();
    assert!(error.to_string().contains("the sync failed"), "a failed sync was retried: {error}");
    assert!(log.failure().borrow().is_some());
    assert_eq!(log.durable_end(), 1);
}

#[test]
fn an_entry_too_large_is_refused_and_the_log_lives_on() {
    let disk = SimDisk::new(1);
    let (log, _) = Log::open(Arc::new(disk.handle()), SMALL).unwrap();
    let most = SMALL.entry_bytes_max();
    assert_eq!(wait(&log, entries(1, 0..1, most + 1)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    for index in 0..20 {
        let data = vec![7; most].into();
        wait(&log, Change::Append(vec![Entry { id: id(1, index), membership: true, data }])).unwrap();
    }
    log.close();
    assert_eq!(Bare::open(&disk).unwrap().state.last, Some(id(1, 19)));
}

#[test]
fn the_threads_keep_order_and_lose_nothing_on_a_real_disk() {
    let folder = TempFolder::new();
    let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
    let options = Options { segment_bytes: 64 * 1024, batch_bytes: 16 * 1024, queue: 64 };
    let (log, state) = Log::open(disk.clone(), options).unwrap();
    assert_eq!(state, State::default());
    let (done, acknowledged) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for index in 0..3000 {
            let done = done.clone();
            let change = entries(1, index..index + 1, 100);
            log.submit(change, Box::new(move |result| done.send((index, result.is_ok())).unwrap()))
                .await
                .unwrap();
        }
    });
    drop(done);
    let order: Vec<(u64, bool)> = acknowledged.iter().collect();
    assert_eq!(order, (0..3000).map(|index| (index, true)).collect::<Vec<_>>());
    wait(&log, Change::Purge(id(1, 1000))).unwrap();
    assert_eq!(
        log.read(2990..5000, usize::MAX).unwrap(),
        (2990..3000).map(|at| entry(1, at, 100)).collect::<Vec<_>>()
    );
    log.close();
    let (log, state) = Log::open(disk, options).unwrap();
    assert_eq!((state.purged, state.last, state.torn), (Some(id(1, 1000)), Some(id(1, 2999)), None));
    assert_eq!(log.read(0..1003, usize::MAX).unwrap(), vec![entry(1, 1001, 100), entry(1, 1002, 100)]);
    log.close();
}

/// What the log should hold, as simply as it can be said.
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
    /// The step as a change that is lawful for a log in this state.
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Random batches, power lost at any operation, several lives: after each crash the log holds what some
    /// prefix of the batches amounts to, and every acknowledged batch is in that prefix.
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
            // What the log may hold after a crash from here on: what is acknowledged, or one batch more.
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
                    // The changes may have been split into several batches: any prefix of them may be there.
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

    /// Whatever bytes lie in the folder, opening it ends in a log or in a clear error.
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

fn parts(change: &Change) -> Vec<Change> {
    match change {
        Change::Append(entries) => entries.iter().map(|entry| Change::Append(vec![entry.clone()])).collect(),
        other => vec![other.clone()],
    }
}
