//! The log with its threads: the order of changes, and how the log stops.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;
use crate::replica::disk::RealDisk;
use crate::replica::tests::support::{Act, Hooked, TempFolder};

fn wait(log: &Log, change: Change) -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(log.write(change))
}

#[test]
fn a_failed_sync_stops_the_log_for_good_and_fails_later_changes() {
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
fn a_segment_that_cannot_be_removed_keeps_the_later_ones_until_it_can() {
    let sim = SimDisk::new(3);
    let refusals = AtomicUsize::new(2);
    let disk = Hooked::new(sim.handle(), move |act, name| {
        let refused = act == Act::Remove && is_segment(name) && refusals.load(Ordering::SeqCst) > 0;
        if refused {
            refusals.fetch_sub(1, Ordering::SeqCst);
            return Err(io::Error::other("not now"));
        }
        Ok(())
    });
    let (log, _) = Log::open(Arc::new(disk), SMALL).unwrap();
    for index in 0..200 {
        wait(&log, entries(1, index..index + 1, 100)).unwrap();
        if index % 10 == 9 {
            wait(&log, Change::Purge(id(1, index - 5))).unwrap();
        }
    }
    log.close();
    let mut numbers: Vec<u64> =
        sim.handle().list().unwrap().iter().filter_map(|name| segment::number(name)).collect();
    numbers.sort_unstable();
    assert!(numbers.is_sorted_by(|a, b| a + 1 == *b) && numbers[0] > 2, "{numbers:?}");
    assert_eq!(Bare::open(&sim).unwrap().state.last, Some(id(1, 199)));
}

#[test]
fn a_segment_that_could_not_be_prepared_ahead_is_prepared_when_it_is_needed() {
    let sim = SimDisk::new(3);
    let created = AtomicUsize::new(0);
    let disk = Hooked::new(sim.handle(), move |act, name| {
        let is_third =
            act == Act::Create && name == "segment.draft" && created.fetch_add(1, Ordering::SeqCst) == 2;
        if is_third { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    });
    let (log, _) = Log::open(Arc::new(disk), SMALL).unwrap();
    for index in 0..200 {
        wait(&log, entries(1, index..index + 1, 100)).unwrap();
    }
    log.close();
    assert_eq!(Bare::open(&sim).unwrap().state.last, Some(id(1, 199)));
}

#[test]
fn a_partly_prepared_segment_is_removed_if_the_disk_is_full() {
    let sim = SimDisk::new(3);
    let disk = Hooked::new(sim.handle(), |act, _| match act {
        Act::Sync => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    let error = segment::prepare(&disk, 1, SMALL.segment_bytes).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(sim.handle().list().unwrap(), Vec::<String>::new());
}

#[test]
fn a_writer_that_was_roused_in_vain_goes_on() {
    let disk = SimDisk::new(1);
    let (log, _) = Log::open(Arc::new(disk.handle()), SMALL).unwrap();
    for index in 0..5 {
        // More calls than the queue has places.
        (0..2 * SMALL.queue).for_each(|_| log.wake_writer());
        wait(&log, entries(1, index..index + 1, 8)).unwrap();
    }
    log.close();
    log.wake_writer();
    assert_eq!(Bare::open(&disk).unwrap().state.last, Some(id(1, 4)));
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
