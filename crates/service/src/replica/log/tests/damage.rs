//! Recovery cuts off torn tails, which a crash can leave, and rejects damage, which no crash can leave.

use super::*;
use crate::replica::log::record::Record;

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
    // The first sector of the batch did not reach the disk; the rest did.
    disk.edit(&name, |bytes| bytes[whole..whole + 48].fill(0));
    let log = Bare::open(&disk).unwrap();
    assert_eq!(log.state.last, Some(id(1, 2)));
    let torn = log.state.torn.unwrap();
    assert_eq!((torn.offset, torn.batch), (whole as u64, 2));
    assert_eq!(written(&disk, &name).next_multiple_of(record::ALIGN), whole, "the remains were not zeroed");
}

#[test]
fn a_flipped_bit_before_the_last_batch_is_an_error_with_its_place() {
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
    // A bad record lies between a valid record of batch 1 and a valid record of batch 2. Only the mark on the
    // last record of a batch shows which batch it belongs to.
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
    // A client stores bytes that look like a record of batch 900, as valid as possible without the salt.
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
fn unsynced_records_of_a_killed_process_are_synced_before_use() {
    // The batch is only in the page cache. The process restarts, but the machine does not.
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
fn records_of_a_failed_sync_are_written_again_before_use() {
    // The batch is longer than a block. The next batch would write a shorter one again, without recovery.
    let large = Options { segment_bytes: 64 * 1024, batch_bytes: 64 * 1024, ..SMALL };
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let mut log = Bare::open_with(&disk, large).unwrap();
        log.commit(&[vote(1, 1), entries(1, 0..2, 100)]).unwrap();
        disk.fail_syncs_after(0);
        assert!(log.commit(&[vote(2, 2), entries(2, 2..4, 5000)]).is_err());
        disk.mend();
        // The process restarts, but the machine does not.
        let mut log = Bare::open_with(&disk, large).unwrap();
        assert_eq!(
            log.state.last,
            Some(id(2, 3)),
            "seed {seed}: it cannot be distinguished from durable data"
        );
        log.commit(&[entries(2, 4..5, 100)]).unwrap();
        disk.crash();
        let log = Bare::open_with(&disk, large).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!((log.state.last, log.state.vote.unwrap().term), (Some(id(2, 4)), 2), "seed {seed}");
    }
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
