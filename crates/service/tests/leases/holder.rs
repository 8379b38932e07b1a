//! A client: the real lease, and of the client's core what concerns it. Wants the lock, holds it for a while, again.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_client::lease::{Lease, Life, Standing};
use conclave_kernel::{Cx, NodeId};

use crate::site::{Clock, Event, Message, Mutant, Site, TTL, Timer, What};

/// What is not answered for so long is asked again.
const IMPATIENCE: Duration = Duration::from_millis(700);
/// The longest that the lock is held.
const HOLD_MS: u32 = 2_500;

#[derive(Clone, Debug)]
pub struct Holder {
    clock: Clock,
    mutant: Option<Mutant>,
    server: NodeId,
    secret: u64,
    phase: Phase,
    next_id: u64,
    /// What is not answered, and will be asked again.
    asked: BTreeMap<u64, What>,
    /// The acquire that the client waits for, or holds by.
    acquire: Option<u64>,
    guard: Option<Guard>,
    /// A grant that came when the lease was past its deadline.
    late: Option<(u64, u64)>,
    standing: Standing,
}

#[derive(Clone, Debug)]
enum Phase {
    Opening(Duration),
    Open { session: u64, lease: Lease },
}

#[derive(Clone, Copy, Debug)]
struct Guard {
    id: u64,
    fence: u64,
    life: Life,
}

impl Holder {
    pub fn new(clock: Clock, server: NodeId, mutant: Option<Mutant>) -> Self {
        Self {
            clock,
            mutant,
            server,
            secret: 0,
            phase: Phase::Opening(Duration::ZERO),
            next_id: 1,
            asked: BTreeMap::new(),
            acquire: None,
            guard: None,
            late: None,
            standing: Standing::Valid,
        }
    }

    /// By which fence the client believes to hold the lock, at this moment of the world.
    pub fn believes(&self, world: conclave_kernel::Time) -> Option<u64> {
        let Phase::Open { lease, .. } = &self.phase else { return None };
        let guard = self.guard?;
        let standing = lease.standing_of(guard.life, self.clock.read(world));
        (standing != Standing::Lost).then_some(guard.fence)
    }

    pub fn on_start(&mut self, cx: &mut Cx<'_, Site>) {
        self.open(cx);
    }

    pub fn move_to(&mut self, server: NodeId, cx: &mut Cx<'_, Site>) {
        self.server = server;
        let now = self.clock.read(cx.now());
        match &mut self.phase {
            Phase::Opening(_) => return self.open(cx),
            Phase::Open { session, lease } => {
                let alive = Message::Alive { session: *session, token: lease.on_reconnected(now) };
                cx.send(server, alive);
            }
        }
        self.ask_again(cx);
        self.arm(cx);
    }

    pub fn on_timer(&mut self, timer: Timer, cx: &mut Cx<'_, Site>) {
        match (timer, &self.phase) {
            (Timer::Work, Phase::Opening(_)) => return self.open(cx),
            (Timer::Work, Phase::Open { .. }) => match self.guard.take() {
                Some(guard) => {
                    cx.emit(Event::Released);
                    self.ask(What::Release { grant: guard.id }, cx);
                    self.want(cx);
                }
                None => {
                    self.ask_again(cx);
                    cx.arm(Timer::Work, IMPATIENCE..=IMPATIENCE);
                }
            },
            (Timer::Lease, _) => self.on_lease(cx),
        }
        self.arm(cx);
    }

    pub fn on_message(&mut self, message: Message, cx: &mut Cx<'_, Site>) {
        match (message, &self.phase) {
            (Message::Opened { session, secret }, Phase::Opening(sent)) if secret == self.secret => {
                let lease = Lease::new(*sent, TTL, Mutant::drift_ppm(self.mutant));
                self.standing = Standing::Valid;
                self.phase = Phase::Open { session, lease };
                self.want(cx);
            }
            (Message::Answered { session, id, fence }, Phase::Open { session: mine, .. })
                if session == *mine =>
            {
                self.asked.remove(&id);
                if let Some(fence) = fence
                    && self.acquire == Some(id)
                    && self.guard.is_none()
                {
                    self.on_granted(id, fence, cx);
                }
            }
            (Message::Kept { session, token }, Phase::Open { session: mine, .. }) if session == *mine => {
                self.on_kept(token, cx);
            }
            (Message::Ended { session }, Phase::Open { session: mine, .. }) if session == *mine => {
                if self.guard.take().is_some() {
                    cx.emit(Event::Lost);
                }
                self.open(cx);
            }
            _ => {}
        }
        self.arm(cx);
    }

    /// A new session, under a new secret: what an old opening comes to ends by itself.
    fn open(&mut self, cx: &mut Cx<'_, Site>) {
        self.secret = (self.secret + (1 << 32)) | u64::from(cx.me().0);
        self.phase = Phase::Opening(self.clock.read(cx.now()));
        self.asked.clear();
        (self.acquire, self.guard, self.late) = (None, None, None);
        cx.disarm(Timer::Lease);
        cx.send(self.server, Message::Open { secret: self.secret });
        cx.arm(Timer::Work, IMPATIENCE..=IMPATIENCE);
    }

    fn want(&mut self, cx: &mut Cx<'_, Site>) {
        self.acquire = Some(self.next_id);
        self.ask(What::Acquire, cx);
        cx.arm(Timer::Work, IMPATIENCE..=IMPATIENCE);
    }

    fn ask(&mut self, what: What, cx: &mut Cx<'_, Site>) {
        self.asked.insert(self.next_id, what);
        self.send(self.next_id, what, cx);
        self.next_id += 1;
    }

    fn ask_again(&mut self, cx: &mut Cx<'_, Site>) {
        for (id, what) in self.asked.clone() {
            self.send(id, what, cx);
        }
        // A wait was answered `queued`; asked again, it is told how it stands.
        if let Some(id) = self.acquire.filter(|id| self.guard.is_none() && !self.asked.contains_key(id)) {
            self.send(id, What::Acquire, cx);
        }
    }

    fn send(&self, id: u64, what: What, cx: &mut Cx<'_, Site>) {
        let Phase::Open { session, .. } = self.phase else { return };
        let lowest =
            self.asked.keys().next().copied().unwrap_or(self.next_id).min(self.acquire.unwrap_or(u64::MAX));
        cx.send(self.server, Message::Ask { session, id, lowest, what });
    }

    fn on_granted(&mut self, id: u64, fence: u64, cx: &mut Cx<'_, Site>) {
        let Phase::Open { lease, .. } = &self.phase else { return };
        if lease.standing(self.clock.read(cx.now())) == Standing::Lost {
            self.late = Some((id, fence));
            return;
        }
        self.guard = Some(Guard { id, fence, life: lease.life() });
        cx.emit(Event::Believes { fence });
        let hold = Duration::from_millis(u64::from(cx.choose(HOLD_MS)));
        cx.arm(Timer::Work, hold..=hold);
    }

    fn on_kept(&mut self, token: u64, cx: &mut Cx<'_, Site>) {
        let now = self.clock.read(cx.now());
        let Phase::Open { lease, .. } = &mut self.phase else { return };
        let before = lease.life();
        if !lease.on_kept_alive(now, token) {
            return;
        }
        if self.mutant == Some(Mutant::CountsFromAnswer) && lease.life() == before {
            *lease = Lease::new(now, TTL, Mutant::drift_ppm(self.mutant));
            if let Some(guard) = &mut self.guard {
                guard.life = lease.life();
            }
        }
        let renewed = lease.life() != before;
        let lost = lease.standing(now) == Standing::Lost;
        if renewed {
            self.lose(cx);
        }
        self.standing = Standing::Valid;
        if let Some(guard) = self.guard {
            cx.emit(Event::Believes { fence: guard.fence });
        }
        if !lost && let Some((id, fence)) = self.late.take() {
            self.on_granted(id, fence, cx);
        }
    }

    /// What the clock makes due.
    fn on_lease(&mut self, cx: &mut Cx<'_, Site>) {
        let now = self.clock.read(cx.now());
        let Phase::Open { session, lease } = &mut self.phase else { return };
        if let Some(token) = lease.poll(now) {
            cx.send(self.server, Message::Alive { session: *session, token });
        }
        let standing = lease.standing(now);
        if standing != self.standing {
            self.standing = standing;
            match standing {
                Standing::Jeopardy if self.guard.is_some() => cx.emit(Event::Jeopardy),
                Standing::Lost => self.lose(cx),
                _ => {}
            }
        }
    }

    /// What was held is lost, finally; if the session should still be alive, it is given back.
    fn lose(&mut self, cx: &mut Cx<'_, Site>) {
        if let Some(guard) = self.guard.take() {
            cx.emit(Event::Lost);
            self.ask(What::Release { grant: guard.id }, cx);
            self.want(cx);
        }
    }

    fn arm(&self, cx: &mut Cx<'_, Site>) {
        if let Phase::Open { lease, .. } = &self.phase {
            let wait = self.clock.wait(cx.now(), lease.next_change(self.clock.read(cx.now())));
            cx.arm(Timer::Lease, wait..=wait);
        }
    }
}
