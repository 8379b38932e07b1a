//! The flags of problems on the command line.
//!
//! A command has the flags of one problem: the one that its first argument names. So the help of `conclave
//! sim mutex --help` lists the flags of a mutex only, and clap rejects the flags of other problems. The flags
//! are added before the command line is parsed. A command line that names no known problem gets the flags of
//! all, hidden, so that the error is about the name.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use super::problems::{self, ENTRIES, Entry};
use crate::output::Failure;
use crate::tree;

/// The commands that take flags of a problem.
const COMMANDS: [&str; 4] = ["sim", "compare", "replay", "check"];

/// The flags of the problem, as they were given.
#[derive(Clone, Default)]
pub struct ProblemFlags {
    matches: ArgMatches,
}

impl ProblemFlags {
    /// Changes a work as the flags say. Fails if the flags are those of another problem: an earlier word of
    /// the command line named it.
    pub fn update<W: clap::Args>(&self, work: &mut W) -> Result<(), Failure> {
        let own = W::augment_args_for_update(Command::new(""));
        if own.get_arguments().any(|flag| self.matches.try_contains_id(flag.get_id().as_str()).is_err()) {
            return Err(Failure::usage("the algorithm must be the first name: put PROBLEM/ALGORITHM first"));
        }
        let read = work.update_from_arg_matches(&self.matches);
        read.map_err(|error| Failure::usage(error.to_string()))
    }

    /// Whether a flag of the command line has this id.
    pub fn has(&self, id: &str) -> bool {
        self.matches.try_contains_id(id).is_ok_and(|given| given)
            && self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }

    /// Whether any flag of a problem was given.
    pub fn has_any(&self) -> bool {
        ENTRIES
            .iter()
            .flat_map(|entry| flags_of(entry.simulated))
            .any(|flag| self.has(flag.get_id().as_str()))
    }

    /// Whether any flag of a problem in the checker was given.
    pub fn has_any_explored(&self) -> bool {
        ENTRIES
            .iter()
            .filter_map(|entry| entry.explored)
            .flat_map(|explored| flags_of(explored.flags))
            .any(|flag| self.has(flag.get_id().as_str()))
    }

    /// The value of `--entries` of `check`; the default is 1.
    pub fn entries(&self) -> u8 {
        self.matches.try_get_one("entries").ok().flatten().copied().unwrap_or(1)
    }
}

/// The arguments are added by [`specialised`], because only the command line says which they are.
impl clap::Args for ProblemFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for ProblemFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { matches: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.matches = matches.clone();
        Ok(())
    }
}

/// Returns the root command with the flags of the problem that the words of the command line name.
pub fn specialised(root: Command, words: &[String]) -> Command {
    let Some(command) = words.first().filter(|word| COMMANDS.contains(&word.as_str())) else { return root };
    match problem(words).map(|entry| adder(entry, command)) {
        Some(Some(add)) => root.mut_subcommand(command, add),
        Some(None) => root,
        None => with_all(root, command, true),
    }
}

/// Returns the commands with the flags of all problems: for completions and manual pages.
pub fn complete(root: Command) -> Command {
    COMMANDS.iter().fold(root, |root, command| with_all(root, command, false))
}

/// Returns the problems that have this flag, if the problem of the command line has not.
pub fn owners(words: &[String], flag: &str) -> Option<(&'static str, Vec<&'static str>)> {
    let command = words.first().filter(|word| COMMANDS.contains(&word.as_str()))?;
    let chosen = problem(words)?;
    let long = flag.strip_prefix("--")?.split('=').next()?;
    let has = |entry: &&Entry| {
        adder(entry, command).is_some_and(|add| flags_of(add).iter().any(|it| it.get_long() == Some(long)))
    };
    let owners: Vec<_> = ENTRIES.iter().filter(has).map(|entry| entry.name).collect();
    (!owners.is_empty()).then_some((chosen.name, owners))
}

/// Returns the first known problem that a word names, alone or as PROBLEM/ALGORITHM.
fn problem(words: &[String]) -> Option<&'static Entry> {
    let arguments = words.iter().skip(1).take_while(|word| *word != "--");
    arguments.filter_map(|word| problems::named(word.split('/').next().unwrap_or_default())).next()
}

/// Returns the function that adds the flags of a problem to a command.
fn adder(entry: &Entry, command: &str) -> Option<fn(Command) -> Command> {
    match command {
        "check" => entry.explored.map(|explored| explored.flags),
        _ => Some(entry.simulated),
    }
}

fn flags_of(add: fn(Command) -> Command) -> Vec<Arg> {
    add(Command::new("")).get_arguments().cloned().collect()
}

/// Adds the flags of all problems to a command. The help of each names its problems.
fn with_all(root: Command, command: &str, hidden: bool) -> Command {
    let mut flags: Vec<(Arg, String)> = Vec::new();
    for entry in &ENTRIES {
        for flag in adder(entry, command).map_or(Vec::new(), flags_of) {
            let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
            let help = format!("Problem {}: {help}", entry.name);
            match flags.iter_mut().find(|(known, _)| known.get_id() == flag.get_id()) {
                Some((_, known)) => *known = format!("{known}. {help}"),
                None => flags.push((flag, help)),
            }
        }
    }
    root.mut_subcommand(command, |it| {
        let flags = flags.into_iter().map(|(flag, help)| flag.help(tree::kept(&help)).hide(hidden));
        it.args(flags)
    })
}
