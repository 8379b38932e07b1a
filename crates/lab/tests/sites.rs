//! Programs in Python as sites: the examples, and programs that crash, loop and print nonsense.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conclave_check::{Order, unwatched};
use conclave_lab::case::Case as _;
use conclave_lab::problem::{self, Recorder};
use conclave_lab::problems::election::{self, Ranks, Start};
use conclave_lab::problems::mutex::check::{Case, Judged};
use conclave_lab::problems::mutex::{Scenario, Workload};
use conclave_lab::sites::mutex::{checker_with, open, simulate_with};
use conclave_lab::sites::{self, Limits, Program};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sites").join(name)
}

fn opened(path: &Path, limits: Limits) -> Arc<Program> {
    open(path.to_str().expect("a plain path"), limits).expect("the program starts")
}

fn scenario(nodes: u32, entries: u64, seed: u64) -> Scenario {
    let mut scenario = Scenario::default().with(|work| (work.load, work.entries) = (Workload::High, entries));
    (scenario.world.nodes, scenario.world.seed) = (nodes, seed);
    scenario
}

/// Explores three sites in any order of messages.
fn explored(program: &Arc<Program>, entries: u8) -> conclave_check::Report {
    let mut case = Case::of(program.card(), 3, entries).with(|work| work.judged = Some(Judged::Fences));
    case.world.order = Order::Any;
    let checker = checker_with(program, &case, &Default::default(), true).expect("the program saves");
    program.explore(&checker, &mut unwatched).expect("every step succeeds")
}

#[test]
fn ricart_agrawala_in_python_behaves_like_the_one_of_the_laboratory() {
    let program = opened(&example("ricart_agrawala.py"), Limits::default());
    for seed in 0..5 {
        let scenario = scenario(4, 12, seed);
        let theirs = simulate_with(&program, &scenario, &mut Recorder::default()).unwrap();
        let ours = problem::run(&scenario).unwrap();
        assert_eq!(theirs.facts.violations, []);
        assert_eq!(theirs.facts.properties, ours.facts.properties);
        assert_eq!((theirs.entries, theirs.facts.messages), (ours.entries, ours.facts.messages));
        assert_eq!(theirs.facts.simulated_ns, ours.facts.simulated_ns);
    }
    let ours = Case::of(program.card(), 3, 1).with(|work| work.judged = Some(Judged::Fences));
    let ours = Case { algorithm: "ricart-agrawala".into(), ..ours };
    let ours = ours.explore(&Default::default(), &mut unwatched).unwrap();
    let theirs = explored(&program, 1);
    assert!(!theirs.is_broken(), "{:?}", theirs.why);
    assert_eq!(ours.states, theirs.states, "the two have the same executions");
}

#[test]
fn the_wrong_twin_is_found_by_seeds_and_by_exploration() {
    let program = opened(&example("wrong_ricart_agrawala.py"), Limits::default());
    let breaks = |seed| {
        let report = simulate_with(&program, &scenario(3, 6, seed), &mut Recorder::default()).unwrap();
        report.facts.violations.iter().any(|violation| violation.property == "ME1")
    };
    assert!((0..10).any(breaks));
    let report = explored(&program, 1);
    assert_eq!(report.property, Some("ME1"));
    assert!(report.counterexample.is_some());
}

#[test]
fn chang_roberts_in_python_elects_the_highest_site() {
    let path = example("chang_roberts.py").to_str().expect("a plain path").to_owned();
    for (seed, ranks) in [(1, Ranks::Ids), (2, Ranks::Random)] {
        let mut scenario = election::Scenario::of(&path);
        (scenario.work.ranks, scenario.work.start) = (ranks, Start::All);
        (scenario.world.nodes, scenario.world.seed) = (6, seed);
        let report = problem::run(&scenario).unwrap();
        assert_eq!((report.facts.violations.len(), report.facts.has_judged("E1")), (0, true));
        assert_eq!(problem::run(&scenario).unwrap().facts.digest, report.facts.digest);
    }
    let program = sites::program("election", &path).unwrap();
    let case = election::Case::of(program.card(), 3, 1);
    let report = case.explore(&Default::default(), &mut unwatched).unwrap();
    assert!(!report.is_broken(), "{:?}", report.why);
    sites::close();
}

const MISBEHAVING: &str = r#"
import sys
sys.path.insert(0, FOLDER)
from conclave import Site, serve

class Bad(Site):
    def on_acquire(self):
        print("site", self.me, "requests")
        if self.me == 0:
            while True: pass
        if self.me == 1:
            self.no_such_field += 1
        if self.me == 2:
            print("hello world", file=self._out, flush=True)
            sys.stdin.readline()
        if self.me == 3:
            self.big = bytearray(4 << 30)
        if self.me == 4:
            print("x" * 10_000_000)
        if self.me == 5:
            self.broadcast("x" * 2_000_000)
        if self.me == 6:
            sys.exit(3)
        if self.me == 7:
            print("{}", "{}", sep="\n", file=self._out, flush=True)
        self.enter()

    def on_release(self):
        pass

serve(Bad)
"#;

#[test]
fn a_program_that_misbehaves_fails_its_run_with_a_clear_error() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("misbehaving");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("bad.py");
    let examples = example("").canonicalize().unwrap();
    std::fs::write(&file, MISBEHAVING.replace("FOLDER", &format!("{examples:?}"))).unwrap();
    let program = opened(&file, Limits { step: Duration::from_millis(1_500), ..Limits::default() });
    for (site, words) in [
        (0, "the program did not reply in time"),
        (1, "AttributeError: 'Bad' object has no attribute 'no_such_field'"),
        (2, "the reply is wrong: "),
        (3, "MemoryError"),
        (4, "more than 65536 bytes to standard error in one step"),
        (5, "the reply is longer than 1048576 bytes"),
        (6, "the program ended (exit status: 3)"),
        (7, "the program wrote more than one line of reply: first {} and then {}"),
    ] {
        let mut scenario = scenario(9, 1, 7);
        scenario.work.load = format!("script:{site}@1ms").parse().unwrap();
        let error = simulate_with(&program, &scenario, &mut Recorder::default()).unwrap_err();
        let place = format!("bad.py, seed 7, n{site}, step 10: ");
        assert!(error.contains(&place) && error.contains(words), "{site}: {error}");
        assert!(error.contains(r#""input":{"command":"acquire"}}"#), "{error}");
        let printed = program.take_printed().join("\n");
        assert!(printed.contains(&format!("n{site}, step 10: site {site} requests")), "{site}: {printed}");
    }
    let mut scenario = scenario(9, 1, 7);
    scenario.work.load = "script:8@1ms".parse().unwrap();
    let report = simulate_with(&program, &scenario, &mut Recorder::default()).unwrap();
    assert_eq!(report.entries, 1, "the program still serves other runs");
}
