//! `conclave mutants`: runs the algorithms that are wrong on purpose.

use std::process::ExitCode;
use std::time::Duration;

use conclave_algorithms::mutants::{self, Mutant};
use conclave_kernel::suggest;
use conclave_lab::deepen::Plan;
use conclave_lab::experiment::flags;
use conclave_lab::mutants::{Finding, Messages, examine};
use conclave_lab::{added, flaws};
use serde::Serialize;

use super::problems;
use crate::output::{self, Done, Failure, Paint, Table, VIOLATED};

/// Run the algorithms that are wrong on purpose, and show that each is caught.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only the mutants of this problem
    #[arg(value_name = "PROBLEM")]
    problem: Option<String>,
    /// Only the mutants whose name or algorithm contains this text; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// The number of threads that explore [default: all cores]
    #[arg(long, value_name = "N", value_parser = flags::threads)]
    threads: Option<usize>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave mutants
  conclave mutants election
  conclave mutants deadlock --only edge-chasing
  conclave mutants --only maekawa
  conclave check mutex/maekawa --quorum all --mutant maekawa-1985 --svg deadlock.svg

'steps' is the length of the shortest counterexample. 'elsewhere' is the length of a published counterexample. \
For a harmless mutant, the output compares the messages of all its executions with those of the correct \
algorithm. The problems detector, deadlock and timesync have only flaws that need no code of an algorithm; some of \
these flaws are harmless, so their exit code is 0.
Exit codes: 0 every harmful mutant is caught and no harmless mutant is, 1 otherwise, 2 bad usage.";

/// Runs the chosen mutants.
pub fn run(args: &Args) -> Done {
    if let Some(problem) = args.problem.as_deref().filter(|problem| is_without_table(problem)) {
        return run_generic(args, problem);
    }
    let chosen = choose(args)?;
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let bar = output::progress(chosen.len() as u64, "mutants");
    let mut findings = Vec::new();
    for mutant in chosen {
        bar.set_message(mutant.name);
        findings.push(examine(mutant, threads)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let expected = findings.iter().all(Finding::is_expected);
    if args.json {
        output::print_json(&findings)?;
    } else {
        output::print(&describe(&findings, Paint::stdout()));
    }
    Ok(if expected { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

/// Returns whether the algorithms of a problem have generic flaws only.
fn is_without_table(problem: &str) -> bool {
    problems::is_problem(problem) && !mutants::PROBLEMS.contains(&problem)
}

/// The number of seeds of a flaw that the checker cannot explore.
const SEEDS: u64 = 20;

/// A generic flaw and what is known of it. The names are those of the JSON object.
#[derive(Serialize)]
struct Row {
    algorithm: String,
    name: String,
    flaw: String,
    by: Option<String>,
    evidence: String,
}

/// Runs every algorithm of a problem with every flaw that needs no code. Such a flaw may be harmless.
fn run_generic(args: &Args, problem: &str) -> Done {
    let plan = Plan { within: Duration::MAX, most_states: 10_000, ..Plan::default() };
    let plan = Plan { sizes: plan.sizes[..2].to_vec(), ..plan };
    let mut rows = Vec::new();
    for card in added::cards().filter(|card| card.problem == problem) {
        for flaw in flaws::of(card, &plan)? {
            let fits = |part: &String| flaw.name.contains(part.as_str()) || card.name.contains(part.as_str());
            if args.only.is_empty() || args.only.iter().any(fits) {
                let evidence = flaws::judge(card, Some(&flaw.name), &plan, SEEDS)?;
                let by = evidence.broken().map(str::to_owned);
                let (algorithm, evidence) = (card.path().to_string(), evidence.to_string());
                rows.push(Row { algorithm, name: flaw.name, flaw: flaw.sentence, by, evidence });
            }
        }
    }
    if rows.is_empty() {
        return Err(Failure::usage(format!(
            "no flaw of problem {problem} fits: leave out --only to see all"
        )));
    }
    if args.json {
        output::print_json(&rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["algorithm", "flaw", "by", "evidence"]);
    for Row { algorithm, name, by, evidence, .. } in rows {
        table.row(vec![algorithm, name, by.unwrap_or_else(|| "-".into()), evidence]);
    }
    output::print(&table.render(Paint::stdout()));
    Ok(ExitCode::SUCCESS)
}

fn choose(args: &Args) -> Result<Vec<&'static Mutant>, Failure> {
    if let Some(problem) = args.problem.as_deref().filter(|problem| !mutants::PROBLEMS.contains(problem)) {
        if problem.contains('/') {
            let instead =
                |problem: &str, name: &str| format!("type conclave mutants {problem} --only {name}");
            return Err(problems::not_a_problem(problem, instead));
        }
        return Err(suggest::unknown("problem", problem, mutants::PROBLEMS.into_iter()).into());
    }
    let in_problem =
        |mutant: &&Mutant| args.problem.as_deref().is_none_or(|problem| mutant.problem == problem);
    let fits = |mutant: &Mutant, part: &str| mutant.name.contains(part) || mutant.algorithm.contains(part);
    for part in &args.only {
        if !mutants::all().filter(in_problem).any(|mutant| fits(mutant, part)) {
            return Err(suggest::unknown(
                "mutant",
                part,
                mutants::all().filter(in_problem).map(|mutant| mutant.name),
            )
            .into());
        }
    }
    let wanted = |mutant: &Mutant| args.only.is_empty() || args.only.iter().any(|part| fits(mutant, part));
    Ok(mutants::all().filter(in_problem).filter(|mutant| wanted(mutant)).collect())
}

fn describe(findings: &[Finding], paint: Paint) -> String {
    let mut table =
        Table::new(&["mutant", "algorithm", "source", "caught", "by", "after", "steps", "elsewhere"]);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    for finding in findings {
        let caught = match (finding.caught, finding.harmless) {
            (true, false) => "yes",
            (false, true) => "harmless",
            (false, false) => "NO",
            (true, true) => "NOT HARMLESS",
        };
        let unit = if finding.world == "sim" { "seeds" } else { "states" };
        table.row(vec![
            finding.name.into(),
            finding.algorithm.clone(),
            finding.source.into(),
            caught.into(),
            or_dash(finding.by.clone()),
            format!("{} {unit}", finding.after),
            or_dash(finding.steps.map(|steps| steps.to_string())),
            or_dash(finding.published_steps.map(|steps| steps.to_string())),
        ]);
    }
    let mut text = table.render(paint);
    let harmless = findings.iter().filter_map(|finding| Some((finding, finding.messages?)));
    for (finding, [honest, flawed]) in harmless {
        text.push_str(&format!(
            "\n{}: {} messages, {} without the flaw ({})\n",
            finding.name,
            extent(flawed),
            extent(honest),
            finding.flaw
        ));
    }
    let caught = findings.iter().filter(|finding| finding.caught).count();
    let harmless = findings.iter().filter(|finding| finding.harmless).count();
    let verdict = format!("{caught} caught of {}, {harmless} harmless", findings.len() - harmless);
    let expected = findings.iter().all(Finding::is_expected);
    let verdict = if expected { paint.good(&verdict) } else { paint.bad(&verdict) };
    format!("{text}\n{verdict}\n")
}

fn extent(Messages { min, max }: Messages) -> String {
    match max {
        Some(max) => format!("{min} to {max}"),
        None => format!("{min} or more, without bound"),
    }
}
