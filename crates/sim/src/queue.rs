//! The queue of future events, in order of time.
//!
//! Most events are scheduled in order: with a constant delay, a message that is sent later arrives later.
//! Such events go into a *lane*, a plain ring buffer, at the cost of one push and one pop. An event that
//! would break the order of its lane goes into a heap. The next event is the earliest of all heads. Of two
//! events at the same time, the one that was scheduled first comes first, so a run is a function of its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The class of an event. Events of one class are nearly always scheduled in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Message,
    Alarm,
    Now,
}

#[derive(Debug)]
pub(crate) struct Queue<T> {
    lanes: [Ring<(Key, T)>; LANES],
    /// The earliest key of each lane and of the heap. They determine the next event.
    heads: [Key; LANES + 1],
    /// The latest key that each lane has held. An event with a smaller key goes into the heap. An empty lane
    /// needs no reset, because no event is scheduled before one that was taken out.
    tails: [Key; LANES],
    heap: BinaryHeap<Reverse<(Key, u32)>>,
    slab: Vec<Option<T>>,
    free: Vec<u32>,
    scheduled: u64,
}

const LANES: usize = 3;
const HEAP: usize = LANES;

/// The time of an event, and below it the number of events scheduled before. One number is fast to compare.
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

    /// Schedules an event. `make` builds it at its place in the lane, so that a large event is not copied.
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

    /// Removes and returns the earliest event with its time.
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
            u32::try_from(self.slab.len() - 1).expect("at most 2^32 items are pending")
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

/// A ring buffer like that of the standard library, except that a new element is built in its place.
/// Otherwise a message is written word by word and at once copied in vector registers, which stalls the
/// processor.
#[derive(Debug)]
struct Ring<T> {
    /// The length is zero or a power of two.
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
