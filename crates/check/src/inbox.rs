//! The messages in flight to one site.
//!
//! The inbox is a list of slots in order of senders. Over FIFO links, the slots of a sender stand in the
//! order sent, and only the first can be delivered. Otherwise the slots are sorted, so that equal multisets
//! are equal lists, and each distinct one can be delivered.

use smallvec::SmallVec;

use crate::options::Order;

/// The messages in flight to one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Inbox {
    slots: SmallVec<[Slot; 3]>,
}

/// A message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub(crate) from: u16,
    /// The ticks since the message was sent; 0 in the asynchronous mode.
    pub(crate) age: u16,
    /// The number of the packet in the interner.
    pub(crate) packet: u32,
}

impl Inbox {
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the inbox with one more message.
    pub(crate) fn push(&self, slot: Slot, order: Order) -> Self {
        let place = match order {
            Order::Fifo => self.slots.partition_point(|other| other.from <= slot.from),
            Order::Any => self.slots.partition_point(|other| *other < slot),
        };
        let mut more = self.clone();
        more.slots.insert(place, slot);
        more
    }

    /// Returns the places of the messages that can be delivered now. Of equal messages, it returns one.
    pub(crate) fn deliverable(&self, order: Order) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(move |&place| {
            let before = place.checked_sub(1).map(|before| self.slots[before]);
            before.is_none_or(|before| match order {
                Order::Fifo => before.from != self.slots[place].from,
                Order::Any => before != self.slots[place],
            })
        })
    }

    /// Returns the inbox without the message at that place.
    pub(crate) fn without(&self, place: usize) -> Self {
        let mut less = self.clone();
        less.slots.remove(place);
        less
    }

    /// Returns the inboxes after a delivery of which a copy stays in flight: one for every place that the
    /// copy can have among the messages of its link.
    pub(crate) fn with_copy(&self, place: usize, order: Order) -> Vec<Self> {
        match order {
            Order::Any => vec![self.clone()],
            Order::Fifo => {
                let slot = self.slots[place];
                let rest = self.without(place);
                let last = rest.slots.partition_point(|other| other.from <= slot.from);
                let insert = |at| {
                    let mut with = rest.clone();
                    with.slots.insert(at, slot);
                    with
                };
                (place..=last).map(insert).collect()
            }
        }
    }

    /// Returns the inbox one tick later; `None` if a message must be delivered first.
    pub(crate) fn tick(&self, delay: u16) -> Option<Self> {
        let mut later = self.clone();
        for slot in &mut later.slots {
            if slot.age == delay {
                return None;
            }
            slot.age += 1;
        }
        Some(later)
    }

    /// Returns the inbox with senders and packets renamed.
    pub(crate) fn renamed(&self, order: Order, mut rename: impl FnMut(Slot) -> Slot) -> Self {
        self.slots.iter().fold(Self::default(), |renamed, slot| renamed.push(rename(*slot), order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(from: u16, packet: u32) -> Slot {
        Slot { from, age: 0, packet }
    }

    fn inbox(order: Order, slots: &[(u16, u32)]) -> Inbox {
        slots.iter().fold(Inbox::default(), |inbox, (from, packet)| inbox.push(slot(*from, *packet), order))
    }

    fn packets(inbox: &Inbox) -> Vec<u32> {
        inbox.slots.iter().map(|slot| slot.packet).collect()
    }

    #[test]
    fn over_fifo_links_only_the_oldest_of_each_sender_can_come() {
        let inbox = inbox(Order::Fifo, &[(1, 7), (0, 9), (1, 3), (0, 8)]);
        assert_eq!(packets(&inbox), [9, 8, 7, 3]);
        assert_eq!(inbox.deliverable(Order::Fifo).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(packets(&inbox.without(2)), [9, 8, 3]);
    }

    #[test]
    fn in_any_order_what_was_sent_when_is_forgotten_and_equals_come_once() {
        let one_way = inbox(Order::Any, &[(1, 7), (0, 9), (1, 3), (1, 7)]);
        assert_eq!(one_way, inbox(Order::Any, &[(1, 7), (1, 7), (1, 3), (0, 9)]));
        assert_eq!(one_way.deliverable(Order::Any).count(), 3);
    }

    #[test]
    fn a_copy_comes_anywhere_behind_its_original() {
        let inbox = inbox(Order::Fifo, &[(0, 1), (0, 2), (0, 3), (1, 4)]);
        let copies: Vec<_> = inbox.with_copy(0, Order::Fifo).iter().map(packets).collect();
        assert_eq!(copies, [[1, 2, 3, 4], [2, 1, 3, 4], [2, 3, 1, 4]]);
    }

    #[test]
    fn a_message_that_is_due_holds_the_clock() {
        let inbox = inbox(Order::Any, &[(0, 1)]);
        let later = inbox.tick(2).and_then(|inbox| inbox.tick(2)).unwrap();
        assert_eq!(later.slots[0].age, 2);
        assert!(later.tick(2).is_none());
    }
}
