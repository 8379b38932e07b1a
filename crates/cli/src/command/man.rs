//! `conclave man`: manual pages, made from the help texts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, Command};
use clap_mangen::Man;
use conclave_kernel::suggest;

use crate::output::{self, Done, Failure};
use crate::tree;

/// Print the manual page of a command, or write the pages of all commands
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The command, such as `run` or `sessions end`; `conclave` itself if not given
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Vec<String>,
    /// Write one page per command into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  conclave man run | man -l -
  conclave man --out ~/.local/share/man/man1

Exit codes: 0 done, 2 bad usage or a folder that cannot be written.";

/// Prints or writes the pages.
pub fn run(args: &Args) -> Done {
    let all = tree::commands();
    match &args.out {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(|error| Failure::file(folder, &error))?;
            write_all(&all, "conclave", folder)?;
        }
        None => output::print_bytes(&chosen(&all, &args.command)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// The page of the command that the words name.
fn chosen(all: &Command, words: &[String]) -> Result<Vec<u8>, Failure> {
    let (mut command, mut name) = (all, "conclave".to_owned());
    for word in words {
        let nested = command.find_subcommand(word);
        command = nested.ok_or_else(|| {
            let known = command.get_subcommands().map(Command::get_name);
            Failure::usage(match command.has_subcommands() {
                true => suggest::unknown("command", word, known),
                false => format!("{name} has no command '{word}': leave it out"),
            })
        })?;
        name = format!("{name} {word}");
    }
    page(command, &name)
}

fn write_all(command: &Command, name: &str, folder: &Path) -> Result<(), Failure> {
    let file = folder.join(format!("{}.1", name.replace(' ', "-")));
    std::fs::write(&file, page(command, name)?).map_err(|error| Failure::file(&file, &error))?;
    for nested in command.get_subcommands() {
        write_all(nested, &format!("{name} {}", nested.get_name()), folder)?;
    }
    Ok(())
}

/// One page. `name` is the full name of the command, such as `conclave sessions end`.
fn page(command: &Command, name: &str) -> Result<Vec<u8>, Failure> {
    let title = name.replace(' ', "-");
    let command = command
        .clone()
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(name != "conclave")
        .disable_help_subcommand(true)
        .display_name(tree::kept(&title))
        .bin_name(tree::kept(name));
    let source = concat!("conclave ", env!("CARGO_PKG_VERSION"));
    let mut command = command.mut_args(with_aliases);
    let usage = command.render_usage().to_string();
    let command = command.override_usage(tree::kept(usage.trim_start_matches("Usage:").trim()));
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut text = Vec::new();
    Man::new(command.after_help(None::<&'static str>))
        .source(source)
        .render(&mut text)
        .map_err(|error| Failure::usage(format!("manual page: {error}")))?;
    let page = String::from_utf8_lossy(&text).replacen(".SH VERSION\n", &(roff(&after) + ".SH VERSION\n"), 1);
    Ok(page.into_bytes())
}

/// Adds the other names of an option to its help.
fn with_aliases(argument: Arg) -> Arg {
    let Some(aliases) = argument.get_visible_aliases().filter(|aliases| !aliases.is_empty()) else {
        return argument;
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let help = format!("{help} [aliases: --{}]", aliases.join(", --"));
    argument.help(tree::kept(&help))
}

/// Returns the text after the options as sections of a page: examples, which keep their lines, then notes. Each
/// line of the text that is not indented is a paragraph.
fn roff(after: &str) -> String {
    let mut page = String::new();
    let mut is_verbatim = false;
    for line in after.lines().filter(|line| !line.trim().is_empty()) {
        let is_indented = line.starts_with(' ');
        if is_indented != is_verbatim {
            page += if is_indented { ".PP\n.nf\n" } else { ".fi\n" };
            is_verbatim = is_indented;
        }
        let text = line.replace('\\', "\\e").replace('-', "\\-");
        match line {
            "Examples:" => page += ".SH EXAMPLES\n",
            _ if is_indented => page += &format!("{text}\n"),
            _ if page.contains(".SH NOTES") => page += &format!(".PP\n\\&{text}\n"),
            _ => page += &format!(".SH NOTES\n\\&{text}\n"),
        }
    }
    if is_verbatim {
        page += ".fi\n";
    }
    page
}
