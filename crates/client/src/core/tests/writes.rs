//! Writes: which ones the caller makes, and which the task.

use super::*;

/// Submits `count` requests, then answers them all. Returns the number of requests in each write of the
/// caller.
fn round(core: &mut Core, count: usize) -> Vec<usize> {
    let (mut sent_ids, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        sent_ids.push(change(core, ms(10)));
        if core.caller_should_write() {
            writes.push(requests(&sent(core)).len());
        }
    }
    sent(core);
    for (id, _) in sent_ids {
        answer(core, ms(10), id, granted());
    }
    writes
}

#[test]
fn the_caller_that_completes_a_burst_writes_it() {
    let (mut core, _) = holding("x");
    for count in [1, 2, 7, 64, 15] {
        round(&mut core, count);
        assert_eq!(round(&mut core, count), [count]);
    }
    assert!(round(&mut core, 3).is_empty(), "of fifteen: the task writes what there is");
    assert_eq!(round(&mut core, 5), [3], "and what is more than the last time");
}

#[test]
fn nobody_writes_before_there_is_a_session_or_when_it_closes() {
    let mut core = connected();
    round(&mut core, 4);
    assert!(round(&mut core, 4).is_empty());
    let (mut core, _) = holding("x");
    round(&mut core, 4);
    core.close(ms(10));
    assert!(round(&mut core, 4).is_empty());
}
