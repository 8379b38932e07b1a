//! The quality of service \[CTA02 §2\], counted during the run.
//!
//! Every ordered pair of sites is a detector: a watcher and a watched site. A watcher *detects* a crash with
//! the suspicion that still lasts when the site recovers or the run ends. A *mistake* is a suspicion of a
//! site that has been up since its last message arrived. The mistake lasts until the watcher withdraws it, one
//! of the two crashes, or the run ends. A crash is *unnoticed* by a watcher if it ends before the watcher suspects the site.

use conclave_algorithms::detector::spec::{ACCURACY, COMPLETENESS};
use conclave_kernel::{Judgement, NodeId, Time, time};

/// All meters of one run.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    sites: Vec<Site>,
    /// One row per watcher.
    pairs: Vec<Pair>,
    pub(super) detections_ns: Vec<u64>,
    pub(super) mistakes: u64,
    pub(super) mistakes_ns: Vec<u64>,
    pub(super) unnoticed: u64,
    /// The time for which both sites of a pair were up, summed over all pairs.
    pub(super) watched_ns: u128,
    watched_until: Time,
    /// Whether a heartbeat arrived.
    heard: bool,
    /// Whether all watchers suspected a crashed site, or a crash lasted so long that they should have.
    crash_judged: bool,
}

#[derive(Clone, Copy, Debug)]
struct Site {
    up: bool,
    /// The latest crash.
    crashed: Option<Time>,
    /// The number of recoveries.
    lives: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    suspected: Option<Time>,
    wrongly: bool,
    /// The number of the watched site's recoveries at the last message that arrived from it.
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
                (!self.crash_judged, "no crash lasted long enough for all sites to suspect it"),
            ]),
            ACCURACY.judged_unless(&[(!self.heard, "no heartbeat arrived"), (is_short, SHORT)]),
        ]
    }

    /// Records the arrival of a message. The site may have sent it before a crash. The detector cannot know
    /// that, and measures the silence from this arrival.
    pub(super) fn hears(&mut self, watcher: NodeId, about: NodeId) {
        let lives = self.sites[about.index()].lives;
        self.heard = true;
        self.pair(watcher, about).heard_in = lives;
    }

    /// Records a suspicion. Returns whether it is a mistake.
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
            // The mistake ends here: the site has crashed.
            if self.pair(other, site).wrongly {
                self.trusts(other, site, now);
                self.pair(other, site).suspected = Some(now);
            }
            // A crashed site suspects no site.
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

    /// Ends the run. All sites that are up should suspect every site that crashed before `deadline`. Returns
    /// a sentence for each missing suspicion. A mistake that still
    /// lasts counts up to the end.
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

    /// Returns whether the crash has watchers, and all of them suspect the site.
    fn is_suspected_by_all(&mut self, site: NodeId) -> bool {
        let watchers = self.watchers(site);
        !watchers.is_empty()
            && watchers.into_iter().all(|watcher| self.pair(watcher, site).suspected.is_some())
    }

    /// Returns the watchers: the sites that have been up since the crash of a site.
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
        meter.trusts(A, B, Time(160)); // the site sent this heartbeat before its crash
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
        let too_early = Some("no crash lasted long enough for all sites to suspect it");
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
