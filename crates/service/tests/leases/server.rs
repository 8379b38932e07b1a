//! A server: the real state and the real keeper, and of the hub what concerns leases.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_api::SessionId;
use conclave_kernel::{Cx, NodeId};
use conclave_node::leases::{self, Leases, Timing};
use conclave_node::state::{Answer, At, Command, Effect, State, TimerId};

use crate::order::command;
use crate::site::{Clock, Event, Kept, Message, Mutant, ORDER, Proposal, Site, Timer};

#[derive(Clone, Debug)]
pub struct Server {
    clock: Clock,
    mutant: Option<Mutant>,
    state: State,
    keeper: Leases,
    /// The term of the last entry applied, and who leads in it.
    term: u64,
    leader: NodeId,
    applied: u64,
    /// Where sessions are connected, and who waits for one.
    sessions: BTreeMap<u64, NodeId>,
    opening: BTreeMap<u64, NodeId>,
    /// Keep-alives that wait for the next round, those that the present one serves, and what it said.
    waiting: Vec<Waiting>,
    round: Option<(u64, Vec<Waiting>)>,
    confirmed: Option<(u64, u64)>,
    rounds: u64,
    /// When each timer was first heard of: what [`Mutant::KeepsOldLeases`] goes by.
    heard: BTreeMap<TimerId, Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    client: NodeId,
    session: u64,
    token: u64,
    /// The term in which it was counted here.
    counted: Option<u64>,
    kept: leases::KeepAliveResult,
    /// The server that passed it on.
    of: Option<NodeId>,
}

impl Server {
    pub fn new(clock: Clock, mutant: Option<Mutant>) -> Self {
        let timing = Timing { drift_ppm: Mutant::drift_ppm(mutant), heartbeat: Duration::from_millis(150) };
        Self {
            clock,
            mutant,
            state: State::default(),
            keeper: Leases::new(timing),
            term: 0,
            leader: NodeId(1),
            applied: 0,
            sessions: BTreeMap::new(),
            opening: BTreeMap::new(),
            waiting: Vec::new(),
            round: None,
            confirmed: None,
            rounds: 0,
            heard: BTreeMap::new(),
        }
    }

    pub fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Site>) {
        match message {
            Message::Open { secret } => {
                self.opening.insert(secret, from);
                cx.send(ORDER, Message::Propose(Proposal::Open { secret }));
            }
            Message::Ask { session, id, lowest, what } => {
                self.sessions.insert(session, from);
                cx.send(ORDER, Message::Propose(Proposal::Ask { session, id, lowest, what }));
            }
            Message::Alive { session, token } => {
                self.sessions.insert(session, from);
                self.keep_alive(from, session, token, None, cx);
            }
            Message::Forward { client, session, token } => {
                cx.emit(Event::Forwarded);
                self.keep_alive(client, session, token, Some(from), cx);
            }
            Message::Forwarded { client, session, token, kept } => match kept {
                Kept::Extended => cx.send(client, Message::Kept { session, token }),
                Kept::Ended => cx.send(client, Message::Ended { session }),
                Kept::Nothing => {}
            },
            Message::Entry { index, term, leader, proposal } => self.apply(index, term, leader, proposal, cx),
            Message::Confirmed { number, term, index }
                if self.round.as_ref().is_some_and(|(asked, _)| *asked == number) =>
            {
                self.confirmed = Some((term, index));
            }
            _ => {}
        }
        self.go_on(cx);
    }

    pub fn on_tick(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.clock.read(cx.now());
        for over in self.keeper.on_tick(now) {
            if let Command::Expire { timer, term } = over {
                cx.send(ORDER, Message::Propose(Proposal::Expire { timer, term }));
            }
        }
        self.go_on(cx);
    }

    fn apply(
        &mut self,
        index: u64,
        term: u64,
        leader: NodeId,
        proposal: Option<Proposal>,
        cx: &mut Cx<'_, Site>,
    ) {
        let now = self.clock.read(cx.now());
        let at = At { index, term, wall_ms: 0 };
        let effects = proposal.map(|proposal| self.state.apply(at, command(proposal))).unwrap_or_default();
        (self.applied, self.leader) = (index, leader);
        if term != self.term {
            self.term = term;
            self.change_role(now, cx);
        }
        for effect in effects {
            match effect {
                Effect::StartTimer { timer, .. } => {
                    self.heard.insert(timer, now);
                    self.keeper.on_effect(now, &effect);
                }
                Effect::StopTimer { .. } => self.keeper.on_effect(now, &effect),
                Effect::SessionOpened { session, secret } => {
                    let secret = u64::try_from(secret).expect("made from one");
                    if let Some(client) = self.opening.remove(&secret) {
                        self.sessions.insert(session.0, client);
                        cx.send(client, Message::Opened { session: session.0, secret });
                    }
                }
                Effect::Reply { session, request, answer, .. } => {
                    let fence = match answer {
                        Answer::Queued(_) => continue,
                        Answer::Granted(granted) => Some(granted.fence().0),
                        _ => None,
                    };
                    if let Some(client) = self.sessions.get(&session.0) {
                        cx.send(*client, Message::Answered { session: session.0, id: request.0, fence });
                    }
                }
                Effect::SessionEnded { session, .. } => {
                    if let Some(client) = self.sessions.remove(&session.0) {
                        cx.send(client, Message::Ended { session: session.0 });
                    }
                }
                _ => {}
            }
        }
        if let Some(Proposal::Expire { timer, .. }) = proposal {
            self.keeper.on_applied(timer);
        }
    }

    /// An entry of another term: this node leads in it, or another does.
    fn change_role(&mut self, now: Duration, cx: &Cx<'_, Site>) {
        if self.leader != cx.me() {
            return self.keeper.on_following();
        }
        let old = self.mutant == Some(Mutant::KeepsOldLeases);
        let passed = |timer: &TimerId| match self.heard.get(timer) {
            Some(began) if old => u64::try_from((now - *began).as_millis()).expect("a short run"),
            _ => 0,
        };
        let left = |(timer, after_ms): (TimerId, u64)| (timer, after_ms.saturating_sub(passed(&timer)));
        let timers: Vec<_> = self.state.timers().into_iter().map(left).collect();
        self.keeper.on_leading(now, self.term, timers);
    }

    fn keep_alive(
        &mut self,
        client: NodeId,
        session: u64,
        token: u64,
        of: Option<NodeId>,
        cx: &mut Cx<'_, Site>,
    ) {
        let kept = match self.keeper.on_keep_alive(self.clock.read(cx.now()), SessionId(session)) {
            leases::KeepAliveResult::Ending if self.mutant == Some(Mutant::AnswersWhileEnding) => {
                leases::KeepAliveResult::Extended
            }
            kept => kept,
        };
        let extended = kept == leases::KeepAliveResult::Extended;
        if extended && self.mutant == Some(Mutant::AnswersFromLeaderLease) && of.is_none() {
            return cx.send(client, Message::Kept { session, token });
        }
        if kept == leases::KeepAliveResult::Ending && of.is_none() {
            return;
        }
        let counted =
            if extended || kept == leases::KeepAliveResult::Ending { self.keeper.term() } else { None };
        self.waiting.push(Waiting { client, session, token, counted, kept, of });
    }

    /// Ends a round that is confirmed and applied, begins the next, and sets the alarm.
    fn go_on(&mut self, cx: &mut Cx<'_, Site>) {
        if let Some((term, _)) = self.confirmed.filter(|(_, index)| *index <= self.applied) {
            self.confirmed = None;
            for waiting in self.round.take().map(|(_, serves)| serves).unwrap_or_default() {
                self.on_confirmed(waiting, term, cx);
            }
        }
        if self.round.is_none() && !self.waiting.is_empty() {
            self.rounds += 1;
            self.round = Some((self.rounds, std::mem::take(&mut self.waiting)));
            cx.send(ORDER, Message::Round { number: self.rounds });
        }
        match self.keeper.next_tick() {
            Some(tick) => {
                let wait = self.clock.wait(cx.now(), tick);
                cx.arm(Timer::Lease, wait..=wait);
            }
            None => cx.disarm(Timer::Lease),
        }
    }

    fn on_confirmed(&mut self, waiting: Waiting, term: u64, cx: &mut Cx<'_, Site>) {
        let Waiting { client, session, token, mut counted, kept, of } = waiting;
        if self.mutant == Some(Mutant::ConfirmsInAnyTerm) {
            counted = counted.map(|_| term);
        }
        let ended = self.state.session(SessionId(session)).is_none();
        if let Some(server) = of {
            let kept = match kept {
                leases::KeepAliveResult::Extended if counted == Some(term) => Kept::Extended,
                leases::KeepAliveResult::Ending if counted == Some(term) => Kept::Nothing,
                _ if ended => Kept::Ended,
                _ => Kept::Nothing,
            };
            return cx.send(server, Message::Forwarded { client, session, token, kept });
        }
        match counted {
            Some(counted) if counted == term => cx.send(client, Message::Kept { session, token }),
            _ if ended => cx.send(client, Message::Ended { session }),
            _ if self.leader != cx.me() => cx.send(self.leader, Message::Forward { client, session, token }),
            _ => self.keep_alive(client, session, token, None, cx),
        }
    }
}
