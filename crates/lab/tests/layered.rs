//! Mutual exclusion through crashes: the coordinator that is elected again, and Ricart-Agrawala over a detector.

use std::time::Duration;

use conclave_algorithms::detector::{self, Class, Oracle};
use conclave_algorithms::mutex::ricart_agrawala::crash_tolerant::Command;
use conclave_algorithms::mutex::spec::{FENCES, ME1, ME1_CAUSAL, ME2};
use conclave_algorithms::mutex::{
    self, CrashTolerant, Event, Fence, Group, LAYERED, Mutex as _, RicartAgrawala,
};
use conclave_check::{Faults, Findings, Model, Monitor, Offer, Options, Order, Verdict, check};
use conclave_kernel::trace::{Json, RawInput};
use conclave_kernel::{NodeId, Property};
use conclave_lab::problem;
use conclave_lab::problems::mutex::{Report, Scenario, Workload};
use conclave_lab::sweep::sweep;
use conclave_sim::Fault;

const MS: Duration = Duration::from_millis(1);

fn scenario(algorithm: &str, crashes: &[&str]) -> Scenario {
    let mut scenario = Scenario::of(algorithm).with(|work| work.load = Workload::High);
    let crashes = crashes.iter().map(|crash| Fault::parse_crash(crash).expect("it is well formed"));
    scenario.world.faults.extend(crashes);
    scenario.work.entries = 400;
    scenario
}

fn run(scenario: &Scenario) -> Report {
    problem::run(scenario).expect("the scenario is valid")
}

#[track_caller]
fn assert_kept(report: &Report) {
    assert!(report.facts.passed(), "{:?}\n{}", report.facts.violations, report.facts.command);
}

/// Site 0 is the first master; it dies, and its successor, and whoever is inside.
#[test]
fn crashes_of_masters_and_holders_stop_nobody() {
    for card in LAYERED {
        for crashes in [&["0@50ms"][..], &["0@50ms", "4@300ms"], &["0@50ms", "1@51ms", "4@600ms"]] {
            let report = run(&scenario(card.name, crashes));
            assert_kept(&report);
            assert!(report.entries > 300, "{} {crashes:?}: {}", card.name, report.entries);
        }
    }
}

/// The plain ones stand still: that is what is won.
#[test]
fn without_a_detector_the_same_crash_stops_everybody() {
    for name in ["central", "ricart-agrawala"] {
        let report = run(&scenario(name, &["0@50ms"]));
        assert!(report.facts.violations.iter().any(|violation| violation.property == "ME2"), "{name}");
    }
}

/// Each is a term of its own: an election was held, by the algorithm that the name says.
#[test]
fn the_master_is_elected_by_bully_and_round_the_ring() {
    for (name, kind) in [("central-bully", "COORDINATOR"), ("central-ring", "ELECTED")] {
        let calm = run(&scenario(name, &[]));
        assert_eq!(calm.messages_by_kind.get(kind), None);
        let report = run(&scenario(name, &["0@50ms"]));
        assert_kept(&report);
        assert!(report.messages_by_kind[kind] >= 3, "{:?}", report.messages_by_kind);
        assert!(report.messages_by_kind["POLL"] >= 3, "{:?}", report.messages_by_kind);
        // Those who waited were heard: everybody who is left goes on entering.
        assert!(report.entries_per_site.0 > 50, "{:?}", report.entries_per_site);
    }
}

#[test]
fn a_master_that_comes_back_is_a_client_until_it_is_elected() {
    for name in ["central-bully", "central-ring"] {
        for recovery in ["", ",amnesia"] {
            let report = run(&scenario(name, &[&format!("0@50ms..400ms{recovery}")]));
            assert_kept(&report);
            assert!(report.entries > 300, "{name}{recovery}: {}", report.entries);
        }
    }
}

#[test]
fn hundreds_of_runs_with_a_crash_at_any_moment_keep_me1() {
    for card in LAYERED {
        let reports = sweep(
            0..80,
            |seed| {
                let crash = format!("{}@{}us", seed % 5, 20_000 + seed * 777);
                let mut scenario = scenario(card.name, &[&crash]);
                (scenario.world.seed, scenario.work.entries) = (seed, 150);
                scenario.world.delay = "uniform:100us..20ms".parse().expect("it is well formed");
                run(&scenario)
            },
            |_| {},
        );
        reports.iter().for_each(assert_kept);
    }
}

/// A detector's messages carry knowledge too, and no site waits for them: only the order of the algorithm's own
/// events and messages makes this hold. Two loads, so that exits with and without a waiting site occur.
#[test]
fn without_faults_every_exit_happened_before_the_next_entry() {
    for card in LAYERED {
        assert!(card.promises(ME1_CAUSAL.name), "{}", card.name);
        let reports = sweep(
            0..1_000,
            |seed| {
                let load = if seed % 2 == 0 { Workload::High } else { Workload::Poisson { mean: 3 * MS } };
                let mut scenario = scenario(card.name, &[]).with(|work| work.load = load);
                (scenario.world.seed, scenario.world.nodes) = (seed, 3 + (seed % 5) as u32);
                scenario.work.entries = 30;
                scenario.world.delay = "uniform:100us..20ms".parse().expect("it is well formed");
                run(&scenario)
            },
            |_| {},
        );
        for report in &reports {
            assert_kept(report);
            assert_eq!(report.entries, 30, "{}", report.facts.command);
        }
    }
}

/// Delays beyond what the detector was told: somebody who is inside is suspected.
#[test]
fn where_delays_are_not_bounded_two_are_inside() {
    let broken = sweep(
        0..20,
        |seed| {
            let mut scenario = scenario("ricart-agrawala-ft", &[]);
            scenario.world.seed = seed;
            scenario.world.delay = "exponential:30ms".parse().expect("it is well formed");
            scenario.work.cs = 50 * MS;
            let violations = run(&scenario).facts.violations;
            violations.iter().any(|violation| violation.property == "ME1")
        },
        |_| {},
    );
    assert!(broken.iter().any(|broken| *broken));
}

/// Ricart-Agrawala over every detector of a class.
#[derive(Clone)]
struct OverOracle {
    nodes: u32,
    entries: u8,
    class: Class,
}

impl Model for OverOracle {
    type Protocol = CrashTolerant;
    type Monitor = Watch;

    fn name(&self) -> String {
        "mutex/ricart-agrawala-ft".into()
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn site(&self, me: NodeId) -> CrashTolerant {
        CrashTolerant::new(me, &Group::new(self.nodes))
    }

    fn monitor(&self) -> Watch {
        Watch {
            oracle: Oracle::new(self.nodes, self.class),
            left: vec![self.entries; self.nodes as usize],
            asking: 0,
            inside: None,
            last_fence: Fence(0),
        }
    }

    fn liveness(&self) -> Property {
        ME2
    }

    fn kind(&self, message: &mutex::ricart_agrawala::Message) -> &'static str {
        RicartAgrawala::bill(message, NodeId(0), NodeId(0)).kind
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["somebody waits while another is inside", "somebody is inside after a crash"]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watch {
    oracle: Oracle,
    left: Vec<u8>,
    asking: u64,
    inside: Option<NodeId>,
    last_fence: Fence,
}

impl Monitor<CrashTolerant> for Watch {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command>)) {
        for saying in self.oracle.sayings() {
            let command = Command::Detector(saying.event);
            offer(Offer { node: saying.site, command, required: saying.required });
        }
        for (site, left) in self.left.iter().enumerate() {
            let node = NodeId(site as u32);
            if self.inside == Some(node) {
                offer(Offer { node, command: Command::Mutex(mutex::Command::Release), required: true });
            } else if *left > 0 && self.asking & 1 << site == 0 {
                offer(Offer { node, command: Command::Mutex(mutex::Command::Acquire), required: false });
            }
        }
    }

    fn pending(&self) -> u64 {
        self.asking
    }

    fn shows(&self) -> u64 {
        let crashed = (0..self.left.len() as u32).any(|site| self.oracle.has_crashed(NodeId(site)));
        u64::from(self.asking != 0 && self.inside.is_some())
            | u64::from(crashed && self.inside.is_some()) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _findings: &mut Findings) {
        match command {
            Command::Mutex(mutex::Command::Acquire) => {
                self.left[node.index()] -= 1;
                self.asking |= 1 << node.0;
            }
            Command::Mutex(_) => {}
            Command::Detector(event) => self.oracle.told(node, *event),
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        match event {
            Event::Granted { fence } => {
                if let Some(other) = self.inside.replace(node) {
                    findings.breach(&ME1, format!("{node} entered while {other} was inside"));
                }
                if *fence <= self.last_fence {
                    findings.breach(&FENCES, format!("{node} was granted fence {fence}"));
                }
                self.last_fence = *fence;
                self.asking &= !(1 << node.0);
            }
            Event::Released => self.inside = None,
            Event::Refused(_) => {}
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        self.oracle.crashes(node);
        self.left[node.index()] = 0;
        self.asking &= !(1 << node.0);
        self.inside = self.inside.filter(|inside| *inside != node);
    }
}

fn over(nodes: u32, class: Class, crash: u8, order: Order) -> conclave_check::Report {
    let faults = Faults { crash, ..Faults::default() };
    let model = OverOracle { nodes, entries: 1, class };
    check(&model, &Options { faults, order, ..Options::default() }).expect("the model is small")
}

/// Whoever dies, whenever, inside or not; and whenever the others hear of it.
#[test]
fn ricart_agrawala_over_every_perfect_detector_is_proven() {
    for (nodes, crash, order) in [(2, 1, Order::Any), (3, 1, Order::Fifo), (3, 2, Order::Fifo)] {
        let report = over(nodes, Class::Perfect, crash, order);
        assert_eq!(report.verdict, Verdict::Holds, "{:?} {:?}", report.property, report.why);
        assert!(report.sometimes.iter().take(2).all(|it| it.seen), "{:?}", report.sometimes);
    }
}

/// One wrong suspicion, taken back at once, is enough: one asks and enters, the other is told that the first is
/// dead, asks and enters.
#[test]
fn a_detector_that_errs_once_lets_two_in() {
    let report = over(2, Class::EventuallyPerfect { mistakes: 1 }, 0, Order::Fifo);
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("ME1")));
    let counterexample = report.counterexample.expect("it is violated");
    assert!(counterexample.steps <= 5, "{}", counterexample.steps);
    let suspects =
        |site| RawInput::Command(Json::of(&Command::Detector(detector::Event::Suspected(NodeId(site)))));
    let mut steps = counterexample.trace.steps.iter();
    assert!(steps.any(|step| step.input == suspects(0) || step.input == suspects(1)));
}
