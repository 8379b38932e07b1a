//! Lock expressions: what a request asks for, as text and as a tree.
//!
//! ```text
//! expr   := and ('|' and)*                      & binds tighter than |
//! and    := atom ('&' atom)*
//! atom   := [INT 'of'] '(' expr (',' expr)* ')' [suffix]  |  NAME [suffix]
//! suffix := ':shared' | '*' INT
//! NAME   := segments [A-Za-z0-9_.-]+ joined by '/', an optional leading '/' is dropped;
//!           anything else in double quotes
//! ```
//!
//! **Intuition.** `src & dst` is both, `gpu0 | gpu1` the first that can be had, `2 of (a, b, c)` two
//! different ones.
//!
//! **Rules.** `:shared` on a group is distributed over its names and `*n` on a group is an error, so a tree
//! holds modes and counts at its leaves only. Groups that change nothing are dropped and nested `&` or `|`
//! are flattened: the tree *is* the canonical form, and printing it is one walk. Bounds: 64 names, groups 8
//! deep, 4 KiB, for what is typed and for what is printed back.
//!
//! **The trap.** Distribution lengthens: a text of just 4 KiB may have a canonical form of more. It is
//! refused when it is read, not when somebody else reads it back.
//!
//! Spans are kept at the leaves, so that a refusal by the service can point at the name; they are no part of
//! equality.

mod parse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Error, LockName};

pub use parse::ExprError;

/// The longest expression, in bytes.
pub const MAX_BYTES: usize = 4096;
/// The most names in an expression, counted with repetition.
pub const MAX_NAMES: usize = 64;
/// The deepest nesting of groups.
pub const MAX_DEPTH: usize = 8;

/// A lock expression, in canonical form and within bounds by construction.
///
/// ```
/// use conclave_api::Expr;
///
/// let expr: Expr = "/plan&(eu|us):shared & pool*3".parse().unwrap();
/// assert_eq!(expr.to_string(), "plan & (eu:shared | us:shared) & pool*3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expr(Node);

/// One place of the tree; [`Expr::node`] gives the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A name.
    Name(Leaf),
    /// Every member: `a & b`. Never empty, never an `All` directly inside.
    All(Vec<Node>),
    /// The first member that can be had: `a | b`. Never empty, never an `Any` directly inside.
    Any(Vec<Node>),
    /// This many different members: `2 of (a, b, c)`.
    AtLeast(u32, Vec<Node>),
}

/// A name with what is asked of it.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The lock or semaphore.
    pub name: LockName,
    /// What is asked of it.
    pub claim: Claim,
    /// Where the name stands in the text that was parsed, in bytes; no part of equality.
    pub span: Range<usize>,
}

/// What is asked of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Claim {
    /// `name`: alone; one permit, if the name is a semaphore.
    Exclusive,
    /// `name:shared`.
    Shared,
    /// `name*n`: n permits of a semaphore, at least one.
    Permits(u32),
}

impl Expr {
    /// A single name, exclusive.
    pub fn name(name: LockName) -> Self {
        Self(Node::Name(Leaf { name, claim: Claim::Exclusive, span: 0..0 }))
    }

    /// The tree.
    pub fn node(&self) -> &Node {
        &self.0
    }

    /// The leaves, from the left; a name occurs as often as it was written.
    pub fn leaves(&self) -> Vec<&Leaf> {
        let mut leaves = Vec::new();
        self.0.collect_leaves(&mut leaves);
        leaves
    }

    /// The name, when the expression asks for one name alone.
    pub fn as_single(&self) -> Option<&Leaf> {
        match &self.0 {
            Node::Name(leaf) => Some(leaf),
            _ => None,
        }
    }
}

/// The names of an expression, each once, in the order of the text.
///
/// A text that is no expression and contains no operator is a single name, such as `my lock`.
///
/// # Errors
/// [`Code::InvalidExpression`](crate::Code::InvalidExpression) or
/// [`Code::InvalidName`](crate::Code::InvalidName).
pub fn names_in(text: &str) -> Result<Vec<LockName>, Error> {
    let expr: Expr = match text.parse() {
        Ok(expr) => expr,
        Err(error) if text.contains(['&', '|', '(', ')', ',', '"']) => return Err(error.into()),
        Err(_) => return Ok(vec![LockName::new(text)?]),
    };
    let mut names: Vec<LockName> = Vec::new();
    for leaf in expr.leaves() {
        if !names.contains(&leaf.name) {
            names.push(leaf.name.clone());
        }
    }
    Ok(names)
}

impl Node {
    fn collect_leaves<'a>(&'a self, leaves: &mut Vec<&'a Leaf>) {
        match self {
            Self::Name(leaf) => leaves.push(leaf),
            Self::All(members) | Self::Any(members) | Self::AtLeast(_, members) => {
                members.iter().for_each(|member| member.collect_leaves(leaves));
            }
        }
    }
}

impl PartialEq for Leaf {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.claim == other.claim
    }
}

impl Eq for Leaf {}

impl std::hash::Hash for Leaf {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.claim.hash(state);
    }
}

impl FromStr for Expr {
    type Err = ExprError;

    fn from_str(text: &str) -> Result<Self, ExprError> {
        parse::parse(text)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(leaf) => leaf.fmt(f),
            Self::All(members) => separated(f, " & ", members, |f, member| match member {
                Self::Any(_) => write!(f, "({member})"),
                _ => member.fmt(f),
            }),
            Self::Any(members) => separated(f, " | ", members, |f, member| member.fmt(f)),
            Self::AtLeast(count, members) => {
                write!(f, "{count} of (")?;
                separated(f, ", ", members, |f, member| member.fmt(f))?;
                f.write_str(")")
            }
        }
    }
}

fn separated(
    f: &mut fmt::Formatter<'_>,
    separator: &str,
    members: &[Node],
    each: impl Fn(&mut fmt::Formatter<'_>, &Node) -> fmt::Result,
) -> fmt::Result {
    for (i, member) in members.iter().enumerate() {
        if i > 0 {
            f.write_str(separator)?;
        }
        each(f, member)?;
    }
    Ok(())
}

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.claim)
    }
}

/// Prints the suffix.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => Ok(()),
            Self::Shared => f.write_str(":shared"),
            Self::Permits(count) => write!(f, "*{count}"),
        }
    }
}

/// As its canonical text: whoever reads it back has checked it.
impl Serialize for Expr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Node::Name(Leaf { name, claim: Claim::Exclusive, .. }) if name.is_bare() => {
                serializer.serialize_str(name.as_str())
            }
            _ => serializer.serialize_str(&self.to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Expr;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a lock expression")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Expr, E> {
                parse::parse(text).map_err(|error| E::custom(error.message()))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}
