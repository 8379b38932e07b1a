//! The texts and the marks of a space-time diagram: its command, its verdict, and the violation that it
//! shows.

use conclave_kernel::Verdict;
use conclave_lab::diagram::spacetime::{Broken, Options};
use conclave_lab::log::Log;
use conclave_lab::problem::Facts;

/// The flags of a picture.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "Output")]
pub struct PictureArgs {
    /// Show what each step changed in the state of its site: in the picture below the dots, and in the text
    #[arg(long)]
    pub states: bool,
    /// Mark durations in the picture: client delay, synchronisation delay, E and response time
    #[arg(long)]
    pub brackets: bool,
}

impl PictureArgs {
    /// The options for the picture of a run or of a counterexample.
    pub fn options(&self, log: &Log, caption: Caption) -> Options {
        let Caption { command, verdict, violation } = caption;
        let Self { states, brackets } = *self;
        Options { command, verdict, violation, states, brackets, ..Options::of(log) }
    }
}

/// The texts around a picture.
#[derive(Default)]
pub struct Caption {
    /// The command that shows the run.
    pub command: String,
    /// The verdict in one line.
    pub verdict: String,
    /// The violation.
    pub violation: Option<Broken>,
}

impl Caption {
    /// The caption of a simulated run.
    pub fn of_run(facts: &Facts) -> Self {
        let violation = facts.violations.first().or_else(|| facts.unpromised.first());
        let violation = violation.map(|found| Broken {
            at: found.at,
            sentence: format!("{} is violated: {}", found.property, found.why),
        });
        Self { command: facts.command.clone(), verdict: verdict(facts), violation }
    }

    /// The caption of a counterexample, whose last step is decisive.
    pub fn of_counterexample(log: &Log, property: &str, why: &str) -> Self {
        let sentence = match why {
            "" => format!("{property} is violated"),
            why => format!("{property} is violated: {why}"),
        };
        let violation = Some(Broken { at: log.end(), sentence });
        Self { command: typed(), verdict: format!("{property} violated"), violation }
    }
}

/// The verdicts on all promised properties in one line.
fn verdict(facts: &Facts) -> String {
    let of = |wanted: Verdict| {
        let names = facts.properties.iter().filter(|(_, verdict)| **verdict == wanted);
        names.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    let words =
        [(Verdict::Violated, "violated"), (Verdict::Holds, "holds"), (Verdict::NotJudged, "not judged")];
    let parts = words.into_iter().map(|(verdict, word)| (of(verdict), word));
    let parts: Vec<_> = parts
        .filter(|(names, _)| !names.is_empty())
        .map(|(names, word)| format!("{word}: {names}"))
        .collect();
    parts.join(" · ")
}

/// The command line of this process without its output files.
fn typed() -> String {
    const FILES: [&str; 3] = ["--svg", "--trace", "--shiviz"];
    let mut words = vec!["conclave".to_owned()];
    let mut typed = std::env::args().skip(1);
    while let Some(word) = typed.next() {
        let is_file = FILES.iter().any(|flag| word == *flag);
        if is_file {
            typed.next();
        } else if !FILES.iter().any(|flag| word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
        {
            words.push(word);
        }
    }
    words.join(" ")
}
