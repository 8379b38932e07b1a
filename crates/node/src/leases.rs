//! The timers of the leader: leases, limits of waits, and lock-delays.
//!
//! **Intuition.** The replicated state compares no clocks. Instead, the leader measures time with its
//! monotonic clock. It proposes a command for each lease, wait or lock-delay that is over. This module
//! decides which commands are due. It has no clock, thread or network: each call passes the time in, and
//! returns the commands to propose.
//!
//! **Rules** (docs/service.md 5).
//! - The end of a lease is proposed no earlier than TTL * (1 + rho) after the last keep-alive was received.
//!   The client stops using its locks TTL * (1 - rho) after it sent that keep-alive. So the client always
//!   stops first.
//! - A new leader starts all timers in full, after it has applied an entry of its own term. A former leader
//!   forgets all timers.
//! - A new lease of a session ends no earlier than the previous one would have. The client may not have
//!   received the change yet.
//! - A tick that is late by more than a heartbeat restarts all leases. The process may have been stopped
//!   while keep-alives waited unread.
//!
//! **Trap.** A keep-alive may arrive after the end of its lease was proposed and before that entry is
//! applied. A quorum round confirms the leader, not the session. If the node replied, the client would trust
//! a lock that the entry gives to another session. So the lease is *ending* from the proposal on, and no
//! keep-alive extends it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use conclave_core::SessionId;
use serde::{Deserialize, Serialize};

use crate::state::{Command, Effect, TimerId};

/// The monotonic time of this process, since an arbitrary start.
pub type Now = Duration;

/// The parameters of the timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The largest drift between any two clocks that the leases allow for, in millionths.
    pub drift_ppm: u32,
    /// The interval between heartbeats. A tick that is late by more than this restarts all leases.
    pub heartbeat: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { drift_ppm: 10_000, heartbeat: Duration::from_millis(150) }
    }
}

/// The result of a keep-alive on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeepAliveResult {
    /// The lease is extended. The reply may be sent after a quorum has confirmed the leader.
    Extended,
    /// The end of the lease was proposed. The node sends no reply to the keep-alive; `SessionEnded` follows.
    Ending,
    /// The session has no lease: it has ended or never existed.
    Unknown,
    /// This node does not lead, or has not applied an entry of its own term yet.
    NotLeading,
}

/// The timers of the leader, which turn time into commands.
///
/// The caller reports role changes, effects and keep-alives. It calls [`Leases::on_tick`] at
/// [`Leases::next_tick`] and proposes the returned commands. Memory is bounded by the number of sessions,
/// waits and lock-delays in the state.
#[derive(Clone, Debug)]
pub struct Leases {
    timing: Timing,
    /// The term in which this node leads and has applied an entry; `None` otherwise.
    term: Option<u64>,
    /// The term of the last applied entry.
    applied_term: u64,
    timers: BTreeMap<TimerId, Timer>,
    /// The running timers, ordered by the time at which they are due.
    due: BTreeSet<(Now, TimerId)>,
    /// The current lease of each session. Keep-alives contain no generation, so they are looked up here.
    leases: BTreeMap<SessionId, TimerId>,
    /// The time of the next tick; `None` if no timer runs.
    next_tick: Option<Now>,
    /// The bug that a test has planted.
    #[cfg(feature = "testing")]
    pub(crate) flaw: Option<crate::testing::Flaw>,
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    length: Duration,
    /// The time at which the end is proposed, for the first time or again; `None` while a proposal is in
    /// flight.
    due: Option<Now>,
    /// `true` after the end was proposed.
    ending: bool,
}

impl Leases {
    /// Creates the timers of a node that does not lead.
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            term: None,
            applied_term: 0,
            timers: BTreeMap::new(),
            due: BTreeSet::new(),
            leases: BTreeMap::new(),
            next_tick: None,
            #[cfg(feature = "testing")]
            flaw: None,
        }
    }

    /// Returns the term in which this node runs the timers.
    pub fn term(&self) -> Option<u64> {
        self.term
    }

    /// Records that an entry of this term was applied. Returns whether the term is new; then the caller
    /// checks the role of this node.
    pub fn on_applied_term(&mut self, term: u64) -> bool {
        std::mem::replace(&mut self.applied_term, term) != term
    }

    /// Records the role of this node: the term in which it leads, or `None`. `timers` is called only if
    /// leases begin.
    pub fn on_status<T: IntoIterator<Item = (TimerId, u64)>>(
        &mut self,
        now: Now,
        leads: Option<u64>,
        timers: impl FnOnce() -> T,
    ) {
        if self.term == leads {
            return;
        }
        match leads {
            Some(term) if term == self.applied_term => self.on_leading(now, term, timers()),
            _ => self.on_following(),
        }
    }

    /// Starts all timers: this node leads and has applied an entry of its own term. `timers` are all of
    /// [`crate::state::State::timers`].
    pub fn on_leading(&mut self, now: Now, term: u64, timers: impl IntoIterator<Item = (TimerId, u64)>) {
        self.on_following();
        self.term = Some(term);
        for (timer, after_ms) in timers {
            if !(has_flaw!(self, KeepsOldLeases) && self.timers.contains_key(&timer)) {
                self.start(now, timer, after_ms);
            }
        }
        self.plan(now);
    }

    /// Forgets all timers: this node does not lead, or has not applied an entry of its own term yet.
    pub fn on_following(&mut self) {
        self.term = None;
        self.next_tick = None;
        if has_flaw!(self, KeepsOldLeases) {
            return;
        }
        self.timers.clear();
        self.due.clear();
        self.leases.clear();
    }

    /// Starts or stops a timer after an entry was applied.
    pub fn on_effect(&mut self, now: Now, effect: &Effect) {
        if self.term.is_none() {
            return;
        }
        match effect {
            Effect::StartTimer { timer, after_ms } => self.start(now, *timer, *after_ms),
            Effect::StopTimer { timer } => self.stop(timer),
            _ => return,
        }
        self.plan_sooner(now);
    }

    /// Extends the lease of a keep-alive that arrived at `now`. Extending is always safe. The node replies
    /// only after a quorum round that began after `now`.
    pub fn on_keep_alive(&mut self, now: Now, session: SessionId) -> KeepAliveResult {
        if self.term.is_none() {
            return KeepAliveResult::NotLeading;
        }
        let Some(lease) = self.leases.get(&session).copied() else { return KeepAliveResult::Unknown };
        let is_ending = self.timers.get(&lease).is_none_or(|timer| timer.ending);
        if is_ending && !has_flaw!(self, ExtendsAnEndingLease) {
            return KeepAliveResult::Ending;
        }
        self.restart(now, lease);
        KeepAliveResult::Extended
    }

    /// Proposes an end again after one heartbeat, because the proposal was rejected or its outcome is
    /// unknown. A lease stays ending, because the first proposal may still be applied. A second end has no
    /// effect.
    pub fn on_refused(&mut self, now: Now, timer: TimerId) {
        let due = now + self.timing.heartbeat;
        if let Some(known) = self.timers.get_mut(&timer).filter(|known| known.ending && known.due.is_none()) {
            known.due = Some(due);
            self.due.insert((due, timer));
            self.plan_sooner(now);
        }
    }

    /// Forgets a timer whose end was applied, unless an effect has already stopped it.
    pub fn on_applied(&mut self, timer: TimerId) {
        if self.timers.get(&timer).is_some_and(|known| known.ending) {
            self.stop(&timer);
        }
    }

    /// Returns the latest time for the next call of [`Leases::on_tick`].
    pub fn next_tick(&self) -> Option<Now> {
        self.next_tick
    }

    /// Returns commands for the timers that are over, to be proposed in the term of [`Leases::term`].
    pub fn on_tick(&mut self, now: Now) -> Vec<Command> {
        let Some(term) = self.term else { return Vec::new() };
        if self.next_tick.is_some_and(|planned| now > planned + self.timing.heartbeat) {
            self.restart_leases(now);
        }
        let mut over = Vec::new();
        while let Some(&(due, timer)) = self.due.first().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, timer));
            if let Some(known) = self.timers.get_mut(&timer) {
                known.due = None;
                known.ending = true;
                over.push(Command::Expire { timer, term });
            }
        }
        self.plan(now);
        over
    }

    fn start(&mut self, now: Now, timer: TimerId, after_ms: u64) {
        self.stop(&timer);
        let (after, mut former) = (Duration::from_millis(after_ms), None);
        let length = match timer {
            TimerId::Lease { session, .. } => {
                former = self.leases.insert(session, timer);
                // This order of operations cannot overflow, even with a lease length from another version.
                after.saturating_add(after / 1_000_000 * self.timing.drift_ppm.min(1_000_000)).max(after)
            }
            TimerId::Wait { .. } | TimerId::LockDelay { .. } => after,
        };
        let former_due = former.and_then(|former| self.timers.get(&former)).and_then(|former| former.due);
        let due = now.saturating_add(length).max(former_due.unwrap_or_default());
        self.timers.insert(timer, Timer { length, due: Some(due), ending: false });
        self.due.insert((due, timer));
    }

    fn stop(&mut self, timer: &TimerId) {
        if let Some(Timer { due: Some(due), .. }) = self.timers.remove(timer) {
            self.due.remove(&(due, *timer));
        }
        if let TimerId::Lease { session, .. } = timer
            && self.leases.get(session) == Some(timer)
        {
            self.leases.remove(session);
        }
    }

    fn restart(&mut self, now: Now, timer: TimerId) {
        let Some(known) = self.timers.get_mut(&timer).filter(|known| !known.ending) else { return };
        let Some(due) = known.due else { return };
        let later = now.saturating_add(known.length).max(due);
        known.due = Some(later);
        self.due.remove(&(due, timer));
        self.due.insert((later, timer));
    }

    fn restart_leases(&mut self, now: Now) {
        for lease in self.leases.values().copied().collect::<Vec<_>>() {
            self.restart(now, lease);
        }
    }

    /// Plans the next tick: at the next end, and at most one heartbeat away while a timer runs. A late tick
    /// reveals a pause only if ticks are frequent.
    fn plan(&mut self, now: Now) {
        let first = self.due.first().map(|(due, _)| *due);
        self.next_tick = first.map(|due| due.min(now + self.timing.heartbeat).max(now));
    }

    /// Does the same as [`Leases::plan`], but never moves a planned tick to a later time. Otherwise the first
    /// event after a pause would hide the pause.
    fn plan_sooner(&mut self, now: Now) {
        let planned = self.next_tick;
        self.plan(now);
        self.next_tick = match (planned, self.next_tick) {
            (Some(planned), Some(next)) => Some(planned.min(next)),
            (_, next) => next,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL_MS: u64 = 10_000;
    const S: SessionId = SessionId(7);
    const LEASE: TimerId = TimerId::Lease { session: S, generation: 1 };
    const DELAY: TimerId = TimerId::LockDelay { session: S, generation: 9 };

    fn ms(ms: u64) -> Now {
        Duration::from_millis(ms)
    }

    fn leader() -> Leases {
        let mut leases = Leases::new(Timing::default());
        leases.on_leading(ms(0), 3, [(LEASE, TTL_MS)]);
        leases
    }

    /// Calls `on_tick` at each planned time up to `until`. Returns the proposed ends with their times.
    fn run(leases: &mut Leases, until: Now) -> Vec<(Now, TimerId)> {
        let mut proposed = Vec::new();
        while let Some(now) = leases.next_tick().filter(|now| *now <= until) {
            for command in leases.on_tick(now) {
                let Command::Expire { timer, term } = command else { panic!("not an expiry: {command:?}") };
                assert_eq!(Some(term), leases.term());
                proposed.push((now, timer));
            }
        }
        proposed
    }

    #[test]
    fn a_lease_ends_no_earlier_than_its_length_and_the_drift() {
        assert_eq!(run(&mut leader(), ms(60_000)), [(ms(10_100), LEASE)]);
    }

    #[test]
    fn a_keep_alive_counts_from_its_receipt() {
        let mut leases = leader();
        assert!(run(&mut leases, ms(9_000)).is_empty());
        assert_eq!(leases.on_keep_alive(ms(9_000), S), KeepAliveResult::Extended);
        assert_eq!(run(&mut leases, ms(60_000)), [(ms(19_100), LEASE)]);
    }

    #[test]
    fn a_keep_alive_behind_the_proposal_of_the_end_is_not_answered() {
        let mut leases = leader();
        assert_eq!(run(&mut leases, ms(10_100)).len(), 1);
        assert_eq!(leases.on_keep_alive(ms(10_101), S), KeepAliveResult::Ending);
        leases.on_refused(ms(10_150), LEASE);
        assert_eq!(leases.on_keep_alive(ms(10_151), S), KeepAliveResult::Ending);
        assert_eq!(run(&mut leases, ms(60_000)), [(ms(10_300), LEASE)]);
        leases.on_effect(ms(10_301), &Effect::StopTimer { timer: LEASE });
        assert_eq!(leases.on_keep_alive(ms(10_302), S), KeepAliveResult::Unknown);
        assert_eq!(leases.next_tick(), None);
    }

    #[test]
    fn a_node_that_does_not_lead_proposes_nothing() {
        let mut leases = leader();
        leases.on_following();
        assert_eq!(leases.on_keep_alive(ms(1), S), KeepAliveResult::NotLeading);
        leases.on_effect(ms(1), &Effect::StartTimer { timer: LEASE, after_ms: 1 });
        assert_eq!(leases.next_tick(), None);
        assert!(leases.on_tick(ms(60_000)).is_empty());
    }

    #[test]
    fn a_new_leader_starts_everything_in_full() {
        let mut leases = leader();
        assert!(run(&mut leases, ms(9_999)).is_empty());
        leases.on_leading(ms(10_000), 4, [(LEASE, TTL_MS), (DELAY, 1_000)]);
        assert_eq!(run(&mut leases, ms(60_000)), [(ms(11_000), DELAY), (ms(20_100), LEASE)]);
    }

    #[test]
    fn a_late_tick_starts_leases_anew_but_not_lock_delays() {
        let mut leases = leader();
        leases.on_effect(ms(0), &Effect::StartTimer { timer: DELAY, after_ms: 1_000 });
        let late = leases.next_tick().expect("something is counted") + ms(20_000);
        // An effect that is handled before the tick must not hide the pause.
        leases
            .on_effect(late, &Effect::StopTimer { timer: TimerId::LockDelay { session: S, generation: 1 } });
        assert_eq!(leases.on_tick(late), [Command::Expire { timer: DELAY, term: 3 }]);
        assert_eq!(run(&mut leases, ms(60_000)), [(late + ms(10_100), LEASE)]);
    }

    #[test]
    fn a_lock_delay_that_was_applied_is_forgotten() {
        let mut leases = Leases::new(Timing::default());
        leases.on_leading(ms(0), 3, [(DELAY, 1_000)]);
        assert_eq!(run(&mut leases, ms(2_000)), [(ms(1_000), DELAY)]);
        leases.on_applied(DELAY);
        leases.on_refused(ms(2_000), DELAY);
        assert_eq!(leases.next_tick(), None);
    }

    #[test]
    fn a_changed_lease_counts_by_its_new_length() {
        let mut leases = leader();
        let longer = TimerId::Lease { session: S, generation: 2 };
        leases.on_effect(ms(500), &Effect::StopTimer { timer: LEASE });
        leases.on_effect(ms(500), &Effect::StartTimer { timer: longer, after_ms: 20_000 });
        assert_eq!(leases.on_keep_alive(ms(1_000), S), KeepAliveResult::Extended);
        assert_eq!(run(&mut leases, ms(60_000)), [(ms(21_200), longer)]);
    }

    #[test]
    fn a_shorter_lease_does_not_end_before_the_former_would_have() {
        let mut leases = leader();
        let shorter = TimerId::Lease { session: S, generation: 2 };
        leases.on_effect(ms(500), &Effect::StartTimer { timer: shorter, after_ms: 1_000 });
        leases.on_effect(ms(500), &Effect::StopTimer { timer: LEASE });
        assert_eq!(run(&mut leases.clone(), ms(60_000)), [(ms(10_100), shorter)]);
        assert!(run(&mut leases, ms(9_800)).is_empty());
        assert_eq!(leases.on_keep_alive(ms(9_800), S), KeepAliveResult::Extended);
        assert_eq!(run(&mut leases, ms(60_000)), [(ms(10_810), shorter)]);
    }

    proptest! {
        /// A client whose clock is up to 1 % slow (the worst case) sends keep-alives at random times, each
        /// with a random delay. The process of the leader pauses at random. The client must stop before the
        /// end of its lease is proposed.
        #[test]
        fn the_client_always_knows_first(steps in prop::collection::vec((1_u64..6_000, 0_u64..3_000, 0_u64..8_000), 1..40),
                                         slow_ppm in 0_u64..9_900) {
            let mut leases = leader();
            let mut now = ms(0);
            let mut sent_at = ms(0); // the session was opened then, at the latest
            for (gap, delay, pause) in steps {
                let sent = now + ms(gap);
                let received = sent + ms(delay);
                let ended = run(&mut leases, received);
                let lease = Duration::from_micros(TTL_MS * 990 * 1_000_000 / (1_000_000 - slow_ppm));
                if let Some((at, _)) = ended.first() {
                    prop_assert!(*at > sent_at + lease, "proposed {at:?}, client believes until {:?}", sent_at + lease);
                    return Ok(());
                }
                let resumed = received + ms(pause); // nothing ticks meanwhile
                prop_assert_eq!(leases.on_keep_alive(resumed, S), KeepAliveResult::Extended);
                sent_at = sent;
                now = resumed;
            }
        }
    }
}
