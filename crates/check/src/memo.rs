//! A map from two numbers to one, for hundreds of millions of lookups.
//!
//! It uses open addressing with linear probing, and stores keys and values together. Entries are never
//! removed.

/// The map.
pub(crate) struct Memo {
    /// The slots of twelve bytes: the first number plus one, the second number, the value. A first word of 0
    /// is free. The length is a power of two.
    slots: Vec<[u32; 3]>,
    len: usize,
}

impl Memo {
    pub(crate) fn new() -> Self {
        Self { slots: vec![[0; 3]; 64], len: 0 }
    }

    #[inline]
    pub(crate) fn get(&self, one: u32, other: u32) -> Option<u32> {
        let mut slot = self.home(one, other);
        loop {
            let [first, second, value] = self.slots[slot];
            if first == one + 1 && second == other {
                return Some(value);
            }
            if first == 0 {
                return None;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Adds an entry that is not in the map.
    pub(crate) fn insert(&mut self, one: u32, other: u32, value: u32) {
        self.len += 1;
        if self.len * 4 > self.slots.len() * 3 {
            let larger = vec![[0; 3]; self.slots.len() * 2];
            for [first, second, value] in std::mem::replace(&mut self.slots, larger) {
                if first != 0 {
                    self.put(first - 1, second, value);
                }
            }
        }
        self.put(one, other, value);
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<[u32; 3]>()
    }

    fn put(&mut self, one: u32, other: u32, value: u32) {
        let mut slot = self.home(one, other);
        while self.slots[slot][0] != 0 {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = [one + 1, other, value];
    }

    #[inline]
    fn home(&self, one: u32, other: u32) -> usize {
        let spread = (u64::from(one) << 32 | u64::from(other)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread ^ spread >> 32) as usize & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out_after_growth() {
        let mut memo = Memo::new();
        let pairs = (0..100u32).flat_map(|one| (0..50).map(move |other| (one, other)));
        for (one, other) in pairs.clone() {
            assert_eq!(memo.get(one, other), None);
            memo.insert(one, other, one * other);
        }
        assert!(pairs.into_iter().all(|(one, other)| memo.get(one, other) == Some(one * other)));
        assert_eq!(memo.get(100, 0), None);
    }
}
