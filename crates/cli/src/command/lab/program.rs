//! Programs in any language in the place of an algorithm: `mutex/./ra.py`.

use std::sync::Arc;

use conclave_lab::experiment::Run;
use conclave_lab::problem::Problem;
use conclave_lab::sites::{self, Program};

use crate::output::{self, Failure, VIOLATED};

/// Fails if a repeated run of a program differs. Does nothing for an algorithm of the laboratory.
pub fn verify_repeats<W: Problem>(scenario: &Run<W>, digest: &str) -> Result<(), Failure> {
    let Some(program) = opened(W::NAME, &scenario.algorithm) else { return Ok(()) };
    // The repeated runs, and later those that shrink a failure, print the same lines again.
    program.mute();
    sites::repeat(scenario, digest).map_err(|why| Failure::new(VIOLATED, "not-deterministic", why))
}

/// Prints the lines that a program wrote to standard error, each with its site and step.
pub fn show_output(problem: &str, name: &str) {
    let lines = opened(problem, name).map(|program| program.take_printed());
    lines.into_iter().flatten().for_each(|line| output::note(&output::shown(&line)));
}

fn opened(problem: &str, name: &str) -> Option<Arc<Program>> {
    sites::named(problem, name).ok().flatten()
}
