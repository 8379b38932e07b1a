//! Programs in any language in the place of an algorithm: `mutex/./ra.py`.

use std::sync::Arc;

use conclave_kernel::Card;
use conclave_lab::problem::{Facts, Scenario};
use conclave_lab::sites::{self, Program};

use crate::output::{self, Failure, VIOLATED};

/// Starts the program with this path, or returns it if it is already started.
pub fn open(problem: &str, name: &str) -> Result<Arc<Program>, Failure> {
    Ok(sites::program(problem, name)?)
}

/// Returns the card of a program; `None` if the name is not the path of one.
pub fn card(problem: &str, name: &str) -> Option<&'static Card> {
    opened(problem, name).map(|program| program.card())
}

/// Fails if a repeated run of a program differs. Does nothing for an algorithm of the laboratory.
pub fn verify_repeats<S: Scenario>(scenario: &S, facts: &Facts) -> Result<(), Failure> {
    let Some(program) = opened(S::PROBLEM, scenario.algorithm()) else { return Ok(()) };
    // The repeated runs, and later those that shrink a failure, print the same lines again.
    program.mute();
    sites::repeat(scenario, &facts.digest).map_err(|why| Failure::new(VIOLATED, "not-deterministic", why))
}

/// Prints the lines that a program wrote to standard error, each with its site and step.
pub fn show_output(problem: &str, name: &str) {
    let lines = opened(problem, name).map(|program| program.take_printed());
    lines.into_iter().flatten().for_each(|line| output::note(&output::shown(&line)));
}

fn opened(problem: &str, name: &str) -> Option<Arc<Program>> {
    if sites::is_program(name) { open(problem, name).ok() } else { None }
}
