use conclave_sim::{Delay, Fault, Setup};

use super::*;
use crate::diagram::{shiviz, span, testing};
use crate::log::read_log;

fn picture(log: &Log) -> String {
    draw(log, &Options { spans: span::mutex(log), ..Options::default() })
}

/// All that the pointer can make the picture say.
fn tooltips(svg: &str) -> Vec<String> {
    let tree = roxmltree::Document::parse(svg).expect("well-formed");
    let titles = tree.descendants().filter(|node| node.has_tag_name("title"));
    titles.filter_map(|node| node.text().map(str::to_owned)).collect()
}

#[test]
fn the_small_log_is_drawn_as_it_was() {
    testing::golden("small.svg", &picture(&testing::small_log()));
}

#[test]
fn everything_that_happened_is_in_the_picture() {
    let said = tooltips(&picture(&testing::small_log()));
    for expected in [
        "n0 → n1: request time 1, site 0\nsent at 1ms, received at 2ms",
        "n0 → n2: request time 1, site 0\nsent at 1ms, lost at 1ms",
        "n1 → n0: reply\nsent at 2ms, received once more",
        "n0: waiting from 1ms to 3ms",
        "n0: critical section (3) from 3ms to 5ms",
        "n2 is down from 3.5ms to 5.5ms",
        "n0, n1 cut off from 4.5ms to 6ms",
        "n0 at 5ms: is asked to release; reports released",
    ] {
        assert!(said.iter().any(|text| text == expected), "{expected} is not among {said:#?}");
    }
}

#[test]
fn pictures_of_any_size_are_well_formed_and_say_what_they_leave_out() {
    for nodes in [1, 3, 20, 60] {
        let svg = picture(&testing::ricart_agrawala(nodes, 30));
        let tree = roxmltree::Document::parse(&svg).expect("well-formed");
        let texts: Vec<_> = tree
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .filter_map(|node| node.text())
            .collect();
        let limited = texts.iter().any(|text| text.starts_with("Only a part is drawn: "));
        assert_eq!(limited, nodes > 1, "{nodes}");
        assert_eq!(texts.iter().any(|text| text.contains("the first 40 of 60 sites")), nodes == 60);
        assert_eq!(texts.contains(&"n19"), nodes >= 20);
    }
}

#[test]
fn labels_are_drawn_only_while_arrows_are_few() {
    let labels = |nodes| picture(&testing::ricart_agrawala(nodes, 30)).matches("rotate(").count();
    assert!(labels(3) > 10);
    assert_eq!(labels(20), 0);
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
    let said = tooltips(&svg);
    for expected in ["n2 is down from 4ms on", "n3 is paused from 2ms to 5ms", "n4 cut off from 4ms to 15ms"]
    {
        assert!(said.iter().any(|text| text == expected), "{expected} is not among {said:#?}");
    }
}

#[test]
fn a_window_shows_what_crosses_its_edges() {
    let log = testing::small_log();
    let options = Options {
        from: Time(1_500_000),
        until: Some(Time(2_500_000)),
        spans: span::mutex(&log),
        ..Options::default()
    };
    let svg = draw(&log, &options);
    let said = tooltips(&svg);
    assert!(said.iter().any(|text| text.starts_with("n0 → n1: request")), "comes in from the left");
    assert!(said.iter().any(|text| text.starts_with("n1 → n0: reply")), "leaves to the right");
    assert!(said.iter().any(|text| text == "n0: waiting from 1ms to 3ms"));
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
    let svg = draw(&log, &Options { subtitle: "</svg>".into(), ..Options::default() });
    let tree = roxmltree::Document::parse(&svg).expect("well-formed");
    assert!(tree.descendants().all(|node| !node.has_tag_name("script")));
    assert!(tree.descendants().any(|node| node.text() == Some("a<script>&\"'")));
}

#[test]
fn an_empty_log_is_an_empty_picture() {
    assert!(roxmltree::Document::parse(&picture(&Log::default())).is_ok());
}
