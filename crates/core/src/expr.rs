//! Lock expressions: the names that a request acquires, as text and as a tree.
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
//! **Intuition.** `src & dst` means both, `gpu0 | gpu1` the first that is available, `2 of (a, b, c)` two
//! different ones.
//!
//! **Rules.** `:shared` on a group applies to each of its names, and `*n` on a group is an error. So only the
//! leaves of a tree have modes and counts. Groups without an effect are dropped, and nested `&` or `|` are
//! flattened. The tree *is* the canonical form, and one walk prints it. Bounds: 64 names, groups 8 deep, 4
//! KiB; they apply to the text and to its canonical form.
//!
//! **Trap.** A text of almost 4 KiB has a group with `:shared`. In the canonical form each name has its own
//! `:shared`, so that form is longer than 4 KiB. A node that reads it back from the log would reject it. So
//! the parser rejects the text at once.
//!
//! Leaves keep their spans, so that an error of the service can point at the name. Spans do not take part in
//! comparisons.

mod parse;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Error, LockName};

pub use parse::ExprError;

/// The longest expression, in bytes. A longer one is rejected.
pub const MAX_BYTES: usize = 4096;
/// The maximum number of names, with repetitions. One more is rejected.
pub const MAX_NAMES: usize = 64;
/// The deepest nesting of groups. A deeper one is rejected.
pub const MAX_DEPTH: usize = 8;

/// A lock expression, always in canonical form and within its bounds.
///
/// ```
/// use conclave_core::Expr;
///
/// let expr: Expr = "/plan&(eu|us):shared & pool*3".parse().unwrap();
/// assert_eq!(expr.to_string(), "plan & (eu:shared | us:shared) & pool*3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expr(Node);

/// A node of the tree; [`Expr::node`] returns the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// One name.
    Name(Leaf),
    /// All members: `a & b`. Never empty, and never with an `All` as a direct member.
    All(Vec<Node>),
    /// The first available member: `a | b`. Never empty, and never with an `Any` as a direct member.
    Any(Vec<Node>),
    /// This many different members: `2 of (a, b, c)`.
    AtLeast(u32, Vec<Node>),
}

/// A name with its claim.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The name of the lock or semaphore.
    pub name: LockName,
    /// The mode or the number of permits.
    pub claim: Claim,
    /// The place of the name in the parsed text, in bytes. Comparisons ignore it.
    pub span: Range<usize>,
}

/// The mode in which a name is requested or held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Claim {
    /// `name`: exclusive. One permit, if the name is a semaphore.
    #[default]
    Exclusive,
    /// `name:shared`.
    Shared,
    /// `name*n`: n permits of a semaphore, at least one.
    Permits(u32),
}

impl Expr {
    /// An expression of one name, exclusive.
    pub fn name(name: LockName) -> Self {
        Self(Node::Name(Leaf { name, claim: Claim::Exclusive, span: 0..0 }))
    }

    /// An expression of some permits of one semaphore.
    pub fn permits(name: LockName, count: NonZeroU32) -> Self {
        Self(Node::Name(Leaf { name, claim: Claim::Permits(count.get()), span: 0..0 }))
    }

    /// Makes every name of the expression shared, as `(...):shared` does.
    ///
    /// # Errors
    /// A name has permits, or the result is longer than [`MAX_BYTES`].
    pub fn into_shared(mut self) -> Result<Self, ExprError> {
        let shared = parse::share(&mut self.0);
        let text = self.to_string();
        let message = match shared {
            Err(name) => format!("permits cannot be shared: {name} has a count"),
            Ok(()) if text.len() > MAX_BYTES => {
                format!("with every name shared, this has more than {MAX_BYTES} bytes")
            }
            Ok(()) => return Ok(self),
        };
        Err(ExprError::new(&text, 0..text.len(), message))
    }

    /// The root of the tree.
    pub fn node(&self) -> &Node {
        &self.0
    }

    /// The canonical text, without an allocation if the expression is a single plain name.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Node::Name(Leaf { name, claim: Claim::Exclusive, .. }) if name.is_bare() => {
                Cow::Borrowed(name.as_str())
            }
            _ => Cow::Owned(self.to_string()),
        }
    }

    /// The leaves, from left to right, with repetitions.
    pub fn leaves(&self) -> Vec<&Leaf> {
        let mut leaves = Vec::new();
        self.0.collect_leaves(&mut leaves);
        leaves
    }

    /// The leaf, if the expression is a single name.
    pub fn as_single(&self) -> Option<&Leaf> {
        match &self.0 {
            Node::Name(leaf) => Some(leaf),
            _ => None,
        }
    }
}

/// Returns the names of an expression, each once, in the order of the text.
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

impl TryFrom<&str> for Expr {
    type Error = ExprError;

    fn try_from(text: &str) -> Result<Self, ExprError> {
        parse::parse(text)
    }
}

impl TryFrom<String> for Expr {
    type Error = ExprError;

    fn try_from(text: String) -> Result<Self, ExprError> {
        parse::parse(&text)
    }
}

impl TryFrom<&String> for Expr {
    type Error = ExprError;

    fn try_from(text: &String) -> Result<Self, ExprError> {
        parse::parse(text)
    }
}

impl From<LockName> for Expr {
    fn from(name: LockName) -> Self {
        Self::name(name)
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

/// Prints the suffix of the claim.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => Ok(()),
            Self::Shared => f.write_str(":shared"),
            Self::Permits(count) => write!(f, "*{count}"),
        }
    }
}

/// Writes the canonical text, which always parses again.
impl Serialize for Expr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
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
