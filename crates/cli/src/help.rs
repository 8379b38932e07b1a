//! The help of `conclave` itself, with its commands in groups.
//!
//! clap has no groups of subcommands. So [`GROUPS`] is the only table of groups, and the list of commands is
//! rendered into a help template. The template is built only for this help, because it needs the descriptions
//! of all commands.

use std::fmt::Write as _;
use std::io;

use clap::{Command, CommandFactory};
use rustix::termios::tcgetwinsize;

/// The groups and their commands, in the order of the help. Add the name of a new command here. A test
/// compares the table with the existing commands.
const GROUPS: &[(&str, &[&str])] = &[
    #[cfg(feature = "service")]
    ("Locks", &["run", "lock", "unlock", "why", "locks", "limit", "break", "sessions", "elect"]),
    #[cfg(feature = "service")]
    ("Files", &["get", "put", "ls", "rm", "watch"]),
    #[cfg(feature = "service")]
    ("Cluster", &["serve", "cluster", "bench"]),
    #[cfg(feature = "lab")]
    (
        "Laboratory",
        &["list", "sim", "check", "matrix", "mutants", "compare", "grade", "deadlock", "replay", "trace"],
    ),
    #[cfg(feature = "service")]
    ("Tools", &["tour", "clock", "completions", "man", "help"]),
    #[cfg(not(feature = "service"))]
    ("Tools", &["clock", "completions", "man", "help"]),
];

/// Returns the error by which clap prints the help of `conclave` itself, with the commands in groups. Returns
/// `None` if the command line requests another help.
pub fn grouped() -> Option<clap::Error> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    let is_help = first.is_empty() || first == "--help" || first.to_string_lossy().starts_with("-h");
    let is_root =
        is_help || first == "help" && arguments.next().is_none_or(|next| next == "--help" || next == "-h");
    let matches = || match first == "help" {
        true => command().try_get_matches_from(["conclave", "help"]),
        false => command().try_get_matches(),
    };
    is_root.then(|| matches().err()).flatten()
}

/// Returns the names of all commands, in the order of the help.
pub fn names() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|(_, names)| names.iter().copied())
}

fn command() -> Command {
    let command = crate::Cli::command();
    let mut built = command.clone();
    built.build();
    let list = list(&built, width());
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    ))
}

/// Returns the width of the help in columns, as clap chooses it: that of the terminal, else `COLUMNS`, at
/// most 110.
fn width() -> usize {
    const MOST: usize = 110;
    const WITHOUT_TERMINAL: usize = 100;
    let size = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let size = size.or_else(|| std::env::var("COLUMNS").ok()?.parse().ok());
    size.filter(|columns| *columns > 0).unwrap_or(WITHOUT_TERMINAL).min(MOST)
}

/// Returns the commands of each group with their descriptions, wrapped at this width.
fn list(command: &Command, width: usize) -> String {
    let styles = command.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let column = names().map(str::len).max().unwrap_or_default() + 4;
    let mut text = String::new();
    for (title, names) in GROUPS {
        _ = writeln!(text, "{header}{title}:{header:#}");
        for command in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let (name, about) = (command.get_name(), command.get_about().map(ToString::to_string));
            let blank = " ".repeat(column - 2 - name.len());
            let mut used = column;
            _ = write!(text, "  {literal}{name}{literal:#}{blank}");
            for (index, word) in about.unwrap_or_default().split_whitespace().enumerate() {
                let wide = word.chars().count();
                if index > 0 && used + 1 + wide > width {
                    _ = write!(text, "\n{}", " ".repeat(column));
                    used = column;
                } else if index > 0 {
                    text.push(' ');
                    used += 1;
                }
                text.push_str(word);
                used += wide;
            }
            text.push('\n');
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built() -> Command {
        let mut command = crate::Cli::command();
        command.build();
        command
    }

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let built = built();
        let mut real: Vec<_> = built.get_subcommands().map(Command::get_name).collect();
        let mut grouped: Vec<_> = names().collect();
        real.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, real, "left: GROUPS of help.rs; right: the commands");
    }

    #[test]
    fn a_narrow_list_has_the_words_of_a_wide_one() {
        let built = built();
        let words = |width| {
            let list = list(&built, width);
            assert!(list.lines().all(|line| plain(line).chars().count() <= width), "{list}");
            list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(50), words(110));
    }

    fn plain(line: &str) -> String {
        let mut parts = line.split('\x1b');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
    }
}
