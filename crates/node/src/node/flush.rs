//! The flush policy: the only place that decides when to propose, to send, to wake the log's writer and to
//! poll.
//!
//! **Intuition.** A batch costs the same for one command and for a hundred. Clients that send again after
//! each reply fall into two halves. While one half is in the batch on its way to the disk, the other half
//! gets replies. Each batch is then half as large as it could be. A client that just got a reply often sends
//! its next request within microseconds. A short delay of the batch then makes all clients faster.
//!
//! **Rules.**
//! - One batch at a time. A client with an *early grant* is an exception: its next request is proposed at
//!   once. If reads wait, it is not, because a single node serves reads only between two batches.
//! - After the last reply to a connection's requests in a batch, the connection is expected to send as many
//!   again. Requests of these that have not arrived are *expected*. A batch is delayed while more than one in
//!   eight of the replied requests is expected.
//! - A delay ends when no request has arrived for a [pause](PAUSE_EACH), and after [`LIMIT`] in any case.
//! - If most expected requests did not arrive, the next batches are not delayed: 1, then 3, 7, ... up to
//!   [`MAX_SKIPPED`].
//! - Replies of applied entries are sent after the next batch is proposed: then the disk works while they are
//!   sent.
//! - After a request or the end of a batch the driver polls for [`SPIN`] before it sleeps, if there are
//!   several processors.
//!
//! **Traps.** A client that waits in the queue of a lock sends nothing, although another of its requests got
//! a reply: it is not expected. Sending replies takes time, and no client sends again before its reply. So
//! the pause begins after the replies are sent, whether or not a command waits.

use std::time::Duration;

use crate::leases::Now;

/// The pause per counted reply, within the bounds of [`PAUSE`]. A delay for one client gains little; many
/// clients need longer.
const PAUSE_EACH: Duration = Duration::from_micros(25);
/// The bounds of the pause. If no thread sleeps, a round trip on one machine takes a tenth of the shorter
/// bound (estimate).
const PAUSE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_micros(500));
/// The longest delay of a batch. Then it is proposed, whatever is expected.
const LIMIT: Duration = Duration::from_millis(2);
/// The most batches without a delay, after delays that gained nothing.
const MAX_SKIPPED: u32 = 255;
/// The time for which the driver polls before it sleeps. Clients often send the next request within
/// microseconds of a reply, and waking a thread takes about 30 us.
const SPIN: Duration = Duration::from_micros(200);

/// The event that woke the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Clients sent something, or the results of a batch arrived.
    Work,
    /// Entries were applied.
    Applied,
    /// Anything else: a timer, a round, another node, an early effect.
    #[default]
    Other,
}

/// The facts that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// The present time.
    pub(super) now: Now,
    /// The commands that wait for the next batch.
    pub(super) queued: usize,
    /// The batches in flight.
    pub(super) in_flight: usize,
    /// Reads are ready, but were not served in this turn.
    pub(super) reads_ready: bool,
    /// The event that woke the driver.
    pub(super) cause: Cause,
    /// Whether another processor can work meanwhile. On one processor nothing is delayed and nothing polls.
    pub(super) multi_core: bool,
}

/// The decisions of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Propose the queued commands.
    pub(super) propose: bool,
    /// Send the replies.
    pub(super) send: bool,
    /// Wake the thread that writes the log: a batch follows soon.
    pub(super) wake_log_writer: bool,
    /// Poll for the next event instead of sleeping.
    pub(super) spin: bool,
}

/// The state of the policy.
#[derive(Debug, Default)]
pub(super) struct FlushPolicy {
    /// The expectations about clients, since the last batch.
    delay: Delay,
    /// A client with an early grant sent a request that is not proposed yet.
    is_urgent: bool,
    /// The end of polling.
    spin_until: Now,
}

/// The expectations about clients: which of them will send another request soon.
#[derive(Debug, Default)]
struct Delay {
    /// The number of the batch. Replies before it raise no expectation any more.
    batch: u64,
    /// The replies since the last batch, of connections that have all their replies.
    replied: usize,
    /// The part of them whose next request has not arrived.
    expected: usize,
    /// The start of the present delay.
    since: Option<Now>,
    /// The start of the present pause; `None` if an expected request has arrived, or replies were sent, since
    /// the last decision.
    pause_since: Option<Now>,
    /// Whether the log's writer was woken for this batch.
    has_woken_writer: bool,
    /// The number of batches to propose without a delay.
    to_skip: u32,
    /// The number of them that were proposed.
    skipped: u32,
}

/// The requests and replies of one connection, as the policy counts them.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// The requests without a reply.
    waiting: usize,
    /// The batch in which the next two fields were counted.
    batch: u64,
    /// The requests and the replies since that batch was proposed.
    requested: usize,
    replied: usize,
    /// The connection got an early grant and has sent no request since.
    has_early_grant: bool,
}

impl Activity {
    /// Returns the number of replies if every request of earlier batches has its reply, otherwise 0.
    fn replied(&self) -> usize {
        if self.waiting == self.requested { self.replied } else { 0 }
    }

    fn expected(&self) -> usize {
        self.replied().saturating_sub(self.requested)
    }
}

impl FlushPolicy {
    /// Returns whether reads of the state may be served. Between a proposal and its result, the state of a
    /// single node may contain entries that are not on disk.
    pub(super) fn may_serve_reads(in_flight: usize, may_be_unsynced: bool) -> bool {
        in_flight == 0 || !may_be_unsynced
    }

    /// Counts a request of a client.
    pub(super) fn on_request(&mut self, connection: &mut Activity) {
        self.is_urgent |= std::mem::take(&mut connection.has_early_grant);
        let expected = self.delay.expected;
        self.delay.change(connection, |connection| {
            connection.waiting += 1;
            connection.requested += 1;
        });
        if self.delay.expected < expected {
            self.delay.pause_since = None;
        }
    }

    /// Counts the last reply to a request.
    pub(super) fn on_reply(&mut self, connection: &mut Activity) {
        self.delay.change(connection, |connection| {
            connection.waiting = connection.waiting.saturating_sub(1);
            connection.requested = connection.requested.min(connection.waiting);
            connection.replied += 1;
        });
    }

    /// Records an early grant: the next request of this client need not wait for the sync either.
    pub(super) fn on_early_grant(&mut self, connection: &mut Activity) {
        connection.has_early_grant = true;
    }

    /// Removes a connection from the counts.
    pub(super) fn on_detached(&mut self, mut connection: Activity) {
        self.delay.change(&mut connection, |connection| {
            *connection = Activity { batch: connection.batch, ..Activity::default() };
        });
    }

    /// Restarts the pause after replies were sent.
    pub(super) fn on_sent(&mut self) {
        self.delay.pause_since = None;
    }

    /// Decides once per turn. If it decides to propose, the caller proposes all queued commands.
    pub(super) fn decide(&mut self, turn: &Situation) -> Decision {
        if turn.multi_core && turn.cause == Cause::Work {
            self.spin_until = turn.now + SPIN;
        }
        let must_wait = turn.queued > 0 && turn.in_flight > 0;
        let (propose, wake_log_writer) = self.decide_to_propose(turn);
        if propose {
            self.on_proposed();
        }
        Decision {
            propose,
            wake_log_writer,
            send: turn.cause != Cause::Applied || !must_wait,
            spin: self.delay.since.is_some() || turn.now < self.spin_until,
        }
    }

    fn decide_to_propose(&mut self, turn: &Situation) -> (bool, bool) {
        let is_urgent = self.is_urgent && !turn.reads_ready;
        if turn.in_flight > 0 && !is_urgent {
            return (false, false);
        }
        let has_commands = turn.queued > 0;
        let is_delayed = !is_urgent && turn.multi_core && self.delay.should_delay(turn.now, has_commands);
        let wakes = has_commands && self.delay.should_wake_writer();
        (has_commands && !is_delayed, wakes)
    }

    fn on_proposed(&mut self) {
        self.is_urgent = false;
        self.delay.on_proposed();
    }
}

impl Delay {
    fn change(&mut self, connection: &mut Activity, change: impl FnOnce(&mut Activity)) {
        if connection.batch != self.batch {
            let Activity { waiting, has_early_grant, .. } = *connection;
            *connection = Activity { waiting, has_early_grant, batch: self.batch, ..Activity::default() };
        }
        self.replied -= connection.replied();
        self.expected -= connection.expected();
        change(connection);
        self.replied += connection.replied();
        self.expected += connection.expected();
    }

    /// Returns whether the batch is delayed. Called in every turn in which a batch could go, even if no
    /// command waits.
    fn should_delay(&mut self, now: Now, has_commands: bool) -> bool {
        let pause_since = *self.pause_since.get_or_insert(now);
        if has_commands && self.is_worthwhile() {
            self.since.get_or_insert(now);
        }
        self.is_worthwhile()
            && now < pause_since + self.pause()
            && self.since.is_none_or(|since| now < since + LIMIT)
    }

    fn pause(&self) -> Duration {
        let replied = u32::try_from(self.replied).unwrap_or(u32::MAX);
        PAUSE_EACH.saturating_mul(replied).clamp(PAUSE.0, PAUSE.1)
    }

    /// Returns `true` once per batch, when most expected requests have arrived: the batch goes soon.
    fn should_wake_writer(&mut self) -> bool {
        !self.has_woken_writer && {
            self.has_woken_writer = self.expected <= self.replied / 4;
            self.has_woken_writer
        }
    }

    fn is_worthwhile(&self) -> bool {
        self.skipped == self.to_skip && self.expected > self.replied / 8
    }

    /// Starts the counts of the next batch. Requests that have not arrived are no longer expected.
    fn on_proposed(&mut self) {
        let (to_skip, skipped) = match self.since {
            Some(_) if self.expected > self.replied / 2 => ((2 * self.to_skip + 1).min(MAX_SKIPPED), 0),
            Some(_) => (0, 0),
            None => (self.to_skip, self.to_skip.min(self.skipped + 1)),
        };
        *self = Self { batch: self.batch + 1, to_skip, skipped, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_micros(10);

    /// Sends one request on each connection and replies to all; the replies are sent.
    fn answered(policy: &mut FlushPolicy, connections: &mut [Activity]) {
        connections.iter_mut().for_each(|connection| policy.on_request(connection));
        connections.iter_mut().for_each(|connection| policy.on_reply(connection));
        policy.on_sent();
    }

    fn connections(count: usize) -> Vec<Activity> {
        (0..count).map(|_| Activity::default()).collect()
    }

    #[test]
    fn a_single_returning_client_is_not_delayed() {
        let (mut policy, mut one) = (FlushPolicy::default(), connections(1));
        answered(&mut policy, &mut one);
        assert!(policy.delay.should_delay(MOMENT, false));
        policy.on_request(&mut one[0]);
        assert!(!policy.delay.should_delay(2 * MOMENT, true));
    }

    #[test]
    fn the_first_returning_clients_wait_for_most_of_the_others() {
        let (mut policy, mut all) = (FlushPolicy::default(), connections(64));
        answered(&mut policy, &mut all);
        let mut now = MOMENT;
        for (back, connection) in all.iter_mut().take(56).enumerate() {
            assert!(policy.delay.should_delay(now, true), "{back} are back");
            policy.on_request(connection);
            now += MOMENT;
        }
        assert!(!policy.delay.should_delay(now, true));
    }

    /// Returns a connection that had `count` requests in one batch and a reply to each; the replies are sent.
    fn answered_together(policy: &mut FlushPolicy, count: usize) -> Activity {
        let mut connection = Activity::default();
        (0..count).for_each(|_| policy.on_request(&mut connection));
        policy.on_proposed();
        (0..count).for_each(|_| policy.on_reply(&mut connection));
        policy.on_sent();
        connection
    }

    #[test]
    fn the_remaining_requests_of_one_connection_are_expected() {
        let mut policy = FlushPolicy::default();
        let mut one = answered_together(&mut policy, 64);
        for back in 0..56 {
            assert!(policy.delay.should_delay(MOMENT, true), "{back} are back");
            policy.on_request(&mut one);
        }
        assert!(!policy.delay.should_delay(MOMENT, true));
        (56..64).for_each(|_| policy.on_request(&mut one));
        assert!(!policy.delay.should_delay(MOMENT, true));
    }

    /// A batch that went too early splits the requests of a connection. Later batches join them again.
    #[test]
    fn two_parts_of_a_connection_become_one() {
        let mut policy = FlushPolicy::default();
        let mut one = answered_together(&mut policy, 64);
        (0..16).for_each(|_| policy.on_request(&mut one));
        policy.on_proposed();
        (0..48).for_each(|_| policy.on_request(&mut one));
        (0..16).for_each(|_| policy.on_reply(&mut one));
        assert!(!policy.delay.should_delay(MOMENT, true), "more requests were sent than replied to");
        policy.on_proposed();
        (0..16).for_each(|_| policy.on_request(&mut one));
        (0..47).for_each(|_| policy.on_reply(&mut one));
        assert!(!policy.delay.should_delay(MOMENT, true), "the batch is still in flight");
        policy.on_reply(&mut one);
        assert!(policy.delay.should_delay(MOMENT, true));
        (0..26).for_each(|_| policy.on_request(&mut one));
        assert!(!policy.delay.should_delay(MOMENT, true), "most of the replied requests have returned");
    }

    #[test]
    fn a_client_that_waits_in_a_queue_is_not_expected() {
        let (mut policy, mut one) = (FlushPolicy::default(), Activity::default());
        // A release and an acquire; the acquire waits in a queue.
        (0..2).for_each(|_| policy.on_request(&mut one));
        policy.on_proposed();
        policy.on_reply(&mut one);
        assert!(!policy.delay.should_delay(MOMENT, true));
        policy.on_proposed();
        policy.on_reply(&mut one);
        assert!(policy.delay.should_delay(MOMENT, true), "it has what it waited for");
    }

    #[test]
    fn the_log_writer_is_woken_once_shortly_before_a_batch() {
        let (mut policy, mut all) = (FlushPolicy::default(), connections(64));
        all.iter_mut().for_each(|connection| policy.on_request(connection));
        for _ in 0..3 {
            all.iter_mut().for_each(|connection| policy.on_reply(connection));
            let roused = all.iter_mut().take(56).map(|connection| {
                policy.on_request(connection);
                policy.delay.should_wake_writer()
            });
            let when: Vec<usize> =
                (1..).zip(roused).filter(|(_, roused)| *roused).map(|(back, _)| back).collect();
            assert_eq!(when, [48]);
            policy.on_proposed();
            all[56..].iter_mut().for_each(|connection| policy.on_request(connection));
        }
    }

    #[test]
    fn a_client_that_has_sent_ahead_is_not_expected() {
        let (mut policy, mut one) = (FlushPolicy::default(), connections(1));
        policy.on_request(&mut one[0]);
        answered(&mut policy, &mut one);
        assert!(!policy.delay.should_delay(MOMENT, true));
    }

    #[test]
    fn a_client_that_has_disconnected_is_not_expected() {
        let (mut policy, mut two) = (FlushPolicy::default(), connections(2));
        answered(&mut policy, &mut two);
        two.into_iter().for_each(|connection| policy.on_detached(connection));
        assert!(!policy.delay.should_delay(MOMENT, true));
    }

    #[test]
    fn a_pause_without_a_request_ends_the_delay() {
        let (mut policy, mut all) = (FlushPolicy::default(), connections(64));
        answered(&mut policy, &mut all);
        let (_, pause) = PAUSE;
        assert!(policy.delay.should_delay(MOMENT, true));
        policy.on_request(&mut all[0]);
        assert!(policy.delay.should_delay(pause, true));
        assert!(policy.delay.should_delay(2 * pause - MOMENT, true));
        assert!(!policy.delay.should_delay(2 * pause, true));
    }

    #[test]
    fn few_are_not_waited_for_as_long_as_many() {
        for (count, pause) in [(1, 100), (4, 100), (10, 250), (20, 500), (100, 500)] {
            let (mut policy, mut all) = (FlushPolicy::default(), connections(count));
            answered(&mut policy, &mut all);
            let pause = Duration::from_micros(pause);
            assert!(policy.delay.should_delay(Now::ZERO, true));
            assert!(policy.delay.should_delay(pause - MOMENT, true), "{count} were answered");
            assert!(!policy.delay.should_delay(pause, true), "{count} were answered");
        }
    }

    #[test]
    fn the_pause_goes_on_while_nothing_has_gathered() {
        let (mut policy, mut two) = (FlushPolicy::default(), connections(2));
        answered(&mut policy, &mut two);
        assert!(policy.delay.should_delay(MOMENT, false));
        assert!(!policy.delay.should_delay(MOMENT + PAUSE.0, true));
    }

    #[test]
    fn a_trickle_does_not_delay_for_ever() {
        let (mut policy, mut all) = (FlushPolicy::default(), connections(10_000));
        answered(&mut policy, &mut all);
        let mut now = MOMENT;
        let mut back = all.iter_mut();
        while policy.delay.should_delay(now, true) {
            policy.on_request(back.next().expect("most are away"));
            now += MOMENT;
        }
        assert_eq!(now, MOMENT + LIMIT);
    }

    #[test]
    fn after_waits_in_vain_more_and_more_flushes_do_not_wait() {
        let (mut policy, mut two) = (FlushPolicy::default(), connections(2));
        let (mut now, mut waited) = (MOMENT, Vec::new());
        for _ in 0..20 {
            answered(&mut policy, &mut two);
            waited.push(policy.delay.should_delay(now, true));
            now += PAUSE.0;
            assert!(!policy.delay.should_delay(now, true));
            policy.on_proposed();
        }
        let when: Vec<usize> = (0..20).filter(|&flush| waited[flush]).collect();
        assert_eq!(when, [0, 2, 6, 14]);
    }

    #[test]
    fn one_wait_that_paid_restores_the_trust() {
        let (mut policy, mut two) = (FlushPolicy::default(), connections(2));
        (policy.delay.to_skip, policy.delay.skipped) = (31, 31);
        answered(&mut policy, &mut two);
        assert!(policy.delay.should_delay(MOMENT, true));
        two.iter_mut().for_each(|connection| policy.on_request(connection));
        policy.on_proposed();
        assert_eq!((policy.delay.to_skip, policy.delay.skipped), (0, 0));
    }

    /// All situations, as bits: the decision follows from them alone.
    #[test]
    fn the_decision_of_every_situation_is_the_one_in_the_rules() {
        for bits in 0..1_u32 << 7 {
            let bit = |place: u32| bits >> place & 1 == 1;
            let (queued, in_flight, reads_ready, multi_core) = (bit(0), bit(1), bit(2), bit(3));
            let (urgent, expected) = (bit(4), bit(5));
            for cause in [Cause::Work, Cause::Applied, Cause::Other] {
                let mut policy = FlushPolicy::default();
                let mut others = connections(2);
                if expected {
                    answered(&mut policy, &mut others);
                }
                policy.is_urgent = urgent;
                // Polling goes on from an earlier turn, or has ended.
                policy.spin_until = if bit(6) { 2 * MOMENT } else { Now::ZERO };
                let (queued, in_flight) = (usize::from(queued), usize::from(in_flight));
                let turn = Situation { now: MOMENT, queued, in_flight, reads_ready, cause, multi_core };
                let decision = policy.decide(&turn);

                let passes = urgent && !reads_ready;
                let may_go = queued > 0 && (in_flight == 0 || passes);
                let is_delayed = may_go && expected && multi_core && !passes;
                let rules = Decision {
                    propose: may_go && !is_delayed,
                    send: cause != Cause::Applied || queued == 0 || in_flight == 0,
                    wake_log_writer: may_go && !expected,
                    spin: is_delayed || (multi_core && cause == Cause::Work) || bit(6),
                };
                assert_eq!(decision, rules, "{turn:?}, urgent {urgent}, expected {expected}");
            }
        }
    }

    #[test]
    fn reads_of_a_single_node_are_served_between_two_batches() {
        assert!(FlushPolicy::may_serve_reads(0, true), "no batch is in flight");
        assert!(FlushPolicy::may_serve_reads(1, false), "other nodes apply only what is on disk");
        assert!(!FlushPolicy::may_serve_reads(1, true));
    }
}
