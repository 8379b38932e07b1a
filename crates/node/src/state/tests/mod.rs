//! Tests of the state: one for each sentence of docs/service.md, against a simple model, and with invalid
//! input.

mod backups;
mod deadlocks;
mod dense;
mod early_grant;
mod elections;
mod files;
mod fuzz;
mod locks;
mod model;
mod scale;
mod sessions;

use conclave_core::{
    Claim, Code, Expr, Fence, LockName, Owner, OwnerLabel, Priority, RequestId, SessionId, VictimPolicy, Wait,
};

use super::tree::FileOp;
use super::*;

/// A state with a log. Each call adds one entry.
struct World {
    state: State,
    index: u64,
    term: u64,
    next_request: u64,
    effects: Vec<Effect>,
}

/// One session of a [`World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Client(SessionId);

impl World {
    fn new() -> Self {
        Self { state: State::new(), index: 100, term: 1, next_request: 1, effects: Vec::new() }
    }

    /// Applies one entry and audits the state.
    fn apply(&mut self, command: Command) -> Vec<Effect> {
        self.index += 1;
        let at = Position { index: self.index, term: self.term, wall_ms: self.index * 1000 };
        let effects = self.state.apply(at, command);
        // The audit examines the whole state, so a long history runs it only sometimes.
        if self.index < 500 || self.index.is_multiple_of(64) {
            self.state.audit().expect("the state agrees with itself");
        }
        self.effects.clone_from(&effects);
        effects
    }

    fn client(&mut self) -> Client {
        self.client_with(10_000, 0)
    }

    fn client_with(&mut self, ttl_ms: u64, lock_delay_ms: u64) -> Client {
        let secret = u128::from(self.index) << 64 | 7;
        let open = OpenSession { secret, ttl_ms, lock_delay_ms, label: "test".into() };
        match self.apply(Command::OpenSession(open))[..] {
            [Effect::SessionOpened { session, secret: told }, Effect::StartTimer { .. }] => {
                assert_eq!(told, secret);
                Client(session)
            }
            ref other => panic!("{other:?}"),
        }
    }

    /// Sends a request under a new number. The client never acknowledges the answer.
    fn send(&mut self, client: Client, op: Op) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.send_as(client, id, RequestId(0), op);
        id
    }

    fn send_as(&mut self, client: Client, id: RequestId, lowest: RequestId, op: Op) -> Vec<Effect> {
        self.apply(Command::Request(Request { session: client.0, id, lowest, op }))
    }

    /// Sends a request and returns its immediate answer.
    fn request(&mut self, client: Client, op: Op) -> (RequestId, Answer) {
        let id = self.send(client, op);
        (id, self.answer(client, id).expect("every request is answered by its own entry"))
    }

    fn lock(&mut self, client: Client, expr: &str) -> (RequestId, Answer) {
        self.request(client, acquire(expr))
    }

    /// Sends an acquire that must be granted at once.
    fn hold(&mut self, client: Client, op: Op) -> RequestId {
        let (id, answer) = self.request(client, op);
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
        id
    }

    /// Sends an acquire that must wait.
    fn wait(&mut self, client: Client, op: Op) -> RequestId {
        let (id, answer) = self.request(client, op);
        assert!(matches!(answer, Answer::Queued(_)), "{answer:?}");
        id
    }

    /// Sends a request that must be rejected.
    fn refused(&mut self, client: Client, op: Op) -> Error {
        match self.request(client, op).1 {
            Answer::Refused(error) => error,
            other => panic!("{other:?}"),
        }
    }

    fn done(&mut self, client: Client, op: Op) {
        assert_eq!(self.request(client, op).1, Answer::Done);
    }

    fn release(&mut self, client: Client, grant: RequestId) {
        self.done(client, Op::Release { grant });
    }

    fn limit(&mut self, client: Client, of: &str, permits: u32) {
        self.limited(client, &name(of), permits);
    }

    /// Sets a limit, which must succeed. Returns the limit before.
    fn limited(&mut self, client: Client, name: &LockName, permits: u32) -> Option<u32> {
        match self.request(client, Op::Limit { name: name.clone(), permits }).1 {
            Answer::Limited { before } => before,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the answer to a request in the last entry.
    fn answer(&self, client: Client, id: RequestId) -> Option<Answer> {
        self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Reply { session, request, answer, .. } if *session == client.0 && *request == id => {
                Some(answer.clone())
            }
            _ => None,
        })
    }

    /// Returns the names that the last entry granted to a request, as text.
    fn granted(&self, client: Client, id: RequestId) -> Option<String> {
        match self.answer(client, id)? {
            Answer::Granted(granted) => Some(print(&granted)),
            _ => None,
        }
    }

    fn refusal(&self, client: Client, id: RequestId) -> Option<Code> {
        match self.answer(client, id)? {
            Answer::Refused(error) => Some(error.code),
            _ => None,
        }
    }

    fn expire(&mut self, timer: TimerId) -> Vec<Effect> {
        self.apply(Command::Expire { timer, term: self.term })
    }

    fn expire_session(&mut self, client: Client) -> Vec<Effect> {
        self.expire(TimerId::Lease { session: client.0, generation: 1 })
    }

    fn fence(&self, client: Client, grant: RequestId) -> Fence {
        let grants = self.state.grants(client.0);
        grants.iter().find(|(id, _)| *id == grant).expect("held").1.fence()
    }

    fn waiting(&self) -> u64 {
        self.state.totals().waiting
    }
}

fn print(granted: &Granted) -> String {
    granted.names.iter().map(|name| format!("{}{}", name.name, name.claim)).collect::<Vec<_>>().join(" ")
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn parse(text: &str) -> Expr {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn acquire(expr: &str) -> Op {
    Op::Acquire(Acquire {
        expr: parse(expr),
        owner: Owner::Request,
        wait: Wait::Forever,
        priority: Priority(0),
        policy: VictimPolicy::Requester,
        value: None,
    })
}

fn with(op: Op, change: impl FnOnce(&mut Acquire)) -> Op {
    let Op::Acquire(mut acquire) = op else { panic!("not an acquire") };
    change(&mut acquire);
    Op::Acquire(acquire)
}

fn label(text: &str) -> Owner {
    Owner::Label(OwnerLabel::new(text).unwrap())
}

/// Returns an acquire by the owner with that label.
fn by(owner: &str, expr: &str) -> Op {
    with(acquire(expr), |acquire| acquire.owner = label(owner))
}

fn policy(op: Op, policy: VictimPolicy) -> Op {
    with(op, |acquire| acquire.policy = policy)
}

fn urgent(op: Op, priority: i32) -> Op {
    with(op, |acquire| acquire.priority = Priority(priority))
}

fn try_now(op: Op) -> Op {
    with(op, |acquire| acquire.wait = Wait::Try)
}

fn at_most(op: Op, ms: u64) -> Op {
    with(op, |acquire| acquire.wait = Wait::AtMost(ms))
}
