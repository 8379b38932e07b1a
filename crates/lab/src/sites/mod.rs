//! Sites in any language: a child process that speaks JSON lines runs the sites of a group.
//!
//! `conclave sim mutex/./ra.py` takes the file `./ra.py` in the place of an algorithm. The world, the judge,
//! the swarm, shrinking and the diagrams are those of the laboratory's own algorithms. `docs/sites.md`
//! describes the lines for the author of a program.
//!
//! | file | contents |
//! |---|---|
//! | `process` | the child process: its environment, limits and end |
//! | `lines` | the lines of the protocol, and the bounds of a reply |
//! | `program` | [`Program`]: its description, its children and their output |
//! | `run` | the runs of a program, and its sites |
//! | [`mutex`], [`election`] | a program as an algorithm of these problems |
//! | [`grade`] | a rubric of tests and points |
//!
//! A program is not trusted. It may crash, loop, print nonsense or write too much: the run then fails with an
//! error that names site, step and line. A program may also keep state outside of its sites, so the
//! laboratory repeats a run and compares ([`repeat`]).

pub mod election;
pub mod grade;
mod lines;
pub mod mutex;
mod process;
mod program;
mod run;

use std::sync::Arc;

use crate::added::Algorithm;
use crate::experiment::Run as Scenario;
use crate::problem::{Problem, Recorder, Report as _};

pub use lines::{
    LONGEST_TIMER, MESSAGE_BYTES, MOST_DEPTH, MOST_EFFECTS, MOST_NAMES, NAME_BYTES, Name, PROTOCOL,
    STATE_BYTES, Text,
};
pub use process::Limits;
pub use program::{MOST_PRINTED, Program, close};

/// The usual reason for a program that is not deterministic.
const HIDDEN_STATE: &str = "is there state outside of the site's fields (a class variable, a global one), or a random choice of its own?";

/// Returns the program with this path as an algorithm of the problem. The first call starts it.
pub fn program(problem: &str, path: &str) -> Result<Arc<Program>, String> {
    match problem {
        "mutex" => mutex::program(path),
        "election" => election::program(path),
        _ => Err(format!(
            "problem {problem} does not take programs: use mutex/{path} or election/{path}, or an algorithm of \
             {problem}"
        )),
    }
}

/// Returns the program of this name, which is started by the first call; `None` for the name of an algorithm.
/// From then on, the program is one of the [added](crate::added) algorithms.
pub fn named(problem: &str, algorithm: &str) -> Result<Option<Arc<Program>>, String> {
    if is_program(algorithm) { program(problem, algorithm).map(Some) } else { Ok(None) }
}

/// The open programs, as algorithms.
pub(crate) fn algorithms() -> Vec<&'static Algorithm> {
    program::algorithms()
}

/// Returns the result of a checker, or the failure of the program that it called.
pub(crate) fn checked<T>(problem: &str, algorithm: &str, result: Result<T, String>) -> Result<T, String> {
    match named(problem, algorithm)?.and_then(|program| program.take_failure()) {
        Some(failure) => Err(failure),
        None => result,
    }
}

/// Returns whether the name of an algorithm is the path of a program. Names of algorithms have no `/`.
pub fn is_program(algorithm: &str) -> bool {
    algorithm.contains('/')
}

/// Runs a scenario of a program twice more and compares with the digest of the first run. Fails if they
/// differ: then the results of the runs are worth nothing.
pub fn repeat<W: Problem>(scenario: &Scenario<W>, digest: &str) -> Result<(), String> {
    repeat_with(scenario, digest, |recorder| scenario.run(recorder))
}

/// Does the same with a function that runs the scenario.
fn repeat_with<W: Problem>(
    scenario: &Scenario<W>,
    digest: &str,
    run: impl Fn(&mut Recorder) -> Result<W::Report, String>,
) -> Result<(), String> {
    let run = || {
        let mut recorder = Recorder::new(true, false);
        let report = run(&mut recorder)?;
        Ok::<_, String>((report.facts().digest.clone(), recorder.lines))
    };
    let (first, second) = (run()?, run()?);
    if first.0 == digest && second.0 == digest {
        return Ok(());
    }
    let (one, other) = (String::from_utf8_lossy(&first.1), String::from_utf8_lossy(&second.1));
    let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
    let shown = differs.map_or(String::new(), |(one, other)| {
        format!("; the first difference: {} and then {}", shortened(one), shortened(other))
    });
    let (name, seed) = (&scenario.algorithm, scenario.world.seed);
    Err(format!("{name} is not deterministic: seed {seed} had different runs; {HIDDEN_STATE}{shown}"))
}

/// Returns the beginning of a program's text, for a message of one line. Control characters are escaped,
/// because a program must not control the terminal.
fn shortened(text: &str) -> String {
    const MOST: usize = 300;
    let show = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let mut line: String = text.chars().take(MOST).map(show).collect();
    if text.chars().nth(MOST).is_some() {
        line += "...";
    }
    line
}

#[cfg(test)]
mod tests;
