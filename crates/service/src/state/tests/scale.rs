//! Crowds: histories that take minutes where a command looks at everybody for everybody, and an instant where
//! it does not.

use super::*;

/// One session of a state without the audit of [`World::apply`], which looks at everything; every answer is
/// acknowledged at once.
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
        self.state.apply(At { index: self.index, term: 1, wall_ms: 0 }, command)
    }

    fn ask(&mut self, op: Op) -> (RequestId, Answer) {
        let (session, id) = (self.session, RequestId(self.index));
        let effects = self.apply(Command::Request(Request { session, id, lowest: id, op }));
        let own = effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { request, answer, .. } if request == id => Some(answer),
            _ => None,
        });
        (id, own.expect("every request is answered by its own entry"))
    }

    fn hold(&mut self, op: Op) -> RequestId {
        let (id, answer) = self.ask(op);
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
        id
    }

    fn wait(&mut self, op: Op) -> RequestId {
        let (id, answer) = self.ask(op);
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
    // It has a new edge, so everybody who may overtake is looked at: each must cost one look.
    crowd.wait(by("P", "p2"));
}
