//! Tests with children that are scripts in this process.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use conclave_check::{Options, unwatched};
use conclave_kernel::trace::{Json, RawEffect};
use conclave_kernel::{NodeId, NodeSet, Prng};
use conclave_sim::{Delay, Order};

use super::lines::{Action, MESSAGE_BYTES, MOST_EFFECTS, Reply, read_hello, read_reply};
use super::mutex::{PROBLEM, checker_with, simulate_with};
use super::process::{Host, Limits, Trouble};
use super::program::Program;
use super::{MOST_DEPTH, PROTOCOL};
use crate::problem::Recorder;
use crate::problems::mutex::check::Case;
use crate::problems::mutex::{Report, Scenario, Work, Workload};

const HELLO: &str = r#"{"hello":{"protocol":1,"saves":true}}"#;
const NOTHING: &str = r#"{"effects":[],"saved":{}}"#;
const GRANTED: &str = r#"{"effects":[{"emit":{"event":"granted"}}],"saved":{}}"#;

/// A function in the place of a child process.
struct Scripted<F>(F);

impl<F: FnMut(&str) -> Result<String, Trouble> + Send> Host for Scripted<F> {
    fn request(&mut self, line: &str, _: Instant, _: &mut Vec<u8>) -> Result<String, Trouble> {
        (self.0)(line)
    }
}

/// Creates a program whose children reply with `script`. The list receives all lines, and `start` for a new
/// child.
fn program(
    script: impl FnMut(&str) -> Result<String, Trouble> + Clone + Send + Sync + 'static,
) -> (Arc<Program>, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let start = move || -> Result<Box<dyn Host>, String> {
        log.lock().unwrap().push("start".to_owned());
        let (log, mut script) = (Arc::clone(&log), script.clone());
        Ok(Box::new(Scripted(move |line: &str| {
            log.lock().unwrap().push(line.trim_end().to_owned());
            if line.contains("hello") { Ok(HELLO.to_owned()) } else { script(line) }
        })))
    };
    let program = Program::with_hosts(PROBLEM, "./script", Limits::default(), start).unwrap();
    (Arc::new(program), lines)
}

/// Enters at once.
fn careless(line: &str) -> Result<String, Trouble> {
    Ok(if line.contains("acquire") { GRANTED } else { NOTHING }.to_owned())
}

fn scenario(entries: u64) -> Scenario {
    let work = Work { load: Workload::High, entries, ..Work::default() };
    let mut scenario = Scenario { algorithm: "./script".into(), work, ..Scenario::default() };
    scenario.world.nodes = 2;
    scenario
}

fn simulate(program: &Arc<Program>, entries: u64) -> Result<Report, String> {
    simulate_with(program, &scenario(entries), &mut Recorder::default())
}

#[test]
fn the_words_of_a_trace_file_are_those_of_a_reply() {
    let json = |text: &str| serde_json::from_str::<Json>(text).unwrap();
    let message = || json(r#"{"request":[1,0]}"#);
    let timer = || json(r#""silence""#);
    let (min, max) = (Duration::from_millis(1), Duration::from_secs(2));
    let effects = vec![
        RawEffect::Send { to: NodeId(1), message: message() },
        RawEffect::SendTo { to: [NodeId(0), NodeId(2)].into_iter().collect(), message: message() },
        RawEffect::Broadcast { message: message() },
        RawEffect::Arm { timer: timer(), min, max },
        RawEffect::Disarm { timer: timer() },
        RawEffect::Emit { event: json(r#"{"granted":{"fence":7}}"#) },
    ];
    let line = format!(r#"{{"effects":{}}}"#, serde_json::to_string(&effects).unwrap());
    let Ok(Reply::Done { actions, saved: None, clock: 0 }) = read_reply(&line, 3) else {
        panic!("{:?}", read_reply(&line, 3))
    };
    assert_eq!(actions.len(), effects.len());
    let Action::SendTo(to, text) = &actions[1] else { panic!("{actions:?}") };
    assert_eq!((to, text.as_str()), (&NodeSet::from_iter([NodeId(0), NodeId(2)]), r#"{"request":[1,0]}"#));
    assert!(matches!(actions[3], Action::Arm(_, least, most) if (least, most) == (min, max)));
}

#[test]
fn a_reply_that_breaks_a_bound_or_a_rule_is_rejected() {
    let long = "x".repeat(MESSAGE_BYTES);
    let deep = format!("{}1{}", "[".repeat(MOST_DEPTH), "]".repeat(MOST_DEPTH));
    let many = vec![r#"{"disarm":{"timer":"t"}}"#; MOST_EFFECTS + 1].join(",");
    for (effects, words) in [
        (format!(r#"{{"broadcast":{{"message":"{long}"}}}}"#), "at most 65536 are allowed"),
        (format!(r#"{{"broadcast":{{"message":{deep}}}}}"#), "nested more than 32 levels"),
        (many, "at most 10000 are allowed"),
        (r#"{"send":{"to":3,"message":1}}"#.into(), "there is no site 3: the sites are 0 to 2"),
        (r#"{"send_to":{"to":[0,4000000000],"message":1}}"#.into(), "there is no site 4000000000"),
        (r#"{"shout":{"message":1}}"#.into(), "unknown variant `shout`"),
        (r#"{"send":{"to":1,"message":1,"twice":true}}"#.into(), "unknown field `twice`"),
        (
            r#"{"arm":{"timer":"t","min":{"secs":2,"nanos":0},"max":{"secs":1,"nanos":0}}}"#.into(),
            "min <= max",
        ),
        (format!(r#"{{"disarm":{{"timer":"{}"}}}}"#, "t".repeat(65)), "a name has at most 64 bytes"),
    ] {
        let error = read_reply(&format!(r#"{{"effects":[{effects}]}}"#), 3).unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
    for (line, words) in [
        ("", "EOF"),
        ("hello", "expected"),
        ("{}", "either \"effects\" or \"choose\""),
        (r#"{"choose":0}"#, "at least one alternative"),
        (r#"{"effects":[],"choose":2}"#, "either"),
        (r#"{"effects":[]} {"effects":[]}"#, "trailing characters"),
        (r#"{"effects":[],"clock":-1}"#, "invalid value"),
        (r#"{"effects":[],"note":1}"#, "unknown field `note`"),
    ] {
        let error = read_reply(line, 3).unwrap_err();
        assert!(error.contains(words), "{line}: {error}");
    }
    assert!(
        read_hello(r#"{"hello":{"protocol":1,"speed":9}}"#).unwrap_err().contains("unknown field `speed`")
    );
}

#[test]
fn damaged_replies_are_read_without_a_panic() {
    let good = r#"{"effects":[{"send_to":{"to":[1,2],"message":{"a":"\\\"é"}}},{"emit":{"event":"granted"}}],"saved":[1]}"#;
    for seed in 0..5_000 {
        let mut dice = Prng::new(seed);
        let mut bytes = good.as_bytes().to_vec();
        for _ in 0..=dice.below(4) {
            let at = dice.below(bytes.len() as u64) as usize;
            match dice.below(3) {
                0 => bytes[at] = dice.below(256) as u8,
                1 => _ = bytes.remove(at),
                _ => bytes.insert(at, br#"{}[]",:\"#[dice.below(8) as usize]),
            }
        }
        _ = read_reply(&String::from_utf8_lossy(&bytes), 3);
    }
}

#[test]
fn white_space_outside_of_strings_does_not_make_another_message() {
    let text = |line: &str| match read_reply(line, 2) {
        Ok(Reply::Done { mut actions, .. }) => match actions.remove(0) {
            Action::Broadcast(text) => text,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let spaced = text(r#"{ "effects": [ {"broadcast": {"message": {"a b": [1, 2],	"c\" d": "\\"}} } ] }"#);
    let dense = text(r#"{"effects":[{"broadcast":{"message":{"a b":[1,2],"c\" d":"\\"}}}]}"#);
    assert_eq!(spaced, dense);
    assert_eq!(dense.kind(), "a b");
}

#[test]
fn a_program_that_enters_at_once_breaks_exclusion_and_keeps_its_child() {
    let (program, lines) = program(careless);
    let report = simulate(&program, 4).unwrap();
    assert_eq!(report.facts.violations[0].property, "ME1");
    assert!(simulate(&program, 4).is_ok());
    let lines = lines.lock().unwrap();
    let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!((count("start\""), lines.iter().filter(|line| *line == "start").count()), (4, 1));
    assert_eq!((count("reset"), count("release")), (2, 8));
}

#[test]
fn an_error_of_the_child_names_seed_site_step_and_line() {
    let failing = |line: &str| match line.contains("release") {
        true => Err(Trouble::Late),
        false => careless(line),
    };
    let (program, lines) = program(failing);
    for _ in 0..2 {
        let error = simulate(&program, 1).unwrap_err();
        let expected = "./script, seed 1, n0, step 4: the program did not reply in time";
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains(r#"the line was {"site":0,"nodes":2,"now":1000000,"#), "{error}");
    }
    let starts = lines.lock().unwrap().iter().filter(|line| *line == "start").count();
    assert_eq!(starts, 2, "a child that failed serves no second run");
}

#[test]
fn nonsense_of_the_child_is_an_error() {
    for (reply, words) in [
        (
            r#"{"effects":[{"emit":{"event":"granted"}},{"emit":{"event":"granted"}}]}"#,
            "no request that waits",
        ),
        (r#"{"effects":[{"emit":{"event":"released"}}]}"#, "unknown event \"released\""),
        (r#"{"effects":[{"emit":{"event":{"granted":{"fence":-1}}}}]}"#, "unknown event"),
        ("Traceback", "the reply is wrong"),
        ("\u{1b}[2J", "\\u{1b}[2J"),
    ] {
        let (program, _) = program(move |line: &str| match line.contains("acquire") {
            true => Ok(reply.to_owned()),
            false => Ok(NOTHING.to_owned()),
        });
        let error = simulate(&program, 1).unwrap_err();
        assert!(error.contains(words) && error.contains("n0, step 3"), "{reply}: {error}");
    }
}

/// Site 0 sets a timer when it requests, and enters after a random choice when the timer fires.
#[test]
fn timers_and_random_choices_reach_the_program() {
    let script = |line: &str| {
        let reply = match line {
            line if line.contains("acquire") => {
                r#"{"effects":[{"arm":{"timer":"go","min":{"secs":0,"nanos":5},"max":{"secs":0,"nanos":5}}}]}"#
            }
            line if line.contains(r#"{"timer":"go"}"#) => r#"{"choose":1}"#,
            r#"{"chosen":0}"# => r#"{"effects":[{"emit":{"event":"granted"}}]}"#,
            line if line.contains("chosen") => "wrong choice",
            _ => r#"{"effects":[]}"#,
        };
        Ok(reply.to_owned())
    };
    let (program, _) = program(move |line: &str| script(line.trim_end()));
    assert_eq!(simulate(&program, 3).unwrap().entries, 3);
}

#[test]
fn a_program_that_counts_its_calls_is_not_explored() {
    let mut calls = 0;
    let counting = move |line: &str| {
        calls += 1;
        let saved = format!(r#"{{"effects":[],"saved":{calls}}}"#);
        Ok(if line.contains("acquire") { saved } else { NOTHING.to_owned() })
    };
    let (program, _) = program(counting);
    let error = explore(&program).unwrap_err();
    assert!(error.contains("the program is not deterministic") && error.contains("n0"), "{error}");
}

#[test]
fn a_program_that_enters_at_once_is_refuted_with_a_counterexample() {
    let (program, lines) = program(careless);
    assert_eq!(explore(&program).unwrap(), Some("ME1"));
    let lines = lines.lock().unwrap();
    assert!(lines.iter().any(|line| line.ends_with(r#","load":{},"save":true}"#)), "{lines:?}");
}

/// Explores two sites with one entry each, and returns the property that broke.
fn explore(program: &Arc<Program>) -> Result<Option<&'static str>, String> {
    let case = Case { algorithm: "./script".into(), ..Case::of(program.card(), 2, 1) };
    let options = Options { threads: 1, ..Options::default() };
    let checker = checker_with(program, &case, &options, true)?;
    program.explore(&checker, &mut unwatched).map(|report| report.property)
}

#[test]
fn a_hello_that_does_not_fit_is_explained() {
    for (hello, words) in [
        (r#"{"hello":{"protocol":2}}"#, "speaks version 2 of the protocol"),
        (r#"{"hello":{"protocol":1,"problem":"election"}}"#, "write election/./script"),
        (r#"{"hello":{"protocol":1,"promises":["ME4"]}}"#, "unknown promise in the hello 'ME4'"),
        (r#"{"effects":[]}"#, "the reply to hello is wrong"),
    ] {
        let start = move || -> Result<Box<dyn Host>, String> {
            Ok(Box::new(Scripted(move |_: &str| Ok(hello.to_owned()))))
        };
        let error = Program::with_hosts(PROBLEM, "./script", Limits::default(), start).unwrap_err();
        assert!(error.contains(words), "{hello}: {error}");
    }
    assert_eq!(PROTOCOL, 1);
}

#[test]
fn a_run_with_late_and_reordered_messages_repeats_exactly() {
    let (program, _) = program(careless);
    let mut scenario = scenario(20);
    scenario.world.delay = Delay::Exponential(Duration::from_millis(1));
    scenario.world.order = Order::Any;
    let run = |recorder: &mut Recorder| simulate_with(&program, &scenario, recorder);
    let digest = run(&mut Recorder::default()).unwrap().facts.digest;
    super::repeat_with(&scenario, &digest, run).unwrap();
    let error = super::repeat_with(&scenario, "another", run).unwrap_err();
    assert!(error.contains("is not deterministic: seed 1 had different runs"), "{error}");
}
