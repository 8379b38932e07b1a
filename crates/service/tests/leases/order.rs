//! The total order: what consensus comes to, without consensus.

use conclave_api::{Expr, Owner, Priority, RequestId, SessionId, VictimPolicy, Wait};
use conclave_kernel::{Cx, NodeId};
use conclave_node::state::{Acquire, Answer, At, Command, Effect, EndCause, Op, OpenSession, Request, State};

use crate::site::{Event, Message, Mutant, Proposal, SERVERS, Site, TTL, What};

/// Appends, and tells everybody. Whoever proposes, the entry has the term of the moment it gets here: so it is when a
/// deposed leader's proposal is forwarded to the next one.
#[derive(Clone, Debug)]
pub struct Order {
    state: State,
    term: u64,
    index: u64,
    leader: NodeId,
    mutant: Option<Mutant>,
}

impl Order {
    pub fn new(mutant: Option<Mutant>) -> Self {
        Self { state: State::default(), term: 0, index: 0, leader: NodeId(1), mutant }
    }

    pub fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) {
        match message {
            Message::Propose(Proposal::Expire { timer, .. })
                if self.mutant == Some(Mutant::ExpiresInAnyTerm) =>
            {
                self.append(Some(Proposal::Expire { timer, term: self.term }), cx);
            }
            Message::Propose(proposal) => self.append(Some(proposal), cx),
            // Whoever asks is told by whom a majority is led at this moment.
            Message::Round { number } => {
                cx.send(from, Message::Confirmed { number, term: self.term, index: self.index });
            }
            _ => {}
        }
    }

    /// Another leader; it begins with an empty entry, as leaders do.
    pub fn elect(&mut self, leader: NodeId, cx: &mut Cx<'_, Site>) {
        self.term += 1;
        self.leader = leader;
        cx.emit(Event::Elected);
        self.append(None, cx);
    }

    fn append(&mut self, proposal: Option<Proposal>, cx: &mut Cx<'_, Site>) {
        self.index += 1;
        let at = At { index: self.index, term: self.term, wall_ms: 0 };
        for effect in proposal.map(|proposal| self.state.apply(at, command(proposal))).unwrap_or_default() {
            match effect {
                Effect::Reply { session, answer: Answer::Granted(granted), .. } => {
                    cx.emit(Event::Granted { session: session.0, fence: granted.fence().0 });
                }
                Effect::SessionEnded { session, cause: EndCause::Expired } => {
                    cx.emit(Event::Expired { session: session.0 });
                }
                _ => {}
            }
        }
        for server in 1..=SERVERS {
            let (index, term, leader) = (self.index, self.term, self.leader);
            cx.send(NodeId(server), Message::Entry { index, term, leader, proposal });
        }
    }
}

/// What a proposal stands for.
pub fn command(proposal: Proposal) -> Command {
    match proposal {
        Proposal::Open { secret } => Command::OpenSession(OpenSession {
            secret: u128::from(secret),
            ttl_ms: u64::try_from(TTL.as_millis()).expect("a few seconds"),
            // A delay would hide a lease that ends too soon.
            lock_delay_ms: 0,
            label: String::new(),
        }),
        Proposal::Ask { session, id, lowest, what } => Command::Request(Request {
            session: SessionId(session),
            id: RequestId(id),
            lowest: RequestId(lowest),
            op: match what {
                What::Acquire => Op::Acquire(Acquire {
                    expr: "x".parse::<Expr>().expect("a name is an expression"),
                    owner: Owner::Request,
                    wait: Wait::Forever,
                    priority: Priority::default(),
                    policy: VictimPolicy::default(),
                    value: None,
                }),
                What::Release { grant } => Op::Release { grant: RequestId(grant) },
            },
        }),
        Proposal::Expire { timer, term } => Command::Expire { timer, term },
    }
}
