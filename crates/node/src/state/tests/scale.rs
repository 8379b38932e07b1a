//! Tests with very many requests. They take minutes if a command examines every request for every other one.

use super::*;

/// A state with one session, without the audit of [`World::apply`], which examines the whole state. Every
/// answer is acknowledged at once.
struct Crowd {
    state: State,
    index: u64,
    session: SessionId,
}

impl Crowd {
    fn new() -> Self {
        let mut crowd = Self { state: State::new(), index: 0, session: SessionId(1) };
        let open = OpenSession { secret: 1, ttl_ms: 10_000, lock_delay_ms: 0, label: String::new() };
        crowd.apply(Command::OpenSession(open));
        crowd
    }

    fn apply(&mut self, command: Command) -> Vec<Effect> {
        self.index += 1;
        self.state.apply(Position { index: self.index, term: 1, wall_ms: 0 }, command)
    }

    fn request(&mut self, op: Op) -> (RequestId, Answer) {
        let (session, id) = (self.session, RequestId(self.index));
        let effects = self.apply(Command::Request(Request { session, id, lowest: id, op }));
        let own = effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { request, answer, .. } if request == id => Some(answer),
            _ => None,
        });
        (id, own.expect("every request is answered by its own entry"))
    }

    fn hold(&mut self, op: Op) -> RequestId {
        let (id, answer) = self.request(op);
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
        id
    }

    fn wait(&mut self, op: Op) -> RequestId {
        let (id, answer) = self.request(op);
        assert!(matches!(answer, Answer::Queued(_)), "{answer:?}");
        id
    }
}

#[test]
fn a_crowd_behind_claims_costs_an_unrelated_wait_nothing() {
    let mut crowd = Crowd::new();
    crowd.hold(acquire("cold"));
    crowd.wait(acquire("hot & cold"));
    for number in 0..20_000 {
        let owner = format!("o{number}");
        crowd.hold(by(&owner, &format!("own{number}")));
        crowd.wait(by(&owner, "hot"));
    }
    crowd.hold(by("P", "p1"));
    crowd.hold(acquire("p2"));
    crowd.wait(acquire("p1"));
    // This wait adds an edge, so every candidate for overtaking is examined. Each must be examined only once.
    crowd.wait(by("P", "p2"));
}

#[test]
fn a_crowd_that_may_overtake_does_not_look_at_each_other() {
    let mut crowd = Crowd::new();
    crowd.hold(acquire("cold"));
    crowd.wait(acquire("hot & cold"));
    for number in 0..1_000 {
        let (owner, own) = (format!("o{number}"), format!("own{number}"));
        crowd.hold(by(&owner, &own));
        crowd.wait(acquire(&own));
        crowd.wait(by(&owner, "hot"));
    }
}

#[test]
fn one_overtakes_a_crowd_that_waits_for_it() {
    let mut crowd = Crowd::new();
    crowd.hold(by("R", "h"));
    for _ in 0..20_000 {
        crowd.wait(acquire("p & h"));
    }
    crowd.hold(by("R", "p"));
}

#[test]
fn a_limit_is_lowered_under_a_crowd_that_holds() {
    const CROWD: u32 = 5_000;
    let mut crowd = Crowd::new();
    let limit = |permits| Op::Limit { name: name("pool"), permits };
    crowd.request(limit(3 * CROWD));
    crowd.hold(acquire("hot"));
    for number in 0..CROWD {
        let owner = format!("holder{number}");
        crowd.hold(by(&owner, "pool"));
        crowd.wait(by(&owner, "hot"));
    }
    for number in 0..CROWD {
        let (owner, own) = (format!("o{number}"), format!("own{number}"));
        crowd.hold(by(&owner, &own));
        crowd.wait(by(&owner, "hot & pool"));
        crowd.wait(acquire(&own));
    }
    // Each of these owners is waited for and waits for permits, so each could close a deadlock with the
    // holders of permits.
    assert_eq!(crowd.request(limit(3 * CROWD - 1)).1, Answer::Limited { before: Some(3 * CROWD) });
}

#[test]
fn permits_that_are_left_over_cost_a_crowd_nothing() {
    let mut crowd = Crowd::new();
    crowd.request(Op::Limit { name: name("pool"), permits: 1_000_000 });
    crowd.hold(acquire("hot"));
    let one = crowd.hold(acquire("pool"));
    for _ in 0..20_000 {
        crowd.wait(acquire("pool & hot"));
    }
    assert_eq!(crowd.request(Op::Release { grant: one }).1, Answer::Done);
}

#[test]
fn a_name_is_broken_by_its_own_grant_alone() {
    let mut crowd = Crowd::new();
    crowd.hold(acquire("hot"));
    for number in 0..10_000 {
        crowd.hold(by("R", &format!("own{number}")));
    }
    crowd.wait(by("R", "hot"));
    assert_eq!(crowd.request(Op::Break { name: name("own1"), reason: String::new() }).1, Answer::Done);
}

#[test]
fn a_crowd_that_waits_for_permits_and_more_is_counted_once() {
    const CROWD: u32 = 60_000;
    let mut crowd = Crowd::new();
    crowd.request(Op::Limit { name: name("pool"), permits: CROWD });
    crowd.hold(acquire("hot"));
    let one = crowd.hold(acquire("pool"));
    for _ in 0..CROWD {
        crowd.wait(acquire("pool & hot"));
    }
    // A permit is free for each of them. All are examined, and all still wait for the other name.
    assert_eq!(crowd.request(Op::Release { grant: one }).1, Answer::Done);
}

#[test]
fn a_crowd_that_is_waited_for_behind_a_claim_is_searched_once() {
    let mut crowd = Crowd::new();
    crowd.hold(acquire("cold"));
    crowd.wait(acquire("hot & cold"));
    for number in 0..1_000 {
        let (owner, own) = (format!("o{number}"), format!("own{number}"));
        crowd.hold(by(&owner, &own));
        crowd.wait(acquire(&format!("{own} & hot")));
        // This request may overtake the one that needs its owner, but not the first one, which does not. The
        // same holds for all others.
        crowd.wait(by(&owner, "hot"));
    }
}

#[test]
fn a_name_held_over_and_over_is_broken_at_once() {
    const TIMES: usize = 30_000;
    let mut crowd = Crowd::new();
    crowd.hold(acquire("hot"));
    for number in 0..TIMES {
        crowd.hold(by("R", &format!("own{number}")));
        crowd.hold(by("R", "again"));
    }
    crowd.wait(by("R", "hot"));
    assert_eq!(crowd.request(Op::Break { name: name("again"), reason: String::new() }).1, Answer::Done);
    assert_eq!(crowd.state.totals().grants, TIMES as u64 + 1);
}

#[test]
fn a_limit_that_closes_one_deadlock_leaves_a_crowd_alone() {
    const CROWD: u32 = 5_000;
    let mut crowd = Crowd::new();
    let limit = |permits| Op::Limit { name: name("pool"), permits };
    crowd.request(limit(3 * CROWD));
    crowd.hold(acquire("y"));
    crowd.hold(by("q", "x"));
    for number in 0..CROWD {
        let owner = format!("holder{number}");
        crowd.hold(by(&owner, "pool"));
        crowd.wait(by(&owner, "x"));
    }
    crowd.wait(by("q", "pool & y"));
    for number in 0..CROWD {
        let (owner, own) = (format!("o{number}"), format!("own{number}"));
        crowd.hold(by(&owner, &own));
        crowd.wait(by(&owner, "pool & y"));
        crowd.wait(acquire(&own));
    }
    // The other permits are held by owners that wait for q, and q waits for a permit. Without q's request no
    // owner is stuck.
    assert!(matches!(crowd.request(limit(CROWD)).1, Answer::Limited { before: Some(_) }));
    assert_eq!((crowd.state.totals().deadlocks, crowd.state.stuck()), (1, 0));
}

#[test]
fn a_crowd_of_victims_is_found_by_one_search() {
    const CROWD: u64 = 10_000;
    let mut crowd = Crowd::new();
    crowd.hold(by("R", "r"));
    for number in 0..CROWD {
        let owner = format!("o{number}");
        crowd.hold(by(&owner, "x:shared"));
        crowd.wait(by(&owner, "r"));
    }
    // R waits for all these owners, and each of them waits for R.
    crowd.wait(policy(by("R", "x"), VictimPolicy::Youngest));
    let totals = crowd.state.totals();
    assert_eq!((totals.deadlocks, totals.waiting), (CROWD, 1));
}
