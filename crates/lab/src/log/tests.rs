use conclave_algorithms::mutex::{Mutex as _, RicartAgrawala};
use conclave_kernel::StepHead;
use conclave_sim::{Delay, Fault, Setup};
use proptest::prelude::*;

use super::*;
use crate::diagram::testing;

/// Three processes: A B C D E; E' F G; H I J; messages H->E', B->F, G->D, E->J.
fn three_processes() -> (Log, Vec<&'static str>) {
    let about = About::default();
    let mut build = Builder::new(about, 3);
    let text = build.text("\"m\"");
    let order: [(&str, u32, Option<u64>, Option<u32>); 11] = [
        ("A", 0, None, None),
        ("H", 2, None, Some(1)),
        ("B", 0, None, Some(1)),
        ("C", 0, None, None),
        ("E'", 1, Some(0), None),
        ("F", 1, Some(1), None),
        ("G", 1, None, Some(0)),
        ("D", 0, Some(2), None),
        ("I", 2, None, None),
        ("E", 0, None, Some(2)),
        ("J", 2, Some(3), None),
    ];
    let mut sent = 0;
    for (_, site, received, to) in order {
        let cause = if received.is_some() { Cause::Message } else { Cause::Start };
        let head = StepHead {
            at: Time::ZERO,
            node: NodeId(site),
            clock: Time::ZERO,
            stamp: 0,
            received,
            first_sent: sent,
        };
        build.step(head, cause, None).unwrap();
        if let Some(to) = to {
            build.send([NodeId(to)], text).unwrap();
            sent += 1;
        }
    }
    (build.finish().unwrap(), order.iter().map(|(name, ..)| *name).collect())
}

#[test]
fn the_example_of_three_processes_has_its_clocks() {
    let (log, names) = three_processes();
    let causality = Causality::of(&log).unwrap();
    let at = |name: &str| names.iter().position(|known| *known == name).unwrap();
    let expected: [(&str, u64, [u32; 3]); 11] = [
        ("A", 1, [1, 0, 0]),
        ("B", 2, [2, 0, 0]),
        ("C", 3, [3, 0, 0]),
        ("D", 5, [4, 3, 1]),
        ("E", 6, [5, 3, 1]),
        ("E'", 2, [0, 1, 1]),
        ("F", 3, [2, 2, 1]),
        ("G", 4, [2, 3, 1]),
        ("H", 1, [0, 0, 1]),
        ("I", 2, [0, 0, 2]),
        ("J", 7, [5, 3, 3]),
    ];
    for (name, lamport, vector) in expected {
        assert_eq!(
            (causality.lamport(at(name)), causality.vector(at(name))),
            (lamport, &vector[..]),
            "{name}"
        );
    }
    for (e, f) in [("A", "B"), ("B", "F"), ("A", "F"), ("H", "G"), ("F", "J"), ("H", "J"), ("C", "J")] {
        assert_eq!(causality.relation(at(e), at(f)), Relation::Before, "{e} -> {f}");
        assert_eq!(causality.relation(at(f), at(e)), Relation::After, "{e} -> {f}");
    }
    for (e, f) in [("C", "F"), ("H", "C")] {
        assert_eq!(causality.relation(at(e), at(f)), Relation::Concurrent, "{e} || {f}");
    }
    assert_eq!(causality.relation(at("A"), at("A")), Relation::Equal);
}

#[test]
fn derived_stamps_are_those_that_the_simulator_recorded() {
    let setup = Setup {
        delay: "exponential:1ms".parse::<Delay>().unwrap(),
        duplicate: conclave_kernel::Ratio::percent(30),
        ..Setup::default()
    };
    let log = Log::from_trace(&testing::trace(setup, 40)).unwrap();
    let causality = Causality::of(&log).unwrap();
    assert!(log.events().len() > 400);
    assert!((0..log.events().len()).all(|event| causality.lamport(event) == log.events()[event].stamp));
}

#[test]
fn a_trace_that_is_written_is_read_back_as_a_recording_and_as_a_log() {
    let setup = Setup {
        nodes: 4,
        duplicate: conclave_kernel::Ratio::percent(10),
        faults: vec![Fault::parse_crash("2@12ms..18ms,amnesia").unwrap()],
        ..Setup::default()
    };
    let trace = testing::trace(setup, 20);
    let mut file = Vec::new();
    write_trace(&trace, &mut file).unwrap();
    let back = read_trace("run", &file[..]).unwrap();
    assert!(back.records().eq(trace.records()));
    let mut again = Vec::new();
    write_trace(&back, &mut again).unwrap();
    assert!(again == file);
    assert_eq!(read_log("run", &file[..]).unwrap(), Log::from_trace(&trace).unwrap());
    assert!(trace.marks.len() > 3 && trace.steps.len() > 50);
}

#[test]
fn a_step_is_put_into_words() {
    let log = testing::small_log();
    assert_eq!(log.describe(3), "is asked to acquire; sends request time 1, site 0 to n1, n2");
    assert_eq!(log.describe(4), "receives request time 1, site 0 from n0; sends reply to n0");
    assert_eq!(log.describe(5), "receives reply from n1; reports granted");
    assert_eq!(log.kinds(), ["request", "reply"]);
    assert_eq!(log.messages()[1].fate, Fate::Lost(Time(1_000_000)));
    assert!(log.messages()[2].duplicated);
}

const HEADER: &str = r#"{"format":1,"code":"","algorithm":"x","nodes":2,"seed":1,"scenario":""}"#;
const SEND: &str = concat!(
    r#"{"step":{"at":5,"node":0,"clock":0,"stamp":1,"first_sent":0,"input":"start","#,
    r#""effects":[{"send":{"to":1,"message":7}}]}}"#
);
const RECEIVE: &str = concat!(
    r#"{"step":{"at":6,"node":1,"clock":0,"stamp":2,"received":0,"first_sent":1,"#,
    r#""input":{"message":{"from":0,"message":7}},"effects":[]}}"#
);

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line() {
    let good = format!("{HEADER}\n{SEND}\n{RECEIVE}\n\n");
    assert_eq!(read_log("t", good.as_bytes()).unwrap().events().len(), 2);
    let mark = |what: &str| format!(r#"{{"mark":{{"at":9,"what":{what}}}}}"#);
    let cases = [
        ("", "t:1: empty: not a trace"),
        ("hello", "t:1: not a trace: expected a header such as {\"format\":2,...}"),
        ("[1]", "t:1: not a trace: expected a header such as {\"format\":2,...}"),
        (r#"{"format":7}"#, "t:1: format 7 is not known: this version reads formats 1 to 2"),
        (r#"{"format":1,"code":""}"#, "t:1: column 22: missing field `algorithm`"),
        (&HEADER.replace(":2,", ":0,"), "t:1: 0 nodes: expected 1 to 16777216"),
        (&HEADER.replace(":2,", ":4000000000,"), "t:1: 4000000000 nodes: expected 1 to 16777216"),
        (&format!("{HEADER}\n{{\"step\":"), "t:2: column 8: EOF while parsing a value"),
        (
            &format!("{HEADER}\n{{\"jump\":1}}"),
            "t:2: column 7: unknown variant `jump`, expected `step` or `mark`",
        ),
        (
            &format!("{HEADER}\n{}", SEND.replace("\"node\":0", "\"node\":2")),
            "t:2: there is no site 2: the header says 2 nodes",
        ),
        (
            &format!("{HEADER}\n{}", SEND.replace("\"to\":1", "\"to\":9")),
            "t:2: there is no site 9: the header says 2 nodes",
        ),
        (&format!("{HEADER}\n{RECEIVE}"), "t:2: message 0 is received before it is sent"),
        (&format!("{HEADER}\n{SEND}\n{SEND}"), "t:3: two messages have the id 0"),
        (
            &format!("{HEADER}\n{SEND}\n{}", RECEIVE.replace("\"at\":6", "\"at\":4")),
            "t:3: time runs backwards, from 5ns to 4ns",
        ),
        (
            &format!("{HEADER}\n{SEND}\n{}", RECEIVE.replace("\"node\":1", "\"node\":0")),
            "t:3: message 0 was sent by n0 to n1, and cannot be received here",
        ),
        (
            &format!("{HEADER}\n{SEND}\n{}", RECEIVE.replace("\"received\":0,", "")),
            "t:3: a message is received, but `received` does not say which",
        ),
        (
            &format!("{HEADER}\n{}", SEND.replace("\"first_sent\"", "\"received\":3,\"first_sent\"")),
            "t:2: message 3 is received, but the input is not a message",
        ),
        (&format!("{HEADER}\n{}", mark("{\"crash\":2}")), "t:2: there is no site 2: the header says 2 nodes"),
        (&format!("{HEADER}\n{}", mark("{\"lose\":5}")), "t:3: a mark names message 5, which nobody sent"),
    ];
    for (file, expected) in cases {
        assert_eq!(read_log("t", file.as_bytes()).expect_err(expected).to_string(), expected);
    }
    assert_eq!(read_log("t", &b"\xff\xfe"[..]).unwrap_err().to_string(), "t:1: not UTF-8 text");
}

#[test]
fn a_recording_is_refused_where_it_does_not_fit_its_header() {
    let error = |file: String| read_trace("t", file.as_bytes()).unwrap_err().to_string();
    let mut file = Vec::new();
    write_trace(&testing::trace(Setup { nodes: 2, ..Setup::default() }, 2), &mut file).unwrap();
    let far = String::from_utf8(file).unwrap().replace("\"send\":{\"to\":1", "\"send\":{\"to\":2");
    assert!(error(far).ends_with(": there is no site 2: the header says 2 nodes"));
    assert!(error(HEADER.replace("\"format\":1", "\"format\":3")).contains("format 3 is not known"));
}

#[test]
fn a_recording_is_refused_where_it_does_not_fit_the_algorithm() {
    let card = RicartAgrawala::CARD;
    let case = crate::case::of(&card, 2, 1).unwrap();
    let error = case.retrace("t", format!("{HEADER}\n{SEND}").as_bytes()).unwrap_err();
    assert!(error.starts_with("step 0: n0 has other effects"), "7 is no message of Ricart-Agrawala: {error}");
    let error = case.retrace("t", HEADER.replace(":2,", ":3,").as_bytes()).unwrap_err();
    assert!(error.contains("the trace has 3 sites, but its scenario has 2"), "{error}");
}

#[test]
fn a_broadcast_beyond_the_bound_is_refused_before_it_is_expanded() {
    let head = StepHead {
        at: Time::ZERO,
        node: NodeId(0),
        clock: Time::ZERO,
        stamp: 1,
        received: None,
        first_sent: 0,
    };
    let mut build = Builder::new(About::default(), 5).holding(10);
    build.step(head, Cause::Start, None).unwrap();
    let text = build.text("7");
    assert_eq!(build.broadcast(text), Ok(()));
    assert_eq!(build.broadcast(text), Ok(()));
    assert_eq!(build.broadcast(text), Err("more than 10 messages".to_owned()));
    assert_eq!(build.send([NodeId(1), NodeId(2)], text), Ok(()));
    assert_eq!(build.send([NodeId(1)], text), Err("more than 10 messages".to_owned()));
}

#[test]
fn vector_clocks_that_would_not_fit_are_refused() {
    let header = HEADER.replace(":2,", ":16777216,");
    let steps: String =
        (0..17).map(|_| SEND.replace("[{\"send\":{\"to\":1,\"message\":7}}]", "[]") + "\n").collect();
    let log = read_log("t", format!("{header}\n{steps}").as_bytes()).unwrap();
    let error = Causality::of(&log).unwrap_err();
    assert_eq!(error, "17 events at 16777216 sites are too many for vector clocks: at most 16 events fit");
}

#[test]
fn kinds_beyond_the_last_are_one() {
    let mut build = Builder::new(About::default(), 2);
    let head = StepHead {
        at: Time::ZERO,
        node: NodeId(0),
        clock: Time::ZERO,
        stamp: 1,
        received: None,
        first_sent: 0,
    };
    build.step(head, Cause::Start, None).unwrap();
    for kind in 0..MOST_KINDS + 10 {
        let text = build.text(&format!("\"k{kind}\""));
        build.send([NodeId(1)], text).unwrap();
    }
    let log = build.finish().unwrap();
    assert_eq!(log.kinds().len(), MOST_KINDS);
    assert_eq!(log.kinds().last().map(String::as_str), Some("other"));
    assert_eq!(log.messages().last().map(|message| usize::from(message.kind)), Some(MOST_KINDS - 1));
}

/// A random run: at each step a site does something by itself or receives a message under way, and sends some.
fn any_log() -> impl Strategy<Value = Log> {
    let steps =
        prop::collection::vec((0_u32..4, any::<prop::sample::Index>(), any::<bool>(), 0_u32..16), 1..40);
    steps.prop_map(|steps| {
        let mut build = Builder::new(About::default(), 4);
        let text = build.text("\"m\"");
        let mut under_way: Vec<(u64, u32)> = Vec::new();
        let mut sent = 0;
        for (site, pick, receives, to) in steps {
            let message = (receives && !under_way.is_empty())
                .then(|| under_way.swap_remove(pick.index(under_way.len())));
            let site = message.map_or(site, |(_, to)| to);
            let head = StepHead {
                at: Time::ZERO,
                node: NodeId(site),
                clock: Time::ZERO,
                stamp: 0,
                received: message.map(|(id, _)| id),
                first_sent: sent,
            };
            let cause = if message.is_some() { Cause::Message } else { Cause::Start };
            build.step(head, cause, None).unwrap();
            for to in (0..4).filter(|bit| to >> bit & 1 == 1) {
                build.send([NodeId(to)], text).unwrap();
                under_way.push((sent, to));
                sent += 1;
            }
        }
        build.finish().unwrap()
    })
}

/// Anything, a step that breaks off, or a line of a ShiViz log.
const ALMOST: &str = "(\\PC{0,60}|\\{\"step\":\\{\"at\":[0-9]{1,3}.{0,20}|[ab] \\{\"[ab]\":[0-3]\\})";

proptest! {
    #[test]
    fn happened_before_is_reachability(log in any_log()) {
        let count = log.events().len();
        let causality = Causality::of(&log).unwrap();
        // The naive twin: the three rules, closed.
        let mut before = vec![vec![false; count]; count];
        for f in 0..count {
            let own = (0..f).rev().find(|e| log.events()[*e].site == log.events()[f].site);
            let received = log.received(f).iter().map(|message| &log.messages()[*message as usize]);
            for e in own.into_iter().chain(received.map(|message| message.sent_by as usize)).collect::<Vec<_>>() {
                let past: Vec<usize> = (0..count).filter(|d| before[*d][e]).collect();
                past.into_iter().chain([e]).for_each(|d| before[d][f] = true);
            }
        }
        for (e, row) in before.iter().enumerate() {
            for (f, expected) in row.iter().enumerate() {
                prop_assert_eq!(causality.happened_before(e, f), *expected, "{} -> {}", e, f);
                if *expected {
                    prop_assert!(causality.lamport(e) < causality.lamport(f));
                }
            }
        }
    }

    /// The passes without clocks agree with the clocks of every event.
    #[test]
    fn order_and_past_agree_with_the_clocks(log in any_log()) {
        let causality = Causality::of(&log).unwrap();
        let count = log.events().len();
        let order = Order::of(&log, 10).unwrap();
        let pairs = |wanted: fn(Relation) -> bool| {
            let all = (0..count).flat_map(|e| (e + 1..count).map(move |f| (e, f)));
            all.filter(|(e, f)| wanted(causality.relation(*e, *f))).count() as u128
        };
        prop_assert_eq!(order.concurrent_pairs, pairs(|relation| relation == Relation::Concurrent));
        prop_assert_eq!(order.ordered_pairs, pairs(|relation| relation == Relation::Before));
        for (e, f) in &order.concurrent_sample {
            prop_assert_eq!(causality.relation(*e, *f), Relation::Concurrent);
        }
        let longest = (0..count).map(|event| causality.lamport(event)).max().unwrap_or(0);
        prop_assert_eq!(order.longest_chain.len() as u64, longest);
        prop_assert!(order.longest_chain.windows(2).all(|pair| causality.happened_before(pair[0], pair[1])));
        for f in 0..count {
            let past = Past::of(&log, f);
            prop_assert_eq!(past.vector(&log), causality.vector(f));
            prop_assert_eq!(past.lamport(&log), causality.lamport(f));
            for e in 0..count {
                prop_assert_eq!(relation(&log, e, f), causality.relation(e, f));
            }
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(lines in prop::collection::vec(ALMOST, 0..6)) {
        let file = format!("{HEADER}\n{}", lines.join("\n"));
        let _ = read_log("t", file.as_bytes());
        let _ = crate::diagram::shiviz::read("t", lines.join("\n").as_bytes());
        let _ = crate::diagram::shiviz::read_by("t", r"(?<host>\S*) (?<clock>{.*})(?<event>.*)", lines.join("\n").as_bytes());
        let expression = lines.concat();
        let _ = crate::diagram::shiviz::read_by("t", &expression, &b"a {}"[..]);
    }
}
