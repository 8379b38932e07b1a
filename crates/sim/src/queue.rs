//! The queue of what will happen, in order of time.
//!
//! Most of what a run schedules is monotone: with a constant delay, a message sent later arrives later. Such
//! things go into a *lane*, a plain ring buffer, and cost a push and a pop. Whatever would break a lane's
//! order goes into a heap. The next thing is the earliest of the heads; ties go to what was scheduled first,
//! so that a run is a function of its seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a thing in the queue is, as far as order is concerned: each class is nearly monotone by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Message,
    Alarm,
    Now,
}

#[derive(Debug)]
pub(crate) struct Queue<T> {
    lanes: [VecDeque<(Key, T)>; LANES],
    /// The earliest key of each lane, and of the heap: what the next thing is found by.
    heads: [Key; LANES + 1],
    heap: BinaryHeap<Reverse<(Key, u32)>>,
    slab: Vec<Option<T>>,
    free: Vec<u32>,
    scheduled: u64,
}

const LANES: usize = 3;
const HEAP: usize = LANES;

/// When, and how many things were scheduled before; in one number, which compares fast.
type Key = u128;

const EMPTY: Key = Key::MAX;

const fn time_of(key: Key) -> u64 {
    (key >> 64) as u64
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            lanes: [VecDeque::new(), VecDeque::new(), VecDeque::new()],
            heads: [EMPTY; LANES + 1],
            heap: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            scheduled: 0,
        }
    }

    /// Schedules a thing. It is made where it is put: a large one is not copied about.
    #[inline(always)]
    pub(crate) fn push(&mut self, at: u64, lane: Lane, make: impl FnOnce() -> T) {
        let key = Key::from(at) << 64 | Key::from(self.scheduled);
        self.scheduled += 1;
        let head = &mut self.heads[lane as usize];
        let lane = &mut self.lanes[lane as usize];
        if *head == EMPTY {
            *head = key;
        } else if lane.back().is_some_and(|(last, _)| *last > key) {
            return self.push_heap(key, make());
        }
        lane.push_back((key, make()));
    }

    /// Takes out the earliest thing.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        let mut source = HEAP;
        for lane in 0..LANES {
            if self.heads[lane] < self.heads[source] {
                source = lane;
            }
        }
        if source == HEAP {
            return self.pop_heap();
        }
        let lane = &mut self.lanes[source];
        let (key, thing) = lane.pop_front()?;
        self.heads[source] = lane.front().map_or(EMPTY, |(key, _)| *key);
        Some((time_of(key), thing))
    }

    #[inline(never)]
    fn push_heap(&mut self, key: Key, thing: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            u32::try_from(self.slab.len() - 1).expect("four thousand million pending things fit no memory")
        });
        self.slab[slot as usize] = Some(thing);
        self.heap.push(Reverse((key, slot)));
        self.heads[HEAP] = self.heads[HEAP].min(key);
    }

    fn pop_heap(&mut self) -> Option<(u64, T)> {
        let Reverse((key, slot)) = self.heap.pop()?;
        self.heads[HEAP] = self.heap.peek().map_or(EMPTY, |Reverse((key, _))| *key);
        self.free.push(slot);
        self.slab[slot as usize].take().map(|thing| (time_of(key), thing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_kernel::Prng;

    #[test]
    fn things_come_out_by_time_and_then_by_order_of_scheduling() {
        let mut prng = Prng::new(3);
        let mut queue = Queue::new();
        let mut expected = Vec::new();
        for index in 0..1000 {
            let at = prng.below(50);
            let lane = [Lane::Message, Lane::Alarm, Lane::Now][prng.below(3) as usize];
            queue.push(at, lane, || index);
            expected.push((at, index));
        }
        expected.sort_unstable();
        let popped: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, expected);
    }

    #[test]
    fn slots_of_the_heap_are_used_again() {
        let mut queue = Queue::new();
        queue.push(u64::MAX - 1, Lane::Message, || 0);
        for round in 0..1000 {
            queue.push(round, Lane::Message, || 1);
            assert_eq!(queue.pop(), Some((round, 1)));
        }
        assert_eq!(queue.slab.len(), 1);
    }
}
