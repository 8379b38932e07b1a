//! The tree of commands as data, for completions and manual pages.
//!
//! Commands add their arguments only when they are used (`defer`). clap copies the tree for `conclave help
//! COMMAND` before that, so the copy lacks nested commands. This tree contains the complete commands, without
//! `help`. It is not used for parsing.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};

/// Returns all commands with their arguments and nested commands, without `help` commands and `--help` flags.
pub fn commands() -> Command {
    let mut described = crate::Cli::command();
    described.build();
    let commands = copy(&described);
    #[cfg(feature = "lab")]
    let commands = crate::command::lab::flags::complete(commands);
    commands
}

fn copy(described: &Command) -> Command {
    let is_own = |id: &str| id != "help" && id != "version";
    let arguments = described.get_arguments().filter(|argument| is_own(argument.get_id().as_str())).cloned();
    let nested = described.get_subcommands().filter(|command| command.get_name() != "help").map(copy);
    let groups = described.get_groups().cloned();
    let command = Command::new(kept(described.get_name()))
        .args(arguments)
        .groups(groups)
        .subcommands(nested)
        .subcommand_required(described.is_subcommand_required_set());
    let command = match described.get_about() {
        Some(about) => command.about(about.clone()),
        None => command,
    };
    let command = match described.get_after_help() {
        Some(after) => command.after_help(after.clone()),
        None => command,
    };
    match described.get_version() {
        Some(_) => command.version(env!("CARGO_PKG_VERSION")),
        None => command,
    }
}

/// Returns a text that lives as long as the process, which clap requires without its feature `string`. The
/// commands that use this tree print once and end, so little memory stays allocated.
pub fn kept(text: &str) -> &'static str {
    text.to_owned().leak()
}

/// An argument with values that are known in advance.
pub struct Named {
    /// The command.
    pub command: &'static str,
    /// The id of the argument.
    pub argument: &'static str,
    /// The values.
    pub names: Vec<String>,
}

impl Named {
    /// Adds the values to the argument in a tree. The tree serves completions only: the command itself
    /// accepts any text and suggests the nearest name.
    pub fn offer(&self, tree: Command) -> Command {
        let names = self.names.iter().map(|name| kept(name)).collect::<Vec<_>>();
        tree.mut_subcommand(self.command, |command| {
            command.mut_arg(self.argument, |argument| argument.value_parser(PossibleValuesParser::new(names)))
        })
    }

    /// Returns the line that offers the values in fish, if the argument has no flag.
    pub fn for_fish(&self, tree: &Command) -> String {
        let arguments = tree.find_subcommand(self.command).map(Command::get_positionals);
        let is_positional =
            arguments.is_some_and(|mut all| all.any(|argument| argument.get_id() == self.argument));
        if !is_positional {
            return String::new();
        }
        let (command, names) = (self.command, self.names.join(" "));
        format!("complete -c conclave -n \"__fish_conclave_using_subcommand {command}\" -f -a \"{names}\"\n")
    }
}
