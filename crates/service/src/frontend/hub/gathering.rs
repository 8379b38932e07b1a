//! When to propose: at once, or when those who were just answered have asked again.
//!
//! **Intuition.** A flush costs the same for one command and for a hundred. Clients that ask, hear and ask again fall into two
//! halves that take turns: while one is on its way to the disk the other is answered, and each flush has half of what
//! it could have. Whoever was just answered is often back in a moment: then waiting for that moment makes all of them faster.
//!
//! **Rules.**
//! - When all is answered that a connection had in a flush, it is expected to ask as much again. What it has not asked yet
//!   since then is *away*. What has gathered waits while more than one in eight of what was answered since the last flush are.
//! - Not for long: it goes when nobody has come back for a [pause](PAUSE_EACH), and [`LIMIT`] after it could have gone.
//! - Only while it pays: if most did not come back, the next flushes do not wait, twice as many each time.
//!
//! **Two traps.** Whoever waits in a line for a lock asks nothing, though something else it asked was answered: such a
//! connection is not expected to. And nobody comes back before the answer was sent, and sending takes its time: the
//! pause begins after that, and whether or not there is anything that waits.

use std::time::Duration;

use conclave_node::leases::Now;

/// How long nobody may come back, for each answer: for one alone there is little to gain, and the more there are
/// the longer some of them may wait for a processor.
const PAUSE_EACH: Duration = Duration::from_micros(25);
/// The shortest pause and the longest. A round trip on one machine takes a tenth of the shortest if nobody sleeps.
const PAUSE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_micros(500));
/// How long what has gathered waits at most.
const LIMIT: Duration = Duration::from_millis(2);
/// So many flushes at most go without waiting before it is tried again.
const MOST_SKIPPED: u32 = 255;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Counts what was proposed: who was answered before that is not waited for any more.
    flush: u64,
    /// What was answered since the last flush of connections that have all their answers, and how much of it is away.
    answered: usize,
    away: usize,
    waits_since: Option<Now>,
    /// Since when nobody came back; unknown if somebody did since the last look.
    pause_since: Option<Now>,
    has_roused: bool,
    /// How many flushes are not to wait, and how many did not.
    to_skip: u32,
    skipped: u32,
}

/// What a connection has asked.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Requests without an answer.
    waiting: usize,
    /// What was asked since this flush was proposed and has no answer, and what was answered since then.
    flush: u64,
    asked: usize,
    answered: usize,
}

impl Asked {
    /// How much was answered, if what waits was asked since then: else the flush is not over, or something is in a line.
    fn answered(&self) -> usize {
        if self.waiting == self.asked { self.answered } else { 0 }
    }

    fn away(&self) -> usize {
        self.answered().saturating_sub(self.asked)
    }
}

impl Gathering {
    pub(super) fn on_asked(&mut self, connection: &mut Asked) {
        let away = self.away;
        self.change(connection, |connection| {
            connection.waiting += 1;
            connection.asked += 1;
        });
        if self.away < away {
            self.pause_since = None;
        }
    }

    pub(super) fn on_answered(&mut self, connection: &mut Asked) {
        self.change(connection, |connection| {
            connection.waiting = connection.waiting.saturating_sub(1);
            connection.asked = connection.asked.min(connection.waiting);
            connection.answered += 1;
        });
    }

    pub(super) fn on_detached(&mut self, mut connection: Asked) {
        self.change(&mut connection, |connection| *connection = Asked::default());
    }

    fn change(&mut self, connection: &mut Asked, change: impl FnOnce(&mut Asked)) {
        if connection.flush != self.flush {
            *connection = Asked { waiting: connection.waiting, flush: self.flush, ..Asked::default() };
        }
        self.answered -= connection.answered();
        self.away -= connection.away();
        change(connection);
        self.answered += connection.answered();
        self.away += connection.away();
    }

    /// Answers have just been sent.
    pub(super) fn on_sent(&mut self) {
        self.pause_since = None;
    }

    /// Whether what has gathered waits. To be asked at every turn in which it could go, even if there is nothing yet.
    pub(super) fn waits(&mut self, now: Now, has_something: bool) -> bool {
        let pause_since = *self.pause_since.get_or_insert(now);
        if has_something && self.is_worth_it() {
            self.waits_since.get_or_insert(now);
        }
        self.is_worth_it()
            && now < pause_since + self.pause()
            && self.waits_since.is_none_or(|waits_since| now < waits_since + LIMIT)
    }

    fn pause(&self) -> Duration {
        let answered = u32::try_from(self.answered).unwrap_or(u32::MAX);
        PAUSE_EACH.saturating_mul(answered).clamp(PAUSE.0, PAUSE.1)
    }

    /// Once a flush, when most are back: what has gathered goes soon.
    pub(super) fn is_time_to_rouse(&mut self) -> bool {
        !self.has_roused && {
            self.has_roused = self.away <= self.answered / 4;
            self.has_roused
        }
    }

    /// Whether something has waited since it could have gone.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits_since.is_some()
    }

    fn is_worth_it(&self) -> bool {
        self.skipped == self.to_skip && self.away > self.answered / 8
    }

    /// What has gathered goes: those who are still away are not waited for any more.
    pub(super) fn on_proposed(&mut self) {
        let (to_skip, skipped) = match self.waits_since {
            Some(_) if self.away > self.answered / 2 => ((2 * self.to_skip + 1).min(MOST_SKIPPED), 0),
            Some(_) => (0, 0),
            None => (self.to_skip, self.to_skip.min(self.skipped + 1)),
        };
        *self = Self { flush: self.flush + 1, to_skip, skipped, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_micros(10);

    /// So many connections that have asked and were all answered; the answers are sent.
    fn answered(gathering: &mut Gathering, connections: &mut [Asked]) {
        connections.iter_mut().for_each(|connection| gathering.on_asked(connection));
        connections.iter_mut().for_each(|connection| gathering.on_answered(connection));
        gathering.on_sent();
    }

    fn connections(count: usize) -> Vec<Asked> {
        (0..count).map(|_| Asked::default()).collect()
    }

    #[test]
    fn the_one_who_comes_back_waits_for_nobody() {
        let (mut gathering, mut one) = (Gathering::default(), connections(1));
        answered(&mut gathering, &mut one);
        assert!(gathering.waits(MOMENT, false));
        gathering.on_asked(&mut one[0]);
        assert!(!gathering.waits(2 * MOMENT, true));
    }

    #[test]
    fn the_first_who_are_back_wait_for_most_of_the_others() {
        let (mut gathering, mut all) = (Gathering::default(), connections(64));
        answered(&mut gathering, &mut all);
        let mut now = MOMENT;
        for (back, connection) in all.iter_mut().take(56).enumerate() {
            assert!(gathering.waits(now, true), "{back} are back");
            gathering.on_asked(connection);
            now += MOMENT;
        }
        assert!(!gathering.waits(now, true));
    }

    /// One connection that had so many requests in a flush, all of which are answered; the answers are sent.
    fn answered_together(gathering: &mut Gathering, count: usize) -> Asked {
        let mut connection = Asked::default();
        (0..count).for_each(|_| gathering.on_asked(&mut connection));
        gathering.on_proposed();
        (0..count).for_each(|_| gathering.on_answered(&mut connection));
        gathering.on_sent();
        connection
    }

    #[test]
    fn what_one_connection_asks_in_parts_is_waited_for() {
        let mut gathering = Gathering::default();
        let mut one = answered_together(&mut gathering, 64);
        for back in 0..56 {
            assert!(gathering.waits(MOMENT, true), "{back} are back");
            gathering.on_asked(&mut one);
        }
        assert!(!gathering.waits(MOMENT, true));
        (56..64).for_each(|_| gathering.on_asked(&mut one));
        assert!(!gathering.waits(MOMENT, true));
    }

    /// What was parted by a flush that went too early comes together again.
    #[test]
    fn two_parts_of_a_connection_become_one() {
        let mut gathering = Gathering::default();
        let mut one = answered_together(&mut gathering, 64);
        (0..16).for_each(|_| gathering.on_asked(&mut one));
        gathering.on_proposed();
        (0..48).for_each(|_| gathering.on_asked(&mut one));
        (0..16).for_each(|_| gathering.on_answered(&mut one));
        assert!(!gathering.waits(MOMENT, true), "more has been asked than was answered");
        gathering.on_proposed();
        (0..16).for_each(|_| gathering.on_asked(&mut one));
        (0..47).for_each(|_| gathering.on_answered(&mut one));
        assert!(!gathering.waits(MOMENT, true), "the flush is not over");
        gathering.on_answered(&mut one);
        assert!(gathering.waits(MOMENT, true));
        (0..26).for_each(|_| gathering.on_asked(&mut one));
        assert!(!gathering.waits(MOMENT, true), "most of what was answered is back");
    }

    #[test]
    fn who_stands_in_a_line_is_not_waited_for() {
        let (mut gathering, mut one) = (Gathering::default(), Asked::default());
        // A release and an acquire, of which the second waits for somebody else.
        (0..2).for_each(|_| gathering.on_asked(&mut one));
        gathering.on_proposed();
        gathering.on_answered(&mut one);
        assert!(!gathering.waits(MOMENT, true));
        gathering.on_proposed();
        gathering.on_answered(&mut one);
        assert!(gathering.waits(MOMENT, true), "it has what it waited for");
    }

    #[test]
    fn the_log_is_roused_once_shortly_before_it_is_needed() {
        let (mut gathering, mut all) = (Gathering::default(), connections(64));
        all.iter_mut().for_each(|connection| gathering.on_asked(connection));
        for _ in 0..3 {
            all.iter_mut().for_each(|connection| gathering.on_answered(connection));
            let roused = all.iter_mut().take(56).map(|connection| {
                gathering.on_asked(connection);
                gathering.is_time_to_rouse()
            });
            let when: Vec<usize> =
                (1..).zip(roused).filter(|(_, roused)| *roused).map(|(back, _)| back).collect();
            assert_eq!(when, [48]);
            gathering.on_proposed();
            all[56..].iter_mut().for_each(|connection| gathering.on_asked(connection));
        }
    }

    #[test]
    fn who_has_asked_ahead_is_not_waited_for() {
        let (mut gathering, mut one) = (Gathering::default(), connections(1));
        gathering.on_asked(&mut one[0]);
        answered(&mut gathering, &mut one);
        assert!(!gathering.waits(MOMENT, true));
    }

    #[test]
    fn who_has_gone_is_not_waited_for() {
        let (mut gathering, mut two) = (Gathering::default(), connections(2));
        answered(&mut gathering, &mut two);
        two.into_iter().for_each(|connection| gathering.on_detached(connection));
        assert!(!gathering.waits(MOMENT, true));
    }

    #[test]
    fn nobody_back_for_a_pause_ends_the_wait() {
        let (mut gathering, mut all) = (Gathering::default(), connections(64));
        answered(&mut gathering, &mut all);
        let (_, pause) = PAUSE;
        assert!(gathering.waits(MOMENT, true));
        gathering.on_asked(&mut all[0]);
        assert!(gathering.waits(pause, true));
        assert!(gathering.waits(2 * pause - MOMENT, true));
        assert!(!gathering.waits(2 * pause, true));
    }

    #[test]
    fn few_are_not_waited_for_as_long_as_many() {
        for (count, pause) in [(1, 100), (4, 100), (10, 250), (20, 500), (100, 500)] {
            let (mut gathering, mut all) = (Gathering::default(), connections(count));
            answered(&mut gathering, &mut all);
            let pause = Duration::from_micros(pause);
            assert!(gathering.waits(Now::ZERO, true));
            assert!(gathering.waits(pause - MOMENT, true), "{count} were answered");
            assert!(!gathering.waits(pause, true), "{count} were answered");
        }
    }

    #[test]
    fn the_pause_goes_on_while_nothing_has_gathered() {
        let (mut gathering, mut two) = (Gathering::default(), connections(2));
        answered(&mut gathering, &mut two);
        assert!(gathering.waits(MOMENT, false));
        assert!(!gathering.waits(MOMENT + PAUSE.0, true));
    }

    #[test]
    fn a_trickle_does_not_delay_for_ever() {
        let (mut gathering, mut all) = (Gathering::default(), connections(10_000));
        answered(&mut gathering, &mut all);
        let mut now = MOMENT;
        let mut back = all.iter_mut();
        while gathering.waits(now, true) {
            gathering.on_asked(back.next().expect("most are away"));
            now += MOMENT;
        }
        assert_eq!(now, MOMENT + LIMIT);
    }

    #[test]
    fn after_waits_in_vain_more_and_more_flushes_do_not_wait() {
        let (mut gathering, mut two) = (Gathering::default(), connections(2));
        let (mut now, mut waited) = (MOMENT, Vec::new());
        for _ in 0..20 {
            answered(&mut gathering, &mut two);
            waited.push(gathering.waits(now, true));
            now += PAUSE.0;
            assert!(!gathering.waits(now, true));
            gathering.on_proposed();
        }
        let when: Vec<usize> = (0..20).filter(|&flush| waited[flush]).collect();
        assert_eq!(when, [0, 2, 6, 14]);
    }

    #[test]
    fn one_wait_that_paid_restores_the_trust() {
        let (mut gathering, mut two) =
            (Gathering { to_skip: 31, skipped: 31, ..Gathering::default() }, connections(2));
        answered(&mut gathering, &mut two);
        assert!(gathering.waits(MOMENT, true));
        two.iter_mut().for_each(|connection| gathering.on_asked(connection));
        gathering.on_proposed();
        assert_eq!((gathering.to_skip, gathering.skipped), (0, 0));
    }
}
