//! A program as an algorithm of election.
//!
//! The program emits `{"elected":{"leader":2}}` and `"vacant"`. The seat of the site stands behind the
//! program, so an event that repeats the last one has no effect.

use std::sync::Arc;

use conclave_algorithms::election::spec::{E1, E2};
use conclave_algorithms::election::{Command, Election, Event, Group, Seat};
use conclave_check::{Checker, Options};
use conclave_kernel::{Card, Cx, NodeId, Protocol, time};
use serde::{Deserialize, Serialize};

use super::lines::{self, Name, Text};
use super::program::{self, Program};
use super::run::{Remote, Run};
use super::shortened;
use crate::added::Algorithm;
use crate::case;
use crate::problem::{self, Recorder};
use crate::problems::election::check::{self, Case};
use crate::problems::election::{Report, Scenario, run_with_card};

const PROBLEM: program::Problem = program::Problem {
    name: "election",
    properties: &[E1.name, E2.name],
    promises: &[E1.name, E2.name],
    algorithm,
};

fn algorithm(card: &'static Card) -> Algorithm {
    let explored = case::Entry::<Case> { card, has_flaw: |_| false, checker };
    Algorithm::new(problem::Entry { card, simulate }).explored(explored)
}

/// Returns the program with this path, which is started by the first call.
pub fn program(path: &str) -> Result<Arc<Program>, String> {
    program::opened(PROBLEM, path)
}

/// Runs a scenario whose algorithm is the path of a program.
pub fn simulate(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    let program = program(&scenario.algorithm)?;
    let saves = recorder.wants_trace() && scenario.world.keeps_states;
    let run = Run::begin(&program, scenario.world.seed, saves)?;
    let group = about(&scenario.group())?;
    let sites = run.clone();
    let make = move |_, _: &Group| ElectionSite::with(Remote::in_run(&sites), Some(&group));
    let result = run_with_card(scenario, program.card(), make, recorder.wants_trace());
    run.finish()?;
    let (report, trace) = result?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

/// Prepares the exploration of a case whose algorithm is the path of a program.
pub fn checker(case: &Case, options: &Options, _: bool) -> Result<Checker, String> {
    let program = program(&case.algorithm)?;
    program.prepare_exploration(case.flaw.as_deref())?;
    let (group, sites) = (about(&case.group())?, Arc::clone(&program));
    let make = move |_, _: &Group, _: &str| ElectionSite::with(Remote::saved(&sites), Some(&group));
    check::checker_with(case, options, program.card().path().to_string(), make)
}

/// Returns the knowledge of the sites about each other, as a site that starts gets it. Times are in
/// nanoseconds.
fn about(group: &Group) -> Result<Text, String> {
    #[derive(Serialize)]
    struct About {
        ranks: Vec<u64>,
        transmission: u64,
        processing: u64,
    }
    Text::of(&About {
        ranks: group.candidates().map(|candidate| candidate.rank).collect(),
        transmission: time::nanos(group.transmission),
        processing: time::nanos(group.processing),
    })
}

/// One site of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ElectionSite {
    #[serde(skip)]
    seat: Seat,
    #[serde(skip)]
    group: Option<Text>,
    remote: Remote,
}

impl ElectionSite {
    fn with(remote: Remote, group: Option<&Text>) -> Self {
        Self { seat: Seat::default(), group: group.cloned(), remote }
    }

    /// Passes an input, as JSON, to the program.
    fn pass(&mut self, input: &str, starts: bool, cx: &mut Cx<'_, Self>) {
        let Self { seat, group, remote } = self;
        remote.pass(input, group.as_ref().filter(|_| starts), cx, |_, event, cx| {
            match serde_json::from_str(event.as_str()) {
                Ok(Event::Elected { leader }) if leader.index() < cx.members().len() => seat.fill(leader, cx),
                Ok(Event::Vacant) => seat.vacate(cx),
                _ => {
                    let event = shortened(event.as_str());
                    return Err(format!(
                        "unknown event {event}: a program emits {{\"elected\":{{\"leader\":SITE}}}} or \"vacant\""
                    ));
                }
            }
            Ok(())
        });
    }
}

impl Protocol for ElectionSite {
    type Message = Text;
    type Timer = Name;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.pass("\"start\"", true, cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.pass("\"recover\"", false, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Text, cx: &mut Cx<'_, Self>) {
        self.pass(&lines::message(from, &message), false, cx);
    }

    fn on_timer(&mut self, timer: Name, cx: &mut Cx<'_, Self>) {
        self.pass(&lines::timer(timer), false, cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        let input = match command {
            Command::Elect => r#"{"command":"elect"}"#.to_owned(),
            Command::Resign => r#"{"command":"resign"}"#.to_owned(),
            Command::Suspect(site) => format!(r#"{{"command":{{"suspect":{}}}}}"#, site.0),
            Command::Trust(site) => format!(r#"{{"command":{{"trust":{}}}}}"#, site.0),
        };
        self.pass(&input, false, cx);
    }
}

impl Election for ElectionSite {
    const CARD: Card = PROBLEM.placeholder();

    /// Creates a site without a program, which does nothing.
    fn new(_: NodeId, _: &Group) -> Self {
        Self::with(Remote::nowhere(), None)
    }

    fn kind(message: &Text) -> &'static str {
        message.kind()
    }
}
