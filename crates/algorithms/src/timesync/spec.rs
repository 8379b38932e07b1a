//! The properties by which every clock synchronisation algorithm is judged, and the judge.
//!
//! The judge is not part of the system, and it knows the true time. It receives every reading at the moment
//! at which the site gives it. It compares readings of the same moment with each other. Intervals on a line
//! overlap pairwise if and only if they all have a point in common. So it is enough to keep the largest lower
//! end and the smallest upper end.
//!
//! **Steps**: a clock that jumps violates its specification. A site that relies on this clock cannot notice
//! the jump before the next comparison. After [`Judge::stepped`] the judge therefore excuses the site's
//! intervals until the site has made two comparisons. The first of them does not suffice, because it may have
//! been under way during the jump. Two suffice if the jump is larger than the bound that the site states. A
//! smaller jump is hidden in the bound, and the judge reports it as a violation. The site's own clock must
//! not go back at any time, also while the site is excused.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Judgement, Kind, NodeId, Property, Time};

use super::interval::{drift, local};
use super::{Epoch, Reading};

/// The interval of a site contains the true time.
pub const TRUTH: Property = Property {
    name: "truth",
    kind: Kind::Always,
    statement: "the true time lies inside the interval that a site states",
    source: "[C89]",
};
/// The clocks of a group are as close to each other as they state.
pub const AGREEMENT: Property = Property {
    name: "agreement",
    kind: Kind::Always,
    statement: "two clocks that follow the same reference differ by at most the sum of their bounds",
    source: "[GZ89]",
};
/// Clocks never run backwards.
pub const NEVER_BACK: Property = Property {
    name: "never-back",
    kind: Kind::Always,
    statement: "no clock is ever set back",
    source: "[C89]",
};
/// No clock runs faster than the fastest oscillator.
pub const PACE: Property = Property {
    name: "pace",
    kind: Kind::Always,
    statement: "the clocks of a group do not run faster than the fastest oscillator can",
    source: "[LWSW16]",
};

/// All properties of the problem.
pub const PROPERTIES: [Property; 4] = [TRUTH, AGREEMENT, NEVER_BACK, PACE];

/// A violation of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The property.
    pub property: Property,
    /// A description of what happened.
    pub why: String,
}

/// The judge of a run. It receives every reading and reports violations.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The number of servers. They are the reference, so the judge only checks that their clocks do not go
    /// back.
    servers: u32,
    drift_ppm: u32,
    /// The latest value of each site's clock.
    last: Vec<Option<i64>>,
    /// The moment being judged. For each reference of its readings, `meeting` has the largest lower end and
    /// the smallest upper end, with their sites.
    moment: Time,
    meeting: BTreeMap<Epoch, (Edge, Edge)>,
    /// The time from which the pace is judged. Before it, the clocks are brought together, which requires
    /// jumps.
    pace_from: Time,
    /// The first moment at which the pace is judged, and the largest clock of the group at that moment.
    ahead: Option<(Time, i64)>,
    /// The excused sites: the time from which their comparisons count, and the number of comparisons still
    /// needed.
    excused: Vec<Option<(Time, u32)>>,
    /// The sites that have received a message of another site. The others cannot have corrected their clock,
    /// even if they state an interval as the master of a group of one.
    has_received: Vec<bool>,
    evidence: Evidence,
}

/// Properties that a run has put to the test.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    truth: bool,
    agreement: bool,
    never_back: bool,
    pace: bool,
}

/// The number of comparisons after a step until a site's intervals depend on nothing from before the step.
const RECOVERS_AFTER: u32 = 2;

type Edge = (i64, NodeId);

/// The tolerance of the pace in nanoseconds. It covers the rounding of a nanosecond clock and of 6.4 ns ticks
/// between two readings.
const PACE_SLACK: u64 = 64;

impl Judge {
    /// Creates a judge for a group of `nodes` sites, whose clocks are together from `pace_from` on.
    pub fn new(nodes: u32, servers: u32, drift_ppm: u32, pace_from: Time) -> Self {
        Self {
            servers,
            drift_ppm,
            pace_from,
            last: vec![None; nodes as usize],
            moment: Time::ZERO,
            meeting: BTreeMap::new(),
            ahead: None,
            excused: vec![None; nodes as usize],
            has_received: vec![false; nodes as usize],
            evidence: Evidence::default(),
        }
    }

    /// Returns each property with the evidence that the run lacks.
    ///
    /// A site that has never compared its clock states no interval, and has not corrected its clock. Its
    /// readings are no evidence for any property.
    pub fn judgements(&self) -> [Judgement; 4] {
        let Evidence { truth, agreement, never_back, pace } = self.evidence;
        [
            TRUTH.judged_unless(&[(!truth, "no site stated an interval")]),
            AGREEMENT.judged_unless(&[(!agreement, "no two sites stated intervals at the same moment")]),
            NEVER_BACK.judged_unless(&[(!never_back, "no site corrected its clock between two readings")]),
            PACE.judged_unless(&[(!pace, "no two readings of corrected clocks after the first quarter")]),
        ]
    }

    /// Records that a site receives a message of another site.
    pub fn receives(&mut self, site: NodeId) {
        self.has_received[site.index()] = true;
    }

    /// Judges a reading that a site gave at the true time `truth`.
    pub fn told(&mut self, site: NodeId, truth: Time, reading: &Reading, mut breach: impl FnMut(Breach)) {
        if truth != self.moment {
            self.moment = truth;
            self.meeting.clear();
        }
        let last = self.last[site.index()].replace(reading.clock);
        if let Some(last) = last
            && reading.clock < last
        {
            let why = format!("the clock of {site} was set back by {} ns", last - reading.clock);
            breach(Breach { property: NEVER_BACK, why });
        }
        if site.0 < self.servers {
            return;
        }
        self.evidence.never_back |= last.is_some() && self.is_corrected(site, reading);
        self.pace(site, truth, reading, &mut breach);
        let Some(interval) = reading.interval.filter(|_| self.excused[site.index()].is_none()) else {
            return;
        };
        self.evidence.truth = true;
        if !interval.contains(local(truth)) {
            let miss = interval.farthest(local(truth)) - interval.width();
            let why = format!(
                "{site} states the interval {interval} at the true time {} ns, which lies {miss} ns outside",
                local(truth)
            );
            breach(Breach { property: TRUTH, why });
        }
        self.agreement(site, reading.epoch, interval.lo, interval.hi, &mut breach);
    }

    /// Records that the clock on which a site relies has jumped. The site's comparisons from `from` on count
    /// towards its recovery.
    pub fn stepped(&mut self, site: NodeId, from: Time) {
        self.excused[site.index()] = Some((from, RECOVERS_AFTER));
    }

    /// Records that a site has compared its clock. `upstream` is the site whose clock it used, if any. A
    /// comparison with an excused site does not count.
    pub fn compared(&mut self, site: NodeId, truth: Time, upstream: Option<NodeId>) {
        let is_misled = upstream.is_some_and(|upstream| self.excused[upstream.index()].is_some());
        let excused = &mut self.excused[site.index()];
        if let Some((_, left)) = excused.as_mut().filter(|(from, _)| *from <= truth && !is_misled) {
            *left -= 1;
            if *left == 0 {
                *excused = None;
            }
        }
    }

    /// Records that a site has lost its memory: its clock starts anew.
    pub fn forgets(&mut self, site: NodeId) {
        self.last[site.index()] = None;
    }

    fn agreement(&mut self, site: NodeId, epoch: Epoch, lo: i64, hi: i64, breach: &mut impl FnMut(Breach)) {
        self.evidence.agreement |= self.meeting.get(&epoch).is_some_and(|(latest, _)| latest.1 != site);
        let (latest, earliest) = self.meeting.entry(epoch).or_insert(((lo, site), (hi, site)));
        *latest = (*latest).max((lo, site));
        *earliest = (*earliest).min((hi, site));
        if latest.0 > earliest.0 {
            let why = format!(
                "{} and {} differ by {} ns more than the sum of their bounds",
                earliest.1,
                latest.1,
                latest.0 - earliest.0
            );
            breach(Breach { property: AGREEMENT, why });
        }
    }

    fn is_corrected(&self, site: NodeId, reading: &Reading) -> bool {
        reading.interval.is_some() && self.has_received[site.index()]
    }

    fn pace(&mut self, site: NodeId, truth: Time, reading: &Reading, breach: &mut impl FnMut(Breach)) {
        if truth < self.pace_from {
            return;
        }
        let Some((since, clock)) = self.ahead.filter(|(since, _)| *since < truth) else {
            let most = self.ahead.map_or(reading.clock, |(_, clock)| clock.max(reading.clock));
            self.ahead = Some((truth, most));
            return;
        };
        self.evidence.pace |= self.is_corrected(site, reading);
        // rho times the true time would be the exact limit. `drift` takes a time that a clock has counted,
        // and its result is slightly larger; the judge allows it.
        let elapsed = truth.since(since);
        let most = clock
            .saturating_add_unsigned(conclave_kernel::time::nanos(elapsed))
            .saturating_add_unsigned(drift(elapsed, self.drift_ppm))
            .saturating_add_unsigned(PACE_SLACK);
        if reading.clock > most {
            let why = format!(
                "the clock of {site} is {} ns ahead of what the fastest oscillator allows",
                reading.clock - most
            );
            breach(Breach { property: PACE, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Interval;
    use super::*;

    fn reading(clock: i64, bound: u64) -> Reading {
        Reading { clock, interval: Some(Interval::around(clock, bound)), epoch: Epoch::START }
    }

    fn broken(readings: &[(u32, u64, Reading)]) -> Vec<&'static str> {
        let mut judge = Judge::new(3, 0, 100, Time::ZERO);
        let mut names = Vec::new();
        for (site, truth, reading) in readings {
            judge.told(NodeId(*site), Time(*truth), reading, |breach| names.push(breach.property.name));
        }
        names
    }

    #[test]
    fn readings_without_an_interval_put_no_property_to_the_test() {
        let tested = |readings: &[(u32, u64, Reading)]| {
            let mut judge = Judge::new(3, 1, 100, Time::ZERO);
            (0..3).for_each(|site| judge.receives(NodeId(site)));
            for (site, truth, reading) in readings {
                judge.told(NodeId(*site), Time(*truth), reading, |_| {});
            }
            judge.judgements().map(|judgement| judgement.missing.is_none())
        };
        let none = |clock| Reading { interval: None, ..reading(clock, 0) };
        assert_eq!(tested(&[(1, 100, none(95)), (2, 100, none(99)), (1, 200, none(195))]), [false; 4]);
        assert_eq!(tested(&[(0, 100, reading(100, 0)), (0, 200, reading(200, 0))]), [false; 4], "a server");
        assert_eq!(tested(&[(1, 100, reading(95, 5))]), [true, false, false, false]);
        assert_eq!(
            tested(&[(1, 100, reading(95, 5)), (2, 100, reading(99, 5)), (1, 200, reading(195, 5))]),
            [true; 4]
        );
    }

    #[test]
    fn a_site_without_a_message_of_another_has_not_corrected_its_clock() {
        let mut judge = Judge::new(1, 0, 100, Time::ZERO);
        for truth in [100, 200] {
            judge.told(NodeId(0), Time(truth), &reading(truth as i64, 5), |_| {});
        }
        let tested = judge.judgements().map(|judgement| judgement.missing.is_none());
        assert_eq!(tested, [true, false, false, false]);
    }

    #[test]
    fn intervals_that_hold_the_true_time_are_fine() {
        assert!(
            broken(&[(0, 100, reading(95, 5)), (1, 100, reading(105, 5)), (0, 200, reading(205, 5))])
                .is_empty()
        );
    }

    #[test]
    fn an_interval_beside_the_true_time_breaks_truth() {
        assert_eq!(broken(&[(0, 100, reading(94, 5))]), ["truth"]);
    }

    #[test]
    fn two_clocks_further_apart_than_they_state_break_agreement() {
        assert_eq!(broken(&[(0, 100, reading(98, 5)), (1, 100, reading(109, 5))]), ["truth", "agreement"]);
        let other = Reading { epoch: Epoch { round: 1, ..Epoch::START }, ..reading(109, 9) };
        assert!(broken(&[(0, 100, reading(98, 2)), (1, 100, other)]).is_empty(), "another reference");
    }

    #[test]
    fn after_a_step_two_comparisons_later_the_truth_is_demanded_again() {
        let mut judge = Judge::new(3, 0, 100, Time::ZERO);
        let broken = |judge: &mut Judge, at| {
            let mut names = Vec::new();
            judge.told(NodeId(1), Time(at), &reading(1_000, 5), |breach| names.push(breach.property.name));
            names
        };
        judge.stepped(NodeId(1), Time(50));
        judge.stepped(NodeId(2), Time(50));
        assert!(broken(&mut judge, 40).is_empty());
        judge.compared(NodeId(1), Time(49), None); // before `from`: it does not count
        judge.compared(NodeId(1), Time(60), None);
        judge.compared(NodeId(1), Time(70), Some(NodeId(2))); // site 2 is excused itself
        assert!(broken(&mut judge, 70).is_empty());
        judge.compared(NodeId(1), Time(80), None);
        assert_eq!(broken(&mut judge, 80), ["truth"]);
    }

    #[test]
    fn a_clock_that_goes_back_is_seen() {
        let early = Reading { interval: None, ..reading(50, 0) };
        assert_eq!(broken(&[(0, 10, early), (0, 20, Reading { clock: 49, ..early })]), ["never-back"]);
    }

    #[test]
    fn a_group_that_runs_away_is_seen() {
        let at = |clock| reading(clock, 1_000_000_000);
        assert!(broken(&[(0, 0, at(0)), (1, 0, at(9)), (0, 1_000_000, at(1_000_150))]).is_empty());
        assert_eq!(broken(&[(0, 0, at(0)), (1, 0, at(9)), (0, 1_000_000, at(1_000_200))]), ["pace"]);
    }
}
