//! Golden scenario scripts: a text file gives the steps of the sites and their expected effects.
//!
//! A script begins with a head, which names the algorithm and the size of the group. Blocks follow. Each
//! block consists of commands, a line `----`, and the expected effects of these commands up to the next empty
//! line.
//!
//! ```text
//! algorithm mutex/ricart-agrawala
//! nodes 2
//!
//! # n0 requests the critical section; no other site does
//! acquire 0
//! deliver 0->1
//! ----
//! n0 <- Acquire
//!   broadcast: Request(Stamp { time: 1, site: n0 })
//! n1 <- n0: Request(Stamp { time: 1, site: n0 })
//!   send n0: Reply(Stamp { time: 1, site: n0 })
//! ```
//!
//! | command | effect |
//! |---|---|
//! | `deliver A->B [#K]` | delivers the oldest message of that link, or the K-th in the order sent |
//! | `deliver all` | delivers all messages that are in flight now, but not the messages that these cause |
//! | `settle` | delivers the oldest message repeatedly until no message is in flight |
//! | `drop A->B [#K]`, `duplicate A->B [#K]` | loses a message; puts a copy of it into flight |
//! | `fire A TIMER` | fires an armed timer |
//! | `crash A`, `recover A [amnesia]` | crashes a site; recovers it with its state, or without |
//! | `advance DURATION` | moves all clocks forward |
//! | `state A`, `pending` | prints a site's state; prints the messages in flight |
//! | `VERB A [ARGUMENT...]` | any other verb is a command of the problem for site A |
//!
//! Lines that begin with `#` are comments. A script compares effects, never the wording of a log. With
//! `CONCLAVE_REWRITE=1` in the environment, [`golden`] writes the real effects into the file instead of
//! comparing. Review the difference before you keep it.

mod stage;

use std::fmt;
use std::path::Path;

use conclave_kernel::{NodeId, Protocol, time};

use crate::fault::Recovery;

pub use stage::{MOST_DELIVERIES, MOST_IN_FLIGHT, Stage};

/// Runs a script file and compares its effects with the expected ones. If the environment variable
/// [`REWRITE`] is `1`, it rewrites the file instead. `play` chooses the algorithm and calls [`Script::play`].
pub fn golden(
    path: &Path,
    play: impl FnOnce(&Script) -> Result<Played, ScriptError>,
) -> Result<(), ScriptError> {
    let failed = |why: std::io::Error| ScriptError::new(&path.display().to_string(), 0, why.to_string());
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let script = Script::parse(&path.display().to_string(), &text)?;
    let played = play(&script)?;
    let rewrite = std::env::var_os(REWRITE).is_some_and(|value| value == "1");
    match rewrite {
        // Write beside the file and rename, so that a reader never sees half a script.
        true if played.text != text => {
            let beside = path.with_extension("rewritten");
            std::fs::write(&beside, played.text).and_then(|()| std::fs::rename(&beside, path)).map_err(failed)
        }
        true => Ok(()),
        false => played.verdict,
    }
}

/// The environment variable that makes [`golden`] rewrite the file.
pub const REWRITE: &str = "CONCLAVE_REWRITE";

/// A parsed script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    name: String,
    lines: Vec<String>,
    settings: Vec<Line>,
    blocks: Vec<Block>,
}

/// The result of running a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Played {
    /// The text of the script, with the real effects instead of the expected ones.
    pub text: String,
    /// An error for the first block whose effects differ from the expected ones.
    pub verdict: Result<(), ScriptError>,
}

/// An error with its place. It is displayed as `file:line: what`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// The file.
    pub file: String,
    /// The line, counted from 1; 0 if the error concerns the whole file.
    pub line: usize,
    /// The description of the error.
    pub what: String,
}

/// A line with content: its words, and its number counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    number: usize,
    words: Vec<String>,
}

/// A block: commands and their expected effects.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    commands: Vec<Line>,
    /// The index of the line `----`.
    rule: usize,
    /// The index after the last line of the expected effects.
    end: usize,
}

impl Script {
    /// Parses a script. `name` appears in errors.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScriptError> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut reader = Reader { name, lines: &lines, next: 0 };
        let settings = reader.settings()?;
        let mut blocks = Vec::new();
        while let Some(block) = reader.block()? {
            blocks.push(block);
        }
        if blocks.is_empty() {
            return Err(ScriptError::new(name, lines.len(), "the script has no commands".into()));
        }
        Ok(Self { name: name.to_owned(), settings, blocks, lines })
    }

    /// Returns the value of a setting in the head, such as `setting("algorithm")`.
    pub fn setting(&self, key: &str) -> Option<String> {
        let line = self.settings.iter().find(|line| line.words[0] == key)?;
        Some(line.words[1..].join(" "))
    }

    /// Rejects settings that are not in `keys`. Otherwise a misspelt setting would be ignored.
    pub fn allow(&self, keys: &[&str]) -> Result<(), ScriptError> {
        match self.settings.iter().find(|line| !keys.contains(&line.words[0].as_str())) {
            Some(Line { number, words }) => {
                let what = format!("unknown setting `{}`; known settings: {}", words[0], keys.join(", "));
                Err(ScriptError::new(&self.name, *number, what))
            }
            None => Ok(()),
        }
    }

    /// Returns the number of sites, which the head gives.
    pub fn nodes(&self) -> Result<u32, ScriptError> {
        let nodes = self.setting("nodes").and_then(|nodes| nodes.parse().ok());
        let allowed = nodes.filter(|nodes| (1..=MOST_NODES).contains(nodes));
        allowed.ok_or_else(|| {
            self.error(format!("the head needs a line `nodes N`, with N from 1 to {MOST_NODES}"))
        })
    }

    /// Creates an error about the head of the script.
    pub fn error(&self, what: String) -> ScriptError {
        let line = self.settings.first().map_or(1, |line| line.number);
        ScriptError::new(&self.name, line, what)
    }

    /// Runs the script. `problem` parses each command that is not in the table: it gets the verb and the
    /// words after the site. Returns an error if a command cannot be executed. Whether the effects match is
    /// in [`Played::verdict`].
    pub fn play<P: Protocol>(
        &self,
        stage: &mut Stage<P>,
        problem: impl Fn(&str, &[&str]) -> Result<P::Command, String>,
    ) -> Result<Played, ScriptError> {
        let mut text = String::new();
        let mut verdict = Ok(());
        let mut copied = 0;
        for block in &self.blocks {
            for line in &block.commands {
                let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
                let obeyed = obey(stage, &words, &problem);
                obeyed.map_err(|what| ScriptError::new(&self.name, line.number, what))?;
            }
            let got = stage.take_written();
            let expected = join(&self.lines[block.rule + 1..block.end]);
            if verdict.is_ok() && got != expected {
                let what = format!("expected\n{expected}but got\n{got}(set {REWRITE}=1 to rewrite the file)");
                verdict = Err(ScriptError::new(&self.name, block.rule + 1, what));
            }
            text += &join(&self.lines[copied..=block.rule]);
            text += &got;
            copied = block.end;
        }
        text += &join(&self.lines[copied..]);
        Ok(Played { text, verdict })
    }
}

/// The largest group of a script. A script gives each step by hand, so a larger number is rejected as a
/// mistake.
const MOST_NODES: u32 = 1000;

fn join(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

fn obey<P: Protocol>(
    stage: &mut Stage<P>,
    words: &[&str],
    problem: impl Fn(&str, &[&str]) -> Result<P::Command, String>,
) -> Result<(), String> {
    match *words {
        ["deliver", "all"] => stage.deliver_all(),
        ["settle"] => stage.settle(),
        ["deliver", link, ref number @ ..] => {
            let (from, to, number) = message(link, number)?;
            stage.deliver(from, to, number)
        }
        ["drop", link, ref number @ ..] => {
            let (from, to, number) = message(link, number)?;
            stage.lose(from, to, number)
        }
        ["duplicate", link, ref number @ ..] => {
            let (from, to, number) = message(link, number)?;
            stage.duplicate(from, to, number)
        }
        ["fire", site, ref timer @ ..] if !timer.is_empty() => stage.fire(node(site)?, &timer.join(" ")),
        ["crash", site] => stage.crash(node(site)?),
        ["recover", site] => stage.recover(node(site)?, Recovery::Stable),
        ["recover", site, "amnesia"] => stage.recover(node(site)?, Recovery::Amnesia),
        ["advance", by] => {
            stage.advance(time::parse(by)?);
            Ok(())
        }
        ["state", site] => stage.write_state(node(site)?),
        ["pending"] => {
            stage.write_pending();
            Ok(())
        }
        [verb, site, ref arguments @ ..] => stage.command(node(site)?, problem(verb, arguments)?),
        _ => Err(format!("unknown command `{}`", words.join(" "))),
    }
}

/// Parses `A->B` and an optional `#K`.
fn message(link: &str, number: &[&str]) -> Result<(NodeId, NodeId, usize), String> {
    let (from, to) = link.split_once("->").ok_or("expected a link, such as 0->1")?;
    let number = match *number {
        [] => Some(1),
        [number] => number.strip_prefix('#').and_then(|number| number.parse().ok()),
        _ => None,
    };
    Ok((node(from)?, node(to)?, number.ok_or("expected the number of a message on this link, such as #2")?))
}

/// Parses `2` or `n2`.
fn node(text: &str) -> Result<NodeId, String> {
    let number = text.strip_prefix('n').unwrap_or(text).parse();
    number.map(NodeId).map_err(|_| format!("`{text}` is not a site: expected a number, such as 2"))
}

struct Reader<'a> {
    name: &'a str,
    lines: &'a [String],
    next: usize,
}

impl Reader<'_> {
    /// Parses the head: the first paragraph that is not only comments, with one setting per line.
    fn settings(&mut self) -> Result<Vec<Line>, ScriptError> {
        let mut settings: Vec<Line> = Vec::new();
        while let Some(text) = self.lines.get(self.next) {
            self.next += 1;
            match text.trim() {
                "" if settings.is_empty() => {}
                "" => return Ok(settings),
                RULE => return Err(self.error("expected the head first: `algorithm NAME` and `nodes N`")),
                comment if comment.starts_with('#') => {}
                setting => settings.push(self.line(setting)),
            }
        }
        Ok(settings)
    }

    fn block(&mut self) -> Result<Option<Block>, ScriptError> {
        let mut commands = Vec::new();
        while let Some(text) = self.lines.get(self.next) {
            self.next += 1;
            match text.trim() {
                RULE => return Ok(Some(self.expectation(commands))),
                "" if commands.is_empty() => {}
                "" => return Err(self.error("expected `----` and the effects of the commands above")),
                comment if comment.starts_with('#') => {}
                command => commands.push(self.line(command)),
            }
        }
        match commands.last() {
            Some(_) => Err(self.error("expected `----` and the effects of the commands above")),
            None => Ok(None),
        }
    }

    fn expectation(&mut self, commands: Vec<Line>) -> Block {
        let rule = self.next - 1;
        while self.lines.get(self.next).is_some_and(|line| !line.trim().is_empty()) {
            self.next += 1;
        }
        Block { commands, rule, end: self.next }
    }

    fn line(&self, text: &str) -> Line {
        Line { number: self.next, words: text.split_whitespace().map(str::to_owned).collect() }
    }

    fn error(&self, what: &str) -> ScriptError {
        ScriptError::new(self.name, self.next, what.into())
    }
}

const RULE: &str = "----";

impl ScriptError {
    fn new(file: &str, line: usize, what: String) -> Self {
        Self { file: file.to_owned(), line, what }
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}:{line}: {}", self.file, self.what),
        }
    }
}

impl std::error::Error for ScriptError {}

#[cfg(test)]
mod tests;
