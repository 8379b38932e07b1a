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
    /// As an index into a table with one row a site.
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

/// A view of the group, in order of ids: a few bytes, whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    nodes: u32,
    except: Option<NodeId>,
}

impl Members {
    /// All of a group.
    #[inline]
    pub const fn all(nodes: u32) -> Self {
        Self { nodes, except: None }
    }

    /// All of a group but one.
    #[inline]
    pub const fn except(nodes: u32, one: NodeId) -> Self {
        Self { nodes, except: Some(one) }
    }

    /// How many there are.
    #[inline]
    pub const fn len(self) -> usize {
        self.nodes as usize - self.except.is_some() as usize
    }

    /// Whether there is nobody.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether that site is among them.
    #[inline]
    pub fn contains(self, node: NodeId) -> bool {
        node.0 < self.nodes && self.except != Some(node)
    }

    /// Each in turn.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = NodeId> + Clone {
        (0..self.nodes).map(NodeId).filter(move |node| Some(*node) != self.except)
    }

    /// The site that comes after one in the ring of all ids.
    #[inline]
    pub const fn after(self, node: NodeId) -> NodeId {
        NodeId(if node.0 + 1 >= self.nodes { 0 } else { node.0 + 1 })
    }
}

const WORD: u32 = u64::BITS;

/// A set of sites: a bitmap, in two words without the heap up to 128 sites, in a box beyond.
///
/// The representation is canonical (a set without ids above 127 is inline; a boxed one ends in a word that
/// is not zero), so that equal sets are equal bytes: the checker hashes states as they are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet(Bits);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Bits {
    Inline([u64; 2]),
    Boxed(Box<[u64]>),
}

impl NodeSet {
    /// Nobody.
    pub const fn new() -> Self {
        Self(Bits::Inline([0; 2]))
    }

    /// Everybody in a group.
    pub fn full(nodes: u32) -> Self {
        (0..nodes).map(NodeId).collect()
    }

    /// Adds one; whether it was new.
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

    /// Takes one out; whether it was there.
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

    /// Whether that site is in it.
    #[inline]
    pub fn contains(&self, node: NodeId) -> bool {
        let (word, bit) = place(node);
        self.words().get(word).is_some_and(|slot| slot & bit != 0)
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.words().iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is nobody.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(|word| *word == 0)
    }

    /// Takes everybody out.
    #[inline]
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Takes everybody out and hands them over: `for node in set.take().iter()`.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Self {
        core::mem::take(self)
    }

    /// Each in order of ids.
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

    /// Whether the two have somebody in common.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words().iter().zip(other.words()).any(|(mine, theirs)| mine & theirs != 0)
    }

    /// Whether everybody here is also there.
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
            return Err(serde::de::Error::custom("a node id beyond the largest group"));
        }
        Ok(nodes.into_iter().collect())
    }
}

/// A value for each of some sites: a table with one row a site. Rows that are not set hold the default, so
/// that equal maps are equal bytes; setting and unsetting never allocates.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeMap<V> {
    present: NodeSet,
    rows: Box<[V]>,
}

impl<V: Copy + Default> NodeMap<V> {
    /// An empty map for a group of that size.
    pub fn new(nodes: u32) -> Self {
        Self { present: NodeSet::new(), rows: vec![V::default(); nodes as usize].into_boxed_slice() }
    }

    /// Sets a site's value; what it was before.
    #[inline]
    pub fn insert(&mut self, node: NodeId, value: V) -> Option<V> {
        let before = core::mem::replace(&mut self.rows[node.index()], value);
        (!self.present.insert(node)).then_some(before)
    }

    /// Unsets a site's value; what it was.
    #[inline]
    pub fn remove(&mut self, node: NodeId) -> Option<V> {
        self.present.remove(node).then(|| core::mem::take(&mut self.rows[node.index()]))
    }

    /// A site's value, if set.
    #[inline]
    pub fn get(&self, node: NodeId) -> Option<V> {
        self.present.contains(node).then(|| self.rows[node.index()])
    }

    /// The sites whose value is set.
    pub fn nodes(&self) -> &NodeSet {
        &self.present
    }

    /// Each site with its value, in order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, V)> + '_ {
        self.present.iter().map(|node| (node, self.rows[node.index()]))
    }

    /// How many values are set.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// Unsets every value, handing each to `with` in order of ids.
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

/// The largest group. Keeps a hostile id in a file from asking for gigabytes.
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
