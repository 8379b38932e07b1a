//! The lease as the client sees it: the time until which it may use its locks.
//!
//! **Intuition.** The server keeps a session for one TTL after it *received* a keep-alive. The client does
//! not know that time, but it knows the earlier time at which it *sent* the keep-alive. So the client counts
//! from the sending, and subtracts the possible drift of the clocks. Its deadline is then before the end of
//! the session on the server.
//!
//! **Rules** (docs/service.md 5).
//! - deadline = time before sending + TTL * (1 - rho), of the latest keep-alive that was answered. A grant
//!   never moves the deadline.
//! - A keep-alive is due TTL/3 after the latest answered one was sent, and again every TTL/6 until one is
//!   answered.
//! - The client leaves a node that does not reply to a keep-alive for TTL/8, and at least
//!   `MIN_ANSWER_TIMEOUT`. With a TTL above 3 s, this is before jeopardy, so another node may reply in
//!   time. After a slow reply, the limit is twice the time of that reply. After each silent node the limit
//!   doubles, until a node replies.
//! - *Jeopardy*: TTL/2 has passed since the latest answered keep-alive was sent. *Lost*: the deadline has
//!   passed.
//! - Lost is final for every grant of that [`Epoch`] of the lease. An answer that arrives after the deadline
//!   begins a new epoch. Grants of the old epoch stay lost.
//!
//! **Trap.** A paused process wakes up after its deadline, and first reads an answer that was sent before the
//! deadline. Another thread has already seen the guard lost. If the answer simply moved the deadline, that
//! guard would be valid again. So the lease checks the clock before it processes an answer.
//!
//! The lease has no clock, timer or socket of its own. The caller passes the time with each call, and sends
//! the keep-alives whose tokens it gets.

use std::collections::VecDeque;
use std::time::Duration;

/// Monotonic time, since an arbitrary start.
pub type Now = Duration;

/// The state of a lease, or of a grant under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The lease is confirmed, and no keep-alive is overdue.
    Valid,
    /// A keep-alive is overdue, but the deadline has not passed: finish the work, or prepare to stop.
    Jeopardy,
    /// The deadline has passed: another client may hold the lock now.
    Lost,
}

/// A period in which the lease was never lost. A grant belongs to one epoch, and is lost in all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// The lease of one session.
///
/// The caller sends a keep-alive for each token from [`Lease::poll`] and reports each answer to
/// [`Lease::on_kept_alive`]. It reports each new connection to [`Lease::on_reconnected`]. At most 16
/// keep-alives wait for an answer.
#[derive(Clone, Debug)]
pub struct Lease {
    ttl: Duration,
    drift_ppm: u32,
    /// The sending time of the latest message that the server answered.
    confirmed: Now,
    /// Keep-alives without an answer: the token, and the time before the sending.
    unanswered: VecDeque<(u64, Now)>,
    next_token: u64,
    epoch: Epoch,
    /// The longest time of a keep-alive without an answer on one connection.
    answer_timeout: Duration,
}

/// The minimum time before a node counts as silent, even with a short lease. A healthy node may be busy for
/// this long.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The maximum number of keep-alives without an answer. Beyond it the oldest is dropped: a newer one confirms
/// more.
const MAX_UNANSWERED: usize = 16;

/// The minimum time between two checks for an overdue answer, even with a short lease.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl Lease {
    /// Creates the lease of a session. `sent` is the time before `Open` was sent, so the server began to
    /// count later.
    pub fn new(sent: Now, ttl: Duration, drift_ppm: u32) -> Self {
        let (unanswered, answer_timeout) = (VecDeque::new(), least_answer_timeout(ttl));
        Self { ttl, drift_ppm, confirmed: sent, unanswered, next_token: 1, epoch: Epoch(0), answer_timeout }
    }

    /// The time at which every grant is lost (exclusive). Before it no other client can hold the locks.
    pub fn deadline(&self) -> Now {
        // Round the drift up, so that the deadline is never too late.
        let drift = self.ttl.as_nanos().saturating_mul(u128::from(self.drift_ppm)).div_ceil(1_000_000);
        let drift = Duration::from_nanos(u64::try_from(drift).unwrap_or(u64::MAX));
        self.confirmed + self.ttl.saturating_sub(drift)
    }

    /// The time at which work under the lease must be cancelled: TTL/10 before the deadline. The rest of the
    /// time is for the cancellation itself, and for requests that the work has already sent.
    pub fn work_until(&self) -> Now {
        self.deadline().saturating_sub(self.ttl / 10)
    }

    /// The state of the lease at `now`.
    pub fn state(&self, now: Now) -> LeaseState {
        if now >= self.deadline() {
            LeaseState::Lost
        } else if now >= self.jeopardy_at() {
            LeaseState::Jeopardy
        } else {
            LeaseState::Valid
        }
    }

    /// The state at `now` of a grant that was made in `epoch`.
    pub fn state_of(&self, epoch: Epoch, now: Now) -> LeaseState {
        if epoch == self.epoch { self.state(now) } else { LeaseState::Lost }
    }

    /// The present epoch of the lease.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the token of the keep-alive to send now, if one is due.
    pub fn poll(&mut self, now: Now) -> Option<u64> {
        (now >= self.due_at()).then(|| self.next_keep_alive(now))
    }

    /// Processes the answer to a keep-alive. Returns `false` if the keep-alive was not sent on this
    /// connection, or does not extend the lease.
    pub fn on_kept_alive(&mut self, now: Now, token: u64) -> bool {
        let Some(&(_, sent)) = self.unanswered.iter().find(|(other, _)| *other == token) else {
            return false;
        };
        self.unanswered.retain(|(other, _)| *other > token);
        self.answer_timeout = least_answer_timeout(self.ttl).max(now.saturating_sub(sent).saturating_mul(2));
        if sent < self.confirmed {
            return false;
        }
        self.end_epoch(now);
        self.confirmed = sent;
        true
    }

    /// Counts the lease from `now`. Only the planted bug does this: a correct client counts from the sending
    /// of the keep-alive.
    #[cfg(feature = "testing")]
    pub(crate) fn count_from(&mut self, now: Now) {
        self.confirmed = now;
    }

    /// Starts a new connection. Keep-alives of the old one will never be answered. Returns the token of a
    /// keep-alive to send at once.
    pub fn on_reconnected(&mut self, now: Now) -> u64 {
        self.unanswered.clear();
        self.next_keep_alive(now)
    }

    /// The time at which the client leaves the connection, if no keep-alive is answered before.
    pub fn silent_at(&self) -> Option<Now> {
        self.unanswered.front().map(|(_, sent)| sent.saturating_add(self.answer_timeout))
    }

    /// Doubles the time limit for an answer of the next node. The caller calls this after it has left a
    /// silent node.
    pub fn on_server_left(&mut self) {
        self.answer_timeout = self.answer_timeout.saturating_mul(2);
    }

    /// The next time at which something changes without input: a keep-alive is due, jeopardy begins, or the
    /// deadline passes.
    pub fn next_change(&self, now: Now) -> Now {
        let later = [self.jeopardy_at(), self.deadline()].into_iter().filter(|at| *at > now);
        later.fold(self.due_at(), Ord::min)
    }

    /// The time at which the answer to a keep-alive is overdue: 5/12 of the TTL after the latest answered one
    /// was sent. That is after the time to send the next one, and before jeopardy.
    pub fn overdue_at(&self) -> Now {
        self.confirmed + self.ttl * 5 / 12
    }

    /// The time of the next check for an overdue answer. While an answer is overdue, the interval is TTL/48;
    /// after the deadline it is TTL/3.
    pub fn next_check(&self, now: Now) -> Now {
        let again = if self.state(now) == LeaseState::Lost { self.ttl / 3 } else { self.ttl / 48 };
        self.overdue_at().max(now + again.max(MIN_CHECK_INTERVAL))
    }

    /// The time for which the present state lasts if no answer arrives.
    pub fn changes_in(&self, now: Now) -> Duration {
        let later = [self.jeopardy_at(), self.deadline()].into_iter().filter(|at| *at > now).min();
        later.map_or(Duration::MAX, |at| at - now)
    }

    /// Ends the present epoch if its deadline has passed.
    fn end_epoch(&mut self, now: Now) {
        if now >= self.deadline() {
            self.epoch.0 += 1;
        }
    }

    fn next_keep_alive(&mut self, now: Now) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.unanswered.push_back((token, now));
        if self.unanswered.len() > MAX_UNANSWERED {
            self.unanswered.pop_front();
        }
        token
    }

    fn due_at(&self) -> Now {
        match self.unanswered.back() {
            Some((_, sent)) => *sent + self.ttl / 6,
            None => self.confirmed + self.ttl / 3,
        }
    }

    fn jeopardy_at(&self) -> Now {
        self.confirmed + self.ttl / 2
    }
}

fn least_answer_timeout(ttl: Duration) -> Duration {
    (ttl / 8).max(MIN_ANSWER_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn ms(ms: u64) -> Now {
        Duration::from_millis(ms)
    }

    fn lease() -> Lease {
        Lease::new(ms(0), TTL, 10_000)
    }

    #[test]
    fn the_deadline_counts_from_before_the_sending_and_less_the_drift() {
        let mut lease = lease();
        assert_eq!(lease.deadline(), ms(9_900));
        let token = lease.poll(ms(3_400)).expect("due after a third");
        assert!(lease.on_kept_alive(ms(3_900), token));
        assert_eq!(lease.deadline(), ms(13_300), "not from the answer");
    }

    #[test]
    fn keep_alives_are_due_at_a_third_and_then_at_every_sixth() {
        let mut lease = lease();
        assert_eq!(lease.poll(ms(3_333)), None);
        assert_eq!(lease.next_change(ms(0)), TTL / 3);
        assert!(lease.poll(ms(3_334)).is_some());
        assert_eq!(lease.poll(ms(5_000)), None);
        assert!(lease.poll(ms(5_001)).is_some());
    }

    #[test]
    fn it_is_valid_then_in_jeopardy_then_lost() {
        let lease = lease();
        assert_eq!(lease.changes_in(ms(1_000)), ms(4_000));
        assert_eq!(lease.changes_in(ms(5_000)), ms(4_900));
        assert_eq!(lease.changes_in(ms(9_900)), Duration::MAX, "lost is final");
        assert_eq!(lease.state(ms(4_999)), LeaseState::Valid);
        assert_eq!(lease.state(ms(5_000)), LeaseState::Jeopardy);
        assert_eq!(lease.state(ms(9_899)), LeaseState::Jeopardy);
        assert_eq!(lease.state(ms(9_900)), LeaseState::Lost);
    }

    #[test]
    fn an_answer_in_jeopardy_makes_it_valid_again() {
        let mut lease = lease();
        let (epoch, token) = (lease.epoch(), lease.poll(ms(6_000)).expect("overdue"));
        assert!(lease.on_kept_alive(ms(9_899), token));
        assert_eq!(lease.state_of(epoch, ms(9_899)), LeaseState::Valid);
    }

    #[test]
    fn a_lost_grant_stays_lost_after_a_late_answer() {
        let mut lease = lease();
        let (old, token) = (lease.epoch(), lease.poll(ms(6_000)).expect("overdue"));
        // The keep-alive was sent and answered in time, but the process was paused and read the answer too
        // late.
        assert!(lease.on_kept_alive(ms(9_900), token));
        assert_eq!(lease.state_of(old, ms(9_900)), LeaseState::Lost);
        assert_eq!(lease.state_of(lease.epoch(), ms(9_900)), LeaseState::Valid);
    }

    #[test]
    fn replies_to_older_keep_alives_change_nothing() {
        let mut lease = lease();
        let first = lease.poll(ms(3_400)).expect("due");
        let second = lease.poll(ms(5_400)).expect("due again");
        assert!(lease.on_kept_alive(ms(5_500), second));
        assert!(!lease.on_kept_alive(ms(5_600), first));
        assert_eq!(lease.deadline(), ms(15_300));
        let lost = lease.poll(ms(9_000)).expect("due");
        let fresh = lease.on_reconnected(ms(9_100));
        assert!(!lease.on_kept_alive(ms(9_200), lost));
        assert!(lease.on_kept_alive(ms(9_200), fresh));
        assert_eq!(lease.deadline(), ms(19_000));
    }

    #[test]
    fn a_silent_node_is_left_before_jeopardy() {
        let mut lease = lease();
        assert_eq!(lease.silent_at(), None, "no keep-alive is unanswered");
        lease.poll(ms(3_334)).expect("due");
        let left = lease.silent_at().expect("a keep-alive is unanswered");
        assert_eq!(left, ms(3_334 + 1_250));
        assert_eq!(lease.state(left), LeaseState::Valid);
    }

    #[test]
    fn a_reply_is_overdue_after_its_keep_alive_was_sent_and_before_jeopardy() {
        let mut lease = lease();
        let overdue = lease.overdue_at();
        assert_eq!(lease.next_check(ms(0)), overdue);
        assert!(lease.poll(overdue).is_some());
        assert_eq!(lease.state(overdue), LeaseState::Valid);
        assert_eq!(lease.next_check(overdue), overdue + TTL / 48);
        assert_eq!(lease.next_check(ms(9_900)), ms(9_900) + TTL / 3, "after the deadline there is no hurry");
        assert!(lease.on_kept_alive(overdue, 1));
        assert_eq!(lease.next_check(overdue), overdue * 2);
    }

    #[test]
    fn work_ends_a_tenth_of_the_ttl_before_the_deadline() {
        assert_eq!(lease().work_until(), ms(8_900));
    }

    #[test]
    fn a_slow_node_is_not_left_again_and_again() {
        let mut lease = lease();
        lease.poll(ms(3_400)).expect("due");
        lease.on_server_left();
        let token = lease.on_reconnected(ms(4_700));
        assert_eq!(lease.silent_at(), Some(ms(4_700 + 2_500)), "twice as long");
        assert!(lease.on_kept_alive(ms(6_700), token));
        lease.poll(ms(8_100)).expect("due");
        assert_eq!(lease.silent_at(), Some(ms(8_100 + 4_000)), "it is known to take two seconds");
        let token = lease.on_reconnected(ms(9_000));
        assert!(lease.on_kept_alive(ms(9_001), token));
        lease.poll(ms(12_400)).expect("due");
        assert_eq!(lease.silent_at(), Some(ms(12_400 + 1_250)), "this one is faster");
    }

    #[test]
    fn a_lease_without_answers_keeps_few_questions() {
        let mut lease = lease();
        for tick in 0..1_000 {
            lease.poll(ms(2_000) * tick);
        }
        assert_eq!(lease.unanswered.len(), MAX_UNANSWERED);
    }

    proptest! {
        /// Compares the lease with a naive model. The lease is never valid longer than `ttl * (1 - rho)`
        /// after the sending of an answered keep-alive. An epoch that was lost once stays lost.
        #[test]
        fn belief_ends_in_time_and_lost_is_final(steps in prop::collection::vec((0_u64..4_000, 0_u8..4), 1..60)) {
            let mut lease = lease();
            let (mut now, mut confirmed) = (ms(0), ms(0));
            let mut sent_tokens: Vec<(u64, Now)> = Vec::new();
            let mut lost: Vec<Epoch> = Vec::new();
            for (gap, kind) in steps {
                now += ms(gap);
                if lease.state(now) == LeaseState::Lost {
                    lost.push(lease.epoch());
                }
                match kind {
                    0 => sent_tokens.extend(lease.poll(now).map(|token| (token, now))),
                    1 => if let Some((token, sent)) = sent_tokens.pop() && lease.on_kept_alive(now, token) {
                        confirmed = sent;
                    },
                    2 => {
                        sent_tokens.clear();
                        sent_tokens.push((lease.on_reconnected(now), now));
                    }
                    _ => prop_assert!(lease.next_change(now) > now || lease.due_at() <= now),
                }
                prop_assert_eq!(lease.state(now) == LeaseState::Lost, now >= confirmed + ms(9_900));
                for epoch in &lost {
                    prop_assert_eq!(lease.state_of(*epoch, now), LeaseState::Lost);
                }
            }
        }
    }
}
