//! Quality of service, counted as the run goes on \[CTA02 §2\].
//!
//! Every ordered pair of sites is a detector: one watches, one is watched. A crash is *detected* by a watcher
//! when the suspicion begins that stands when the site comes back or the run ends. A suspicion of a site that
//! has been up ever since it was last heard is a *mistake*. The mistake lasts until the watcher trusts the site
//! again, until one of the two crashes, or until the run ends. A crash that is over before a watcher ever
//! suspected the site is *unnoticed* by the watcher.

use conclave_algorithms::detector::spec::{ACCURACY, COMPLETENESS};
use conclave_kernel::{Judgement, NodeId, Time, time};

/// All meters of one run.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    sites: Vec<Site>,
    /// A row a watcher.
    pairs: Vec<Pair>,
    pub(super) detections_ns: Vec<u64>,
    pub(super) mistakes: u64,
    pub(super) mistakes_ns: Vec<u64>,
    pub(super) unnoticed: u64,
    /// For how long pairs were up together, summed over pairs.
    pub(super) watched_ns: u128,
    watched_until: Time,
    /// Whether a heartbeat arrived.
    heard: bool,
    /// Whether all who watched a crash suspected the site, or the crash lasted so long that they should.
    crash_judged: bool,
}

#[derive(Clone, Copy, Debug)]
struct Site {
    up: bool,
    /// Its latest crash.
    crashed: Option<Time>,
    /// Its lives so far.
    lives: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    suspected: Option<Time>,
    wrongly: bool,
    /// The life of the watched in which it was last heard.
    heard_in: u32,
}

/// The reason why a run that ends before the first suspicion is no evidence of accuracy.
pub(super) const SHORT: &str = "the run is not longer than T + D";

impl Meter {
    pub(super) fn new(nodes: u32) -> Self {
        let nodes = nodes as usize;
        Self {
            sites: vec![Site { up: true, crashed: None, lives: 0 }; nodes],
            pairs: vec![Pair::default(); nodes * nodes],
            detections_ns: Vec::new(),
            mistakes: 0,
            mistakes_ns: Vec::new(),
            unnoticed: 0,
            watched_ns: 0,
            watched_until: Time::ZERO,
            heard: false,
            crash_judged: false,
        }
    }

    /// Returns the properties that concern every run, with the evidence that the run lacks. `is_short` means
    /// that the run ends before the first suspicion is possible.
    pub(super) fn judgements(&self, is_short: bool) -> [Judgement; 2] {
        let no_crash = self.sites.iter().all(|site| site.crashed.is_none());
        [
            COMPLETENESS.judged_unless(&[
                (no_crash, "no site crashed"),
                (!self.crash_judged, "no crash lasted long enough to be suspected by all"),
            ]),
            ACCURACY.judged_unless(&[(!self.heard, "no heartbeat arrived"), (is_short, SHORT)]),
        ]
    }

    /// A message arrives. It may have been sent in an earlier life; then it is still no news of this one, but
    /// the detector cannot know, and silence counts from here.
    pub(super) fn hears(&mut self, watcher: NodeId, about: NodeId) {
        let lives = self.sites[about.index()].lives;
        self.heard = true;
        self.pair(watcher, about).heard_in = lives;
    }

    /// A watcher suspects; whether that is a mistake.
    pub(super) fn suspects(&mut self, watcher: NodeId, about: NodeId, now: Time) -> bool {
        let Site { up, lives, .. } = self.sites[about.index()];
        let pair = self.pair(watcher, about);
        let wrongly = up && pair.heard_in == lives;
        (pair.suspected, pair.wrongly) = (Some(now), wrongly);
        self.mistakes += u64::from(wrongly);
        wrongly
    }

    pub(super) fn trusts(&mut self, watcher: NodeId, about: NodeId, now: Time) {
        let pair = self.pair(watcher, about);
        let mistake = pair.suspected.take().filter(|_| std::mem::take(&mut pair.wrongly));
        self.mistakes_ns.extend(mistake.map(|since| time::nanos(now.since(since))));
    }

    pub(super) fn crashes(&mut self, site: NodeId, now: Time) {
        self.watch(now);
        let row = &mut self.sites[site.index()];
        (row.up, row.crashed) = (false, Some(now));
        for other in self.others(site) {
            // What was a mistake has come true.
            if self.pair(other, site).wrongly {
                self.trusts(other, site, now);
                self.pair(other, site).suspected = Some(now);
            }
            // Who is dead suspects nobody.
            self.trusts(site, other, now);
        }
    }

    pub(super) fn recovers(&mut self, site: NodeId, now: Time) {
        self.watch(now);
        let crashed = self.sites[site.index()].crashed;
        self.crash_judged |= self.is_suspected_by_all(site);
        for watcher in self.watchers(site) {
            match (crashed, self.pair(watcher, site).suspected) {
                (Some(crashed), Some(since)) => self.detections_ns.push(time::nanos(since.since(crashed))),
                _ => self.unnoticed += 1,
            }
        }
        let row = &mut self.sites[site.index()];
        (row.up, row.lives) = (true, row.lives + 1);
    }

    /// Ends the run. Every site that crashed before `deadline` should be suspected by all sites that are up.
    /// Returns a sentence for each that is not. A mistake that still lasts counts up to the end.
    pub(super) fn close(&mut self, end: Time, deadline: Time) -> Vec<String> {
        self.watch(end);
        let mut undetected = Vec::new();
        let sites = (0..self.sites.len() as u32).map(NodeId);
        for site in sites.clone() {
            let Site { up: false, crashed: Some(crashed), .. } = self.sites[site.index()] else { continue };
            let watchers = self.watchers(site);
            let is_due = crashed <= deadline && !watchers.is_empty();
            self.crash_judged |= is_due || self.is_suspected_by_all(site);
            for watcher in watchers {
                match self.pair(watcher, site).suspected {
                    Some(since) => self.detections_ns.push(time::nanos(since.since(crashed))),
                    None if crashed <= deadline => {
                        undetected
                            .push(format!("{watcher} does not suspect {site}, which crashed at {crashed}"));
                    }
                    None => {}
                }
            }
        }
        let pairs = sites.clone().flat_map(|watcher| sites.clone().map(move |about| (watcher, about)));
        for (watcher, about) in pairs {
            if self.pair(watcher, about).wrongly {
                self.trusts(watcher, about, end);
            }
        }
        undetected
    }

    /// Returns whether there were watchers since the site crashed, and all of them suspect it.
    fn is_suspected_by_all(&mut self, site: NodeId) -> bool {
        let watchers = self.watchers(site);
        !watchers.is_empty()
            && watchers.into_iter().all(|watcher| self.pair(watcher, site).suspected.is_some())
    }

    /// Returns the sites that were up all the time since a site crashed.
    fn watchers(&self, site: NodeId) -> Vec<NodeId> {
        let crashed = self.sites[site.index()].crashed;
        let watched = |other: &NodeId| {
            let row = self.sites[other.index()];
            row.up && row.crashed.is_none_or(|own| crashed.is_some_and(|theirs| own < theirs))
        };
        self.others(site).filter(watched).collect()
    }

    fn others(&self, site: NodeId) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.sites.len() as u32).map(NodeId).filter(move |other| *other != site)
    }

    fn watch(&mut self, now: Time) {
        let up = self.sites.iter().filter(|site| site.up).count() as u128;
        let since = u128::from(time::nanos(now.since(self.watched_until)));
        self.watched_ns += up * up.saturating_sub(1) * since;
        self.watched_until = now;
    }

    fn pair(&mut self, watcher: NodeId, about: NodeId) -> &mut Pair {
        &mut self.pairs[watcher.index() * self.sites.len() + about.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    #[test]
    fn a_mistake_lasts_until_it_is_taken_back() {
        let mut meter = Meter::new(2);
        meter.hears(A, B);
        assert!(meter.suspects(A, B, Time(100)));
        meter.trusts(A, B, Time(130));
        assert!(meter.close(Time(1_000), Time(0)).is_empty());
        assert_eq!((meter.mistakes, &meter.mistakes_ns[..]), (1, &[30][..]));
        assert_eq!(meter.watched_ns, 2_000);
    }

    #[test]
    fn a_mistake_that_is_never_taken_back_lasts_until_the_end_of_the_run() {
        let mut meter = Meter::new(3);
        assert!(meter.suspects(A, B, Time(100)));
        assert!(meter.suspects(B, A, Time(200)));
        meter.suspects(A, NodeId(2), Time(300));
        meter.crashes(NodeId(2), Time(350));
        meter.close(Time(1_000), Time(0));
        assert_eq!((meter.mistakes, &meter.mistakes_ns[..]), (3, &[50, 900, 800][..]));
    }

    #[test]
    fn a_detection_is_the_suspicion_that_stands_in_the_end() {
        let mut meter = Meter::new(2);
        meter.crashes(B, Time(100));
        assert!(!meter.suspects(A, B, Time(150)));
        meter.trusts(A, B, Time(160)); // a heartbeat that was under way when it died
        assert!(!meter.suspects(A, B, Time(190)));
        meter.close(Time(1_000), Time(900));
        assert_eq!((meter.detections_ns, meter.mistakes), (vec![90], 0));
    }

    #[test]
    fn a_crash_is_evidence_once_all_who_watched_suspect_it_or_the_deadline_has_passed() {
        let missing = |meter: &Meter| meter.judgements(false)[0].missing;
        let mut meter = Meter::new(3);
        assert_eq!(missing(&meter), Some("no site crashed"));
        meter.crashes(B, Time(100));
        meter.suspects(A, B, Time(110));
        let too_early = Some("no crash lasted long enough to be suspected by all");
        let closed = |meter: &Meter, deadline| {
            let mut meter = meter.clone();
            meter.close(Time(200), Time(deadline));
            missing(&meter)
        };
        assert_eq!((closed(&meter, 50), closed(&meter, 150)), (too_early, None));
        meter.suspects(NodeId(2), B, Time(120));
        assert_eq!(closed(&meter, 50), None);
    }

    #[test]
    fn without_a_heartbeat_there_is_no_evidence_of_accuracy() {
        let mut meter = Meter::new(2);
        assert_eq!(meter.judgements(false)[1].missing, Some("no heartbeat arrived"));
        meter.hears(A, B);
        assert_eq!(meter.judgements(false)[1].missing, None);
        assert_eq!(meter.judgements(true)[1].missing, Some(SHORT));
    }

    #[test]
    fn a_crash_that_is_repaired_before_anybody_suspects_is_unnoticed() {
        let mut meter = Meter::new(3);
        meter.crashes(B, Time(100));
        meter.suspects(A, B, Time(110));
        meter.recovers(B, Time(120));
        assert_eq!((meter.unnoticed, meter.detections_ns.len()), (1, 1));
    }

    #[test]
    fn to_suspect_who_was_down_since_it_was_heard_is_no_mistake() {
        let mut meter = Meter::new(2);
        meter.hears(A, B);
        meter.crashes(B, Time(100));
        meter.recovers(B, Time(110));
        assert!(!meter.suspects(A, B, Time(115)));
        meter.trusts(A, B, Time(116));
        meter.hears(A, B);
        assert!(meter.suspects(A, B, Time(200)));
    }

    #[test]
    fn a_crash_that_nobody_suspects_for_long_is_told() {
        let mut meter = Meter::new(2);
        meter.crashes(B, Time(100));
        assert!(meter.clone().close(Time(200), Time(50)).is_empty(), "too early to say");
        assert_eq!(meter.close(Time(900), Time(800)).len(), 1);
    }
}
