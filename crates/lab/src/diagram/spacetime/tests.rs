use std::time::Duration;

use conclave_algorithms::mutex::{self, Mutex};
use conclave_check::{Options as Bounds, Order, unwatched};
use conclave_sim::{Delay, Fault, Setup};

use super::*;
use crate::case::Case as _;
use crate::diagram::testing::{self, count, parsed, texts, titles};
use crate::diagram::{shiviz, span};
use crate::experiment::Run;
use crate::log::read_log;
use crate::problem::{Problem, Recorder};
use crate::problems;

fn picture(log: &Log) -> String {
    draw(log, &Options { spans: span::mutex(log), ..Options::default() })
}

/// The log of a run with states.
fn run<W: Problem>(mut scenario: Run<W>) -> Log {
    scenario.world.keeps_states = true;
    let mut recorder = Recorder::new(false, true);
    scenario.run(&mut recorder).expect("the scenario is valid");
    recorder.log.expect("it was wanted")
}

fn mutex_run(algorithm: &str, nodes: u32, entries: u64) -> Log {
    let mut scenario = problems::mutex::Scenario::of(algorithm).with(|work| {
        work.entries = entries;
        work.load = "high".parse().expect("it is a load");
    });
    scenario.world.nodes = nodes;
    run(scenario)
}

/// A counterexample of the checker: Lamport's algorithm over channels that are not FIFO.
fn counterexample() -> (Log, Broken) {
    let mut case = problems::mutex::check::Case::of(&mutex::Lamport::CARD, 3, 1);
    case.world.order = Order::Any;
    let report = case.explore(&Bounds::default(), &mut unwatched).expect("the case is valid");
    let log = Log::from_trace(&report.counterexample.expect("exclusion breaks").trace).unwrap();
    let sentence = format!("{}: {}", report.property.unwrap_or_default(), report.why.unwrap_or_default());
    let at = log.end();
    (log, Broken { at, sentence })
}

#[test]
fn every_event_of_the_small_log_is_in_the_picture() {
    let svg = picture(&testing::small_log());
    let tree = parsed("small", &svg);
    for (class, expected) in [
        ("arrow", "n0 → n1: request time 1, site 0\nsent at 1ms, received at 2ms"),
        ("arrow", "n0 → n2: request time 1, site 0\nsent at 1ms, lost at 1ms"),
        ("arrow", "n1 → n0: reply\nsent at 2ms, received once more"),
        ("bar", "n0: waiting from 1ms to 3ms"),
        ("bar", "n0: critical section 1 (fence 3) from 3ms to 5ms"),
        ("crash", "n2 is down from 3.5ms to 5.5ms"),
        ("partition", "n0, n1 cut off from 4.5ms to 6ms"),
        ("dot", "n0 at 5ms: is asked to release; reports released"),
    ] {
        let found = titles(&tree, class);
        assert!(found.iter().any(|text| text == expected), "{expected} is not among {found:#?}");
    }
    assert_eq!((count(&tree, "arrow"), count(&tree, "dot"), count(&tree, "site")), (4, 8, 3));
    assert_eq!((count(&tree, "kind-request"), count(&tree, "kind-reply")), (2, 2));
    for visible in ["mutex/by-hand", "3 sites · seed 7", "request", "reply", "lost", "second copy", "crashed"]
    {
        assert!(texts(&tree).iter().any(|text| text == visible), "{visible} is not in {:?}", texts(&tree));
    }
}

#[test]
fn the_scene_contains_everything_that_the_picture_shows() {
    let log = testing::small_log();
    let scene = Scene::new(&log, &Options { spans: span::mutex(&log), ..Options::default() });
    let json = serde_json::to_value(&scene).expect("a scene serialises");
    let lists =
        ["dots", "arrows", "bars", "crashes", "bands"].map(|list| json[list].as_array().map(Vec::len));
    assert_eq!(lists, [Some(8), Some(4), Some(2), Some(1), Some(1)]);
    assert_eq!(json["arrows"][0]["head"], "arrow");
    assert_eq!(json["axis"]["name"], "time (ms)");
    assert_eq!(render(&scene), draw(&log, &Options { spans: span::mutex(&log), ..Options::default() }));
}

#[test]
fn pictures_of_any_size_are_well_formed_and_name_the_parts_left_out() {
    for nodes in [1, 3, 20, 60] {
        let svg = picture(&testing::ricart_agrawala(nodes, 30));
        let tree = parsed(&format!("ricart-agrawala-{nodes}"), &svg);
        let texts = texts(&tree);
        let limited = texts.iter().any(|text| text.starts_with("Only a part is drawn: "));
        assert_eq!(limited, nodes > 1, "{nodes}");
        assert_eq!(texts.iter().any(|text| text.contains("the first 40 of 60 sites")), nodes == 60);
        assert_eq!(texts.iter().any(|text| text == "n19"), nodes >= 20);
        assert!(count(&tree, "arrow") <= 400, "a picture has a bound");
    }
}

#[test]
fn labels_are_drawn_only_while_arrows_are_few() {
    let labels = |nodes| picture(&testing::ricart_agrawala(nodes, 30)).matches("rotate(").count();
    assert!(labels(3) > 10);
    assert_eq!(labels(20), 0);
}

#[test]
fn no_arrow_passes_through_the_dot_of_another_site() {
    for log in [testing::ricart_agrawala(5, 6), mutex_run("lamport", 5, 4), counterexample().0] {
        let scene = Scene::new(&log, &Options { spans: span::mutex(&log), ..Options::default() });
        let frame = frame::Frame::new(&scene, &legend::entries(&scene));
        let dots = route::Dots::new(&scene.dots, &frame, scene.sites.len());
        for arrow in scene.arrows.iter().filter(|arrow| arrow.head == Head::Arrow && !arrow.is_loop()) {
            let route = Route::of(arrow, &frame, &dots);
            let (low, high) = (arrow.from.site.min(arrow.to.site) + 1, arrow.from.site.max(arrow.to.site));
            for site in low..high {
                let part = (frame.y(site) - route.from.1) / (route.to.1 - route.from.1);
                let distance = dots.distance(site, route.point(part).0);
                assert!(distance >= 4.0, "{arrow:?} passes the line of site {site} {distance} beside a dot");
            }
        }
    }
}

#[test]
fn a_run_with_every_fault_is_drawn() {
    let setup = Setup {
        delay: "uniform:500us..3ms".parse::<Delay>().unwrap(),
        loss: conclave_kernel::Ratio::percent(3),
        duplicate: conclave_kernel::Ratio::percent(20),
        faults: vec![
            Fault::parse_crash("2@4ms").unwrap(),
            Fault::parse_pause("3@2ms..5ms").unwrap(),
            Fault::parse_partition("0+1@3ms..12ms").unwrap(),
            Fault::parse_partition("4@4ms..15ms,drop").unwrap(),
        ],
        ..Setup::default()
    };
    let svg = picture(&Log::from_trace(&testing::trace(setup, 30)).unwrap());
    let tree = parsed("faults", &svg);
    for (class, expected) in [
        ("crash", "n2 is down from 4ms on"),
        ("pause", "n3 is paused from 2ms to 5ms"),
        ("partition", "n4 cut off from 4ms to 15ms"),
    ] {
        assert!(titles(&tree, class).iter().any(|text| text == expected), "{expected}");
    }
}

#[test]
fn a_window_shows_messages_that_cross_its_edges() {
    let log = testing::small_log();
    let options = Options {
        from: Time(1_500_000),
        until: Some(Time(2_500_000)),
        spans: span::mutex(&log),
        ..Options::default()
    };
    let svg = draw(&log, &options);
    let tree = parsed("window", &svg);
    let arrows = titles(&tree, "arrow");
    assert!(arrows.iter().any(|text| text.starts_with("n0 → n1: request")), "comes in from the left");
    assert!(arrows.iter().any(|text| text.starts_with("n1 → n0: reply")), "leaves to the right");
    assert!(titles(&tree, "bar").iter().any(|text| text == "n0: waiting from 1ms to 3ms"));
    assert!(svg.contains("Only a part is drawn: 1.5ms to 2.5ms of 6ms, 1 of 3 messages."));
}

#[test]
fn a_run_without_time_is_drawn_by_steps_and_a_foreign_one_by_stamps() {
    let header = r#"{"format":1,"code":"","algorithm":"x","nodes":2,"seed":1,"scenario":""}"#;
    let send = concat!(
        r#"{"step":{"at":0,"node":0,"clock":0,"stamp":1,"first_sent":0,"input":"start","#,
        r#""effects":[{"send":{"to":1,"message":"hi"}}]}}"#
    );
    let receive = concat!(
        r#"{"step":{"at":0,"node":1,"clock":0,"stamp":2,"received":0,"first_sent":1,"#,
        r#""input":{"message":{"from":0,"message":"hi"}},"effects":[]}}"#
    );
    let log = read_log("x", format!("{header}\n{send}\n{receive}\n").as_bytes()).unwrap();
    assert!(picture(&log).contains(">step</text>"));
    let foreign = shiviz::read("their.log", shiviz::write(&log).unwrap().as_bytes()).unwrap();
    assert!(picture(&foreign).contains(">Lamport time</text>"));
}

#[test]
fn hostile_names_and_texts_stay_text() {
    let text = "a<script>&\"' {\"a<script>&\\\"'\":1}\n]]><!-- \u{1} \n";
    let log = shiviz::read("<title>", text.as_bytes()).unwrap();
    let broken = Broken { at: Time::ZERO, sentence: "<script>".into() };
    let options = Options {
        subtitle: "</svg>".into(),
        command: "<script>".into(),
        verdict: "\"><script>".into(),
        violation: Some(broken),
        ..Options::default()
    };
    let svg = draw(&log, &options);
    let tree = parsed("hostile", &svg);
    assert!(tree.descendants().all(|node| !node.has_tag_name("script")));
    assert!(tree.descendants().any(|node| node.text() == Some("a<script>&\"'")));
}

#[test]
fn an_empty_log_is_an_empty_picture() {
    let broken = Broken { at: Time::ZERO, sentence: String::new() };
    let options = Options { violation: Some(broken), brackets: true, states: true, ..Options::default() };
    parsed("empty", &draw(&Log::default(), &options));
}

#[test]
fn a_violation_is_hatched_where_two_sites_are_inside_and_named_in_one_sentence() {
    let (log, broken) = counterexample();
    let sentence = broken.sentence.clone();
    let command = "conclave check mutex/lamport --order any".to_owned();
    let options = Options {
        spans: span::mutex(&log),
        violation: Some(broken),
        command: command.clone(),
        verdict: "violated".into(),
        states: true,
        ..Options::default()
    };
    let scene = Scene::new(&log, &options);
    let alarm = scene.violation.clone().expect("it was given");
    assert_eq!((alarm.sites.len(), alarm.to), (2, None), "both sites stay inside");
    assert!(scene.axis.high > alarm.from + 0.4, "the time after the decisive step is visible");
    assert_eq!(scene.axis.name, "step");
    let svg = draw(&log, &options);
    let tree = parsed("violation", &svg);
    assert_eq!(titles(&tree, "violation"), [sentence.as_str()]);
    assert!(tree.descendants().any(|node| node.has_tag_name("pattern")));
    let texts = texts(&tree);
    assert!([sentence, command, "violated".to_owned()].iter().all(|line| texts.contains(line)), "{texts:?}");
}

#[test]
fn the_window_contains_a_late_violation_and_steps_after_it() {
    let log = mutex_run("ricart-agrawala", 5, 60);
    let at = log.events()[log.events().len() * 2 / 3].at;
    let broken = Broken { at, sentence: "ME1".into() };
    let scene = Scene::new(&log, &Options { violation: Some(broken), ..Options::default() });
    let at = at.0 as f64;
    assert!(scene.axis.low > 0.0 && scene.axis.low < at && at < scene.axis.high);
    assert!(scene.dots.iter().filter(|dot| dot.place.at > at).count() >= 5);
}

#[test]
fn a_state_stands_below_the_dot_that_changed_it() {
    let log = mutex_run("suzuki-kasami", 3, 3);
    let options = Options { spans: span::mutex(&log), states: true, ..Options::default() };
    let scene = Scene::new(&log, &options);
    let changes: Vec<_> = scene.dots.iter().flat_map(|dot| &dot.changes).collect();
    assert!(changes.iter().any(|line| line.starts_with("RN [")), "{changes:?}");
    assert!(changes.iter().any(|line| line.contains("LN [")), "{changes:?}");
    let svg = draw(&log, &options);
    let tree = parsed("states", &svg);
    let changing = scene.dots.iter().filter(|dot| !dot.changes.is_empty()).count();
    assert_eq!(count(&tree, "state"), changing);
}

#[test]
fn messages_to_oneself_are_loops() {
    let log = mutex_run("maekawa", 3, 3);
    let svg = picture(&log);
    let tree = parsed("maekawa", &svg);
    let own = log.messages().iter().filter(|message| message.from == message.to).count();
    assert!(own > 0 && count(&tree, "loop") > 0);
}

#[test]
fn the_delays_of_a_mutex_are_brackets_on_demand() {
    let log = mutex_run("ricart-agrawala", 3, 4);
    let options = |brackets| Options { spans: span::mutex(&log), brackets, ..Options::default() };
    let svg = draw(&log, &options(true));
    let tree = parsed("brackets", &svg);
    let measured = titles(&tree, "measure");
    for name in ["E", "response time", "synchronisation delay"] {
        assert!(
            measured.iter().any(|text| text.contains(&format!(": {name} from "))),
            "{name}: {measured:?}"
        );
    }
    assert_eq!(count(&parsed("no-brackets", &draw(&log, &options(false))), "measure"), 0);
}

#[test]
fn an_election_shows_its_timers_and_the_leader_of_each_site() {
    let mut scenario = election::Scenario::of("bully");
    scenario.world.nodes = 4;
    scenario.world.faults.push(Fault::parse_crash("3@20ms").expect("it is well formed"));
    let log = run(scenario);
    let svg = draw(&log, &Options::of(&log));
    let tree = parsed("bully", &svg);
    let timers = titles(&tree, "timer");
    assert!(timers.iter().any(|text| text.contains(": T from")), "{timers:?}");
    assert!(timers.iter().any(|text| text.contains(": T' from")), "{timers:?}");
    assert!(titles(&tree, "follows").iter().any(|text| text.contains("n2")));
    assert!(count(&tree, "kind-election") > 0 && count(&tree, "kind-coordinator") > 0);
}

#[test]
fn a_snapshot_is_a_line_through_its_recording_points() {
    for (algorithm, nodes) in [("chandy-lamport", 2), ("chandy-lamport", 4), ("lai-yang", 3)] {
        let mut scenario = snapshot::Scenario::of(algorithm).with(|work| {
            work.acts = 30;
            work.gap = Duration::from_micros(700);
        });
        scenario.world.nodes = nodes;
        let log = run(scenario);
        let scene = Scene::new(&log, &Options::of(&log));
        let [cut] = &scene.cuts[..] else { panic!("{:?}", scene.cuts) };
        assert_eq!(cut.points.len(), nodes as usize, "the window contains the whole snapshot");
        assert!(cut.summary[0].contains("as expected"));
        let svg = render(&scene);
        let tree = parsed(&format!("{algorithm}-{nodes}"), &svg);
        assert_eq!(count(&tree, "cut"), 1);
        assert!(texts(&tree).contains(&cut.summary[0]));
    }
}

#[test]
fn the_messages_of_every_algorithm_have_kinds_with_names() {
    /// A small run of every algorithm of a problem, and its picture.
    fn assert_named<W: Problem>(change: impl Fn(&mut W)) {
        for card in W::cards() {
            let mut scenario = Run::<W>::default().with(&change);
            W::choose(&mut scenario, card.name);
            scenario.world.nodes = 4;
            let log = run(scenario);
            let scene = Scene::new(&log, &Options::of(&log));
            parsed(&format!("{}-{}", W::NAME, card.name), &render(&scene));
            let names: Vec<_> = scene.kinds.iter().map(|kind| kind.name.as_str()).collect();
            assert!(!names.contains(&"message") && !names.is_empty(), "{}: {names:?}", card.name);
            assert!(W::NAME != "detector" || names == ["heartbeat"], "{names:?}");
        }
    }
    assert_named(|work: &mut problems::mutex::Work| work.entries = 4);
    assert_named(|_: &mut election::Work| ());
    assert_named(|work: &mut snapshot::Work| work.acts = 20);
    let short = Duration::from_secs(1);
    assert_named(|work: &mut problems::detector::Work| work.duration = short);
    assert_named(|work: &mut problems::timesync::Work| work.samples = 10);
    assert_named(|work: &mut problems::deadlock::Work| work.requests = 20);
}

#[test]
fn the_kinds_of_messages_have_different_colours() {
    for (algorithm, kinds) in [("lamport", 3), ("central", 3), ("token-ring", 1), ("raymond", 2)] {
        let log = mutex_run(algorithm, 3, 3);
        let scene = Scene::new(&log, &Options { spans: span::mutex(&log), ..Options::default() });
        let hues: std::collections::BTreeSet<_> = scene.kinds.iter().map(|kind| kind.hue).collect();
        assert_eq!((scene.kinds.len(), hues.len()), (kinds, kinds), "{algorithm}: {:?}", scene.kinds);
    }
}
