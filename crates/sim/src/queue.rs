//! The queue of what will happen, in order of time.
//!
//! Most of what a run schedules is monotone: with a constant delay, a message sent later arrives later. Such
//! things go into a *lane*, a plain ring buffer, and cost a push and a pop. Whatever would break a lane's
//! order goes into a heap. The next thing is the earliest of the heads; ties go to what was scheduled first,
//! so that a run is a function of its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a thing in the queue is, as far as order is concerned: each class is nearly monotone by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Message,
    Alarm,
    Now,
}

#[derive(Debug)]
pub(crate) struct Queue<T> {
    lanes: [Ring<(Key, T)>; LANES],
    /// The earliest key of each lane, and of the heap: what the next thing is found by.
    heads: [Key; LANES + 1],
    /// The latest key that each lane has held: what would break its order is found by that, without a look
    /// at the lane's far end. Nothing is scheduled before what was taken out, so an empty lane needs no reset.
    tails: [Key; LANES],
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
            lanes: [Ring::new(), Ring::new(), Ring::new()],
            heads: [EMPTY; LANES + 1],
            tails: [0; LANES],
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
        let tail = &mut self.tails[lane as usize];
        if key < *tail {
            return self.push_heap(key, make());
        }
        *tail = key;
        let row = &mut self.lanes[lane as usize];
        if row.is_empty() {
            self.heads[lane as usize] = key;
        }
        row.push_back(|| (key, make()));
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

/// A ring buffer, as the standard library's, but for one thing: what is put in is made in its place, at
/// whatever cost in code. A message that is written in words and copied in vectors stalls the processor, and
/// that was a third of the time of a run with few messages under way.
#[derive(Debug)]
struct Ring<T> {
    /// A power of two of them, or none.
    slots: Vec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Ring<T> {
    const fn new() -> Self {
        Self { slots: Vec::new(), first: 0, len: 0 }
    }

    #[inline(always)]
    const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn front(&self) -> Option<&T> {
        self.slots.get(self.first)?.as_ref()
    }

    #[inline(always)]
    fn push_back(&mut self, make: impl FnOnce() -> T) {
        if self.len == self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        self.slots[(self.first + self.len) & mask] = Some(make());
        self.len += 1;
    }

    #[inline(always)]
    fn pop_front(&mut self) -> Option<T> {
        let thing = self.slots.get_mut(self.first)?.take()?;
        self.first = (self.first + 1) & (self.slots.len() - 1);
        self.len -= 1;
        Some(thing)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        const FEW: usize = 16;
        self.slots.rotate_left(self.first);
        self.first = 0;
        self.slots.resize_with((2 * self.len).max(FEW), || None);
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

    #[test]
    fn a_lane_grows_while_it_goes_round() {
        let mut queue = Queue::new();
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..200 {
            for _ in 0..round % 23 {
                queue.push(pushed, Lane::Message, || pushed);
                pushed += 1;
            }
            for _ in 0..(round % 19).min(pushed - popped) {
                assert_eq!(queue.pop(), Some((popped, popped)));
                popped += 1;
            }
        }
        assert!(pushed - popped > 100, "it never grew");
        assert!(queue.heap.is_empty());
        while let Some((at, _)) = queue.pop() {
            assert_eq!(at, popped);
            popped += 1;
        }
        assert_eq!(pushed, popped);
    }
}
