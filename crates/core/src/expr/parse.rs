//! The parser of expressions: recursive descent over at most [`MAX_DEPTH`] groups. Errors point at the
//! character.

use std::fmt;
use std::ops::Range;

use super::{Claim, Expr, Leaf, MAX_BYTES, MAX_DEPTH, MAX_NAMES, Node};
use crate::LockName;
use crate::name::is_bare;

/// The reason why a text is not an expression, and the place. It prints the text with a caret below the
/// place:
///
/// ```
/// let error = "a & | b".parse::<conclave_core::Expr>().unwrap_err();
/// assert_eq!(error.to_string(), "expected a name or a group, found '|'\n  a & | b\n      ^");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExprError {
    message: String,
    span: Range<usize>,
    /// The part of the text to print, on one line and without control characters.
    excerpt: String,
    /// The position and the width of the caret below the excerpt, in characters.
    caret: Range<usize>,
}

impl ExprError {
    /// The reason, in one line.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The place in the text, in bytes.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    pub(super) fn new(text: &str, span: Range<usize>, message: String) -> Self {
        /// The number of characters printed on each side of the place.
        const AROUND: usize = 60;
        let (before, rest) = text.split_at(span.start);
        let skip = before.chars().count().saturating_sub(AROUND);
        let shown = |c: char| if c.is_control() { ' ' } else { c };
        let mut excerpt = String::from(if skip > 0 { "..." } else { "" });
        excerpt.extend(before.chars().skip(skip).map(shown));
        let start = excerpt.chars().count();
        excerpt.extend(rest.chars().take(AROUND).map(shown));
        if rest.chars().nth(AROUND).is_some() {
            excerpt.push_str("...");
        }
        let width = text[span.clone()].chars().count().clamp(1, AROUND);
        Self { message, span, excerpt, caret: start..start + width }
    }
}

impl fmt::Display for ExprError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.message)?;
        writeln!(f, "  {}", self.excerpt)?;
        let (indent, carets) = (self.caret.start + 2, self.caret.len());
        write!(f, "{:indent$}{:^<carets$}", "", "")
    }
}

impl std::error::Error for ExprError {}

pub(super) fn parse(text: &str) -> Result<Expr, ExprError> {
    if text.len() > MAX_BYTES {
        let end = (0..=MAX_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let message = format!("an expression has at most {MAX_BYTES} bytes, and this one has {}", text.len());
        return Err(ExprError::new(&text[..end], end..end, message));
    }
    let mut parser = Parser { text, at: 0, names: 0, depth: 0 };
    let node = parser.expr()?;
    parser.skip_space();
    if parser.at < text.len() {
        let span = parser.here();
        let hint = if parser.peek() == Some(b',') {
            "a list with a comma needs a threshold: '2 of (a, b, c)'".into()
        } else {
            format!("expected '&', '|' or the end, found {}", parser.found())
        };
        return Err(parser.error(span, hint));
    }
    let expr = Expr(node);
    // Printing adds at most a space for each threshold, and quotes, ":shared" and two spaces for each name.
    // So a text of at most half the bound cannot exceed it.
    if text.len() > MAX_BYTES / 2 && expr.to_string().len() > MAX_BYTES {
        let message = format!("its canonical form has more than {MAX_BYTES} bytes");
        return Err(ExprError::new(text, 0..text.len(), message));
    }
    Ok(expr)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    names: usize,
    depth: usize,
}

impl Parser<'_> {
    fn expr(&mut self) -> Result<Node, ExprError> {
        let first = self.and()?;
        if !self.eat(b'|') {
            return Ok(first);
        }
        let mut members = Vec::new();
        flatten_any(&mut members, first);
        loop {
            let next = self.and()?;
            flatten_any(&mut members, next);
            if !self.eat(b'|') {
                return Ok(Node::Any(members));
            }
        }
    }

    fn and(&mut self) -> Result<Node, ExprError> {
        let first = self.atom()?;
        if !self.eat(b'&') {
            return Ok(first);
        }
        let mut members = Vec::new();
        flatten_all(&mut members, first);
        loop {
            let next = self.atom()?;
            flatten_all(&mut members, next);
            if !self.eat(b'&') {
                return Ok(Node::All(members));
            }
        }
    }

    fn atom(&mut self) -> Result<Node, ExprError> {
        self.skip_space();
        match self.peek() {
            Some(b'(') => self.group(None),
            Some(b'"') => self.quoted(),
            Some(byte) if is_bare(byte) || byte == b'/' => self.bare(),
            _ => {
                let message = format!("expected a name or a group, found {}", self.found());
                Err(self.error(self.here(), message))
            }
        }
    }

    /// Parses `( expr, ... ) [:shared]`, with the threshold before it.
    fn group(&mut self, threshold: Option<(u32, Range<usize>)>) -> Result<Node, ExprError> {
        let open = self.at;
        if self.depth == MAX_DEPTH {
            return Err(self.error(self.here(), format!("groups are nested at most {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        self.at += 1;
        let mut members = vec![self.expr()?];
        while self.peek_token() == Some(b',') {
            if threshold.is_none() {
                let message = "a list with a comma needs a threshold: '2 of (a, b, c)'".into();
                return Err(self.error(self.here(), message));
            }
            self.at += 1;
            members.push(self.expr()?);
        }
        if !self.eat(b')') {
            let message = match self.peek() {
                None => "this group is never closed: expected ')'".into(),
                Some(_) => format!("expected '&', '|' or ')', found {}", self.found()),
            };
            let span = if self.peek().is_none() { open..open + 1 } else { self.here() };
            return Err(self.error(span, message));
        }
        self.depth -= 1;
        let mut node = match threshold {
            None => members.pop().expect("a group has at least one member"),
            Some((count, span)) => {
                if count == 0 || count as usize > members.len() {
                    let message = format!(
                        "{count} of {} can never hold: the threshold is 1 to the number \
                        of members",
                        members.len()
                    );
                    return Err(self.error(span, message));
                }
                Node::AtLeast(count, members)
            }
        };
        self.group_suffix(&mut node)?;
        Ok(node)
    }

    fn group_suffix(&mut self, node: &mut Node) -> Result<(), ExprError> {
        self.skip_space();
        let start = self.at;
        match self.suffix()? {
            Claim::Exclusive => Ok(()),
            Claim::Permits(_) => {
                Err(self.error(start..self.at, "'*' counts permits of one name, not of a group".into()))
            }
            Claim::Shared => match share(node) {
                Ok(()) => Ok(()),
                Err(name) => {
                    let message = format!("permits cannot be shared: {name} is counted inside this group");
                    Err(self.error(start..self.at, message))
                }
            },
        }
    }

    /// Parses a name without quotes, or the number before `of`.
    fn bare(&mut self) -> Result<Node, ExprError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| is_bare(byte) || byte == b'/') {
            self.at += 1;
        }
        let span = start..self.at;
        let word = &self.text[span.clone()];
        if word.bytes().all(|byte| byte.is_ascii_digit()) && self.eat_of() {
            let Ok(count) = word.parse() else {
                return Err(self.error(span, "this threshold is too large".into()));
            };
            if self.peek_token() != Some(b'(') {
                let message = format!("expected '(' after '{word} of', found {}", self.found());
                return Err(self.error(self.here(), message));
            }
            return self.group(Some((count, span)));
        }
        let name = LockName::new(word).map_err(|error| self.error(span.clone(), error.to_string()))?;
        self.leaf(name, span)
    }

    fn quoted(&mut self) -> Result<Node, ExprError> {
        let start = self.at;
        self.at += 1;
        let mut name = String::new();
        loop {
            let Some(c) = self.text[self.at..].chars().next() else {
                return Err(self.error(start..start + 1, "this quote is never closed".into()));
            };
            match c {
                '"' => break,
                '\\' => match self.text[self.at + 1..].chars().next() {
                    Some(escaped @ ('"' | '\\')) => {
                        name.push(escaped);
                        self.at += 2;
                    }
                    _ => {
                        let message = "in quotes, '\\' stands before '\"' or '\\' only".into();
                        return Err(self.error(self.here(), message));
                    }
                },
                _ => {
                    name.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
        self.at += 1;
        let span = start..self.at;
        let name = LockName::new(&name).map_err(|error| self.error(span.clone(), error.to_string()))?;
        self.leaf(name, span)
    }

    fn leaf(&mut self, name: LockName, span: Range<usize>) -> Result<Node, ExprError> {
        self.names += 1;
        if self.names > MAX_NAMES {
            return Err(self.error(span, format!("an expression has at most {MAX_NAMES} names")));
        }
        let claim = self.suffix()?;
        Ok(Node::Name(Leaf { name, claim, span }))
    }

    /// Parses `:shared`, `*n`, or nothing.
    fn suffix(&mut self) -> Result<Claim, ExprError> {
        if self.eat(b':') {
            let start = self.at;
            let word = self.word();
            if word == "shared" {
                return Ok(Claim::Shared);
            }
            return Err(self.error(start - 1..start + word.len(), "the only mode is ':shared'".into()));
        }
        if self.eat(b'*') {
            self.skip_space();
            let start = self.at;
            let word = self.word();
            self.at = start + word.len();
            return match word.parse() {
                Ok(count) if count > 0 && word.bytes().all(|byte| byte.is_ascii_digit()) => {
                    Ok(Claim::Permits(count))
                }
                _ => {
                    let span = if word.is_empty() { self.here() } else { start..self.at };
                    Err(self.error(span, format!("'*' takes a number of permits, 1 to {}", u32::MAX)))
                }
            };
        }
        Ok(Claim::Exclusive)
    }

    /// Consumes the word without quotes that starts here.
    fn word(&mut self) -> String {
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(|byte| is_bare(*byte)).count();
        self.at += len;
        rest[..len].to_owned()
    }

    /// Consumes the word `of` if it is next.
    fn eat_of(&mut self) -> bool {
        let rest = self.text[self.at..].trim_start();
        let follows = rest.strip_prefix("of").map(|rest| rest.bytes().next());
        let is_word = match follows {
            None => false,
            Some(None) => true,
            Some(Some(byte)) => !is_bare(byte) && byte != b'/',
        };
        if is_word {
            self.at = self.text.len() - rest.len() + 2;
        }
        is_word
    }

    /// Consumes `byte` if it is next, after spaces.
    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek_token() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn peek_token(&mut self) -> Option<u8> {
        self.skip_space();
        self.peek()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// The range of the character here; empty at the end.
    fn here(&self) -> Range<usize> {
        let width = self.text[self.at..].chars().next().map_or(0, char::len_utf8);
        self.at..self.at + width
    }

    fn found(&self) -> String {
        match self.text[self.at..].chars().next() {
            None => "the end".into(),
            Some('"') => "a quoted name".into(),
            Some(c) => format!("{c:?}"),
        }
    }

    fn error(&self, span: Range<usize>, message: String) -> ExprError {
        ExprError::new(self.text, span, message)
    }
}

fn flatten_any(members: &mut Vec<Node>, node: Node) {
    match node {
        Node::Any(inner) => members.extend(inner),
        other => members.push(other),
    }
}

fn flatten_all(members: &mut Vec<Node>, node: Node) {
    match node {
        Node::All(inner) => members.extend(inner),
        other => members.push(other),
    }
}

/// Distributes `:shared` over the names of a group. Returns the name of a leaf with permits as the error.
pub(super) fn share(node: &mut Node) -> Result<(), LockName> {
    match node {
        Node::Name(Leaf { claim: Claim::Permits(_), name, .. }) => Err(name.clone()),
        Node::Name(leaf) => {
            leaf.claim = Claim::Shared;
            Ok(())
        }
        Node::All(members) | Node::Any(members) | Node::AtLeast(_, members) => {
            members.iter_mut().try_for_each(share)
        }
    }
}
