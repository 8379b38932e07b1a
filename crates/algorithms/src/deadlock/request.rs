//! One request type for every model of the theory: single resource, AND, OR, AND-OR, p-out-of-q.
//!
//! **Intuition.** A request is a tree of thresholds. A leaf claims one resource (a lock in a mode, or permits of
//! a semaphore); a gate is satisfied when at least `need` of its members are. `a & b` is "2 of 2", `a | b` is "1 of
//! 2", so AND, OR and p-out-of-q are one gate with three spellings, and nesting them gives AND-OR of any depth.
//!
//! **Rules.**
//! - The choice is leftmost-first and minimal: a gate takes its first satisfiable members and nothing beyond `need`.
//! - A name twice in the chosen set: modes merge to the stronger, permits add.
//! - A name is a lock or a semaphore, never both in one request.
//!
//! **The trap.** Because permits *add*, members can stand in each other's way: with three permits free,
//! `(pool*2 | x) & pool*2` is satisfied by `x & pool*2` only, and a greedy reader that takes the first alternative
//! of the left group waits for ever. Modes do not interfere (the stronger is available exactly when both are), so
//! the search below backtracks only into subtrees that name a semaphore twice (*entangled* ones), and a request
//! with too many such alternatives is refused when it is built: evaluation is linear otherwise, and bounded always.
//!
//! **Shape.** The tree is one flat array in preorder; a gate knows where its subtree ends. A bottom-up pass is the
//! array read backwards with a stack of results (`Request::fold`): no recursion, no boxes.

mod convert;
mod satisfy;
#[cfg(test)]
pub(crate) mod tests;

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

pub use convert::Term;

/// What is asked of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Demand {
    /// A lock, together with others who share it.
    Shared,
    /// A lock, alone.
    Exclusive,
    /// This many permits of a semaphore, at least one.
    Permits(u32),
}

impl Demand {
    /// Both demands at once: the stronger mode, or the sum of the permits (saturating).
    ///
    /// `None` when one asks for a lock and the other for permits: a name is one or the other.
    pub fn and(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Permits(a), Self::Permits(b)) => Some(Self::Permits(a.saturating_add(b))),
            _ => self.or(other),
        }
    }

    /// The larger of two demands of which only one will be made; `None` for a lock against permits.
    pub fn or(self, other: Self) -> Option<Self> {
        (self.is_permits() == other.is_permits()).then(|| self.max(other))
    }

    /// Whether this asks for permits of a semaphore rather than for a lock.
    pub const fn is_permits(self) -> bool {
        matches!(self, Self::Permits(_))
    }
}

/// A leaf of a request: one resource and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Claim<R> {
    /// Which resource.
    pub resource: R,
    /// What is asked of it.
    pub demand: Demand,
}

/// A request for resources named `R`, in any model; immutable, valid by construction.
///
/// ```
/// use conclave_algorithms::deadlock::{Claim, Demand, Request};
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
    /// Preorder; never empty.
    nodes: Vec<Node<R>>,
}

/// How large a request may be; [`Request::check`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Leaves, counted with repetition.
    pub claims: usize,
    /// Gates above the deepest leaf.
    pub depth: usize,
}

impl Limits {
    /// What a lock service accepts from outside: 64 names, depth 8.
    pub const SERVICE: Self = Self { claims: 64, depth: 8 };
}

/// Alternatives an *entangled* request (one that names a semaphore twice) may have: its evaluation may have to
/// try them all. Requests without such a repetition are evaluated in linear time and have no such bound.
pub const MAX_ENTANGLED_ALTERNATIVES: u64 = 10_000;

/// Why a request was refused. Nothing was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RequestError {
    /// A gate without members.
    Empty,
    /// "k of n" with k = 0 or k > n.
    Threshold {
        /// The k that was asked.
        need: u32,
        /// The n there are.
        members: u32,
    },
    /// Zero permits.
    NoPermits,
    /// One name both as a lock and as a semaphore.
    LockAndSemaphore,
    /// One semaphore named in too many alternatives to search: more than [`MAX_ENTANGLED_ALTERNATIVES`].
    Entangled {
        /// How many there are (saturating).
        alternatives: u64,
    },
    /// More leaves than allowed.
    TooManyClaims {
        /// How many there are.
        claims: usize,
    },
    /// Deeper than allowed.
    TooDeep {
        /// How deep it is.
        depth: usize,
    },
    /// The AND-OR form would have more terms than allowed.
    TooManyTerms {
        /// How many there would be (saturating).
        terms: u64,
    },
    /// A serialised request that is no tree: it ends too early or too late.
    Malformed,
}

impl<R> Request<R> {
    /// The lock `resource`, alone.
    pub fn exclusive(resource: R) -> Self {
        Self::leaf(Claim { resource, demand: Demand::Exclusive })
    }

    /// The lock `resource`, shared.
    pub fn shared(resource: R) -> Self {
        Self::leaf(Claim { resource, demand: Demand::Shared })
    }

    /// `count` permits of the semaphore `resource`.
    ///
    /// # Errors
    /// [`RequestError::NoPermits`] for a count of zero.
    pub fn permits(resource: R, count: u32) -> Result<Self, RequestError> {
        Self::one(Claim { resource, demand: Demand::Permits(count) })
    }

    /// One claim: the single-resource model.
    ///
    /// # Errors
    /// [`RequestError::NoPermits`] for zero permits.
    pub fn one(claim: Claim<R>) -> Result<Self, RequestError> {
        if claim.demand == Demand::Permits(0) { Err(RequestError::NoPermits) } else { Ok(Self::leaf(claim)) }
    }

    fn leaf(claim: Claim<R>) -> Self {
        Self { nodes: vec![Node::Claim(claim)] }
    }

    /// Every claim, leftmost first; a name occurs as often as it was written.
    pub fn claims(&self) -> impl Iterator<Item = &Claim<R>> {
        self.nodes.iter().filter_map(Node::claim)
    }

    /// Every name, leftmost first; as often as it was written.
    pub fn names(&self) -> impl Iterator<Item = &R> {
        self.claims().map(|claim| &claim.resource)
    }

    /// The claim, when the request is for a single resource.
    pub fn as_single(&self) -> Option<&Claim<R>> {
        self.nodes[0].claim()
    }

    /// Whether some semaphore is named more than once, so that alternatives can stand in each other's way.
    pub fn is_entangled(&self) -> bool {
        self.nodes[0].is_entangled()
    }

    /// Gates above the deepest leaf: zero for a single claim.
    pub fn depth(&self) -> usize {
        self.fold(|_| 0, |_, depths| 1 + depths.iter().max().copied().unwrap_or(0))
    }

    /// Compares with `limits`.
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

    /// In how many ways the request can be satisfied: the terms of its AND-OR form before equal ones are merged
    /// (saturating). Ten of twenty has 184,756.
    pub fn alternatives(&self) -> u64 {
        self.fold(|_| 1, |gate, counts| elementary_symmetric(gate.need, counts))
    }

    /// The same request over other names, as a service does when it looks names up.
    ///
    /// # Errors
    /// As [`Request::at_least`]: two names may have become one.
    pub fn map<S: Ord>(self, mut name: impl FnMut(R) -> S) -> Result<Request<S>, RequestError> {
        let rename = |node| match node {
            Node::Claim(Claim { resource, demand }) => {
                Node::Claim(Claim { resource: name(resource), demand })
            }
            Node::Gate(gate) => Node::Gate(gate),
        };
        Request::from_nodes(self.nodes.into_iter().map(rename).collect())
    }

    /// Bottom-up evaluation: `leaf` values the claims, `gate` combines the values of its members (leftmost
    /// first). The array is read backwards, so that the members of a gate lie on top of the stack when it comes.
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

    /// The members of the outermost gate; none for a single claim.
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

    /// The preorder array, for those who walk it themselves.
    pub(crate) fn nodes(&self) -> &[Node<R>] {
        &self.nodes
    }
}

impl<R: Ord> Request<R> {
    /// All members: AND.
    ///
    /// # Errors
    /// As [`Request::at_least`].
    pub fn all(members: impl IntoIterator<Item = Self>) -> Result<Self, RequestError> {
        Self::gate(members, |members| members)
    }

    /// Any one member: OR.
    ///
    /// # Errors
    /// As [`Request::at_least`].
    pub fn any(members: impl IntoIterator<Item = Self>) -> Result<Self, RequestError> {
        Self::gate(members, |_| 1)
    }

    /// At least `need` different members: p-out-of-q.
    ///
    /// # Errors
    /// No members, a threshold nobody can reach or that asks nothing, a name that is both lock and semaphore,
    /// or a semaphore repeated in more than [`MAX_ENTANGLED_ALTERNATIVES`] alternatives.
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

    /// The one door through which a tree with gates comes in from outside.
    fn from_nodes(nodes: Vec<Node<R>>) -> Result<Self, RequestError> {
        let request = Self::assemble(nodes)?;
        request.entanglement().map(|()| request)
    }

    /// Computes the ends and the entanglement of the gates, and refuses what is no request.
    fn assemble(mut nodes: Vec<Node<R>>) -> Result<Self, RequestError> {
        close_gates(&mut nodes)?;
        let repeated = repeated_semaphores(&nodes)?;
        mark_entangled(&mut nodes, &repeated);
        Ok(Self { nodes })
    }

    /// Refuses what could not be evaluated in bounded time.
    fn entanglement(&self) -> Result<(), RequestError> {
        if self.is_entangled() {
            let alternatives = self.entangled_alternatives();
            if alternatives > MAX_ENTANGLED_ALTERNATIVES {
                return Err(RequestError::Entangled { alternatives });
            }
        }
        Ok(())
    }

    /// The alternatives a search may have to try: subtrees without a repeated semaphore count as one.
    fn entangled_alternatives(&self) -> u64 {
        let ways = |gate: &Gate, counts: &mut [u64]| match gate {
            Gate { entangled: false, .. } => 1,
            // Choosing k < n of n can be done in at least n ways: over the bound without counting.
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

/// One place of the preorder array.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node<R> {
    /// A leaf.
    Claim(Claim<R>),
    /// A threshold over the subtrees that follow.
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

/// `need` of `members`; the subtree stretches to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Gate {
    pub(crate) need: u32,
    pub(crate) members: u32,
    pub(crate) end: u32,
    /// A semaphore that the request names twice is named in here.
    pub(crate) entangled: bool,
}

/// The serialised form: preorder, a gate followed by its members.
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
            Self::Empty => f.write_str("a group without members"),
            Self::Threshold { need, members } => write!(f, "{need} of {members} members can never be chosen"),
            Self::NoPermits => f.write_str("zero permits"),
            Self::LockAndSemaphore => f.write_str("one name both as a lock and as a semaphore"),
            Self::Entangled { alternatives } => write!(f, "one semaphore in {alternatives} alternatives"),
            Self::TooManyClaims { claims } => write!(f, "{claims} names are too many"),
            Self::TooDeep { depth } => write!(f, "{depth} levels are too deep"),
            Self::TooManyTerms { terms } => write!(f, "the AND-OR form would have {terms} terms"),
            Self::Malformed => f.write_str("not a request: it ends too early or too late"),
        }
    }
}

impl core::error::Error for RequestError {}

/// Checks every node and computes where each gate ends, from the right: when a gate comes, the subtrees after
/// it are closed and on the stack, the nearest on top.
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

/// The leaves (by place) whose semaphore is named again elsewhere; refuses a name of both kinds.
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

/// Marks the gates that have one of the `repeated` leaves below them: those whose range holds one.
fn mark_entangled<R>(nodes: &mut [Node<R>], repeated: &[usize]) {
    for (at, node) in nodes.iter_mut().enumerate() {
        if let Node::Gate(gate) = node {
            let next = repeated.partition_point(|&leaf| leaf < at);
            gate.entangled = repeated.get(next).is_some_and(|&leaf| leaf < gate.end as usize);
        }
    }
}

/// The sum over all `need`-subsets of the product of their counts: ways to choose that many members, each in
/// one of its ways (saturating). Only the partial choices that can still be completed are counted, so that AND and
/// OR are linear.
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
