//! `conclave completions`: completion scripts for shells.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::output::{self, Done};

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
  conclave completions fish > ~/.config/fish/completions/conclave.fish";

/// Prints the script.
pub fn run(args: &Args) -> Done {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "conclave", &mut text);
    output::print(&String::from_utf8_lossy(&text));
    Ok(ExitCode::SUCCESS)
}
