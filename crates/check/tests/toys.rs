//! Protocols of a few lines, one for each verdict and each trap: a server at site 0, clients that ask.

use std::ops::ControlFlow;
use std::time::Duration;

use conclave_check::{
    Bounds, CheckError, Checker, Cycles, Extent, Faults, Findings, Model, Monitor, Offer, Options, Order,
    Recovery, Renamed, Report, Retraced, Search, Timing, Verdict, check, costs,
};
use conclave_kernel::trace::{RawEffect, RawInput, What};
use conclave_kernel::{Cx, Effect, Env, Input, Kind, NodeId, Property, Protocol, Recording, Sink};
use serde::{Deserialize, Serialize};

/// What a site does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Role {
    /// Asks site 0 when told to.
    Client,
    /// Answers at once.
    Server,
    /// Answers nobody.
    Mute,
    /// Answers nobody, and talks to itself without end. What it says changes nothing.
    Mumbler,
    /// Answers at once, and talks to itself without end; each time it turns round.
    Spinner(bool),
    /// Looks who waits each time it turns round: the first client comes first.
    Snob { turned: bool, waiting: Vec<NodeId> },
    /// The same, in order of arrival.
    Fair { turned: bool, waiting: Vec<NodeId> },
    /// Answers after a while; noise, to which it answers in kind, may make it begin anew.
    Patient { waiting: Vec<NodeId>, irritable: bool },
    /// Makes noise, again when it hears some.
    Noisy,
    /// Throws a die of so many faces for each who asks; answers with what it shows.
    Gambler(u32),
    /// Hands a token on, after a look at who wants it.
    Ring { token: bool, wants: bool },
    /// Suspects its peer unless it hears from it in time.
    Watchman,
    /// Says something at the start.
    Watched,
    /// Counts what it was told, for as long as it remembers.
    Counter(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Say {
    Ask,
    Answer(u32),
    Spin,
    Noise,
    Token,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Tell {
    Served(u32),
    Suspected,
    Count(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Toy {
    role: Role,
}

impl Protocol for Toy {
    type Message = Say;
    type Timer = u8;
    type Command = ();
    type Event = Tell;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        match &self.role {
            Role::Mumbler | Role::Spinner(_) | Role::Snob { .. } | Role::Fair { .. } => {
                cx.send(cx.me(), Say::Spin);
            }
            Role::Ring { token: true, .. } => self.pass(cx),
            Role::Watchman => cx.arm(0, MS * 3..=MS * 3),
            Role::Watched => cx.broadcast(Say::Noise),
            Role::Noisy => cx.send(NodeId(0), Say::Noise),
            _ => {}
        }
    }

    fn on_recover(&mut self, _: &mut Cx<'_, Self>) {}

    fn on_message(&mut self, from: NodeId, message: Say, cx: &mut Cx<'_, Self>) {
        match (&mut self.role, message) {
            (_, Say::Answer(answer)) => cx.emit(Tell::Served(answer)),
            (Role::Server | Role::Spinner(_), Say::Ask) => cx.send(from, Say::Answer(0)),
            (Role::Gambler(faces), Say::Ask) => {
                let answer = cx.choose(*faces);
                cx.send(from, Say::Answer(answer));
            }
            (Role::Snob { waiting, .. }, Say::Ask) => {
                waiting.push(from);
                waiting.sort_unstable();
            }
            (Role::Fair { waiting, .. }, Say::Ask) => waiting.push(from),
            (Role::Patient { waiting, .. }, Say::Ask) => {
                waiting.push(from);
                cx.arm(0, MS..=MS);
            }
            (Role::Patient { waiting, irritable }, Say::Noise) => {
                if *irritable && !waiting.is_empty() {
                    cx.arm(0, MS..=MS);
                }
                cx.send(from, Say::Noise);
            }
            (Role::Noisy, Say::Noise) => cx.send(from, Say::Noise),
            (Role::Mumbler, Say::Spin) => cx.send(from, Say::Spin),
            (Role::Spinner(turned), Say::Spin) => {
                *turned = !*turned;
                cx.send(from, Say::Spin);
            }
            (Role::Snob { turned, waiting } | Role::Fair { turned, waiting }, Say::Spin) => {
                *turned = !*turned;
                if !waiting.is_empty() {
                    cx.send(waiting.remove(0), Say::Answer(0));
                }
                cx.send(from, Say::Spin);
            }
            (Role::Ring { token, wants }, Say::Token) => {
                *token = true;
                if std::mem::take(wants) {
                    cx.emit(Tell::Served(0));
                }
                self.pass(cx);
            }
            (Role::Watchman, Say::Noise) => cx.disarm(0),
            _ => {}
        }
    }

    fn on_timer(&mut self, _: u8, cx: &mut Cx<'_, Self>) {
        match &mut self.role {
            Role::Patient { waiting, .. } => {
                for client in waiting.drain(..) {
                    cx.send(client, Say::Answer(0));
                }
            }
            Role::Watchman => cx.emit(Tell::Suspected),
            _ => {}
        }
    }

    fn on_command(&mut self, (): (), cx: &mut Cx<'_, Self>) {
        match &mut self.role {
            Role::Ring { wants, .. } => *wants = true,
            Role::Counter(count) => {
                *count += 1;
                cx.emit(Tell::Count(*count));
            }
            _ => cx.send(NodeId(0), Say::Ask),
        }
    }
}

const MS: Duration = Duration::from_millis(1);

impl Toy {
    fn pass(&mut self, cx: &mut Cx<'_, Self>) {
        if let Role::Ring { token, .. } = &mut self.role {
            *token = false;
            cx.send(cx.members().after(cx.me()), Say::Token);
        }
    }
}

/// Site `i` has the role `[i]`, and is told to ask so many times; `FOREVER` is without end.
#[derive(Clone)]
struct Play {
    roles: Vec<Role>,
    asks: u8,
}

const FOREVER: u8 = u8::MAX;

fn served(role: Role, clients: usize, asks: u8) -> Play {
    Play { roles: [role].into_iter().chain(vec![Role::Client; clients]).collect(), asks }
}

impl Model for Play {
    type Protocol = Toy;
    type Monitor = Clerk;

    fn name(&self) -> String {
        "toys/toy".into()
    }
    fn nodes(&self) -> u32 {
        self.roles.len() as u32
    }
    fn site(&self, me: NodeId) -> Toy {
        Toy { role: self.roles[me.index()].clone() }
    }
    fn monitor(&self) -> Clerk {
        let works = |role: &Role| matches!(role, Role::Client | Role::Ring { .. } | Role::Counter(_));
        let left = self.roles.iter().map(|role| if works(role) { self.asks } else { 0 }).collect();
        Clerk { left, waiting: vec![false; self.roles.len()], counted: 0 }
    }
    fn liveness(&self) -> Property {
        Property { name: "served", kind: Kind::Eventually, statement: "who asks is answered", source: "" }
    }
    fn kind(&self, message: &Say) -> &'static str {
        match message {
            Say::Ask => "ASK",
            Say::Answer(_) => "ANSWER",
            _ => "OTHER",
        }
    }
    fn symmetries(&self) -> Vec<Vec<NodeId>> {
        let nodes = self.nodes();
        (1..nodes).map(|by| (0..nodes).map(|site| NodeId((site + by) % nodes)).collect()).collect()
    }
    fn rename(&self, thing: Renamed<'_, Self>, to: &[NodeId]) {
        if let Renamed::Monitor(clerk) = thing {
            let old = clerk.clone();
            for (site, to) in to.iter().enumerate() {
                clerk.left[to.index()] = old.left[site];
                clerk.waiting[to.index()] = old.waiting[site];
            }
        }
    }
    fn at_rest(&self, sites: &[Toy], _: &Clerk, findings: &mut Findings) {
        if sites.iter().any(|site| matches!(&site.role, Role::Fair { waiting, .. } if !waiting.is_empty())) {
            findings.breach(&ALWAYS, "somebody is in the queue of a server at rest");
        }
    }
}

const ALWAYS: Property = Property { name: "always", kind: Kind::Always, statement: "", source: "" };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Clerk {
    left: Vec<u8>,
    waiting: Vec<bool>,
    counted: u8,
}

impl Monitor<Toy> for Clerk {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<()>)) {
        for (site, left) in
            self.left.iter().enumerate().filter(|(site, left)| **left > 0 && !self.waiting[*site])
        {
            // Who goes on for ever is made to.
            offer(Offer { node: NodeId(site as u32), command: (), required: *left == FOREVER });
        }
    }
    fn pending(&self) -> u64 {
        self.waiting.iter().enumerate().fold(0, |bits, (site, waiting)| bits | u64::from(*waiting) << site)
    }
    fn on_command(&mut self, node: NodeId, (): &(), _: &mut Findings) {
        self.left[node.index()] -= u8::from(self.left[node.index()] < FOREVER);
        self.waiting[node.index()] = true;
    }
    fn on_event(&mut self, node: NodeId, event: &Tell, findings: &mut Findings) {
        match event {
            Tell::Served(7) => findings.breach(&ALWAYS, format!("{node} was served a seven")),
            Tell::Served(_) => self.waiting[node.index()] = false,
            Tell::Suspected => findings.breach(&ALWAYS, format!("{node} suspects somebody who is alive")),
            Tell::Count(count) => {
                self.waiting[node.index()] = false;
                if *count <= self.counted {
                    findings.breach(&ALWAYS, format!("{node} counted {count} twice"));
                }
                self.counted = *count;
            }
        }
    }
    fn on_crash(&mut self, node: NodeId, _: &mut Findings) {
        self.waiting[node.index()] = false;
    }
}

fn retrace(play: &Play, options: &Options, trace: &Recording) -> Result<Retraced, String> {
    Checker::new(play.clone(), options).expect("the play is sound").retrace(trace)
}

/// A counterexample can be taken again, and comes to the same.
fn assert_repeats(play: &Play, options: &Options, report: &Report) {
    let Some(found) = &report.counterexample else { return };
    let again = retrace(play, options, &found.trace).expect("what was explored can be taken again");
    assert_eq!(again.steps, found.trace.steps.len());
    match again.breach {
        Some((step, breach)) => {
            assert_eq!((step + 1, Some(breach.property)), (again.steps, report.property));
        }
        None => assert!(!again.waiting.is_empty(), "nothing broke, and nobody waits"),
    }
}

fn one_thread() -> Options {
    Options { threads: 1, ..Options::default() }
}

/// Explores in every way, which must agree; the report of the first.
fn explore(play: &Play, options: &Options) -> Report {
    let report = check(play, options).expect("the play is sound");
    for search in [Search::Breadth, Search::Depth] {
        for threads in [1, 2] {
            let other =
                check(play, &Options { search, threads, ..options.clone() }).expect("the play is sound");
            assert_eq!(
                (other.verdict, other.property),
                (report.verdict, report.property),
                "{search:?} {threads}"
            );
            assert_repeats(play, options, &other);
            if report.verdict == Verdict::Holds {
                assert_eq!(
                    (other.states, other.edges),
                    (report.states, report.edges),
                    "{search:?} {threads}"
                );
            }
        }
    }
    report
}

#[test]
fn a_server_that_answers_serves_everybody() {
    let report = explore(&served(Role::Server, 2, 1), &one_thread());
    // Each client is idle, asking, being answered or served.
    assert_eq!((report.verdict, report.states, report.depth), (Verdict::Holds, 16, 6));
    assert_eq!(report.cycles, Cycles::Judged);
}

#[test]
fn a_server_that_is_mute_leaves_its_client_stuck() {
    let report = explore(&served(Role::Mute, 2, 1), &one_thread());
    assert_eq!((report.verdict, report.property), (Verdict::Stuck, Some("served")));
    assert_eq!(report.counterexample.unwrap().steps, 2, "ask, and be heard; the other need not ask");
}

/// Trap 1: the cycle in which the server spins and the question stays on its way is not fair.
#[test]
fn an_unfair_cycle_is_not_reported() {
    let report = explore(&served(Role::Spinner(false), 1, 1), &one_thread());
    assert_eq!((report.verdict, report.cycles), (Verdict::Holds, Cycles::Judged));
}

/// Trap 2: with clients that ask for ever, all states form one component, which is fair as a whole and in which
/// somebody waits. The part of it in which one waits throughout is not fair.
#[test]
fn fairness_is_asked_of_the_part_in_which_somebody_waits() {
    for order in [Order::Fifo, Order::Any] {
        let options = Options { order, ..one_thread() };
        let report = explore(&served(Role::Spinner(false), 2, FOREVER), &options);
        assert_eq!((report.verdict, report.cycles), (Verdict::Holds, Cycles::Judged));
    }
}

/// Trap 3: a server that talks to itself does nothing, however often it does it.
#[test]
fn a_step_that_changes_nothing_is_no_progress() {
    let report = explore(&served(Role::Mumbler, 1, 1), &one_thread());
    assert_eq!((report.verdict, report.property), (Verdict::Stuck, Some("served")));
    assert_eq!(report.counterexample.unwrap().steps, 2);
    // Nor is time that passes.
    let timing = Timing::Sync { delay: 1, tick: MS };
    let report = explore(&served(Role::Mute, 1, 1), &Options { timing, ..one_thread() });
    assert_eq!((report.verdict, report.property), (Verdict::Stuck, Some("served")));
}

#[test]
fn the_second_client_of_a_snob_starves_and_that_of_a_fair_server_does_not() {
    let snob = Role::Snob { turned: false, waiting: Vec::new() };
    let report = explore(&served(snob, 2, FOREVER), &one_thread());
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("served")));
    assert!(report.why.unwrap().starts_with("n2 waits for ever"));
    let fair = Role::Fair { turned: false, waiting: Vec::new() };
    let report = explore(&served(fair, 2, FOREVER), &one_thread());
    assert_eq!((report.verdict, report.cycles), (Verdict::Holds, Cycles::Judged));
}

/// Trap 4: what is printed as a cycle is a path, and comes back to where it began.
#[test]
fn a_printed_cycle_can_be_walked_again_and_again() {
    let snob = Role::Snob { turned: false, waiting: Vec::new() };
    let play = served(snob, 2, FOREVER);
    for order in [Order::Fifo, Order::Any] {
        let report = check(&play, &Options { order, ..one_thread() }).unwrap();
        let counterexample = report.counterexample.unwrap();
        let begins = counterexample.repeats_after.unwrap() as usize;
        let mut world = ByHand::new(&play);
        let steps: Vec<_> = counterexample.trace.steps.iter().collect();
        let (before, cycle) = steps.split_at(play.roles.len() + begins);
        before.iter().for_each(|step| world.take(step.head.node, &step.input, &step.effects));
        let entered = world.clone();
        assert!(!cycle.is_empty());
        for _ in 0..3 {
            cycle.iter().for_each(|step| world.take(step.head.node, &step.input, &step.effects));
            assert_eq!(world, entered);
        }
        let served =
            |step: &&conclave_kernel::trace::RawStep| !step.effects.is_empty() && step.head.node == NodeId(2);
        assert_eq!(cycle.iter().filter(served).count(), 0, "n2 is served in the cycle");
    }
}

/// Sites and messages in flight, stepped as a trace says.
#[derive(Clone, Debug, PartialEq)]
struct ByHand {
    sites: Vec<Toy>,
    flying: Vec<(NodeId, NodeId, Say)>,
}

impl ByHand {
    fn new(play: &Play) -> Self {
        Self { sites: (0..play.nodes()).map(|me| play.site(NodeId(me))).collect(), flying: Vec::new() }
    }

    fn take(&mut self, node: NodeId, input: &RawInput, effects: &[RawEffect]) {
        // A trace has the types of the kernel as JSON.
        let input: &Input<Toy> = &typed(input);
        let effects: Vec<Effect<Toy>> = typed(&effects);
        if let Input::Message { from, message } = input {
            let arrived = self.flying.iter().position(|flying| *flying == (*from, node, *message));
            self.flying.remove(arrived.expect("what arrives was sent"));
        }
        let mut sink = Recorder(Vec::new());
        let env = Env::new(node, self.sites.len() as u32);
        self.sites[node.index()].step(input.clone(), &mut Cx::new(env, &mut sink));
        assert_eq!(sink.0, effects);
        for effect in effects {
            if let Effect::Send { to, message } = effect {
                self.flying.push((node, to, message));
            }
        }
        self.flying.sort_unstable();
    }
}

fn typed<R: Serialize, T: serde::de::DeserializeOwned>(raw: &R) -> T {
    let json = serde_json::to_string(raw).expect("a trace is JSON");
    serde_json::from_str(&json).expect("the trace is of this protocol")
}

struct Recorder(Vec<Effect<Toy>>);

impl Sink<Toy> for Recorder {
    fn push(&mut self, effect: Effect<Toy>) {
        self.0.push(effect);
    }
    fn choose(&mut self, _: u32) -> u32 {
        unreachable!("these toys throw no dice")
    }
}

/// Noise puts the timer off for ever: it was armed again each time, so nobody can say that it was neglected.
#[test]
fn a_timer_that_is_put_off_for_ever_starves_who_waits_for_it() {
    let with = |irritable| {
        let server = Role::Patient { waiting: Vec::new(), irritable };
        explore(&Play { roles: vec![server, Role::Client, Role::Noisy], asks: 1 }, &one_thread())
    };
    assert_eq!((with(false).verdict, with(false).cycles), (Verdict::Holds, Cycles::Judged));
    let report = with(true);
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("served")));
    assert!(report.counterexample.unwrap().repeats_after.is_some());
}

#[test]
fn dice_fall_in_every_way() {
    let report = explore(&served(Role::Gambler(7), 1, 1), &one_thread());
    assert_eq!((report.verdict, report.states), (Verdict::Holds, 1 + 1 + 7 + 1));
    let report = explore(&served(Role::Gambler(8), 1, 1), &one_thread());
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("always")));
    assert_eq!(report.counterexample.unwrap().steps, 3);
    let too_many = check(&served(Role::Gambler(1 << 20), 1, 1), &one_thread());
    assert_eq!(too_many.unwrap_err(), CheckError::TooManyChoices(NodeId(0)));
}

#[test]
fn a_trace_that_cannot_have_happened_is_refused_where_it_goes_wrong() {
    let gamble = check(&served(Role::Gambler(8), 1, 1), &one_thread()).expect("the play is sound");
    let trace = gamble.counterexample.expect("a seven is served").trace;
    let refused = |play: &Play| retrace(play, &one_thread(), &trace).expect_err("it is of another play");
    // Two starts and the command; then the answer that only a gambler gives.
    assert!(refused(&served(Role::Server, 1, 1)).starts_with("step 3: n0 has other effects"));
    assert!(refused(&served(Role::Gambler(7), 1, 1)).starts_with("step 3: n0 has other effects"));
    let uncalled = refused(&served(Role::Gambler(8), 1, 0));
    assert!(uncalled.starts_with("step 2: ") && uncalled.contains("was not possible at"), "{uncalled}");
    let larger = refused(&served(Role::Gambler(8), 2, 1));
    assert!(larger.contains("the trace has 2 sites, but its scenario has 3"), "{larger}");
}

/// Suspicion after three ticks of silence is right if messages take at most two, and wrong otherwise.
#[test]
fn a_timeout_is_sound_only_if_messages_are_fast_enough() {
    let play = Play { roles: vec![Role::Watchman, Role::Watched], asks: 0 };
    let with = |timing| explore(&play, &Options { timing, ..one_thread() });
    let sync = |delay| with(Timing::Sync { delay, tick: MS });
    assert_eq!(sync(2).verdict, Verdict::Holds);
    assert_eq!(sync(3).verdict, Verdict::Violated);
    let report = with(Timing::Async);
    assert_eq!((report.verdict, report.counterexample.unwrap().steps), (Verdict::Violated, 1));
}

#[test]
fn a_trace_that_time_forbids_is_refused() {
    let play = Play { roles: vec![Role::Watchman, Role::Watched], asks: 0 };
    let sync = |delay| Options { timing: Timing::Sync { delay, tick: MS }, ..one_thread() };
    let mut trace = check(&play, &sync(3)).unwrap().counterexample.expect("the timeout is too short").trace;
    assert!(retrace(&play, &sync(3), &trace).is_ok());
    let refused = |options: &Options| retrace(&play, options, &trace).unwrap_err();
    // The message must arrive after two ticks, and without ticks no time passes.
    assert_eq!(refused(&sync(2)), "step 2: nothing happens at 3ms, and time cannot pass");
    assert_eq!(refused(&one_thread()), "step 2: nothing happens at 1ms, and time cannot pass");
    let mut steps: Vec<_> = trace.steps.iter().collect();
    steps.extend(steps.last().cloned());
    trace.steps = Box::new(steps);
    let twice = retrace(&play, &sync(3), &trace).unwrap_err();
    assert!(twice.ends_with("another step has the same time"), "{twice}");
}

#[test]
fn a_site_that_comes_back_knows_what_it_was_given_to_remember() {
    let play = Play { roles: vec![Role::Counter(0)], asks: 2 };
    let with = |recovery| {
        let faults = Faults { crash: 1, recovery, ..Faults::default() };
        explore(&play, &Options { faults, ..one_thread() })
    };
    assert_eq!(with(None).verdict, Verdict::Holds);
    assert_eq!(with(Some(Recovery::Stable)).verdict, Verdict::Holds);
    let report = with(Some(Recovery::Amnesia));
    assert_eq!((report.verdict, report.property), (Verdict::Violated, Some("always")));
    let marks: Vec<_> =
        report.counterexample.unwrap().trace.marks.iter().map(|mark| mark.what.clone()).collect();
    assert_eq!(marks, [What::Crash(NodeId(0)), What::Recover(NodeId(0))]);
}

#[test]
fn a_lost_question_is_never_answered_and_says_so_in_the_trace() {
    let faults = Faults { loss: 1, ..Faults::default() };
    let report = explore(&served(Role::Server, 1, 1), &Options { faults, ..one_thread() });
    assert_eq!(report.verdict, Verdict::Stuck);
    let marks = report.counterexample.unwrap().trace.marks;
    assert!(matches!(marks[..], [conclave_kernel::trace::Mark { what: What::Lose(0), .. }]), "{marks:?}");
}

/// A ring looks the same from every site: a third of the states, the same verdict.
#[test]
fn states_that_differ_by_a_rotation_may_count_as_one() {
    let ring = |site| Role::Ring { token: site == 0, wants: false };
    let play = Play { roles: (0..3).map(ring).collect(), asks: 1 };
    let whole = explore(&play, &one_thread());
    let reduced = explore(&play, &Options { symmetry: true, ..one_thread() });
    assert_eq!((whole.verdict, reduced.verdict), (Verdict::Holds, Verdict::Holds));
    assert_eq!((whole.states, reduced.states), (81, 27));
    assert_eq!(reduced.cycles, Cycles::NotJudged);
    assert_eq!(reduced.cycles_why.as_deref(), Some("symmetric states count as one"));
    // And the same failure, as short.
    let faults = Faults { loss: 1, ..Faults::default() };
    let lossy = |symmetry| explore(&play, &Options { faults, symmetry, ..one_thread() });
    let (whole, reduced) = (lossy(false), lossy(true));
    assert_eq!((whole.verdict, reduced.verdict), (Verdict::Stuck, Verdict::Stuck));
    let steps = |report: Report| report.counterexample.unwrap().steps;
    assert_eq!(steps(whole), steps(reduced));
}

#[test]
fn an_exploration_that_is_bounded_says_at_what() {
    let play = served(Role::Server, 4, 3);
    let with = |bounds| check(&play, &Options { bounds, ..one_thread() }).unwrap();
    let bounds = Bounds::default();
    let by_depth = with(Bounds { depth: 3, ..bounds });
    assert_eq!((by_depth.verdict, by_depth.depth), (Verdict::Bounded, 3));
    assert_eq!(by_depth.why.as_deref(), Some("stopped at the bound on depth"));
    assert_eq!(with(Bounds { states: 100, ..bounds }).verdict, Verdict::Bounded);
    assert_eq!(with(Bounds { time: Duration::ZERO, ..bounds }).verdict, Verdict::Bounded);
    let mut heard = 0;
    let checker = Checker::new(play, &one_thread()).expect("the play is sound");
    let report = checker.check(&mut |progress| {
        heard += 1;
        if progress.states > 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(report.unwrap().verdict, Verdict::Bounded);
    assert!(heard > 1);
    assert_eq!(check(&Play { roles: Vec::new(), asks: 0 }, &one_thread()).unwrap_err(), CheckError::Nodes(0));
}

#[test]
fn costs_range_over_all_executions() {
    let one = costs(&served(Role::Server, 2, 2), &one_thread()).unwrap();
    assert_eq!(one.total, Extent { min: 8, max: Some(8) });
    assert_eq!(
        one.kinds,
        [("ANSWER", Extent { min: 4, max: Some(4) }), ("ASK", Extent { min: 4, max: Some(4) })]
    );
    // Whose first question is lost asks no other.
    let faults = Faults { loss: 1, ..Faults::default() };
    let lossy = costs(&served(Role::Server, 2, 2), &Options { faults, ..one_thread() }).unwrap();
    assert_eq!(lossy.total, Extent { min: 1 + 4, max: Some(8) });
    // What a site tells itself is no message, but goes on for ever.
    assert_eq!(costs(&served(Role::Spinner(false), 1, 1), &one_thread()), Err(CheckError::NeverEnds));
}
