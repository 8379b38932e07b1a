//! Benchmarks of the replicated state: the cost of single commands, with free names, an expression, and a
//! queue of 100,000.

use conclave_core::{Owner, Priority, RequestId, SessionId, VictimPolicy, Wait};
use conclave_node::state::{Acquire, Answer, Command, Effect, Op, OpenSession, Position, Request, State};
use criterion::{Criterion, criterion_group, criterion_main};

/// A state with sessions that applies one request at a time.
struct Feed {
    state: State,
    index: u64,
    effects: Vec<Effect>,
}

impl Feed {
    fn new(sessions: u64) -> Self {
        let mut feed = Self { state: State::new(), index: 0, effects: Vec::new() };
        for secret in 0..sessions {
            let (secret, label) = (secret.into(), String::new());
            feed.apply(Command::OpenSession(OpenSession { secret, ttl_ms: 10_000, lock_delay_ms: 0, label }));
        }
        feed
    }

    fn apply(&mut self, command: Command) {
        self.index += 1;
        self.effects.clear();
        self.state.apply_into(
            Position { index: self.index, term: 1, wall_ms: 0 },
            command,
            &mut self.effects,
        );
    }

    fn request(&mut self, session: SessionId, id: u64, lowest: u64, op: Op) {
        let (id, lowest) = (RequestId(id), RequestId(lowest));
        self.apply(Command::Request(Request { session, id, lowest, op }));
    }

    fn granted(&self) -> Option<(SessionId, RequestId)> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Reply { session, request, answer: Answer::Granted(_), .. } => Some((*session, *request)),
            _ => None,
        })
    }
}

fn acquire(expr: &str) -> Op {
    Op::Acquire(Acquire {
        expr: expr.parse().expect("the benchmark's own expressions are right"),
        owner: Owner::Request,
        wait: Wait::Forever,
        priority: Priority(0),
        policy: VictimPolicy::Requester,
        value: None,
    })
}

/// Acquires and releases by 64 sessions in turn, each with its own names.
fn pairs(criterion: &mut Criterion, what: &str, expr: fn(u64) -> String) {
    const SESSIONS: u64 = 64;
    let ops: Vec<Op> = (0..SESSIONS).map(|session| acquire(&expr(session))).collect();
    let mut feed = Feed::new(SESSIONS);
    let mut id = 0;
    criterion.bench_function(what, |bencher| {
        bencher.iter(|| {
            let place = id / 2 % SESSIONS;
            let session = SessionId(place + 1);
            feed.request(session, id, id, ops[place as usize].clone());
            feed.request(session, id + 1, id + 1, Op::Release { grant: RequestId(id) });
            id += 2;
        });
    });
}

/// Passes one name along a queue of `waiting` requests: the holder releases, the next is granted, and the
/// former holder queues again.
fn early_grants(criterion: &mut Criterion, waiting: u64) {
    const SESSIONS: u64 = 100;
    let op = acquire("hot");
    let mut feed = Feed::new(SESSIONS);
    let mut id = 0;
    for number in 0..=waiting {
        feed.request(SessionId(1 + number % SESSIONS), id, id, op.clone());
        id += 1;
    }
    let (mut session, mut grant) = (SessionId(1), RequestId(0));
    criterion.bench_function(&format!("early grant, {waiting} waiting"), |bencher| {
        bencher.iter(|| {
            feed.request(session, id, id, Op::Release { grant });
            let next = feed.granted().expect("somebody waits");
            feed.request(session, id + 1, id + 1, op.clone());
            id += 2;
            (session, grant) = next;
        });
    });
}

fn state(criterion: &mut Criterion) {
    pairs(criterion, "pair, own name", |session| format!("own-{session}"));
    pairs(criterion, "pair, own expression", |session| {
        format!("a{session} & (b{session} | c{session}):shared")
    });
    early_grants(criterion, 100);
    early_grants(criterion, 100_000);
}

criterion_group!(benches, state);
criterion_main!(benches);
