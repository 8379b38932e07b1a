//! `conclave completions`: completion scripts for shells.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::output::{self, Done};
use crate::tree;

/// Print completions for a shell
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  conclave completions bash > ~/.local/share/bash-completion/completions/conclave
  conclave completions zsh > \"${fpath[1]}/_conclave\"
  conclave completions fish > ~/.config/fish/completions/conclave.fish

Exit codes: 0 done, 2 bad usage.";

/// Prints the script.
pub fn run(args: &Args) -> Done {
    let mut tree = tree::commands();
    let mut text = Vec::new();
    #[cfg(feature = "lab")]
    let names = crate::command::lab::names();
    #[cfg(not(feature = "lab"))]
    let names = Vec::new();
    let commands = tree.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let names: Vec<_> = names
        .into_iter()
        .chain([tree::Named { command: "man", argument: "command", names: commands }])
        .collect();
    for named in &names {
        tree = named.offer(tree);
    }
    clap_complete::generate(args.shell, &mut tree, "conclave", &mut text);
    #[cfg(feature = "lab")]
    if args.shell == Shell::Bash {
        text = crate::command::lab::with_mutants_of_algorithm(&String::from_utf8_lossy(&text)).into_bytes();
    }
    if args.shell == Shell::Fish {
        // The generator leaves out arguments without a flag.
        names.iter().for_each(|named| text.extend_from_slice(named.for_fish(&tree).as_bytes()));
    }
    output::print_bytes(&text);
    Ok(ExitCode::SUCCESS)
}
