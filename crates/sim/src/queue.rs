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
    lanes: [VecDeque<(Key, T)>; 3],
    heap: BinaryHeap<Reverse<(Key, u32)>>,
    slab: Vec<Option<T>>,
    free: Vec<u32>,
    scheduled: u64,
}

/// When, and how many things were scheduled before.
pub(crate) type Key = (u64, u64);

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            lanes: [VecDeque::new(), VecDeque::new(), VecDeque::new()],
            heap: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            scheduled: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, at: u64, lane: Lane, thing: T) {
        let key = (at, self.scheduled);
        self.scheduled += 1;
        let lane = &mut self.lanes[lane as usize];
        match lane.back() {
            Some((last, _)) if last.0 > at => self.push_heap(key, thing),
            _ => lane.push_back((key, thing)),
        }
    }

    /// Takes out the earliest thing.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        const NONE: Key = (u64::MAX, u64::MAX);
        let mut earliest = self.heap.peek().map_or(NONE, |Reverse((key, _))| *key);
        let mut source = self.lanes.len();
        for (index, lane) in self.lanes.iter().enumerate() {
            if let Some((key, _)) = lane.front()
                && *key < earliest
            {
                (earliest, source) = (*key, index);
            }
        }
        match self.lanes.get_mut(source) {
            Some(lane) => lane.pop_front().map(|(key, thing)| (key.0, thing)),
            None => self.pop_heap(),
        }
    }

    fn push_heap(&mut self, key: Key, thing: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            u32::try_from(self.slab.len() - 1).expect("four thousand million pending things fit no memory")
        });
        self.slab[slot as usize] = Some(thing);
        self.heap.push(Reverse((key, slot)));
    }

    fn pop_heap(&mut self) -> Option<(u64, T)> {
        let Reverse((key, slot)) = self.heap.pop()?;
        self.free.push(slot);
        self.slab[slot as usize].take().map(|thing| (key.0, thing))
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
            queue.push(at, lane, index);
            expected.push((at, index));
        }
        expected.sort_unstable();
        let popped: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, expected);
    }

    #[test]
    fn slots_of_the_heap_are_used_again() {
        let mut queue = Queue::new();
        queue.push(u64::MAX - 1, Lane::Message, 0);
        for round in 0..1000 {
            queue.push(round, Lane::Message, 1);
            assert_eq!(queue.pop(), Some((round, 1)));
        }
        assert_eq!(queue.slab.len(), 1);
    }
}
