//! A program as an algorithm of mutual exclusion.
//!
//! The door of the site stands in front of the program: it queues requests, so the program gets `acquire`
//! only outside of the critical section. The site has left when the program gets `release`. The program emits
//! `granted`, with or without a fence.

use std::sync::Arc;

use conclave_algorithms::mutex::spec::{FENCES, ME1, ME1_CAUSAL, ME2, ME3};
use conclave_algorithms::mutex::{Bill, Command, Door, Event, Fence, Group, Mutex};
use conclave_check::{Checker, Options};
use conclave_kernel::{Card, Cx, NodeId, Protocol};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lines::{self, Name, Text};
use super::program::{self, Program};
use super::run::{Remote, Run};
use super::shortened;
use crate::added::Algorithm;
use crate::case;
use crate::problem::{self, Recorder};
use crate::problems::mutex::check::{self, Case};
use crate::problems::mutex::{Report, Scenario, run_with_card};

pub(super) const PROBLEM: program::Problem = program::Problem {
    name: "mutex",
    properties: &[ME1.name, ME1_CAUSAL.name, ME2.name, ME3.name, FENCES.name],
    promises: &[ME1.name, ME2.name, ME3.name],
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

/// Starts a program that is independent of [`program`], with limits of its own.
pub fn open(path: &str, limits: super::Limits) -> Result<Arc<Program>, String> {
    Program::open(PROBLEM, path, limits).map(Arc::new)
}

/// Runs a scenario whose algorithm is the path of a program.
pub fn simulate(scenario: &Scenario, recorder: &mut Recorder) -> Result<Report, String> {
    simulate_with(&program(&scenario.algorithm)?, scenario, recorder)
}

/// Runs a scenario of a program.
pub fn simulate_with(
    program: &Arc<Program>,
    scenario: &Scenario,
    recorder: &mut Recorder,
) -> Result<Report, String> {
    run_as(program, program.card(), scenario, recorder)
}

/// Runs a scenario of a program. The card says which properties are promised.
pub(super) fn run_as(
    program: &Arc<Program>,
    card: &Card,
    scenario: &Scenario,
    recorder: &mut Recorder,
) -> Result<Report, String> {
    let saves = recorder.wants_trace() && scenario.world.keeps_states;
    let run = Run::begin(program, scenario.world.seed, saves)?;
    let sites = run.clone();
    let make = move |_, _: &Group| MutexSite::in_run(&sites);
    let result = run_with_card(scenario, card, make, recorder.wants_trace());
    run.finish()?;
    let (report, trace) = result?;
    recorder.take(trace.as_ref())?;
    Ok(report)
}

/// Prepares the exploration of a case whose algorithm is the path of a program.
pub fn checker(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
    checker_with(&program(&case.algorithm)?, case, options, judges)
}

/// Prepares the exploration of a case of a program.
pub fn checker_with(
    program: &Arc<Program>,
    case: &Case,
    options: &Options,
    judges: bool,
) -> Result<Checker, String> {
    program.prepare_exploration(case.flaw.as_deref())?;
    let sites = Arc::clone(program);
    let make =
        move |_, _: &Group, _: &str| MutexSite { door: Door::default(), remote: Remote::saved(&sites) };
    check::checker_with(case, options, judges, program.card().path().to_string(), make)
}

/// One site of a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MutexSite {
    #[serde(skip)]
    door: Door,
    remote: Remote,
}

impl MutexSite {
    fn in_run(run: &Run) -> Self {
        Self { door: Door::default(), remote: Remote::in_run(run) }
    }

    /// Passes an input, as JSON, to the program.
    fn pass(&mut self, input: &str, cx: &mut Cx<'_, Self>) {
        let Self { door, remote } = self;
        remote.pass(input, None, cx, |remote, event, cx| {
            let fence = fence(event.as_str())?;
            if !door.is_asking() {
                return Err("the site emits \"granted\", but it has no request that waits".into());
            }
            door.enter(Fence(fence.unwrap_or_else(|| remote.next_grant())), cx);
            Ok(())
        });
    }
}

/// Returns the fence of a `granted` event, if it has one. Any other event is an error.
fn fence(event: &str) -> Result<Option<u64>, String> {
    let unknown = || {
        format!(
            "unknown event {}: a program emits \"granted\" or {{\"granted\":{{\"fence\":NUMBER}}}}",
            shortened(event)
        )
    };
    match serde_json::from_str::<Value>(event).map_err(|error| error.to_string())? {
        Value::String(name) if name == "granted" => Ok(None),
        Value::Object(event) if event.len() == 1 => {
            let fields = event.get("granted").and_then(Value::as_object).ok_or_else(unknown)?;
            match fields.get("fence") {
                Some(fence) if fields.len() == 1 => fence.as_u64().map(Some).ok_or_else(unknown),
                _ => Err(unknown()),
            }
        }
        _ => Err(unknown()),
    }
}

impl Protocol for MutexSite {
    type Message = Text;
    type Timer = Name;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.pass("\"start\"", cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.pass("\"recover\"", cx);
    }

    fn on_message(&mut self, from: NodeId, message: Text, cx: &mut Cx<'_, Self>) {
        self.pass(&lines::message(from, &message), cx);
    }

    fn on_timer(&mut self, timer: Name, cx: &mut Cx<'_, Self>) {
        self.pass(&lines::timer(timer), cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => self.pass("{\"command\":\"release\"}", cx),
            Command::Release => {}
            Command::Witness(time) => self.pass(&format!("{{\"command\":{{\"witness\":{time}}}}}"), cx),
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() {
            self.pass("{\"command\":\"acquire\"}", cx);
        }
    }
}

impl Mutex for MutexSite {
    const CARD: Card = PROBLEM.placeholder();

    /// Creates a site without a program, which does nothing.
    fn new(_: NodeId, _: &Group) -> Self {
        Self { door: Door::default(), remote: Remote::nowhere() }
    }

    /// Names the kind of the message. The tool does not know which request a message serves.
    fn bill(message: &Text, _: NodeId, _: NodeId) -> Bill {
        Bill::shared(message.kind())
    }

    fn clock(&self) -> u64 {
        self.remote.clock()
    }
}
