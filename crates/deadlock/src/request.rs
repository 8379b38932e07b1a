//! One request type for every model of the theory: single resource, AND, OR, AND-OR, p-out-of-q.
//!
//! **Intuition.** A request is a tree of thresholds. A leaf claims one resource: a lock in a mode, or permits
//! of a semaphore. A gate is satisfied when at least `need` of its members are satisfied. `a & b` is "2 of 2"
//! and `a | b` is "1 of 2". So AND, OR and p-out-of-q are the same gate, and nested gates give AND-OR of any
//! depth.
//!
//! **Rules.**
//! - The choice is leftmost-first and minimal: a gate takes its first satisfiable members, and no more than
//!   `need`.
//! - If the chosen set names a resource twice, modes merge to the stronger one, and permits are added.
//! - A name is a lock or a semaphore, never both in one request.
//!
//! **The trap.** Permits are *added*, so one member can make another impossible. Suppose that three permits
//! are free. Then `(pool*2 | x) & pool*2` is satisfied only by `x & pool*2`. A greedy evaluation takes
//! `pool*2` in the left group and waits for ever. Modes do not have this problem, because the stronger mode
//! is available exactly when both are. So the search backtracks only into subtrees that name a semaphore
//! twice; these are called *entangled*. A request with too many such alternatives is rejected when it is
//! built. Evaluation is linear for all other requests, and bounded for every request.
//!
//! **Representation.** The tree is one flat array in preorder, and each gate stores the end of its subtree. A
//! bottom-up pass reads the array backwards with a stack of results (`Request::fold`). It needs no recursion
//! and no boxes.

mod convert;
mod satisfy;
#[cfg(test)]
pub(crate) mod tests;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

pub use convert::Term;

/// The demand for one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Demand {
    /// A lock in shared mode: other owners may share it.
    Shared,
    /// A lock in exclusive mode: no other owner may hold it.
    Exclusive,
    /// A number of permits of a semaphore, at least one.
    Permits(u32),
}

impl Demand {
    /// Combines two demands that hold together: the stronger mode, or the sum of the permits (saturating).
    ///
    /// Returns `None` if one demand is for a lock and the other for permits.
    pub fn and(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Permits(a), Self::Permits(b)) => Some(Self::Permits(a.saturating_add(b))),
            _ => self.or(other),
        }
    }

    /// Returns the larger of two demands of which only one will be made; `None` for a lock and permits.
    pub fn or(self, other: Self) -> Option<Self> {
        (self.is_permits() == other.is_permits()).then(|| self.max(other))
    }

    /// Returns whether the demand is for permits of a semaphore, not for a lock.
    pub const fn is_permits(self) -> bool {
        matches!(self, Self::Permits(_))
    }
}

/// A leaf of a request: a resource and the demand for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Claim<R> {
    /// The resource.
    pub resource: R,
    /// The demand.
    pub demand: Demand,
}

/// A request for resources named `R`, in any model. It is immutable, and valid by construction.
///
/// ```
/// use conclave_deadlock::{Claim, Demand, Request};
///
/// // plan & (eu | us):shared & pool*3
/// let request = Request::all([
///     Request::exclusive("plan"),
///     Request::any([Request::shared("eu"), Request::shared("us")]).unwrap(),
///     Request::permits("pool", 3).unwrap(),
/// ])
/// .unwrap();
/// let chosen = request.satisfy(|name, _| *name != "eu").unwrap();
/// assert_eq!(chosen.iter().map(|claim| claim.resource).collect::<Vec<_>>(), ["plan", "us", "pool"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Token<R>>", into = "Vec<Token<R>>")]
#[serde(bound(serialize = "R: Clone + Ord + Serialize", deserialize = "R: Ord + Deserialize<'de>"))]
pub struct Request<R> {
    /// The tree in preorder; never empty.
    nodes: Vec<Node<R>>,
}

/// The limits for the size of a request, which [`Request::check`] enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// The largest number of leaves, counted with repetition.
    pub claims: usize,
    /// The largest number of gates above a leaf.
    pub depth: usize,
}

impl Limits {
    /// The limits of the lock service for requests of clients: 64 names, depth 8.
    pub const SERVICE: Self = Self { claims: 64, depth: 8 };
}

/// The largest number of alternatives of an *entangled* request, which names a semaphore twice. Above it, the
/// request is rejected, because evaluation may have to try all alternatives. Other requests are evaluated in
/// linear time and have no such limit.
pub const MAX_ENTANGLED_ALTERNATIVES: u64 = 10_000;

/// The reason why a request was rejected. Nothing was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RequestError {
    /// A gate without members.
    Empty,
    /// "k of n" with k = 0 or k > n.
    Threshold {
        /// The k of the request.
        need: u32,
        /// The n: the number of members.
        members: u32,
    },
    /// A claim of zero permits.
    NoPermits,
    /// A name that is used both as a lock and as a semaphore.
    LockAndSemaphore,
    /// A semaphore that is named in more than [`MAX_ENTANGLED_ALTERNATIVES`] alternatives.
    Entangled {
        /// The number of alternatives (saturating).
        alternatives: u64,
    },
    /// More leaves than the limit.
    TooManyClaims {
        /// The number of leaves.
        claims: usize,
    },
    /// A deeper tree than the limit.
    TooDeep {
        /// The depth.
        depth: usize,
    },
    /// An AND-OR form with more terms than the limit.
    TooManyTerms {
        /// The number of terms (saturating).
        terms: u64,
    },
    /// A serialised request that is not a tree: tokens are missing or left over.
    Malformed,
}

impl<R> Request<R> {
    /// Creates a claim of the lock `resource` in exclusive mode.
    pub fn exclusive(resource: R) -> Self {
        Self::leaf(Claim { resource, demand: Demand::Exclusive })
    }

    /// Creates a claim of the lock `resource` in shared mode.
    pub fn shared(resource: R) -> Self {
        Self::leaf(Claim { resource, demand: Demand::Shared })
    }

    /// Creates a claim of `count` permits of the semaphore `resource`.
    ///
    /// # Errors
    /// [`RequestError::NoPermits`] for a count of zero.
    pub fn permits(resource: R, count: u32) -> Result<Self, RequestError> {
        Self::one(Claim { resource, demand: Demand::Permits(count) })
    }

    /// Creates a request for one claim: the single-resource model.
    ///
    /// # Errors
    /// [`RequestError::NoPermits`] for zero permits.
    pub fn one(claim: Claim<R>) -> Result<Self, RequestError> {
        if claim.demand == Demand::Permits(0) { Err(RequestError::NoPermits) } else { Ok(Self::leaf(claim)) }
    }

    fn leaf(claim: Claim<R>) -> Self {
        Self { nodes: vec![Node::Claim(claim)] }
    }

    /// Iterates over all claims from left to right, with repetitions.
    pub fn claims(&self) -> impl Iterator<Item = &Claim<R>> {
        self.nodes.iter().filter_map(Node::claim)
    }

    /// Iterates over all names from left to right, with repetitions.
    pub fn names(&self) -> impl Iterator<Item = &R> {
        self.claims().map(|claim| &claim.resource)
    }

    /// Returns the claim if the request is for a single resource.
    pub fn as_single(&self) -> Option<&Claim<R>> {
        self.nodes[0].claim()
    }

    /// Returns whether the request names some semaphore more than once. Then one alternative can make another
    /// impossible.
    pub fn is_entangled(&self) -> bool {
        self.nodes[0].is_entangled()
    }

    /// Returns the number of gates above the deepest leaf: zero for a single claim.
    pub fn depth(&self) -> usize {
        self.fold(|_| 0, |_, depths| 1 + depths.iter().max().copied().unwrap_or(0))
    }

    /// Checks the request against `limits`.
    ///
    /// # Errors
    /// [`RequestError::TooManyClaims`] or [`RequestError::TooDeep`].
    pub fn check(&self, limits: Limits) -> Result<(), RequestError> {
        let (claims, depth) = (self.claims().count(), self.depth());
        if claims > limits.claims {
            Err(RequestError::TooManyClaims { claims })
        } else if depth > limits.depth {
            Err(RequestError::TooDeep { depth })
        } else {
            Ok(())
        }
    }

    /// Returns the number of ways to satisfy the request (saturating): the terms of its AND-OR form before
    /// equal ones are merged. Ten of twenty has 184,756.
    pub fn alternatives(&self) -> u64 {
        self.fold(|_| 1, |gate, counts| elementary_symmetric(gate.need, counts))
    }

    /// Returns the same request with other names. A service uses it to replace names by its own identifiers.
    ///
    /// # Errors
    /// As [`Request::at_least`]: two different names may have become equal.
    pub fn map<S: Ord>(self, mut name: impl FnMut(R) -> S) -> Result<Request<S>, RequestError> {
        let rename = |node| match node {
            Node::Claim(Claim { resource, demand }) => {
                Node::Claim(Claim { resource: name(resource), demand })
            }
            Node::Gate(gate) => Node::Gate(gate),
        };
        Request::from_nodes(self.nodes.into_iter().map(rename).collect())
    }

    /// Evaluates the tree bottom-up. `leaf` gives the value of a claim. `gate` combines the values of its
    /// members, leftmost first. The array is read backwards, so the members of a gate are on top of the stack
    /// when the gate comes.
    pub(crate) fn fold<T>(
        &self,
        mut leaf: impl FnMut(&Claim<R>) -> T,
        mut gate: impl FnMut(&Gate, &mut [T]) -> T,
    ) -> T {
        let mut values: Vec<T> = Vec::with_capacity(self.nodes.len());
        for node in self.nodes.iter().rev() {
            let value = match node {
                Node::Claim(claim) => leaf(claim),
                Node::Gate(shape) => {
                    let members = values.len() - shape.members as usize;
                    values[members..].reverse();
                    let value = gate(shape, &mut values[members..]);
                    values.truncate(members);
                    value
                }
            };
            values.push(value);
        }
        values.pop().expect("a request has at least one node, and each leaves one value")
    }

    /// Returns the members of the outermost gate; empty for a single claim.
    pub fn members(&self) -> Vec<Self>
    where
        R: Ord + Clone,
    {
        let mut members = Vec::new();
        let mut at = 1;
        while at < self.nodes.len() {
            let end = match &self.nodes[at] {
                Node::Gate(member) => member.end as usize,
                Node::Claim(_) => at + 1,
            };
            let member = Self::assemble(self.nodes[at..end].to_vec());
            members.push(member.expect("a member of a valid request is one"));
            at = end;
        }
        members
    }

    /// Returns the preorder array.
    pub(crate) fn nodes(&self) -> &[Node<R>] {
        &self.nodes
    }
}

impl<R: Ord> Request<R> {
    /// Requires all members: AND.
    ///
    /// # Errors
    /// As [`Request::at_least`].
    pub fn all(members: impl IntoIterator<Item = Self>) -> Result<Self, RequestError> {
        Self::gate(members, |members| members)
    }

    /// Requires any one member: OR.
    ///
    /// # Errors
    /// As [`Request::at_least`].
    pub fn any(members: impl IntoIterator<Item = Self>) -> Result<Self, RequestError> {
        Self::gate(members, |_| 1)
    }

    /// Requires at least `need` different members: p-out-of-q.
    ///
    /// # Errors
    /// - there are no members;
    /// - `need` is zero or larger than the number of members;
    /// - a name is both a lock and a semaphore;
    /// - a semaphore is repeated in more than [`MAX_ENTANGLED_ALTERNATIVES`] alternatives.
    pub fn at_least(need: u32, members: impl IntoIterator<Item = Self>) -> Result<Self, RequestError> {
        Self::gate(members, |_| need)
    }

    fn gate(
        members: impl IntoIterator<Item = Self>,
        need: impl FnOnce(u32) -> u32,
    ) -> Result<Self, RequestError> {
        let mut nodes = vec![Node::Gate(Gate { need: 0, members: 0, end: 0, entangled: false })];
        let mut count = 0;
        for member in members {
            count += 1;
            nodes.extend(member.nodes);
        }
        nodes[0] = Node::Gate(Gate { need: need(count), members: count, end: 0, entangled: false });
        Self::from_nodes(nodes)
    }

    /// Builds a request from an untrusted array. All trees with gates from outside come through here.
    fn from_nodes(nodes: Vec<Node<R>>) -> Result<Self, RequestError> {
        let request = Self::assemble(nodes)?;
        request.entanglement().map(|()| request)
    }

    /// Computes the end and the entanglement of each gate. Rejects an array that is not a request.
    fn assemble(mut nodes: Vec<Node<R>>) -> Result<Self, RequestError> {
        close_gates(&mut nodes)?;
        let repeated = repeated_semaphores(&nodes)?;
        mark_entangled(&mut nodes, &repeated);
        Ok(Self { nodes })
    }

    /// Rejects a request that cannot be evaluated in bounded time.
    fn entanglement(&self) -> Result<(), RequestError> {
        if self.is_entangled() {
            let alternatives = self.entangled_alternatives();
            if alternatives > MAX_ENTANGLED_ALTERNATIVES {
                return Err(RequestError::Entangled { alternatives });
            }
        }
        Ok(())
    }

    /// Returns the number of alternatives that a search may have to try. A subtree without a repeated
    /// semaphore counts as one.
    fn entangled_alternatives(&self) -> u64 {
        let ways = |gate: &Gate, counts: &mut [u64]| match gate {
            Gate { entangled: false, .. } => 1,
            // For k < n, there are at least n ways to choose k of n. So this is over the limit without
            // counting.
            Gate { need, members, .. }
                if need < members && u64::from(*members) > MAX_ENTANGLED_ALTERNATIVES =>
            {
                u64::MAX
            }
            Gate { need, .. } => elementary_symmetric(*need, counts),
        };
        self.fold(|_| 1, ways)
    }
}

/// One entry of the preorder array.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node<R> {
    /// A leaf.
    Claim(Claim<R>),
    /// A threshold over the subtrees that follow it.
    Gate(Gate),
}

impl<R> Node<R> {
    fn claim(&self) -> Option<&Claim<R>> {
        match self {
            Self::Claim(claim) => Some(claim),
            Self::Gate(_) => None,
        }
    }

    fn is_entangled(&self) -> bool {
        matches!(self, Self::Gate(Gate { entangled: true, .. }))
    }
}

/// A threshold: `need` of `members`. Its subtree ends before the index `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Gate {
    pub(crate) need: u32,
    pub(crate) members: u32,
    pub(crate) end: u32,
    /// Whether the subtree names a semaphore that the request names twice.
    pub(crate) entangled: bool,
}

/// The serialised form, in preorder: a gate is followed by its members.
#[derive(Clone, Serialize, Deserialize)]
enum Token<R> {
    Claim(Claim<R>),
    Of { need: u32, members: u32 },
}

impl<R: Ord> TryFrom<Vec<Token<R>>> for Request<R> {
    type Error = RequestError;

    fn try_from(tokens: Vec<Token<R>>) -> Result<Self, RequestError> {
        let node = |token| match token {
            Token::Claim(claim) => Node::Claim(claim),
            Token::Of { need, members } => Node::Gate(Gate { need, members, end: 0, entangled: false }),
        };
        Self::from_nodes(tokens.into_iter().map(node).collect())
    }
}

impl<R> From<Request<R>> for Vec<Token<R>> {
    fn from(request: Request<R>) -> Self {
        let token = |node| match node {
            Node::Claim(claim) => Token::Claim(claim),
            Node::Gate(Gate { need, members, .. }) => Token::Of { need, members },
        };
        request.nodes.into_iter().map(token).collect()
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a group has no members"),
            Self::Threshold { need, members } => {
                write!(f, "{need} of {members} members is impossible: choose 1 to {members}")
            }
            Self::NoPermits => f.write_str("a request for 0 permits: request at least 1"),
            Self::LockAndSemaphore => f.write_str("a name is used both as a lock and as a semaphore"),
            Self::Entangled { alternatives } => {
                write!(f, "a semaphore occurs in {alternatives} alternatives: use it in one only")
            }
            Self::TooManyClaims { claims } => write!(f, "the request has too many names: {claims}"),
            Self::TooDeep { depth } => write!(f, "the request is nested too deeply: {depth} levels"),
            Self::TooManyTerms { terms } => {
                write!(f, "the request is too complex: its AND-OR form would have {terms} terms")
            }
            Self::Malformed => f.write_str("the encoded request is damaged: it ends too early or too late"),
        }
    }
}

impl core::error::Error for RequestError {}

/// Checks every node and computes the end of each gate, from right to left. At each gate, the ends of the
/// subtrees after it are on the stack, with the nearest on top.
fn close_gates<R>(nodes: &mut [Node<R>]) -> Result<(), RequestError> {
    let mut ends: Vec<u32> = Vec::new();
    for at in (0..nodes.len()).rev() {
        let end = match &mut nodes[at] {
            Node::Claim(Claim { demand: Demand::Permits(0), .. }) => return Err(RequestError::NoPermits),
            Node::Claim(_) => {
                u32::try_from(at + 1).map_err(|_| RequestError::TooManyClaims { claims: at })?
            }
            Node::Gate(Gate { members: 0, .. }) => return Err(RequestError::Empty),
            Node::Gate(gate) if gate.need == 0 || gate.need > gate.members => {
                return Err(RequestError::Threshold { need: gate.need, members: gate.members });
            }
            Node::Gate(gate) => {
                let members = gate.members as usize;
                let below = ends.len().checked_sub(members).ok_or(RequestError::Malformed)?;
                gate.end = ends[below];
                ends.truncate(below);
                gate.end
            }
        };
        ends.push(end);
    }
    if ends.len() == 1 { Ok(()) } else { Err(RequestError::Malformed) }
}

/// Returns the indices of the leaves whose semaphore is named more than once. Rejects a name that is both
/// lock and semaphore.
fn repeated_semaphores<R: Ord>(nodes: &[Node<R>]) -> Result<Vec<usize>, RequestError> {
    let mut leaves: Vec<(&Claim<R>, usize)> =
        nodes.iter().enumerate().filter_map(|(at, node)| Some((node.claim()?, at))).collect();
    leaves.sort_unstable();
    let mut repeated = Vec::new();
    for pair in leaves.windows(2) {
        let [(left, a), (right, b)] = [pair[0], pair[1]];
        if left.resource != right.resource {
            continue;
        }
        if left.demand.is_permits() != right.demand.is_permits() {
            return Err(RequestError::LockAndSemaphore);
        }
        if left.demand.is_permits() {
            repeated.extend([a, b]);
        }
    }
    repeated.sort_unstable();
    repeated.dedup();
    Ok(repeated)
}

/// Marks the gates whose subtree contains one of the `repeated` leaves.
fn mark_entangled<R>(nodes: &mut [Node<R>], repeated: &[usize]) {
    for (at, node) in nodes.iter_mut().enumerate() {
        if let Node::Gate(gate) = node {
            let next = repeated.partition_point(|&leaf| leaf < at);
            gate.entangled = repeated.get(next).is_some_and(|&leaf| leaf < gate.end as usize);
        }
    }
}

/// Returns the number of ways to choose `need` members, each in one of its ways (saturating). It is the sum,
/// over all subsets of size `need`, of the product of their counts. Only partial choices that can still be
/// completed are counted, so AND and OR take linear time.
fn elementary_symmetric(need: u32, counts: &[u64]) -> u64 {
    let need = need as usize;
    let spare = counts.len() - need;
    let mut ways = vec![0u64; need + 1];
    ways[0] = 1;
    for (at, &count) in counts.iter().enumerate() {
        for chosen in ((at + 1).saturating_sub(spare).max(1)..=need.min(at + 1)).rev() {
            ways[chosen] = ways[chosen].saturating_add(ways[chosen - 1].saturating_mul(count));
        }
    }
    ways[need]
}
