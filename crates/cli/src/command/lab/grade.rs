//! `conclave grade`: tests a program against a rubric.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use conclave_lab::sites;
use conclave_lab::sites::grade::{Grade, Rubric};

use super::program;
use crate::output::{self, Done, Failure, Paint, VIOLATED};

/// Test a program against a rubric, and print its points.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The program, which runs the sites: docs/sites.md describes its protocol
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The problem that the program solves
    #[arg(long, value_name = "PROBLEM", default_value = "mutex")]
    problem: String,
    /// The rubric, a file in TOML [default: a rubric for Ricart and Agrawala's algorithm]
    #[arg(long, value_name = "FILE")]
    rubric: Option<PathBuf>,
    /// The first seed. Give a secret number, so that a program cannot be fitted to the seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed_base: u64,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave grade ra.py --problem mutex
  conclave grade ra.py --rubric homework.toml --seed-base 580417 --json

Each test of the rubric gives all of its points or none. A crash or an endless loop costs that test only. The time \
of the rubric, by default 60 seconds, is divided over its tests.
Exit codes: 0 all points, 1 fewer points, 2 bad usage.";

/// The rubric that is used without --rubric.
const DEFAULT: &str = include_str!("../../../../../examples/sites/rubric.toml");

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let rubric = read(args.rubric.as_deref())?;
    if !args.file.is_file() {
        return Err(Failure::usage(format!("{} is not a file: give a program", args.file.display())));
    }
    let path = args.file.to_string_lossy();
    // A name with a / is the path of a program, in the commands of the report too.
    let path = if path.contains('/') { path.into_owned() } else { format!("./{path}") };
    if args.problem != "mutex" {
        return Err(Failure::usage(format!("problem {} has no rubrics: use --problem mutex", args.problem)));
    }
    let open = || sites::program(&args.problem, &path);
    let grade = rubric.grade(&path, args.seed_base, open);
    program::show_output(&args.problem, &path);
    if args.json {
        output::print_json(&grade)?;
    } else {
        output::print(&describe(&grade, Paint::stdout()));
    }
    Ok(if grade.points == grade.of { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

fn read(path: Option<&Path>) -> Result<Rubric, Failure> {
    let (text, path) = match path {
        Some(path) => (std::fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?, path),
        None => (DEFAULT.to_owned(), Path::new("the default rubric")),
    };
    let rubric: Rubric = toml::from_str(&text).map_err(|error| output::in_toml(path, &text, &error))?;
    rubric.validate().map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?;
    Ok(rubric)
}

fn describe(grade: &Grade, paint: Paint) -> String {
    let mut text = format!("{}  {}\n\n", paint.bold(&grade.program), grade.title);
    for line in &grade.tests {
        let points = format!("{:>3} of {:<3}", line.points, line.of);
        let points = if line.points == line.of { paint.good(&points) } else { paint.bad(&points) };
        _ = writeln!(text, "  {points}  {}\n              {}", line.name, line.why);
        if let Some(command) = &line.command {
            _ = writeln!(text, "              {command}");
        }
    }
    _ = writeln!(text, "\n  {:>3} of {:<3}  in total", grade.points, grade.of);
    text
}
