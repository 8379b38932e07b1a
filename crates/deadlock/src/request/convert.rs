//! Conversions of a request: to its normal form, to and from AND-OR form, and to the most that it can take.
//!
//! From AND-OR to p-out-of-q the conversion costs nothing, because our gates *are* thresholds. The opposite
//! direction multiplies out ("10 of 20" has 184,756 terms), so the caller limits it. Deadlock detection needs
//! neither direction.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::satisfy::merge;
use super::{Claim, Demand, Gate, Node, Request, RequestError};

/// One way to satisfy a request: all of these claims together. Each name occurs once.
pub type Term<R> = Vec<Claim<R>>;

impl<R: Ord + Clone> Request<R> {
    /// Returns the normal form, which makes the same choices as the original. It has no gate with one member,
    /// no AND directly in an AND, and no OR in an OR. An AND claims each name directly at most once, and an
    /// OR has no two equal members.
    ///
    /// There is one exception. An entangled request stays as it is if opening its groups would exceed
    /// [`MAX_ENTANGLED_ALTERNATIVES`](super::MAX_ENTANGLED_ALTERNATIVES).
    pub fn normalized(&self) -> Self {
        let leaf = |claim: &Claim<R>| Self::leaf(claim.clone());
        let normal = self.fold(leaf, |gate, members| match gate {
            Gate { need, members: all, .. } if need == all => conjunction(members),
            Gate { need: 1, .. } => disjunction(members),
            Gate { need, .. } => Self::regate(*need, members),
        });
        if normal.entanglement().is_ok() { normal } else { self.clone() }
    }

    /// Returns the AND-OR form: the terms from left to right. [`Request::satisfy`] chooses the first
    /// available one. Equal terms are listed once.
    ///
    /// # Errors
    /// [`RequestError::TooManyTerms`] if there would be more than `limit` terms. Then nothing is computed.
    pub fn to_and_or(&self, limit: u64) -> Result<Vec<Term<R>>, RequestError> {
        let terms = self.alternatives();
        if terms > limit {
            return Err(RequestError::TooManyTerms { terms });
        }
        let expanded =
            self.fold(|claim| vec![vec![claim.clone()]], |gate, members| choose(gate.need, members));
        let mut seen: BTreeSet<Term<R>> = BTreeSet::new();
        let merged = expanded.iter().map(merge);
        Ok(merged
            .filter(|term| {
                let mut key = term.clone();
                key.sort_unstable();
                seen.insert(key)
            })
            .collect())
    }

    /// Builds a request from AND-OR form. The result is `k of (...)` if the terms are exactly the k-subsets
    /// of some claims in order, otherwise an OR of ANDs. In both forms the first available term is chosen.
    ///
    /// # Errors
    /// As [`Request::at_least`].
    pub fn from_and_or(terms: &[Term<R>]) -> Result<Self, RequestError> {
        if let Some((need, claims)) = as_threshold(terms) {
            let members: Result<Vec<_>, _> = claims.into_iter().map(Self::one).collect();
            return Self::at_least(need, members?);
        }
        let term = |term: &Term<R>| {
            let members: Result<Vec<_>, _> = term.iter().cloned().map(Self::one).collect();
            Self::all(members?)
        };
        let alternatives: Result<Vec<_>, _> = terms.iter().map(term).collect();
        Self::any(alternatives?)
    }

    /// Returns the most that any alternative takes of each name, in order of names. A waiter claims this
    /// amount against later waiters. If this amount exists, *every* alternative is possible.
    pub fn envelope(&self) -> Vec<Claim<R>> {
        self.fold(
            |claim| vec![claim.clone()],
            |gate, members| {
                let mut claims: Vec<Claim<R>> = members.iter_mut().flat_map(core::mem::take).collect();
                claims.sort_unstable_by(|a, b| (&a.resource, b.demand).cmp(&(&b.resource, a.demand)));
                let same_name = claims.chunk_by(|a, b| a.resource == b.resource);
                same_name.flat_map(|claims| merge(claims.iter().take(gate.need as usize))).collect()
            },
        )
    }

    /// Builds a gate over parts of a valid request.
    fn regate(need: u32, members: &[Self]) -> Self {
        let count = u32::try_from(members.len()).expect("no more members than before");
        let mut nodes = vec![Node::Gate(Gate { need, members: count, end: 0, entangled: false })];
        nodes.extend(members.iter().flat_map(|member| member.nodes.iter().cloned()));
        Self::assemble(nodes).expect("parts of a valid request")
    }

    /// Returns the members if this is a gate of the kind into which it is merged, otherwise the request
    /// itself.
    fn into_members(self, of_kind: impl Fn(&Gate) -> bool) -> Vec<Self> {
        match &self.nodes[0] {
            Node::Gate(gate) if of_kind(gate) => self.members(),
            _ => vec![self],
        }
    }
}

/// Builds an AND: opens nested ANDs, and merges direct claims of one name at the place of the first.
fn conjunction<R: Ord + Clone>(members: &[Request<R>]) -> Request<R> {
    let is_and = |gate: &Gate| gate.need == gate.members;
    let flat: Vec<Request<R>> =
        members.iter().cloned().flat_map(|member| member.into_members(is_and)).collect();
    let mut merged = merge(flat.iter().filter_map(Request::as_single)).into_iter();
    let mut named: BTreeSet<&R> = BTreeSet::new();
    let mut kept: Vec<Request<R>> = Vec::with_capacity(flat.len());
    for member in &flat {
        match member.as_single() {
            None => kept.push(member.clone()),
            Some(claim) if named.insert(&claim.resource) => kept.extend(merged.next().map(Request::leaf)),
            Some(_) => {}
        }
    }
    one_or(kept, |kept| Request::regate(u32::try_from(kept.len()).expect("no more than before"), kept))
}

/// Builds an OR: opens nested ORs, and keeps equal members once.
fn disjunction<R: Ord + Clone>(members: &[Request<R>]) -> Request<R> {
    let is_or = |gate: &Gate| gate.need == 1;
    let flat: Vec<Request<R>> =
        members.iter().cloned().flat_map(|member| member.into_members(is_or)).collect();
    let mut seen: BTreeSet<&Request<R>> = BTreeSet::new();
    let kept: Vec<Request<R>> = flat.iter().filter(|member| seen.insert(member)).cloned().collect();
    one_or(kept, |kept| Request::regate(1, kept))
}

/// Returns the only member if there is one, otherwise the gate over all members.
fn one_or<R>(mut members: Vec<Request<R>>, gate: impl FnOnce(&[Request<R>]) -> Request<R>) -> Request<R> {
    match members.len() {
        1 => members.pop().expect("one"),
        _ => gate(&members),
    }
}

/// Returns all ways to choose `need` members and one term of each, leftmost first. It works from right to
/// left: for each count of chosen members, the ways that include the next member come first. Only counts that
/// the members further left can still complete are kept, so nothing is larger than the result.
fn choose<R: Clone>(need: u32, members: &[Vec<Term<R>>]) -> Vec<Term<R>> {
    let need = need as usize;
    let mut ways: Vec<Vec<Term<R>>> = vec![Vec::new(); need + 1];
    ways[0].push(Vec::new());
    for (left, member) in members.iter().enumerate().rev() {
        let longest = need.min(members.len() - left);
        for chosen in (need.saturating_sub(left).max(1)..=longest).rev() {
            let mut both: Vec<Term<R>> = Vec::with_capacity(ways[chosen - 1].len() * member.len());
            for first in member {
                both.extend(ways[chosen - 1].iter().map(|rest| [&first[..], &rest[..]].concat()));
            }
            both.append(&mut ways[chosen]);
            ways[chosen] = both;
        }
        // Drop the counts that the `left` remaining members cannot complete.
        ways[..need.saturating_sub(left)].iter_mut().for_each(Vec::clear);
    }
    ways.swap_remove(need)
}

/// Returns `Some((k, claims))` if the terms are all k-subsets of the claims, in the order in which a
/// threshold chooses.
fn as_threshold<R: Ord + Clone>(terms: &[Term<R>]) -> Option<(u32, Vec<Claim<R>>)> {
    let need = terms.first()?.len();
    let mut place: BTreeMap<&R, (usize, Demand)> = BTreeMap::new();
    let mut claims: Vec<Claim<R>> = Vec::new();
    let mut previous: Vec<usize> = Vec::new();
    for term in terms {
        let mut subset = Vec::with_capacity(need);
        for claim in term {
            let (at, demand) = *place.entry(&claim.resource).or_insert((claims.len(), claim.demand));
            if at == claims.len() {
                claims.push(claim.clone());
            }
            if demand != claim.demand {
                return None;
            }
            subset.push(at);
        }
        subset.sort_unstable();
        let distinct = subset.windows(2).all(|pair| pair[0] < pair[1]);
        if subset.len() != need || !distinct || subset <= previous {
            return None;
        }
        previous = subset;
    }
    // The subsets are strictly ascending and their number is that of all subsets. So these are all subsets,
    // in order.
    let all = super::elementary_symmetric(u32::try_from(need).ok()?, &vec![1; claims.len()]);
    (need > 0 && terms.len() as u64 == all).then_some((u32::try_from(need).ok()?, claims))
}
