//! The commands of the laboratory: one file a command, and the flags that they share.

mod check;
mod compare;
mod deadlock;
mod list;
mod matrix;
mod mutants;
mod problems;
mod replay;
mod report;
mod sim;
mod trace;
mod world;

use crate::output::Done;

/// The commands.
#[derive(clap::Subcommand)]
#[command(defer = true)]
pub enum Command {
    /// The catalogue: every algorithm with its paper, assumptions, promises and costs
    List(list::Args),
    /// Run one algorithm in the simulator, measure it and judge it
    Sim(sim::Args),
    /// Explore every execution of an algorithm: all orders of messages, all falls of its dice
    Check(check::Args),
    /// Take away one assumption at a time: which algorithm stands it, and how the others break
    Matrix(matrix::Args),
    /// Run the algorithms that are wrong on purpose, and see that each is caught
    Mutants(mutants::Args),
    /// Run all algorithms of a problem on the same work
    Compare(compare::Args),
    /// Read who waits for whom from a file: who is stuck, why, and whom to abort
    Deadlock(deadlock::Args),
    /// Step through a recorded run, or through the run of a seed
    Replay(replay::Args),
    /// Analyse a recorded run, or the log of another program: what happened before what
    Trace(trace::Args),
}

/// Runs a command.
pub fn run(command: &Command) -> Done {
    match command {
        Command::List(args) => list::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Check(args) => check::run(args),
        Command::Matrix(args) => matrix::run(args),
        Command::Mutants(args) => mutants::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Deadlock(args) => deadlock::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Trace(args) => trace::run(args),
    }
}
