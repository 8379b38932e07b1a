//! The two forms of a wait-for file, and errors that point at line and column.
//!
//! Both forms come to the same statements. The file is read twice: semaphores first, because whether `pool` in a request is a
//! lock or a permit depends on a line that may come later; only lines that may speak of one are looked at then.

use std::borrow::Cow;
use std::fmt;

use conclave_algorithms::deadlock::{Claim, Demand};
use conclave_core::LockName;
use conclave_core::expr::{self, Expr, ExprError};
use conclave_lab::problems::deadlock::Standing;
use conclave_lab::problems::deadlock::standing::{Process, Refusal, Resource, Target, Wish};
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
///
/// Keeps no line after it is carried out, so the memory that it needs depends on the statements, not on the text.
pub fn read(text: &str) -> Result<Standing, ReadError> {
    let is_json = text.trim_start().starts_with('{');
    let mut reader = Reader { standing: Standing::new() };
    let mut statements = Vec::new();
    for line in lines(text).filter(|line| line.may_be_semaphore(is_json)) {
        // What is wrong with a line is told in the second round, when its turn comes.
        if line.read(is_json, &mut statements).is_ok() {
            statements.iter().for_each(|statement| reader.set_limit(statement));
        }
        statements.clear();
    }
    for line in lines(text) {
        line.read(is_json, &mut statements)?;
        for statement in statements.drain(..) {
            reader.carry_out(line, &statement)?;
        }
    }
    Ok(reader.standing)
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    (1..).zip(text.lines()).map(|(number, text)| Line { number, text })
}

struct Statement<'t> {
    subject: Cow<'t, str>,
    what: What<'t>,
    /// Where the object of the statement begins, in bytes of the line.
    at: usize,
}

enum What<'t> {
    Exists,
    Permits(u32),
    Priority(i64),
    Since(i64),
    Holds { leaf: Expression<'t>, perhaps: bool },
    Waits(Expression<'t>),
    WaitsFor(Expression<'t>),
}

/// What is held or waited for.
enum Expression<'t> {
    /// A name that needs no quotes and says nothing else, or several of them, joined by the same sign: most files have no
    /// others, and need no tree.
    Plain(Cow<'t, str>, Joined),
    Any(Expr),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Joined {
    Alone,
    ByAnd,
    ByOr,
}

impl Joined {
    /// How the text is joined, if it is plain: a short list of bare names, without a `/`, of which some are dropped.
    fn of(text: &str) -> Option<Self> {
        let (mut and, mut or) = (false, false);
        for byte in text.bytes() {
            match byte {
                b'&' => and = true,
                b'|' => or = true,
                b' ' | b'_' | b'.' | b'-' => {}
                _ if byte.is_ascii_alphanumeric() => {}
                _ => return None,
            }
        }
        let joined = match (and, or) {
            (false, false) => Self::Alone,
            (true, false) => Self::ByAnd,
            (false, true) => Self::ByOr,
            (true, true) => return None,
        };
        let is_name =
            |name: &str| !name.is_empty() && name.len() <= LockName::MAX_BYTES && !name.contains(' ');
        let is_short = text.len() <= expr::MAX_BYTES / 4 && joined.names(text).count() <= expr::MAX_NAMES;
        (is_short && joined.names(text).all(is_name)).then_some(joined)
    }

    fn names(self, text: &str) -> impl Iterator<Item = &str> {
        let sign = if self == Self::ByOr { '|' } else { '&' };
        text.split(sign).map(|name| name.trim_matches(' '))
    }
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

    /// Whether it may say that something is a semaphore; what it does say is found out by reading it.
    fn may_be_semaphore(self, is_json: bool) -> bool {
        if is_json { !self.text.contains("\"process\"") } else { self.text.contains("permit") }
    }

    fn read(self, is_json: bool, statements: &mut Vec<Statement<'t>>) -> Result<(), ReadError> {
        if is_json { self.json(statements) } else { self.statement(statements) }
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
                    let leaf = self.leaf(at + offset, leaf.into())?;
                    let what = What::Holds { leaf, perhaps };
                    statements.push(Statement { subject: subject.clone(), what, at: at + offset });
                }
                return Ok(());
            }
            _ if perhaps => return Err(self.error(verb_at, "expected 'perhaps holds'")),
            "->" => What::WaitsFor(self.expression(at, object.into())?),
            "waits" => What::Waits(self.expression(at, object.into())?),
            "priority" => What::Priority(self.number(at, object)?),
            "since" => What::Since(self.number(at, object)?),
            "has" => match object.strip_suffix("permits").or(object.strip_suffix("permit")) {
                Some(count) => What::Permits(self.number(at, count.trim_end())?),
                None => {
                    return Err(self.error(at, "expected a number of permits, as in 'pool has 3 permits'"));
                }
            },
            "" => What::Exists,
            other => {
                let expected = "'->', 'waits', 'holds', 'perhaps holds', 'has', 'priority' or 'since'";
                return Err(self.error(verb_at, format!("expected {expected}, found '{other}'")));
            }
        };
        statements.push(Statement { subject, what, at });
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
                    return Err(self.error(0, "an object with 'semaphore' has 'permits' and no other field"));
                }
                let subject = self.name_of(0, semaphore)?.into();
                statements.push(Statement { subject, what: What::Permits(permits), at: 0 });
                return Ok(());
            }
            (Some(_), None, None) => {}
            _ => {
                let message = "an object has either 'process', or 'semaphore' and 'permits'";
                return Err(self.error(0, message));
            }
        }
        let process = self.name_of(0, object.process.as_deref().unwrap_or_default())?;
        let mut push = |at, what| {
            statements.push(Statement { subject: process.clone().into(), what, at });
        };
        push(0, What::Exists);
        let certain = object.holds.into_iter().map(|raw| (raw, false));
        for (raw, perhaps) in certain.chain(object.perhaps_holds.into_iter().map(|raw| (raw, true))) {
            let (at, text) = self.string(raw)?;
            push(at, What::Holds { leaf: self.leaf(at, text)?, perhaps });
        }
        if let Some(raw) = object.waits {
            let (at, text) = self.string(raw)?;
            push(at, What::Waits(self.expression(at, text)?));
        }
        if let Some(raw) = object.waits_for {
            let (at, text) = self.string(raw)?;
            push(at, What::WaitsFor(self.expression(at, text)?));
        }
        let numbers = [object.priority.map(What::Priority), object.since.map(What::Since)];
        numbers.into_iter().flatten().for_each(|what| push(0, what));
        Ok(())
    }

    /// The string in a raw value, and where its first character stands in the line.
    fn string(self, raw: &'t RawValue) -> Result<(usize, Cow<'t, str>), ReadError> {
        // A raw value borrows from the line, so that its place is the distance between the two.
        let at = raw.get().as_ptr() as usize - self.text.as_ptr() as usize;
        let inner = raw.get().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        if let Some(text) = inner.filter(|text| !text.contains('\\')) {
            return Ok((at + 1, text.into()));
        }
        let text: String =
            serde_json::from_str(raw.get()).map_err(|_| self.error(at, "expected a string"))?;
        Ok((at + 1, text.into()))
    }

    fn expression(self, at: usize, text: Cow<'t, str>) -> Result<Expression<'t>, ReadError> {
        if let Some(joined) = Joined::of(&text) {
            return Ok(Expression::Plain(text, joined));
        }
        self.tree(at, &text).map(Expression::Any)
    }

    fn tree(self, at: usize, text: &str) -> Result<Expr, ReadError> {
        let place = |error: &ExprError| self.error(at + error.span().start, error.message());
        text.parse().map_err(|error: ExprError| place(&error))
    }

    fn leaf(self, at: usize, text: Cow<'t, str>) -> Result<Expression<'t>, ReadError> {
        let leaf = self.expression(at, text)?;
        let is_single = match &leaf {
            Expression::Plain(_, joined) => *joined == Joined::Alone,
            Expression::Any(tree) => tree.as_single().is_some(),
        };
        if !is_single {
            return Err(self.error(at, "expected one name: separate several with commas"));
        }
        Ok(leaf)
    }

    /// A name as it is written in an expression.
    fn name(self, at: usize, text: &'t str) -> Result<Cow<'t, str>, ReadError> {
        if Joined::of(text) == Some(Joined::Alone) {
            return Ok(text.into());
        }
        match self.tree(at, text)?.as_single() {
            Some(leaf) if leaf.claim == expr::Claim::Exclusive => Ok(leaf.name.as_str().to_owned().into()),
            _ => Err(self.error(at, "expected a name")),
        }
    }

    /// A name as it is.
    fn name_of(self, at: usize, text: &str) -> Result<String, ReadError> {
        let name = LockName::new(text).map_err(|error| self.error(at, error.to_string()))?;
        Ok(name.as_str().to_owned())
    }

    fn number<N: std::str::FromStr>(self, at: usize, text: &str) -> Result<N, ReadError> {
        text.parse().map_err(|_| self.error(at, format!("expected a number, found '{text}'")))
    }
}

/// Where a comment begins, or the line ends; a hash in quotes begins none.
fn comment(line: &str) -> usize {
    if !line.contains('#') {
        return line.len();
    }
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
    fn set_limit(&mut self, statement: &Statement<'_>) {
        if let What::Permits(permits) = statement.what {
            let resource = self.standing.resource(&statement.subject);
            self.standing.set_limit(resource, permits);
        }
    }

    fn carry_out(&mut self, line: Line<'_>, statement: &Statement<'_>) -> Result<(), ReadError> {
        let Statement { subject, what, at } = statement;
        if let What::Permits(_) = what {
            return Ok(()); // in the first round
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
            What::Waits(expression) => self.wait(process, expression, Kind::Resources),
            What::WaitsFor(expression) => self.wait(process, expression, Kind::Processes),
        };
        done.map_err(|refusal| line.error(*at, self.refused(subject, &refusal)))
    }

    fn hold(&mut self, process: Process, leaf: &Expression<'_>, perhaps: bool) -> Result<(), Refused> {
        let (name, claim) = match leaf {
            Expression::Plain(name, _) => (name.as_ref(), expr::Claim::Exclusive),
            Expression::Any(tree) => {
                let leaf = tree.as_single().expect("checked when it was read");
                (leaf.name.as_str(), leaf.claim)
            }
        };
        let resource = self.standing.resource(name);
        let demand = self.demand(resource, claim);
        self.standing.hold(process, Claim { resource, demand }, perhaps).map_err(Refused::Standing)
    }

    fn wait(&mut self, process: Process, expression: &Expression<'_>, kind: Kind) -> Result<(), Refused> {
        let wish = match expression {
            Expression::Plain(text, joined) => {
                let mut claims = joined.names(text).map(|name| self.claim(name, kind));
                match joined {
                    Joined::Alone => claims.next().expect("a plain text has a name"),
                    Joined::ByAnd | Joined::ByOr => {
                        let mut members: Vec<Wish> = claims.collect();
                        members.shrink_to_fit(); // there may be a million of them
                        let all = members.len() as u32;
                        Wish::Gate { need: if *joined == Joined::ByAnd { all } else { 1 }, members }
                    }
                }
            }
            Expression::Any(tree) => self.wish(tree.node(), kind)?,
        };
        self.standing.wait(process, wish).map_err(Refused::Standing)
    }

    /// A name alone.
    fn claim(&mut self, name: &str, kind: Kind) -> Wish {
        let (resource, demand) = match kind {
            Kind::Processes => (Target::Process(self.standing.process(name)), Demand::Exclusive),
            Kind::Resources => {
                let resource = self.standing.resource(name);
                (Target::Resource(resource), self.demand(resource, expr::Claim::Exclusive))
            }
        };
        Wish::Claim(Claim { resource, demand })
    }

    /// As deep as an expression may be.
    fn wish(&mut self, node: &expr::Node, kind: Kind) -> Result<Wish, Refused> {
        let mut gate = |need: u32, members: &[expr::Node]| {
            let members: Result<Vec<_>, _> = members.iter().map(|member| self.wish(member, kind)).collect();
            let mut members = members?;
            members.shrink_to_fit();
            Ok(Wish::Gate { need, members })
        };
        match node {
            expr::Node::All(members) => gate(members.len() as u32, members),
            expr::Node::Any(members) => gate(1, members),
            expr::Node::AtLeast(need, members) => gate(*need, members),
            expr::Node::Name(leaf) if kind == Kind::Processes => {
                if leaf.claim != expr::Claim::Exclusive {
                    return Err(Refused::Claimed(leaf.name.to_string()));
                }
                Ok(self.claim(leaf.name.as_str(), kind))
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
            Refused::Claimed(name) => format!("{name} is a process: write its name without :shared or *N"),
            Refused::Standing(refusal) => match refusal {
                Refusal::AlreadyWaiting => {
                    format!("{subject} already waits: a process has one wait; join several with & or |")
                }
                Refusal::Conflict(holder) => {
                    format!(
                        "{} already holds it in a mode that excludes this one",
                        self.standing.process_name(*holder)
                    )
                }
                Refusal::NotASemaphore(name) => {
                    let name = resource(name);
                    format!("{name} is a lock: for permits, add the line '{name} has N permits'")
                }
                Refusal::NotALock(name) => {
                    format!("{} is a semaphore and cannot be shared: write *N for N permits", resource(name))
                }
                Refusal::Impossible { resource: name, limit } => {
                    format!("{} has only {limit} permits: request at most that many", resource(name))
                }
                Refusal::Request(error) => error.to_string(),
                Refusal::Full => "too many nodes: at most 2^32 fit".into(),
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
