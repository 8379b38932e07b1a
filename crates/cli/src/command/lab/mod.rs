//! The commands of the laboratory, one file per command, and the flags that they share.

mod check;
mod compare;
mod deadlock;
pub mod flags;
mod grade;
mod list;
mod matrix;
mod mutants;
mod picture;
mod problems;
mod program;
mod replay;
mod report;
mod sim;
mod trace;
mod world;

use conclave_algorithms::catalog;
use conclave_lab::added;

use crate::output::Done;
use crate::tree::Named;

/// The commands.
#[derive(clap::Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// Show the catalogue: every algorithm with its paper, assumptions, promises and costs
    List(list::Args),
    /// Run one algorithm in the simulator, measure it and judge it
    Sim(sim::Args),
    /// Explore every execution of an algorithm: every order of messages, every random choice
    Check(check::Args),
    /// Remove one assumption at a time: which algorithms stay correct, and how the others break
    Matrix(matrix::Args),
    /// Run the algorithms that are wrong on purpose, and show that each is caught
    Mutants(mutants::Args),
    /// Run the algorithms of a problem on the same work
    Compare(compare::Args),
    /// Test a program against a rubric, and print its points
    Grade(grade::Args),
    /// Read a wait-for graph from a file: which processes are stuck, why, and which to abort
    Deadlock(deadlock::Args),
    /// Step through a recorded run, or through the run of a seed
    Replay(replay::Args),
    /// Analyse a recorded run, or the log of another program: which event happened before which
    Trace(trace::Args),
}

/// The arguments that take a name of the catalogue, with the names: for completions.
pub fn names() -> Vec<Named> {
    let paths = || added::cards().map(|card| card.path().to_string());
    let problems = || catalog::problems().map(str::to_owned);
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut algorithms = Vec::new();
    for card in added::cards() {
        if !algorithms.iter().any(|known| known == card.name) {
            algorithms.push(card.name.to_owned());
        }
    }
    let mutants: Vec<_> = conclave_algorithms::mutants::all().map(|mutant| mutant.name.to_owned()).collect();
    let named = |command, argument, names| Named { command, argument, names };
    let mut all = vec![
        named("list", "which", problems().chain(paths()).collect()),
        named("sim", "algorithm", paths().collect()),
        named("check", "algorithm", paths().collect()),
        named("check", "mutant", mutants.clone()),
        named("matrix", "problem", owned(&conclave_lab::matrix::PROBLEMS)),
        named("mutants", "problem", owned(&conclave_algorithms::mutants::PROBLEMS)),
        named("mutants", "only", mutants),
        named("compare", "problem", problems().collect()),
        named("compare", "only", algorithms),
        named("replay", "what", paths().collect()),
        named("check", "order", owned(&["fifo", "any"])),
        named("check", "quorum", owned(&QUORUMS)),
        named("check", "recovery", owned(&["stable", "amnesia"])),
    ];
    for command in ["sim", "compare", "replay"] {
        all.push(named(command, "order", owned(&["fifo", "any", "causal"])));
        all.push(named(command, "quorum", owned(&QUORUMS)));
        all.push(named(command, "app", owned(&["bank", "work", "heap"])));
        all.push(named(command, "trigger", owned(&["elect", "resign"])));
        all.push(named(command, "model", owned(&["single", "and", "or", "p-out-of-q"])));
    }
    all
}

/// Returns the completion script of bash, in which `--mutant` offers the mutants of the algorithm that an
/// earlier word names, or all mutants if no word names one.
pub fn with_mutants_of_algorithm(script: &str) -> String {
    use conclave_algorithms::mutants;
    let names = |path: Option<&str>| {
        let of_path =
            mutants::all().filter(|mutant| path.is_none_or(|path| mutant.path().to_string() == path));
        of_path.map(|mutant| mutant.name).collect::<Vec<_>>().join(" ")
    };
    let all = names(None);
    let case = |path: String| format!("            {path}) echo \"{}\"; return ;;\n", names(Some(&path)));
    let cases: String = added::cards().map(|card| case(card.path().to_string())).collect();
    let function = format!(
        "_conclave_mutants() {{\n    local word\n    for word in \"${{COMP_WORDS[@]}}\"; do\n        case \"$word\" in\n\
         {cases}        esac\n    done\n    echo \"{all}\"\n}}\n\n"
    );
    function + &script.replace(&format!("-W \"{all}\""), "-W \"$(_conclave_mutants)\"")
}

/// The values of `--quorum`.
const QUORUMS: [&str; 4] = ["plane", "grid", "majority", "all"];

/// Runs a command.
pub fn run(command: &Command) -> Done {
    let done = match command {
        Command::List(args) => list::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Check(args) => check::run(args),
        Command::Matrix(args) => matrix::run(args),
        Command::Mutants(args) => mutants::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Grade(args) => grade::run(args),
        Command::Deadlock(args) => deadlock::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Trace(args) => trace::run(args),
    };
    conclave_lab::sites::close();
    done
}
