//! `conclave deadlock`: reads a wait-for graph from a file, and finds the stuck processes, the reasons and
//! the victims.

mod read;

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use conclave_kernel::time::show;
use conclave_lab::diagram::waitfor;
use conclave_lab::problems::deadlock::standing::{Findings, Link, Process, Why};
use conclave_lab::problems::deadlock::{Policy, Standing};
use serde_json::{Value, json};

use crate::output::{self, Done, Failure, Paint, VIOLATED};

/// Read a wait-for graph from a file: which processes are stuck, why, and which to abort.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file, as text or JSON lines; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The process to abort: youngest, lowest-priority, fewest-locks, requester (the last wait in the file)
    /// or none
    #[arg(long, value_name = "POLICY", default_value_t)]
    abort: Policy,
    /// The largest number of reasons to print
    #[arg(long, value_name = "N", default_value_t = 20)]
    reasons: usize,
    /// Write the graph for Graphviz
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    dot: Option<PathBuf>,
    /// Draw the graph
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
    /// Print the processor time of reading and of judging on standard error
    #[arg(long, help_heading = "Output")]
    timing: bool,
    /// Print JSON instead of text
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  conclave deadlock waits.txt
  conclave deadlock waits.txt --abort fewest-locks --svg waits.svg --dot waits.dot
  conclave deadlock waits.jsonl --json

The text has one statement per line, and # begins a comment. Names are as in lock expressions:
  t1 holds a, b:shared, pool*2     locks, shared locks, permits of a semaphore
  t2 perhaps holds c               an uncertain lock: it makes no process stuck
  t3 waits a & (b | c)             a wait for resources: & all, | any, '2 of (x, y, z)'
  t4 -> t1 & t3                    a wait for other processes
  pool has 3 permits               a semaphore
  t1 priority 5                    the lowest priority is aborted first by lowest-priority
  t1 since 17                      the start of t1 [default: the order of first mention]
JSON lines have one object per line:
  {\"process\": \"t1\", \"holds\": [\"a\", \"b:shared\"], \"waits\": \"c | d\", \"priority\": 5}
  {\"process\": \"t2\", \"waits_for\": \"t1\", \"perhaps_holds\": [\"c\"], \"since\": 17}
  {\"semaphore\": \"pool\", \"permits\": 3}

Exit codes: 0 no process is stuck, 1 a process is stuck, 2 bad usage or a bad file.";

/// The largest file; a larger one is refused.
const MAX_BYTES: u64 = 1 << 30;

/// Reads the graph, judges it, and writes the results.
pub fn run(args: &Args) -> Done {
    let text = slurp(&args.file)?;
    let standing =
        read::read(&text).map_err(|error| Failure::usage(format!("{}:{error}", args.file.display())))?;
    drop(text); // a large file is not needed twice
    let is_read = cpu_time();
    let findings = standing
        .judge(args.abort, args.reasons)
        .map_err(|_| Failure::usage("the graph has more than 4294967295 waits: split the file"))?;
    if args.timing {
        let judged = cpu_time().saturating_sub(is_read);
        output::note(&format!("read in {}, judged in {}", show(is_read), show(judged)));
    }
    if let Some(path) = &args.dot {
        output::write_file(path, waitfor::dot(&standing, &findings).as_bytes())?;
    }
    if let Some(path) = &args.svg {
        output::write_file(path, waitfor::draw(&standing, &findings).as_bytes())?;
    }
    if args.json {
        output::print_json(&as_json(&standing, &findings, args.abort))?;
    } else {
        output::print(&Words { standing: &standing, findings: &findings }.report(args.abort));
    }
    Ok(if findings.stuck.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

/// Returns the processor time of this process so far.
fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

fn slurp(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::usage(format!(
            "{}: larger than {MAX_BYTES} bytes: split the file",
            path.display()
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        Failure::usage(format!("{}:{line}:{column}: not UTF-8: convert the file", path.display()))
    })
}

/// The verdict for people.
struct Words<'a> {
    standing: &'a Standing,
    findings: &'a Findings,
}

/// The largest number of names in a printed list.
const MOST_LISTED: usize = 40;

impl Words<'_> {
    fn report(&self, policy: Policy) -> String {
        let (standing, findings, paint) = (self.standing, self.findings, Paint::stdout());
        let (processes, waiting) = (standing.processes(), standing.waiting());
        let mut text = String::new();
        if findings.stuck.is_empty() {
            let verdict = paint.good("no deadlock");
            put(
                &mut text,
                format_args!("{verdict}: {waiting} of {processes} processes wait, and all can proceed\n"),
            );
        } else {
            let verdict = paint.bad("deadlock");
            let stuck = findings.stuck.len();
            put(&mut text, format_args!("{verdict}: {stuck} of {processes} processes are stuck\n"));
        }
        findings.why.iter().for_each(|why| self.why(&mut text, why));
        if findings.why_left_out > 0 {
            put(&mut text, format_args!("  and {} more reasons (see --reasons)\n", findings.why_left_out));
        }
        self.list(&mut text, "stuck", &findings.stuck);
        match (policy, findings.victims.as_slice()) {
            (_, []) => {}
            (policy, victims) => self.list(&mut text, &format!("abort ({policy})"), victims),
        }
        self.list(&mut text, "perhaps stuck: stuck if every uncertain lock is held", &findings.perhaps);
        text
    }

    fn why(&self, text: &mut String, why: &Why) {
        match why {
            Why::Cycle(links) => {
                text.push_str("cycle\n");
                links.iter().for_each(|link| self.link(text, link));
            }
            Why::Knot(members) => {
                put(
                    text,
                    format_args!(
                        "knot of {}: each waits for any of several processes, which are all in the knot\n",
                        members.len()
                    ),
                );
                for member in members.iter().take(MOST_LISTED) {
                    let wish = self.standing.wish(*member).map(|wish| self.standing.describe(wish));
                    put(
                        text,
                        format_args!("  {} waits for {}\n", self.name(*member), wish.unwrap_or_default()),
                    );
                }
                more(text, members.len());
            }
            Why::Unsatisfiable { process, part, holders } => {
                let part = self.standing.describe(part);
                put(text, format_args!("unsatisfiable\n  {} can never have {part}", self.name(*process)));
                let names: Vec<_> =
                    holders.iter().take(MOST_LISTED).map(|holder| self.name(*holder)).collect();
                put(text, format_args!(", because of {}\n", names.join(", ")));
                more(text, holders.len());
            }
        }
    }

    fn link(&self, text: &mut String, link: &Link) {
        let (waiter, holder) = (self.name(link.waiter), self.name(link.holder));
        match link.resource {
            Some(resource) => {
                let resource = self.standing.resource_name(resource);
                put(text, format_args!("  {waiter} waits for {resource}, held by {holder}\n"));
            }
            None => put(text, format_args!("  {waiter} waits for {holder}\n")),
        }
    }

    fn list(&self, text: &mut String, heading: &str, processes: &[Process]) {
        if processes.is_empty() {
            return;
        }
        let names: Vec<_> = processes.iter().take(MOST_LISTED).map(|process| self.name(*process)).collect();
        put(text, format_args!("{heading}\n  {}\n", names.join(" ")));
        more(text, processes.len());
    }

    fn name(&self, process: Process) -> &str {
        self.standing.process_name(process)
    }
}

fn more(text: &mut String, all: usize) {
    if all > MOST_LISTED {
        put(text, format_args!("  and {} more (--json lists all)\n", all - MOST_LISTED));
    }
}

fn put(text: &mut String, words: std::fmt::Arguments<'_>) {
    text.write_fmt(words).expect("writing to a string does not fail");
}

/// The verdict for scripts.
fn as_json(standing: &Standing, findings: &Findings, policy: Policy) -> Value {
    let name = |process: &Process| standing.process_name(*process);
    let names = |processes: &[Process]| processes.iter().map(name).collect::<Vec<_>>();
    let why = |why: &Why| match why {
        Why::Cycle(links) => {
            let link = |link: &Link| {
                let resource = link.resource.map(|resource| standing.resource_name(resource));
                json!({ "waiter": name(&link.waiter), "resource": resource, "holder": name(&link.holder) })
            };
            json!({ "cycle": links.iter().map(link).collect::<Vec<_>>() })
        }
        Why::Knot(members) => json!({ "knot": names(members) }),
        Why::Unsatisfiable { process, part, holders } => json!({ "unsatisfiable": {
            "process": name(process), "part": standing.describe(part), "because_of": names(holders),
        } }),
    };
    json!({
        "deadlock": !findings.stuck.is_empty(),
        "processes": standing.processes(),
        "waiting": standing.waiting(),
        "stuck": names(&findings.stuck),
        "why": findings.why.iter().map(why).collect::<Vec<_>>(),
        "why_left_out": findings.why_left_out,
        "policy": policy,
        "abort": names(&findings.victims),
        "perhaps_stuck": names(&findings.perhaps),
    })
}
