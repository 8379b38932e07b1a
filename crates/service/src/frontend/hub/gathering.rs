//! When to propose: at once, or when those who were just answered have asked again.
//!
//! **Intuition.** A flush costs the same for one command and for a hundred. Clients that ask, hear and ask again fall into two
//! halves that take turns: while one is on its way to the disk the other is answered, and each flush has half of what
//! it could have. Whoever was just answered is often back in a moment: then waiting for that moment makes all of them faster.
//!
//! **Rules.**
//! - A connection is *away* when the last of its requests was answered, until it asks again. What has gathered waits while
//!   more than one in eight of those who were answered by the last flush are away.
//! - Not for long: it goes when nobody has come back for a [pause](PAUSE_EACH), and [`LIMIT`] after it could have gone.
//! - Only while it pays: if most did not come back, the next flushes do not wait, twice as many each time.
//!
//! **The trap.** Nobody comes back before the answer was sent, and sending takes its time: the pause begins after that, and
//! whether or not there is anything that waits.

use std::time::Duration;

use crate::lease::Now;

/// How long nobody may come back, for each who was answered: for one alone there is little to gain, and the more there are
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
    /// Connections that had all their answers since the last flush, and how many of them have not asked since.
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
    /// The flush after which it went away, if it is.
    away: Option<u64>,
}

impl Gathering {
    pub(super) fn on_asked(&mut self, connection: &mut Asked) {
        connection.waiting += 1;
        self.end_absence(connection);
    }

    pub(super) fn on_answered(&mut self, connection: &mut Asked) {
        connection.waiting = connection.waiting.saturating_sub(1);
        if connection.waiting == 0 && connection.away != Some(self.flush) {
            connection.away = Some(self.flush);
            self.answered += 1;
            self.away += 1;
        }
    }

    /// Answers have just been sent.
    pub(super) fn on_sent(&mut self) {
        self.pause_since = None;
    }

    pub(super) fn on_detached(&mut self, mut connection: Asked) {
        self.end_absence(&mut connection);
    }

    fn end_absence(&mut self, connection: &mut Asked) {
        if connection.away.take() == Some(self.flush) {
            self.away -= 1;
            self.pause_since = None;
        }
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
