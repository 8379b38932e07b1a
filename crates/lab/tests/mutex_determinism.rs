//! A run is a function of its scenario: the whole report and the digest of everything that happened, and the
//! trace line by line.

use crate::support::{MS, names, run, scenario};
use conclave_kernel::Digest;
use conclave_lab::log;
use conclave_lab::problem::Recorder;
use conclave_lab::problems::mutex::{Report, Scenario, Workload};
use conclave_sim::Delay;

/// The report without the wall clock.
fn json(mut report: Report) -> String {
    assert!(report.facts.events_per_s > 0.0);
    report.facts.events_per_s = 0.0;
    serde_json::to_string(&report).expect("a report is data")
}

fn wild(algorithm: &str, seed: u64) -> Scenario {
    let mut wild = scenario(algorithm, 7, Workload::High).with(|work| work.entries = 80);
    wild.world.delay = Delay::Exponential(MS);
    wild.world.seed = seed;
    wild
}

#[test]
fn equal_seeds_give_equal_runs_and_other_seeds_others() {
    for algorithm in names() {
        let (first, again, other) = (wild(algorithm, 1), wild(algorithm, 1), wild(algorithm, 2));
        assert_eq!(json(run(&first)), json(run(&again)), "{algorithm}");
        assert_ne!(run(&first).facts.digest, run(&other).facts.digest, "{algorithm}");
        let swarmed = first.swarmed();
        assert_eq!(swarmed, again.swarmed(), "{algorithm}");
        assert_eq!(json(run(&swarmed)), json(run(&swarmed)), "{algorithm}, swarmed");
        assert_ne!(run(&swarmed).facts.digest, run(&other.swarmed()).facts.digest, "{algorithm}, swarmed");
    }
}

/// Digests of all seeds are different: nothing is left out of them that differs.
#[test]
fn a_hundred_seeds_have_a_hundred_digests() {
    let mut digests: Vec<_> = (0..100).map(|seed| run(&wild("ricart-agrawala", seed)).facts.digest).collect();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 100);
}

/// Returns the trace of a run as a file holds it, and the digest of the run.
fn record(scenario: &Scenario) -> (Vec<u8>, String) {
    let mut recorder = Recorder::new(true, false);
    let report = scenario.run(&mut recorder).expect("a valid scenario");
    (recorder.lines, report.facts.digest)
}

#[test]
fn a_recorded_run_repeats_from_the_scenario_in_its_header() {
    for algorithm in names() {
        let scenario = wild(algorithm, 5).swarmed();
        let (lines, digest) = record(&scenario);
        assert_eq!(digest, run(&scenario).facts.digest, "{algorithm}: recording changes nothing");
        let log = log::read_log("the run", lines.as_slice()).expect("what was written can be read");
        let again: Scenario = serde_json::from_str(&log.about.scenario).expect("the header holds it");
        assert_eq!(again, scenario, "{algorithm}");
        let (repeated, _) = record(&again);
        assert!(repeated == lines, "{algorithm}: the trace differs when the run is repeated");
    }
}

/// Loads and durations with odd nanoseconds lose no digit on their way through a header or a command line.
#[test]
fn no_digit_of_a_scenario_is_lost() {
    let odd = std::time::Duration::from_nanos(1_234_567);
    for load in [
        Workload::Poisson { mean: odd },
        Workload::Burst { size: 3, every: odd },
        Workload::Script(vec![(odd, conclave_kernel::NodeId(2))]),
    ] {
        let mut scenario = scenario("central", 5, Workload::Low).with(|work| {
            work.cs = odd;
            work.load = load;
        });
        scenario.world.clocks.skew = odd;
        let again: Scenario = serde_json::from_str(&scenario.header().scenario).expect("it was just written");
        assert_eq!(again, scenario);
        assert!(scenario.command_line().matches("1234567ns").count() == 3, "{}", scenario.command_line());
    }
}

/// The traced half of the work is judged too: the digest is not a constant.
#[test]
fn a_digest_tells_two_things_apart_and_knows_their_order() {
    let of = |words: &[u64]| {
        let mut digest = Digest::new();
        words.iter().for_each(|word| digest.word(*word));
        digest.value()
    };
    assert_ne!(of(&[1, 2]), of(&[2, 1]));
    assert_ne!(of(&[]), of(&[0]));
}
