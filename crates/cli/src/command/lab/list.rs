//! `conclave list`: prints the cards of the algorithms.

use std::fmt::Write as _;
use std::process::ExitCode;

use conclave_algorithms::catalog;
use conclave_kernel::Card;
use conclave_kernel::suggest;
use conclave_lab::added;

use crate::output::{self, Done, Paint};

/// Show the catalogue: every algorithm with its paper, assumptions, promises and costs.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  conclave list\n  conclave list mutex\n  conclave list mutex/maekawa --json\n\n\
                  Exit codes: 0 done, 2 bad usage."
)]
pub struct Args {
    /// A problem, or an algorithm as PROBLEM/ALGORITHM [default: all]
    #[arg(value_name = "PROBLEM")]
    which: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Prints the chosen cards.
pub fn run(args: &Args) -> Done {
    let cards = select(args.which.as_deref())?;
    if args.json {
        output::print_json(&cards)?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = Paint::stdout();
    for card in cards {
        output::print(&describe(card, paint));
    }
    Ok(ExitCode::SUCCESS)
}

fn select(which: Option<&str>) -> Result<Vec<&'static Card>, String> {
    let Some(which) = which else { return Ok(added::cards().collect()) };
    let (problem, name) = match which.split_once('/') {
        Some((problem, name)) => (problem, Some(name)),
        None => (which, None),
    };
    let in_problem: Vec<_> = added::cards().filter(|card| card.problem == problem).collect();
    if in_problem.is_empty() {
        return Err(suggest::unknown("problem", problem, catalog::problems()));
    }
    let Some(name) = name else { return Ok(in_problem) };
    match in_problem.iter().find(|card| card.name == name) {
        Some(card) => Ok(vec![card]),
        None => Err(suggest::unknown(
            &format!("algorithm of problem {problem}"),
            name,
            in_problem.iter().map(|card| card.name),
        )),
    }
}

fn describe(card: &Card, paint: Paint) -> String {
    let mut text = format!("{}  {}\n", paint.bold(&card.path().to_string()), card.title);
    _ = writeln!(text, "  {}", card.summary);
    let mut line =
        |name: &str, value: &str| _ = writeln!(text, "  {}  {value}", paint.dim(&format!("{name:<9}")));
    line("source", &card.papers.join(", "));
    line("needs", &card.needs.to_string());
    line("promises", &card.promises.join(", "));
    for cost in card.costs {
        let name = format!("{:?}", cost.measure);
        let words = name.chars().fold(String::new(), |mut words, letter| {
            if letter.is_uppercase() && !words.is_empty() {
                words.push(' ');
            }
            words.extend(letter.to_lowercase());
            words
        });
        let load = if cost.load == conclave_kernel::Load::Low { "low load" } else { "high load" };
        line("cost", &format!("{words}, {load}: {}", cost.formula));
    }
    line("survives", card.survives);
    text.push('\n');
    text
}
