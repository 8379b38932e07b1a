//! A program that runs sites: its description, its children and their output.

use std::collections::BTreeMap;
use std::mem;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use conclave_check::{Checker, Report, Watcher};
use conclave_kernel::{Card, Needs, suggest};

use super::lines::{self, Hello};
use super::process::{Child, Host, Limits};
use super::shortened;
use crate::added::Algorithm;

/// The lines of standard error that a program keeps for display. Further lines are counted only.
pub const MOST_PRINTED: usize = 200;

/// A program in any language that runs the sites of a group. `docs/sites.md` describes its protocol.
///
/// The program starts as many children as there are runs at the same time, and keeps them for later runs. All
/// children are killed when the program is dropped, and also when this process ends in any other way.
pub struct Program {
    /// The path as the user gave it, for messages.
    path: String,
    start: Box<dyn Fn() -> Result<Box<dyn Host>, String> + Send + Sync>,
    limits: Limits,
    card: &'static Card,
    saves: bool,
    idle: Mutex<Vec<Box<dyn Host>>>,
    /// The first failure of a step that belongs to no run.
    failure: Mutex<Option<String>>,
    printed: Mutex<Printed>,
    /// The end of all steps; `None` for no such limit.
    deadline: Mutex<Option<Instant>>,
}

/// The output of the children on standard error.
#[derive(Debug, Default)]
struct Printed {
    lines: Vec<String>,
    /// The number of lines that were not kept.
    dropped: u64,
    is_muted: bool,
}

/// The facts about a problem that the card of a program needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem {
    pub(super) name: &'static str,
    /// The names of all properties.
    pub(super) properties: &'static [&'static str],
    /// The properties that a program promises if its `hello` names none.
    pub(super) promises: &'static [&'static str],
    /// Creates the entry of a program with this card.
    pub(super) algorithm: fn(&'static Card) -> Algorithm,
}

impl Problem {
    /// Returns the card of a type that stands for all programs. Every program has a card of its own
    /// ([`Program::card`]).
    pub(super) const fn placeholder(self) -> Card {
        Card {
            problem: self.name,
            name: "program",
            title: "A program",
            summary: "a program outside of the laboratory",
            papers: &[],
            needs: Needs::RELIABLE,
            promises: self.promises,
            costs: &[],
            survives: "",
            idle_traffic: false,
            reads_clock: false,
        }
    }
}

/// The programs that were opened by their paths, until [`close`].
static OPENED: Mutex<BTreeMap<String, Opened>> = Mutex::new(BTreeMap::new());

struct Opened {
    program: Arc<Program>,
    /// The program as an algorithm. It is never freed.
    algorithm: &'static Algorithm,
}

/// Returns the program with this path. The first call starts it.
pub(super) fn opened(problem: Problem, path: &str) -> Result<Arc<Program>, String> {
    let mut opened = lock(&OPENED);
    let key = format!("{}/{path}", problem.name);
    if let Some(known) = opened.get(&key) {
        return Ok(Arc::clone(&known.program));
    }
    let program = Arc::new(Program::open(problem, path, Limits::default())?);
    let algorithm = Box::leak(Box::new((problem.algorithm)(program.card)));
    opened.insert(key, Opened { program: Arc::clone(&program), algorithm });
    Ok(program)
}

/// The programs that were opened by their paths, as algorithms.
pub(super) fn algorithms() -> Vec<&'static Algorithm> {
    lock(&OPENED).values().map(|opened| opened.algorithm).collect()
}

/// Ends the programs that were opened by their paths. A command calls it at its end; without it, the
/// watchdogs end the children after this process.
pub fn close() {
    lock(&OPENED).clear();
}

impl Program {
    /// Starts a program and reads its description. Its card is never freed, so a process should open a
    /// program only once.
    pub(super) fn open(problem: Problem, path: &str, limits: Limits) -> Result<Self, String> {
        let file: PathBuf = Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
        if !file.is_file() {
            return Err(format!("{path} is not a file: give the path of a program"));
        }
        let name = path.to_owned();
        let start = move || -> Result<Box<dyn Host>, String> {
            match Child::start(&file, limits) {
                Ok(child) => Ok(Box::new(child)),
                Err(error) => Err(format!("{name} cannot be started: {error}")),
            }
        };
        Self::with_hosts(problem, path, limits, start)
    }

    /// Creates a program whose children `start` creates.
    pub(super) fn with_hosts(
        problem: Problem,
        path: &str,
        limits: Limits,
        start: impl Fn() -> Result<Box<dyn Host>, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let (host, hello) = meet(path, problem, limits, &start)?;
        let saves = hello.saves;
        Ok(Self {
            path: path.to_owned(),
            start: Box::new(start),
            limits,
            card: card(path, problem, hello).map_err(|why| format!("{path}: {why}"))?,
            saves,
            idle: Mutex::new(vec![host]),
            failure: Mutex::default(),
            printed: Mutex::default(),
            deadline: Mutex::default(),
        })
    }

    /// Returns the path as the user gave it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the card that the program describes.
    pub fn card(&self) -> &'static Card {
        self.card
    }

    /// Returns whether the program offers `load` and `save`, which the checker needs.
    pub fn saves(&self) -> bool {
        self.saves
    }

    /// Returns the lines that the children wrote to standard error since the last call, each with its run,
    /// site and step.
    pub fn take_printed(&self) -> Vec<String> {
        let Printed { mut lines, dropped, .. } = mem::take(&mut *lock(&self.printed));
        if dropped > 0 {
            lines.push(format!("{} wrote {dropped} more lines, which are not shown", self.path));
        }
        lines
    }

    /// Drops the lines on standard error from now on, until the next call of [`Program::take_printed`].
    pub fn mute(&self) {
        lock(&self.printed).is_muted = true;
    }

    /// Sets the moment at which every step ends at the latest.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        *lock(&self.deadline) = deadline;
    }

    /// Checks that the program can be explored, and forgets the failure of an earlier exploration.
    pub(super) fn prepare_exploration(&self, mutant: Option<&str>) -> Result<(), String> {
        let path = &self.path;
        if !self.saves {
            return Err(format!(
                "{path} does not offer load and save, which `check` needs: run it with `conclave sim`, or see \
                 docs/sites.md"
            ));
        }
        if let Some(mutant) = mutant {
            return Err(format!("{path} has no mutant {mutant}: leave --mutant out"));
        }
        self.take_failure();
        Ok(())
    }

    /// Returns the first failure of a step of the checker, and forgets it.
    pub(super) fn take_failure(&self) -> Option<String> {
        lock(&self.failure).take()
    }

    /// Records a failure of a step of the checker. The first failure counts.
    pub(super) fn fail(&self, why: String) {
        lock(&self.failure).get_or_insert(why);
    }

    /// Returns whether a step of the checker has failed.
    pub(super) fn has_failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// Explores a model of this program. Fails with the first failure of a step.
    pub fn explore(&self, checker: &Checker, watcher: Watcher<'_>) -> Result<Report, String> {
        let report = checker.check(&mut |progress| match self.has_failed() {
            true => ControlFlow::Break(()),
            false => watcher(progress),
        });
        match self.take_failure() {
            Some(failure) => Err(failure),
            None => report.map_err(|error| error.to_string()),
        }
    }

    /// Returns a child that has replied to `hello`. A new one is started if all others are in use.
    pub(super) fn take_host(&self) -> Result<Box<dyn Host>, String> {
        let idle = lock(&self.idle).pop();
        match idle {
            Some(host) => Ok(host),
            None => (self.start)().and_then(|mut host| {
                let deadline = self.deadline(self.limits.start);
                let hello = lines::hello(self.card.problem);
                let reply = host.request(&hello, deadline, &mut Vec::new());
                reply.map_err(|trouble| format!("{}: {trouble}", self.path))?;
                Ok(host)
            }),
        }
    }

    /// Makes a child available to other runs.
    pub(super) fn give_back(&self, host: Box<dyn Host>) {
        lock(&self.idle).push(host);
    }

    /// Returns the end of the next step.
    pub(super) fn step_deadline(&self) -> Instant {
        self.deadline(self.limits.step)
    }

    fn deadline(&self, after: Duration) -> Instant {
        let end = Instant::now() + after;
        lock(&self.deadline).map_or(end, |deadline| deadline.min(end))
    }

    /// Keeps the output of a child for display.
    pub(super) fn print(&self, place: &str, printed: &[u8]) {
        if printed.is_empty() {
            return;
        }
        let mut known = lock(&self.printed);
        for line in String::from_utf8_lossy(printed).lines().filter(|line| !line.trim().is_empty()) {
            match known.lines.len() < MOST_PRINTED {
                _ if known.is_muted => {}
                true => known.lines.push(format!("{place}: {}", shortened(line))),
                false => known.dropped += 1,
            }
        }
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

/// Starts the first child and reads its description.
fn meet(
    path: &str,
    problem: Problem,
    limits: Limits,
    start: &dyn Fn() -> Result<Box<dyn Host>, String>,
) -> Result<(Box<dyn Host>, Hello), String> {
    let mut host = start()?;
    let mut printed = Vec::new();
    let line = host.request(&lines::hello(problem.name), Instant::now() + limits.start, &mut printed);
    let line = line.map_err(|trouble| format!("{path}: {trouble} before its hello{}", last(&printed)))?;
    let hello = lines::read_hello(&line)
        .map_err(|why| format!("{path}: the reply to hello is wrong: {why}: {}", shortened(&line)))?;
    if hello.protocol != lines::PROTOCOL {
        let (theirs, ours) = (hello.protocol, lines::PROTOCOL);
        return Err(format!(
            "{path} speaks version {theirs} of the protocol: this tool speaks version {ours}"
        ));
    }
    match &hello.problem {
        Some(theirs) if theirs != problem.name => {
            Err(format!("{path} solves problem {theirs}: write {theirs}/{path}"))
        }
        _ => Ok((host, hello)),
    }
}

/// Returns the last line on standard error, which is the error in most languages.
pub(super) fn last(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.map_or(String::new(), |line| format!(": {}", shortened(line.trim())))
}

/// Creates the card of a program. It is never freed.
fn card(path: &str, problem: Problem, hello: Hello) -> Result<&'static Card, String> {
    let mut promises = Vec::new();
    for promise in hello.promises.iter().flatten() {
        let known = problem.properties.iter().find(|known| *known == promise);
        promises.push(*known.ok_or_else(|| {
            suggest::unknown("promise in the hello", promise, problem.properties.iter().copied())
        })?);
    }
    let title = shortened(&hello.name.unwrap_or_else(|| path.to_owned()));
    Ok(Box::leak(Box::new(Card {
        name: path.to_owned().leak(),
        title: title.leak(),
        needs: Needs {
            fifo: hello.needs.fifo,
            no_loss: hello.needs.no_loss,
            no_duplication: hello.needs.no_duplication,
            no_crash: hello.needs.no_crash,
            synchrony: hello.needs.synchrony,
            perfect_detector: false,
        },
        promises: if hello.promises.is_some() { promises.leak() } else { problem.promises },
        idle_traffic: hello.idle_traffic,
        reads_clock: hello.reads_clock,
        ..problem.placeholder()
    })))
}

/// Locks a mutex, also after a panic of another thread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data stays consistent if another thread panics: no update is interrupted between two fields.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
