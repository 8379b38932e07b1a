//! `conclave trace`: analyses which event happened before which, in our traces and in the logs of other
//! programs.

mod show;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;

use conclave_algorithms::snapshot::cut::{self, Cut};
use conclave_kernel::{NodeId, suggest};
use conclave_lab::diagram::{shiviz, spacetime};
use conclave_lab::log::{self, Log, Order};

use crate::output::{self, Done, Failure};

/// Analyse a recorded run, or the log of another program: which event happened before which.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace of `conclave sim --trace`, or a ShiViz log of any program
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format of the file: auto, conclave, shiviz, or a regular expression with the groups host, clock
    /// and event
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    format: String,
    /// Print which of two events happened before the other; may be repeated
    #[arg(long, value_names = ["A", "B"], num_args = 2)]
    relation: Vec<String>,
    /// List the causal past of an event
    #[arg(long, value_name = "E")]
    past: Option<String>,
    /// Judge a cut, given by how many events of each site are in it: SITE:N,SITE:N,..., or N,N,... in the
    /// order of the site numbers
    #[arg(long, value_name = "SITE:N,...", value_delimiter = ',')]
    cut: Vec<String>,
    /// Judge the cut of a recorded snapshot, and list an equivalent execution that passes through it
    #[arg(long, value_name = "ID")]
    snapshot: Option<u32>,
    /// The number of concurrent pairs to show
    #[arg(long, value_name = "N", default_value_t = 5)]
    sample: usize,
    /// The largest number of events printed in a list; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 40)]
    most: usize,
    /// Draw a space-time diagram
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Write a ShiViz log
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    shiviz: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave sim mutex/maekawa --trace run.jsonl && conclave trace run.jsonl
  conclave trace run.jsonl --relation 12 40 --past n2:7
  conclave trace other.log --svg other.svg
  conclave trace app.log --format '(?<host>\\S+) (?<clock>\\{.*\\}) (?<event>.*)'
  conclave trace app.log --cut web:2,store:4,mail:1
  conclave trace app.log --cut 2,4,1
  conclave sim snapshot/chandy-lamport --trace bank.jsonl && conclave trace bank.jsonl --snapshot 1

An event has three names: its number, which is its place in the file, counted from 0; SITE:K, the K-th event of \
a site, counted from 1; and its text, if no other event has the same text. Every event is printed with its \
number.
A site has a number, counted from 0 in the order in which names first appear in the file, and a name. For a log of another \
program, the list 'sites' shows both. In our traces, the name of site 0 is n0.
A log of another program has clocks, but no messages: messages are derived from the clocks. The log lacks \
messages that no site received, and messages from which the receiver learned no new clock value. So a cut of it \
is never called transitless.
Exit codes: 0 done, 2 bad usage or a file that cannot be read.";

/// Prints the analysis.
pub fn run(args: &Args) -> Done {
    if args.sample > MOST_SAMPLE {
        return Err(Failure::usage(format!("--sample is too large: give at most {MOST_SAMPLE}")));
    }
    let log = read(args)?;
    let answer = analyse(args, &log)?;
    if let Some(path) = &args.svg {
        let options = spacetime::Options::of(&log);
        output::write_file(path, spacetime::draw(&log, &options).as_bytes())?;
    }
    if let Some(path) = &args.shiviz {
        output::write_file(path, shiviz::write(&log)?.as_bytes())?;
    }
    if args.json {
        output::print_json(&show::json(&log, &answer))?;
    } else {
        output::print(&show::text(&log, &answer, args.most));
    }
    Ok(ExitCode::SUCCESS)
}

const MOST_SAMPLE: usize = 10_000;

/// The results of the analysis.
pub struct Answer {
    order: Order,
    relations: Vec<(usize, usize, log::Relation)>,
    past: Option<(usize, log::Past)>,
    cuts: Vec<JudgedCut>,
}

/// A cut with its judgement.
pub struct JudgedCut {
    cut: Cut,
    judgement: cut::Judgement,
    /// The largest consistent cut inside, if the cut is not consistent.
    inside: Option<Cut>,
    /// For a snapshot: its number, the events in an order that passes through the cut, and the number of
    /// events before it.
    snapshot: Option<(u32, Vec<usize>, usize)>,
    /// The messages that the judgement names, as indices of the messages of the log.
    messages: Vec<usize>,
}

fn analyse(args: &Args, log: &Log) -> Result<Answer, Failure> {
    let find = |name: &String| find(log, name);
    let mut relations = Vec::new();
    for pair in args.relation.chunks_exact(2) {
        let (one, other) = (find(&pair[0])?, find(&pair[1])?);
        relations.push((one, other, log::relation(log, one, other)));
    }
    let past = args.past.as_ref().map(find).transpose()?.map(|event| (event, log::Past::of(log, event)));
    let mut cuts = Vec::new();
    if !args.cut.is_empty() {
        cuts.push(judge(log, read_cut(log, &args.cut)?, None)?);
    }
    if let Some(id) = args.snapshot {
        let cut = log.snapshot(id);
        let cut = cut.ok_or_else(|| {
            Failure::usage(format!("snapshot {id} was not recorded at every site of this run: give the number of another snapshot"))
        })?;
        cuts.push(judge(log, cut, Some(id))?);
    }
    Ok(Answer { order: Order::of(log, args.sample)?, relations, past, cuts })
}

/// Reads a cut: one number for each site in order, or SITE:N for each site in any order.
fn read_cut(log: &Log, parts: &[String]) -> Result<Cut, Failure> {
    let expected = |part: &str| {
        Failure::usage(format!("--cut: '{part}' is no number of events: give N,N,... or SITE:N,SITE:N,..."))
    };
    let counts = if parts.iter().any(|part| part.contains(':')) {
        let mut counts: Vec<Option<u32>> = vec![None; log.sites() as usize];
        for part in parts {
            let (name, count) = part.rsplit_once(':').ok_or_else(|| expected(part))?;
            let site = log.site(name).ok_or_else(|| unknown_site(log, name))?;
            let count = count.parse().map_err(|_| expected(part))?;
            if counts[site.index()].replace(count).is_some() {
                return Err(Failure::usage(format!("--cut names site {name} twice: give it once")));
            }
        }
        let missing = counts.iter().position(Option::is_none).map(|site| log.name(NodeId(site as u32)));
        if let Some(missing) = missing {
            return Err(Failure::usage(format!(
                "--cut does not name site {missing}: give every site, with :0 if none of its events is in the cut"
            )));
        }
        counts.into_iter().flatten().collect()
    } else {
        parts.iter().map(|part| part.parse().map_err(|_| expected(part))).collect::<Result<Vec<u32>, _>>()?
    };
    if counts.len() != log.sites() as usize {
        let (given, sites) = (counts.len(), log.sites());
        return Err(Failure::usage(format!(
            "--cut has {given} numbers, but there are {sites} sites: give one number for each site"
        )));
    }
    let mut events = vec![0_u32; counts.len()];
    log.events().iter().for_each(|event| events[event.site.index()] += 1);
    match (0..).zip(counts.iter().zip(&events)).find(|(_, (taken, there))| taken > there) {
        Some((site, (taken, there))) => {
            let name = log.name(NodeId(site));
            Err(Failure::usage(format!("--cut: {name} has {there} events, not {taken}")))
        }
        None => Ok(Cut(counts)),
    }
}

fn unknown_site(log: &Log, name: &str) -> Failure {
    let names: Vec<_> = (0..log.sites().min(show::MOST_LISTED)).map(|site| log.name(NodeId(site))).collect();
    suggest::unknown("site", name, names.iter().map(String::as_str)).into()
}

fn judge(log: &Log, cut: Cut, snapshot: Option<u32>) -> Result<JudgedCut, Failure> {
    let run = log.run();
    let judgement = cut::judge(&run, &cut)?;
    let inside = if judgement.is_consistent() { None } else { Some(cut::largest_inside(&run, &cut)?) };
    let snapshot = snapshot.map(|id| {
        let (order, length) = log.through(&cut);
        (id, order, length)
    });
    Ok(JudgedCut { cut, judgement, inside, snapshot, messages: log.run_messages() })
}

/// Reads the file in the given format, or in the format that its first line shows.
fn read(args: &Args) -> Result<Log, Failure> {
    let buffered = |file| BufReader::with_capacity(1 << 18, file);
    let open = || File::open(&args.file).map(buffered).map_err(|error| Failure::file(&args.file, &error));
    let name = args.file.display().to_string();
    let read = match args.format.as_str() {
        "conclave" => log::read_log(&name, open()?),
        "shiviz" => shiviz::read(&name, open()?),
        "auto" => match look(open()?).map_err(|error| Failure::file(&args.file, &error))? {
            Looks::Conclave => log::read_log(&name, open()?),
            Looks::Shiviz => shiviz::read(&name, open()?),
            Looks::Expression(expression) => shiviz::read_by_header(&name, &expression, open()?),
        },
        expression if expression.contains("(?<") => shiviz::read_by(&name, expression, open()?),
        other => {
            let message = format!(
                "--format {other}: expected auto, conclave, shiviz, or an expression such as \
                 '(?<host>\\S+) (?<clock>\\{{.*\\}}) (?<event>.*)'"
            );
            return Err(Failure::usage(message));
        }
    };
    read.map_err(|error| {
        let failure = Failure::usage(error.to_string());
        match args.format.as_str() {
            "auto" => failure.advise("describe the lines of a log in another form with --format"),
            _ => failure,
        }
    })
}

enum Looks {
    Conclave,
    Shiviz,
    /// The file begins with an unusual expression.
    Expression(String),
}

fn look(reader: impl BufRead) -> std::io::Result<Looks> {
    const MOST_LOOKED_AT: u64 = 1 << 16;
    for line in reader.take(MOST_LOOKED_AT).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        return Ok(match line {
            _ if line.starts_with('{') => Looks::Conclave,
            _ if line.starts_with("(?<") && !shiviz::is_usual(line) => Looks::Expression(line.to_owned()),
            _ => Looks::Shiviz,
        });
    }
    Ok(Looks::Conclave) // whose reader says that it is empty
}

/// Finds the event with that name.
fn find(log: &Log, name: &str) -> Result<usize, Failure> {
    let events = log.events().len();
    if let Ok(number) = name.parse::<usize>() {
        let last = events.saturating_sub(1);
        let unknown =
            || Failure::usage(format!("there is no event {number}: give a number from 0 to {last}"));
        return log.numbered(number).ok_or_else(unknown);
    }
    if let Some((site, number)) = name.rsplit_once(':')
        && let Ok(number) = number.parse::<usize>()
        && let Some(site) = log.site(site)
    {
        let of_site = || (0..events).filter(|event| log.events()[*event].site == site);
        let found = number.checked_sub(1).and_then(|index| of_site().nth(index));
        let refuse = || {
            Failure::usage(format!(
                "{} has {} events, not {number}: give one of these",
                log.name(site),
                of_site().count()
            ))
        };
        return found.ok_or_else(refuse);
    }
    let mut named = (0..events).filter(|event| log.describe(*event) == name);
    match (named.next(), named.next()) {
        (Some(event), None) => Ok(event),
        (Some(_), Some(_)) => Err(Failure::usage(format!(
            "several events are called '{name}': name one by its number, or as SITE:K"
        ))),
        _ => Err(Failure::usage(format!(
            "there is no event '{name}': name one by its number, as SITE:K, or by its text"
        ))),
    }
}
