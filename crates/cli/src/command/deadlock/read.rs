//! The two forms of a wait-for file, and errors that point at line and column.
//!
//! Both forms come to the same statements, which are carried out in two rounds: semaphores first, because whether
//! `pool` in a request is a lock or a permit depends on a line that may come later.

use std::fmt;

use conclave_algorithms::deadlock::{Claim, Demand};
use conclave_api::expr::{self, Expr, ExprError};
use conclave_lab::rooms::deadlock::Standing;
use conclave_lab::rooms::deadlock::standing::{Process, Refusal, Resource, Target, Wish};
use serde::Deserialize;
use serde_json::value::RawValue;

/// What is wrong with a file, and where: `3:12: what`.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadError {
    line: usize,
    column: usize,
    message: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Reads a file in either form: JSON lines if the first line that is not empty begins with a brace.
pub fn read(text: &str) -> Result<Standing, ReadError> {
    let is_json = text.trim_start().starts_with('{');
    let mut statements = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let at = Line { number, text: line };
        if is_json { at.json(&mut statements)? } else { at.statement(&mut statements)? }
    }
    let mut reader = Reader { standing: Standing::new() };
    for statement in statements.iter().filter(|statement| matches!(statement.what, What::Permits(_))) {
        reader.carry_out(statement)?;
    }
    for statement in statements.iter().filter(|statement| !matches!(statement.what, What::Permits(_))) {
        reader.carry_out(statement)?;
    }
    Ok(reader.standing)
}

struct Statement<'t> {
    line: Line<'t>,
    subject: String,
    what: What,
    /// Where the object of the statement begins, in bytes of the line.
    at: usize,
}

enum What {
    Exists,
    Permits(u32),
    Priority(i64),
    Since(i64),
    Holds { leaf: Expr, perhaps: bool },
    Waits(Expr),
    WaitsFor(Expr),
}

#[derive(Clone, Copy)]
struct Line<'t> {
    number: usize,
    text: &'t str,
}

/// An object of the JSON form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object<'t> {
    process: Option<String>,
    #[serde(borrow, default)]
    holds: Vec<&'t RawValue>,
    #[serde(borrow, default)]
    perhaps_holds: Vec<&'t RawValue>,
    #[serde(borrow)]
    waits: Option<&'t RawValue>,
    #[serde(borrow)]
    waits_for: Option<&'t RawValue>,
    priority: Option<i64>,
    since: Option<i64>,
    semaphore: Option<String>,
    permits: Option<u32>,
}

impl<'t> Line<'t> {
    /// The error at a byte of the line; columns count characters.
    fn error(self, at: usize, message: impl Into<String>) -> ReadError {
        let before = self.text.get(..at).unwrap_or(self.text);
        ReadError { line: self.number, column: before.chars().count() + 1, message: message.into() }
    }

    fn push(self, statements: &mut Vec<Statement<'t>>, subject: &str, at: usize, what: What) {
        statements.push(Statement { line: self, subject: subject.to_owned(), what, at });
    }

    fn statement(self, statements: &mut Vec<Statement<'t>>) -> Result<(), ReadError> {
        let text = &self.text[..comment(self.text)];
        let Some(begin) = text.find(|c: char| !c.is_whitespace()) else { return Ok(()) };
        let subject_end = begin + word(&text[begin..]);
        let subject = self.name(begin, &text[begin..subject_end])?;
        let verb_at = subject_end + spaces(&text[subject_end..]);
        let mut verb_end = verb_at + word(&text[verb_at..]);
        let mut verb = &text[verb_at..verb_end];
        let perhaps = verb == "perhaps";
        if perhaps {
            let next = verb_end + spaces(&text[verb_end..]);
            verb_end = next + word(&text[next..]);
            verb = &text[next..verb_end];
        }
        let at = verb_end + spaces(&text[verb_end..]);
        let object = text[at..].trim_end();
        let what = match verb {
            "holds" => {
                for (offset, leaf) in listed(object) {
                    let leaf = self.leaf(at + offset, leaf)?;
                    self.push(statements, &subject, at + offset, What::Holds { leaf, perhaps });
                }
                return Ok(());
            }
            _ if perhaps => return Err(self.error(verb_at, "expected 'perhaps holds'")),
            "->" => What::WaitsFor(self.expression(at, object)?),
            "waits" => What::Waits(self.expression(at, object)?),
            "priority" => What::Priority(self.number(at, object)?),
            "since" => What::Since(self.number(at, object)?),
            "has" => match object.strip_suffix("permits").or(object.strip_suffix("permit")) {
                Some(count) => What::Permits(self.number(at, count.trim_end())?),
                None => return Err(self.error(at, "expected a number of permits: 'pool has 3 permits'")),
            },
            "" => What::Exists,
            other => {
                let expected = "'->', 'waits', 'holds', 'perhaps holds', 'has', 'priority' or 'since'";
                return Err(self.error(verb_at, format!("expected {expected}, found '{other}'")));
            }
        };
        self.push(statements, &subject, at, what);
        Ok(())
    }

    fn json(self, statements: &mut Vec<Statement<'t>>) -> Result<(), ReadError> {
        if self.text.trim().is_empty() {
            return Ok(());
        }
        let object: Object<'t> = serde_json::from_str(self.text).map_err(|error| {
            let text = error.to_string();
            let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
            ReadError { line: self.number, column: error.column().max(1), message: message.to_owned() }
        })?;
        match (&object.process, &object.semaphore, object.permits) {
            (None, Some(semaphore), Some(permits)) => {
                let is_alone = object.holds.is_empty()
                    && object.perhaps_holds.is_empty()
                    && object.waits.is_none()
                    && object.waits_for.is_none()
                    && object.priority.is_none()
                    && object.since.is_none();
                if !is_alone {
                    return Err(self.error(0, "a semaphore has permits and nothing else"));
                }
                let name = self.name_of(0, semaphore)?;
                self.push(statements, &name, 0, What::Permits(permits));
                return Ok(());
            }
            (Some(_), None, None) => {}
            _ => {
                let message = "an object has either 'process', or 'semaphore' and 'permits'";
                return Err(self.error(0, message));
            }
        }
        let process = self.name_of(0, object.process.as_deref().unwrap_or_default())?;
        self.push(statements, &process, 0, What::Exists);
        let certain = object.holds.into_iter().map(|raw| (raw, false));
        for (raw, perhaps) in certain.chain(object.perhaps_holds.into_iter().map(|raw| (raw, true))) {
            let (at, text) = self.string(raw)?;
            let leaf = self.leaf(at, &text)?;
            self.push(statements, &process, at, What::Holds { leaf, perhaps });
        }
        if let Some(raw) = object.waits {
            let (at, text) = self.string(raw)?;
            self.push(statements, &process, at, What::Waits(self.expression(at, &text)?));
        }
        if let Some(raw) = object.waits_for {
            let (at, text) = self.string(raw)?;
            self.push(statements, &process, at, What::WaitsFor(self.expression(at, &text)?));
        }
        let numbers = [object.priority.map(What::Priority), object.since.map(What::Since)];
        numbers.into_iter().flatten().for_each(|what| self.push(statements, &process, 0, what));
        Ok(())
    }

    /// The string in a raw value, and where its first character stands in the line.
    fn string(self, raw: &RawValue) -> Result<(usize, String), ReadError> {
        // A raw value borrows from the line, so that its place is the distance between the two.
        let at = raw.get().as_ptr() as usize - self.text.as_ptr() as usize;
        let text = serde_json::from_str(raw.get()).map_err(|_| self.error(at, "expected a string"))?;
        Ok((at + 1, text))
    }

    fn expression(self, at: usize, text: &str) -> Result<Expr, ReadError> {
        let place = |error: &ExprError| self.error(at + error.span().start, error.message());
        text.parse().map_err(|error: ExprError| place(&error))
    }

    fn leaf(self, at: usize, text: &str) -> Result<Expr, ReadError> {
        let leaf = self.expression(at, text)?;
        if leaf.as_single().is_none() {
            return Err(self.error(at, "one name is held at a time: separate them by commas"));
        }
        Ok(leaf)
    }

    /// A name as it is written in an expression.
    fn name(self, at: usize, text: &str) -> Result<String, ReadError> {
        match self.expression(at, text)?.as_single() {
            Some(leaf) if leaf.claim == expr::Claim::Exclusive => Ok(leaf.name.as_str().to_owned()),
            _ => Err(self.error(at, "expected a name")),
        }
    }

    /// A name as it is.
    fn name_of(self, at: usize, text: &str) -> Result<String, ReadError> {
        let name = conclave_api::LockName::new(text).map_err(|error| self.error(at, error.to_string()))?;
        Ok(name.as_str().to_owned())
    }

    fn number<N: std::str::FromStr>(self, at: usize, text: &str) -> Result<N, ReadError> {
        text.parse().map_err(|_| self.error(at, format!("expected a number, found '{text}'")))
    }
}

/// Where a comment begins, or the line ends; a hash in quotes begins none.
fn comment(line: &str) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '#' if !quoted => return at,
            _ => {}
        }
    }
    line.len()
}

fn spaces(text: &str) -> usize {
    text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len())
}

/// The length of the first word; one in quotes may contain spaces.
fn word(text: &str) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => return at,
            _ => {}
        }
    }
    text.len()
}

/// The members of a list with commas, trimmed, with where each begins.
fn listed(text: &str) -> Vec<(usize, &str)> {
    let mut members = Vec::new();
    let (mut begin, mut quoted, mut escaped) = (0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => {
                members.push((begin, &text[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
    }
    members.push((begin, &text[begin..]));
    members.into_iter().map(|(begin, member)| (begin + spaces(member), member.trim())).collect()
}

struct Reader {
    standing: Standing,
}

impl Reader {
    fn carry_out(&mut self, statement: &Statement<'_>) -> Result<(), ReadError> {
        let Statement { subject, what, .. } = statement;
        if let What::Permits(permits) = what {
            let resource = self.standing.resource(subject);
            self.standing.set_limit(resource, *permits);
            return Ok(());
        }
        let process = self.standing.process(subject);
        let done = match what {
            What::Exists | What::Permits(_) => Ok(()),
            What::Priority(priority) => {
                self.standing.set_priority(process, *priority);
                Ok(())
            }
            What::Since(since) => {
                self.standing.set_since(process, *since);
                Ok(())
            }
            What::Holds { leaf, perhaps } => self.hold(process, leaf, *perhaps),
            What::Waits(expression) => self.wait(process, expression.node(), Kind::Resources),
            What::WaitsFor(expression) => self.wait(process, expression.node(), Kind::Processes),
        };
        done.map_err(|refusal| statement.line.error(statement.at, self.refused(subject, &refusal)))
    }

    fn hold(&mut self, process: Process, leaf: &Expr, perhaps: bool) -> Result<(), Refused> {
        let leaf = leaf.as_single().expect("checked when it was read");
        let resource = self.standing.resource(leaf.name.as_str());
        let demand = self.demand(resource, leaf.claim);
        self.standing.hold(process, Claim { resource, demand }, perhaps).map_err(Refused::Standing)
    }

    fn wait(&mut self, process: Process, node: &expr::Node, kind: Kind) -> Result<(), Refused> {
        let wish = self.wish(node, kind)?;
        self.standing.wait(process, wish).map_err(Refused::Standing)
    }

    /// As deep as an expression may be.
    fn wish(&mut self, node: &expr::Node, kind: Kind) -> Result<Wish, Refused> {
        let mut gate = |need: u32, members: &[expr::Node]| {
            let members: Result<Vec<_>, _> = members.iter().map(|member| self.wish(member, kind)).collect();
            Ok(Wish::Gate { need, members: members? })
        };
        match node {
            expr::Node::All(members) => gate(members.len() as u32, members),
            expr::Node::Any(members) => gate(1, members),
            expr::Node::AtLeast(need, members) => gate(*need, members),
            expr::Node::Name(leaf) if kind == Kind::Processes => {
                if leaf.claim != expr::Claim::Exclusive {
                    return Err(Refused::Claimed(leaf.name.to_string()));
                }
                let resource = Target::Process(self.standing.process(leaf.name.as_str()));
                Ok(Wish::Claim(Claim { resource, demand: Demand::Exclusive }))
            }
            expr::Node::Name(leaf) => {
                let resource = self.standing.resource(leaf.name.as_str());
                let demand = self.demand(resource, leaf.claim);
                Ok(Wish::Claim(Claim { resource: Target::Resource(resource), demand }))
            }
        }
    }

    /// A name alone is one permit, if it is a semaphore.
    fn demand(&self, resource: Resource, claim: expr::Claim) -> Demand {
        match claim {
            expr::Claim::Exclusive if self.standing.is_semaphore(resource) => Demand::Permits(1),
            expr::Claim::Exclusive => Demand::Exclusive,
            expr::Claim::Shared => Demand::Shared,
            expr::Claim::Permits(count) => Demand::Permits(count),
        }
    }

    fn refused(&self, subject: &str, refused: &Refused) -> String {
        let resource = |resource: &Resource| self.standing.resource_name(*resource);
        match refused {
            Refused::Claimed(name) => format!("{name} is a process: it is waited for, not shared or counted"),
            Refused::Standing(refusal) => match refusal {
                Refusal::AlreadyWaiting => {
                    format!("{subject} waits already: one wait a process, joined by & or |")
                }
                Refusal::Conflict(holder) => {
                    format!("{} holds it already, and not both can", self.standing.process_name(*holder))
                }
                Refusal::NotASemaphore(name) => {
                    let name = resource(name);
                    format!("{name} is a lock; for permits say '{name} has N permits'")
                }
                Refusal::NotALock(name) => format!("{} is a semaphore and cannot be shared", resource(name)),
                Refusal::Impossible { resource: name, limit } => {
                    format!("{} has {limit} permits, so many can never be had", resource(name))
                }
                Refusal::Request(error) => error.to_string(),
                Refusal::Full => "more than 32 bits count".into(),
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Processes,
    Resources,
}

enum Refused {
    Standing(Refusal),
    /// A process with a mode or a count.
    Claimed(String),
}
