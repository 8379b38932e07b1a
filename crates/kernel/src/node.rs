//! Sites and sets of sites.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A site. Ids are dense: a group of N has the ids `0..N`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Returns the id as an index into a table with one row per site.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The sites of a group in the order of ids. It takes a few bytes, independent of the size of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    nodes: u32,
    except: Option<NodeId>,
}

impl Members {
    /// Returns all sites of a group.
    #[inline]
    pub const fn all(nodes: u32) -> Self {
        Self { nodes, except: None }
    }

    /// Returns all sites of a group except one.
    #[inline]
    pub const fn except(nodes: u32, one: NodeId) -> Self {
        Self { nodes, except: Some(one) }
    }

    /// Returns the number of sites.
    #[inline]
    pub const fn len(self) -> usize {
        self.nodes as usize - self.except.is_some() as usize
    }

    /// Returns whether there are no sites.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns whether the site is one of them.
    #[inline]
    pub fn contains(self, node: NodeId) -> bool {
        node.0 < self.nodes && self.except != Some(node)
    }

    /// Iterates over the sites in the order of ids.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = NodeId> + Clone {
        (0..self.nodes).map(NodeId).filter(move |node| Some(*node) != self.except)
    }

    /// Returns the site after `node` in the ring of all ids of the group.
    #[inline]
    pub const fn after(self, node: NodeId) -> NodeId {
        NodeId(if node.0 + 1 >= self.nodes { 0 } else { node.0 + 1 })
    }
}

const WORD: u32 = u64::BITS;

/// A set of sites, as a bitmap. Ids up to 127 fit into two inline words; larger ids need a boxed slice.
///
/// The representation is canonical: equal sets are equal bytes, so the checker can hash states as they are. A
/// set without ids above 127 is inline, and the last word of a boxed set is not zero.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(Bits);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Bits {
    Inline([u64; 2]),
    Boxed(Box<[u64]>),
}

impl NodeSet {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(Bits::Inline([0; 2]))
    }

    /// Creates the set of all sites of a group.
    pub fn full(nodes: u32) -> Self {
        (0..nodes).map(NodeId).collect()
    }

    /// Adds a site. Returns whether it was new.
    #[inline]
    pub fn insert(&mut self, node: NodeId) -> bool {
        let (word, bit) = place(node);
        if word >= self.words().len() {
            self.grow(word + 1);
        }
        let slot = &mut self.words_mut()[word];
        let new = *slot & bit == 0;
        *slot |= bit;
        new
    }

    /// Removes a site. Returns whether it was in the set.
    #[inline]
    pub fn remove(&mut self, node: NodeId) -> bool {
        let (word, bit) = place(node);
        let Some(slot) = self.words_mut().get_mut(word) else { return false };
        let there = *slot & bit != 0;
        *slot &= !bit;
        if there && matches!(self.0, Bits::Boxed(_)) {
            self.canonicalise();
        }
        there
    }

    /// Returns whether the site is in the set.
    #[inline]
    pub fn contains(&self, node: NodeId) -> bool {
        let (word, bit) = place(node);
        self.words().get(word).is_some_and(|slot| slot & bit != 0)
    }

    /// Returns the number of sites in the set.
    #[inline]
    pub fn len(&self) -> usize {
        self.words().iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(|word| *word == 0)
    }

    /// Removes all sites.
    #[inline]
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Removes all sites and returns them: `for node in set.take().iter()`.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Self {
        core::mem::take(self)
    }

    /// Iterates over the sites in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.words().iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            core::iter::from_fn(move || {
                let bit = rest.checked_ilog2().map(|_| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(NodeId(index as u32 * WORD + bit))
            })
        })
    }

    /// Returns whether the two sets have a site in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words().iter().zip(other.words()).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// Returns whether every site of this set is also in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        let theirs = other.words().iter().chain(core::iter::repeat(&0));
        self.words().iter().zip(theirs).all(|(mine, theirs)| mine & !theirs == 0)
    }

    #[inline]
    fn words(&self) -> &[u64] {
        match &self.0 {
            Bits::Inline(words) => words,
            Bits::Boxed(words) => words,
        }
    }

    #[inline]
    fn words_mut(&mut self) -> &mut [u64] {
        match &mut self.0 {
            Bits::Inline(words) => words,
            Bits::Boxed(words) => words,
        }
    }

    #[cold]
    fn grow(&mut self, words: usize) {
        let mut grown = vec![0; words];
        grown[..self.words().len()].copy_from_slice(self.words());
        self.0 = Bits::Boxed(grown.into_boxed_slice());
    }

    #[cold]
    fn canonicalise(&mut self) {
        let words = self.words();
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        if used <= 2 {
            self.0 = Bits::Inline([words[0], words[1]]);
        } else if used < words.len() {
            self.0 = Bits::Boxed(words[..used].into());
        }
    }
}

#[inline]
const fn place(node: NodeId) -> (usize, u64) {
    ((node.0 / WORD) as usize, 1 << (node.0 % WORD))
}

impl Default for NodeSet {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::new();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for NodeSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().collect::<Vec<_>>())
    }
}

impl<'de> Deserialize<'de> for NodeSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let nodes = Vec::<NodeId>::deserialize(deserializer)?;
        if nodes.iter().any(|node| node.0 >= MOST_NODES) {
            return Err(serde::de::Error::custom("every node id must be below 16777216"));
        }
        Ok(nodes.into_iter().collect())
    }
}

/// A map from sites to values, as a table with one row per site. Rows without a value hold the default, so
/// equal maps are equal bytes. Inserting and removing a value allocates only when an id above 127 enters or
/// leaves the set of sites.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeMap<V> {
    present: NodeSet,
    rows: Box<[V]>,
}

impl<V: Copy + Default> NodeMap<V> {
    /// Creates an empty map for a group of `nodes` sites.
    pub fn new(nodes: u32) -> Self {
        Self { present: NodeSet::new(), rows: vec![V::default(); nodes as usize].into_boxed_slice() }
    }

    /// Sets the value of a site. Returns the old value, if there was one.
    #[inline]
    pub fn insert(&mut self, node: NodeId, value: V) -> Option<V> {
        let before = core::mem::replace(&mut self.rows[node.index()], value);
        (!self.present.insert(node)).then_some(before)
    }

    /// Removes the value of a site and returns it.
    #[inline]
    pub fn remove(&mut self, node: NodeId) -> Option<V> {
        self.present.remove(node).then(|| core::mem::take(&mut self.rows[node.index()]))
    }

    /// Returns the value of a site, if it has one.
    #[inline]
    pub fn get(&self, node: NodeId) -> Option<V> {
        self.present.contains(node).then(|| self.rows[node.index()])
    }

    /// Returns the sites that have a value.
    pub fn nodes(&self) -> &NodeSet {
        &self.present
    }

    /// Iterates over the sites with their values, in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, V)> + '_ {
        self.present.iter().map(|node| (node, self.rows[node.index()]))
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Returns whether the map holds no value.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// Removes every value and passes each to `with`, in the order of ids.
    pub fn drain(&mut self, mut with: impl FnMut(NodeId, V)) {
        for node in self.present.take().iter() {
            with(node, core::mem::take(&mut self.rows[node.index()]));
        }
    }
}

impl<V: Copy + Default + fmt::Debug> fmt::Debug for NodeMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The largest size of a group. A [`NodeSet`] with a larger id is rejected when it is read, so that a wrong
/// id in a file cannot allocate gigabytes of memory.
pub const MOST_NODES: u32 = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_shrinks_back_equals_one_that_never_grew() {
        let mut grown: NodeSet = [NodeId(3), NodeId(127)].into_iter().collect();
        let small = grown.clone();
        assert!(grown.insert(NodeId(128)));
        assert!(grown.insert(NodeId(1000)));
        assert_ne!(grown, small);
        assert!(grown.remove(NodeId(1000)));
        assert!(grown.remove(NodeId(128)));
        assert_eq!(grown, small);
        assert!(!grown.remove(NodeId(100_000)));
    }

    #[test]
    fn a_set_iterates_in_order_and_counts() {
        let set: NodeSet = [200, 5, 64, 63, 0].map(NodeId).into_iter().collect();
        assert_eq!(set.iter().map(|n| n.0).collect::<Vec<_>>(), [0, 5, 63, 64, 200]);
        assert_eq!(set.len(), 5);
        assert!(set.contains(NodeId(64)) && !set.contains(NodeId(65)));
    }

    #[test]
    fn subsets_and_intersections_compare_sets_of_different_width() {
        let small: NodeSet = [1, 2].map(NodeId).into_iter().collect();
        let wide: NodeSet = [1, 2, 500].map(NodeId).into_iter().collect();
        assert!(small.is_subset(&wide) && !wide.is_subset(&small));
        assert!(small.intersects(&wide));
        assert!(!small.intersects(&[NodeId(500)].into_iter().collect()));
    }

    #[test]
    fn a_map_that_was_emptied_equals_one_that_was_never_filled() {
        let mut map = NodeMap::new(5);
        assert_eq!(map.insert(NodeId(3), 7), None);
        assert_eq!(map.insert(NodeId(3), 8), Some(7));
        assert_eq!((map.get(NodeId(3)), map.get(NodeId(2)), map.len()), (Some(8), None, 1));
        let mut seen = Vec::new();
        map.drain(|node, value| seen.push((node, value)));
        assert_eq!(seen, [(NodeId(3), 8)]);
        assert_eq!(map, NodeMap::new(5));
    }

    #[test]
    fn peers_are_all_but_me() {
        let peers = Members::except(3, NodeId(1));
        assert_eq!(peers.iter().collect::<Vec<_>>(), [NodeId(0), NodeId(2)]);
        assert_eq!(peers.len(), 2);
        assert!(!peers.contains(NodeId(1)) && !peers.contains(NodeId(3)));
        assert_eq!(peers.after(NodeId(2)), NodeId(0));
    }
}
