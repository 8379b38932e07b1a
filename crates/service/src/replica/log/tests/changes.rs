//! Changes are found again after a restart: entries, votes, truncations, purges and changes of segments.

use super::*;

#[test]
fn a_fresh_log_is_empty_and_written_records_are_found() {
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

/// The next segment is prepared before the first batch is written. A power failure between the two damages
/// nothing.
#[test]
fn a_log_with_two_segments_and_no_batch_yet_is_a_fresh_one() {
    let disk = SimDisk::new(1);
    Bare::open(&disk).unwrap();
    segment::prepare(&disk.handle(), 2, SMALL.segment_bytes).unwrap();
    disk.crash();
    let mut log = Bare::open(&disk).unwrap();
    assert_eq!(log.state, State::default());
    log.commit(&[entries(1, 0..100, 100)]).unwrap();
    disk.crash();
    let log = Bare::open(&disk).unwrap();
    assert_eq!(log.entries(), (0..100).map(|at| entry(1, at, 100)).collect::<Vec<_>>());
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
fn a_read_returns_entries_up_to_the_byte_limit_and_at_least_one() {
    let disk = SimDisk::new(1);
    let mut log = Bare::open(&disk).unwrap();
    log.commit(&[entries(1, 0..20, 100)]).unwrap();
    let read = |bytes| index::fetch(&lock(&log.index).plan(3, 18, bytes)).unwrap().len();
    assert_eq!((read(1), read(300), read(usize::MAX)), (1, 2, 15));
}
