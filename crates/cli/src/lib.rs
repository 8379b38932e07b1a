//! The command line `conclave`, which combines all crates.
//!
//! It is a library, so that a program of another crate can have all commands for algorithms of its own:
//!
//! ```no_run
//! # #[cfg(feature = "lab")]
//! # fn example<MyAlgorithm: conclave_algorithms::mutants::flawed::Fallible + conclave_algorithms::mutex::Mutex>() {
//! conclave::main_with(vec![conclave_lab::problems::mutex::entry::<MyAlgorithm>()]);
//! # }
//! ```

// They panic where nothing can be written: see `output`.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod command;
mod help;
mod output;
mod tree;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use conclave_kernel::suggest;
use serde_json::json;

#[cfg(feature = "lab")]
use command::lab;
use command::{clock, completions};
#[cfg(feature = "service")]
use command::{service, tour};
use output::Failure;

/// The command line. The package description is the first line of its help.
#[derive(Parser)]
#[command(name = "conclave", version, about, max_term_width = 110, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  conclave run --local build -- make                 run make under a lock, without a server
  conclave serve                                     start a lock service on this machine
  conclave run build -- make                         run make under the lock `build` of that service
  conclave why build                                 show who holds it, and who waits for whom
  conclave list mutex                                show algorithms, assumptions and costs
  conclave sim mutex/maekawa --nodes 7 --load high   run an algorithm, measure it and judge it
  conclave compare mutex --nodes 3,9,27              compare algorithms on the same work
  conclave sim mutex/lamport --order any --delay exponential:1ms --load high --seeds 0..1000
                                                     find a run that violates a property

Exit codes: 0 done, 2 bad usage, 74 standard output cannot be written. `conclave COMMAND --help` \
lists those of a command.";

/// A command is described (`defer`) only when it is used. Scripts start `conclave run` often, and all
/// commands together have about three hundred flags.
#[derive(Subcommand)]
#[command(defer = true)]
enum Command {
    /// Measure this machine's clock against NTP servers, or serve its time; the clock is never set
    Clock(clock::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Print the manual page of a command, or write the pages of all commands
    Man(command::man::Args),
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(Box<lab::Command>),
    #[cfg(feature = "service")]
    #[command(flatten)]
    Service(service::Command),
    /// Show the main features in half a minute, on a server of its own
    #[cfg(feature = "service")]
    Tour(tour::Args),
}

/// Runs the command that the command line names, with algorithms of another crate beside those of the
/// catalogue.
#[cfg(feature = "lab")]
pub fn main_with(algorithms: Vec<conclave_lab::added::Algorithm>) -> ExitCode {
    match conclave_lab::added::add(algorithms) {
        Ok(()) => main(),
        Err(mistake) => fail(&Failure::usage(mistake)),
    }
}

/// Runs the command that the command line names.
pub fn main() -> ExitCode {
    #[cfg(feature = "service")]
    if let Some(done) = service::run_if_local_node() {
        return done.unwrap_or_else(|failure| fail(&failure));
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let done = match cli.command {
        Command::Clock(args) => clock::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => command::man::run(&args),
        #[cfg(feature = "lab")]
        Command::Lab(command) => lab::run(&command),
        #[cfg(feature = "service")]
        Command::Service(command) => service::run(&command),
        #[cfg(feature = "service")]
        Command::Tour(args) => tour::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(failure) => fail(&failure),
    }
}

/// Parses the command line. A command of the laboratory first gets the flags of the problem that it names.
fn parse() -> Result<Cli, clap::Error> {
    let command = Cli::command();
    #[cfg(feature = "lab")]
    let command = lab::flags::specialised(command, &words());
    let matches = command.try_get_matches()?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))
}

/// The words of the command line after the name of the program.
#[cfg(feature = "lab")]
fn words() -> Vec<String> {
    std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Prints a failure: one line of text, or one JSON object with `--json`.
fn report(failure: &Failure) {
    let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    match json {
        _ if failure.message.is_empty() => {}
        true => output::note(&json!(failure.to_json()).to_string()),
        false => output::complain(&failure.text()),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    report(failure);
    ExitCode::from(failure.code)
}

/// Prints help and version unchanged, and an error in one line without the usage block.
fn refuse(error: &clap::Error) -> ExitCode {
    let given =
        |context| error.get(context).map(|value: &ContextValue| value.to_string()).unwrap_or_default();
    match error.kind() {
        ErrorKind::DisplayHelp => show(help::grouped().as_ref().unwrap_or(error)),
        ErrorKind::DisplayVersion => show(error),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            _ = help::grouped().as_ref().unwrap_or(error).print();
            ExitCode::from(output::USAGE)
        }
        ErrorKind::InvalidSubcommand => {
            if let Some(help) = help::grouped() {
                return show(&help);
            }
            let given = given(ContextKind::InvalidSubcommand);
            let (_, command) = asked_for();
            let names = command.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "help");
            fail(&Failure::usage(match command.get_name() {
                "conclave" => suggest::unknown("command", &given, help::names()),
                _ => suggest::unknown("command", &given, names),
            }))
        }
        ErrorKind::UnknownArgument if is_command_without_dashes(&given(ContextKind::InvalidArg)) => {
            let given = given(ContextKind::InvalidArg);
            fail(&Failure::usage(format!("unexpected '{given}': put -- before the command")))
        }
        ErrorKind::UnknownArgument => {
            let (argument, similar) = (given(ContextKind::InvalidArg), given(ContextKind::SuggestedArg));
            #[cfg(feature = "lab")]
            if let Some((problem, owners)) = lab::flags::owners(&words(), &argument) {
                let whose = if owners.len() > 1 { "problems" } else { "problem" };
                return fail(&Failure::usage(format!(
                    "{argument} has no effect in problem {problem}: it is a flag of {whose} {}; leave it out",
                    owners.join(", ")
                )));
            }
            let is_negative =
                argument.strip_prefix('-').is_some_and(|rest| rest.starts_with(char::is_numeric));
            fail(&match &*similar {
                _ if is_negative => {
                    Failure::usage(format!("'{argument}' is negative: give a number of at least 0"))
                }
                _ if !argument.starts_with('-') => {
                    Failure::usage(format!("unexpected argument '{argument}'")).advise(see_help())
                }
                "" => Failure::usage(format!("unknown option {argument}")).advise(see_help()),
                similar => Failure::usage(format!("unknown option {argument}; did you mean {similar}?")),
            })
        }
        kind => {
            let text = error.to_string().replace("invalid digit found in string", "expected a whole number");
            let text = text.replace("number too large to fit in target type", "the number is too large");
            // clap names an option by its first name, also if the user has typed the other one.
            let has = |option: &str| std::env::args().any(|argument| argument.starts_with(option));
            let text = if has("--timeout") { text.replace("'--wait ", "'--timeout ") } else { text };
            let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
            let message = lines.collect::<Vec<_>>().join(" ");
            let failure = Failure::usage(message.strip_prefix("error: ").unwrap_or(&message));
            // The message about a value says which values are allowed.
            let is_value = matches!(kind, ErrorKind::ValueValidation | ErrorKind::InvalidValue);
            fail(&if is_value { failure } else { failure.advise(see_help()) })
        }
    }
}

/// Prints help to standard output, where it can fail like any other result.
fn show(help: &clap::Error) -> ExitCode {
    let written = help.print().and_then(|()| io::stdout().flush());
    let failure = written.err().and_then(|error| output::unwritten(&error));
    failure.map_or(ExitCode::SUCCESS, |failure| fail(&failure))
}

/// Returns the innermost command that the command line names, and its full name.
fn asked_for() -> (String, clap::Command) {
    let mut command = Cli::command();
    command.build();
    let mut name = "conclave".to_owned();
    for word in std::env::args().skip(1) {
        let Some(inner) = command.find_subcommand(&word) else { break };
        name += &format!(" {word}");
        command = inner.clone();
    }
    (name, command)
}

/// Returns the advice for a command line that lacks something.
fn see_help() -> String {
    format!("see `{} --help`", asked_for().0)
}

/// Whether the command line is like `conclave run db make`, without `--`. Then flags of `make` would be
/// ambiguous.
fn is_command_without_dashes(given: &str) -> bool {
    let takes_command = std::env::args_os().nth(1).is_some_and(|name| name == "run" || name == "elect");
    takes_command && !given.starts_with('-')
}
