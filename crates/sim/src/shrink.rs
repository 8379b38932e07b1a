//! Shrinking: the reduction of a failing run to a small run that still fails.
//!
//! A swarm finds failures in runs with many faults, of which usually one matters. Shrinking removes parts as
//! long as the run still fails. The parts that hide the explanation most go first: faults, then the behaviour
//! of the network, then the amount of work, then sites. It repeats this order until nothing more can be
//! removed.
//!
//! **Rules**
//! - Faults, slow links and sites are removed by delta debugging \[ZH02\]: first halves, then quarters, down
//!   to single ones.
//! - Remaining faults move towards the beginning, so that less work comes before them.
//! - The removal of a site removes its faults and links too, and renumbers the other sites.
//! - At the end, each removal is tried once more, together with earlier moments for all faults.
//! - The caller's predicate decides whether a run fails. Shrinking assumes nothing about it, so the result is
//!   only a *local* minimum.
//!
//! **Trap**: a smaller run can fail for another reason. The predicate must check the *same* property.

use std::time::Duration;

use conclave_kernel::{NodeId, NodeSet, Ratio, time};

use crate::clock::Clocks;
use crate::fault::{Fault, FaultKind};
use crate::setup::{Delay, Link, Order, Setup};

/// A run that may fail: its world and its amount of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The world.
    pub setup: Setup,
    /// The amount of work in the problem's own unit, such as entries, elections or transfers. At least 1.
    pub work: u64,
}

/// The result of shrinking.
#[derive(Clone, Debug, PartialEq)]
pub struct Shrunk {
    /// The smallest run found that fails.
    pub candidate: Candidate,
    /// The number of runs that were tried.
    pub trials: u64,
    /// Whether the result is a local minimum. If not, the limit on trials was reached.
    pub minimal: bool,
}

/// Shrinks a failing run with at most `most_trials` runs. Returns `None` if `start` does not fail.
pub fn shrink(
    start: Candidate,
    most_trials: u64,
    fails: &mut dyn FnMut(&Candidate) -> bool,
) -> Option<Shrunk> {
    if !fails(&start) {
        return None;
    }
    let mut search = Search { best: start, trials: 1, most_trials, fails };
    let minimal = loop {
        let before = search.best.clone();
        search.fewer_faults();
        search.calmer_network();
        search.less_work();
        search.fewer_sites();
        if search.is_exhausted() {
            break false;
        }
        if search.best == before && !search.squeeze() {
            break !search.is_exhausted();
        }
    };
    search.round_times();
    Some(Shrunk { candidate: search.best, trials: search.trials, minimal })
}

struct Search<'f> {
    best: Candidate,
    trials: u64,
    most_trials: u64,
    fails: &'f mut dyn FnMut(&Candidate) -> bool,
}

impl Search<'_> {
    fn is_exhausted(&self) -> bool {
        self.trials >= self.most_trials
    }

    /// Keeps the change if the run still fails with it.
    fn try_out(&mut self, change: impl FnOnce(&mut Candidate)) -> bool {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        if candidate == self.best || self.is_exhausted() {
            return false;
        }
        self.trials += 1;
        let failed = (self.fails)(&candidate);
        if failed {
            self.best = candidate;
        }
        failed
    }

    fn fewer_faults(&mut self) {
        let faults = self.best.setup.faults.clone();
        self.fewest(&faults, 0, |setup, kept| setup.faults = kept);
        for index in 0..self.best.setup.faults.len() {
            self.smaller_group(index);
            self.earlier(index);
        }
    }

    /// Removes sites from the group of a partition. A cut around fewer sites explains more.
    fn smaller_group(&mut self, index: usize) {
        let FaultKind::Partition { group, .. } = &self.best.setup.faults[index].kind else { return };
        let group: Vec<_> = group.iter().collect();
        self.fewest(&group, 1, |setup, kept| {
            if let FaultKind::Partition { group, .. } = &mut setup.faults[index].kind {
                *group = kept.into_iter().collect();
            }
        });
    }

    /// Moves a fault towards the beginning, then makes it shorter. Some moments make the run fail and others
    /// between them do not. So it tries many moments, the earliest first.
    fn earlier(&mut self, index: usize) {
        let begin = |fault: &Fault| Some(fault.at);
        self.sooner(index, begin, |fault, by| {
            fault.at -= by;
            fault.until = fault.until.map(|until| until.saturating_sub(by));
        });
        let lasts = |fault: &Fault| fault.until.map(|until| until.saturating_sub(fault.at));
        self.sooner(index, lasts, |fault, by| {
            let shortest = fault.at + Duration::from_nanos(1);
            fault.until = fault.until.map(|until| until.saturating_sub(by).max(shortest));
        });
    }

    fn sooner(
        &mut self,
        index: usize,
        span: impl Fn(&Fault) -> Option<Duration>,
        cut: impl Fn(&mut Fault, Duration),
    ) {
        while let Some(span) = span(&self.best.setup.faults[index]).filter(|span| *span >= FINEST) {
            const PLACES: u32 = 24;
            let mut cuts = (1..=PLACES).rev().map(|place| span * place / PLACES);
            if !cuts.any(|by| self.try_out(|run| cut(&mut run.setup.faults[index], by))) {
                break;
            }
        }
    }

    /// Rounds the times of the faults, to make them readable. This comes last, because round times leave
    /// fewer moments to try.
    fn round_times(&mut self) {
        for index in 0..self.best.setup.faults.len() {
            for unit in [1_000_000, 100_000, 1_000] {
                self.rounder(index, unit);
            }
        }
    }

    fn rounder(&mut self, index: usize, unit: u64 /* ns */) {
        let down = |time: Duration| Duration::from_nanos(time::nanos(time) / unit * unit);
        let up = |time: Duration| Duration::from_nanos(time::nanos(time).next_multiple_of(unit));
        let rounds: [&dyn Fn(Duration) -> Duration; 2] = [&down, &up];
        for round in rounds {
            self.try_out(|run| {
                let fault = &mut run.setup.faults[index];
                let at = round(fault.at);
                if fault.until.is_none_or(|until| at < until) {
                    fault.at = at;
                }
            });
            self.try_out(|run| {
                let fault = &mut run.setup.faults[index];
                fault.until =
                    fault.until.map(|until| if round(until) > fault.at { round(until) } else { until });
            });
        }
    }

    fn calmer_network(&mut self) {
        let links = self.best.setup.links.clone();
        self.fewest(&links, 0, |setup, kept| setup.links = kept);
        self.try_out(|run| run.setup.loss = Ratio::ZERO);
        self.try_out(|run| run.setup.corrupt = Ratio::ZERO);
        self.try_out(|run| run.setup.duplicate = Ratio::ZERO);
        self.try_out(|run| run.setup.clocks = Clocks::default());
        self.try_out(|run| run.setup.order = Order::Fifo);
        let plain = self.try_out(|run| run.setup.delay = Delay::Constant(Duration::from_millis(1)));
        if !plain && !matches!(self.best.setup.delay, Delay::Constant(_)) {
            self.try_out(|run| run.setup.delay = Delay::Constant(run.setup.delay.mean()));
        }
    }

    /// Reduces the work in steps that start large and end at 1.
    fn less_work(&mut self) {
        let mut step = self.best.work / 2;
        while step > 0 && !self.is_exhausted() {
            let enough = self.best.work > step;
            if !(enough && self.try_out(|run| run.work -= step)) {
                step /= 2;
            }
        }
    }

    fn fewer_sites(&mut self) {
        let sites: Vec<_> = (0..self.best.setup.nodes).map(NodeId).collect();
        let start = self.best.setup.clone();
        self.fewest(&sites, 1, |setup, kept| *setup = restrict(&start, &kept));
    }

    /// Removes one fault or site and at the same time moves all faults to earlier moments. This helps because
    /// after a removal the other events happen earlier.
    fn squeeze(&mut self) -> bool {
        let Setup { faults, nodes, .. } = &self.best.setup;
        let (faults, sites) = (faults.len(), (0..*nodes).map(NodeId).collect::<Vec<_>>());
        let without_fault = |setup: &mut Setup, index: usize| drop(setup.faults.remove(index));
        let without_site = |setup: &mut Setup, index: usize| {
            let kept: Vec<_> = sites.iter().copied().filter(|site| site.index() != index).collect();
            *setup = restrict(setup, &kept);
        };
        (0..faults).any(|index| self.squeeze_one(|setup| without_fault(setup, index)))
            || (sites.len() > 1 && faults > 0)
                && (0..sites.len()).any(|index| self.squeeze_one(|setup| without_site(setup, index)))
    }

    fn squeeze_one(&mut self, remove: impl Fn(&mut Setup)) -> bool {
        const PLACES: u32 = 16;
        (1..PLACES).any(|place| {
            self.try_out(|run| {
                remove(&mut run.setup);
                for fault in &mut run.setup.faults {
                    fault.at = fault.at * place / PLACES;
                    fault.until = fault.until.map(|until| until * place / PLACES);
                }
            })
        })
    }

    /// Delta debugging: keeps the fewest of `things`, but at least `least`, with which the run still fails.
    fn fewest<T: Clone>(&mut self, things: &[T], least: usize, set: impl Fn(&mut Setup, Vec<T>)) {
        let mut kept = things.to_vec();
        let mut chunk = kept.len();
        while chunk > 0 {
            let mut start = 0;
            while start < kept.len() && !self.is_exhausted() {
                let end = (start + chunk).min(kept.len());
                let rest: Vec<T> = kept[..start].iter().chain(&kept[end..]).cloned().collect();
                if rest.len() >= least && self.try_out(|run| set(&mut run.setup, rest.clone())) {
                    kept = rest;
                } else {
                    start = end;
                }
            }
            chunk /= 2;
        }
    }
}

/// A fault whose start or duration is below this is not moved or shortened further.
const FINEST: Duration = Duration::from_micros(100);

/// Returns the world with only these sites, renumbered in their order. Faults and links of other sites are
/// removed.
fn restrict(setup: &Setup, kept: &[NodeId]) -> Setup {
    let renumbered = |node: NodeId| kept.binary_search(&node).ok().map(|index| NodeId(index as u32));
    let fault = |fault: &Fault| {
        let kind = match &fault.kind {
            FaultKind::Crash { node, recovery } => {
                FaultKind::Crash { node: renumbered(*node)?, recovery: *recovery }
            }
            FaultKind::Pause { node } => FaultKind::Pause { node: renumbered(*node)? },
            FaultKind::Step { node, by } => FaultKind::Step { node: renumbered(*node)?, by: *by },
            FaultKind::Partition { group, loss } => {
                let group: NodeSet = group.iter().filter_map(renumbered).collect();
                let still_cuts = (1..kept.len()).contains(&group.len());
                still_cuts.then_some(FaultKind::Partition { group, loss: *loss })?
            }
        };
        Some(Fault { kind, ..fault.clone() })
    };
    let link = |link: &Link| {
        let (from, to) = (renumbered(link.from)?, renumbered(link.to)?);
        Some(Link { from, to, delay: link.delay })
    };
    Setup {
        nodes: kept.len() as u32,
        faults: setup.faults.iter().filter_map(fault).collect(),
        links: setup.links.iter().filter_map(link).collect(),
        ..setup.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm::{Profile, swarm};

    const MANY: u64 = 10_000;

    /// Returns a run with faults of many kinds.
    fn wild(seed: u64) -> Candidate {
        let length = Duration::from_millis(100);
        let profile = Profile { loss: true, duplication: true, crashes: 3, ..Profile::asynchronous(length) };
        let mut setup = swarm(seed, &Setup { nodes: 9, ..Setup::default() }, &profile);
        setup.faults.push(Fault::parse_partition("1+4+7@20ms..40ms").unwrap());
        setup.faults.push(Fault::parse_crash("6@30ms").unwrap());
        setup.faults.push(Fault::parse_pause("2@30ms..31ms").unwrap());
        Candidate { setup, work: 100 }
    }

    #[test]
    fn of_many_faults_the_one_that_matters_remains() {
        let culprit = |fault: &Fault| fault.to_string().starts_with("--crash 6@");
        for seed in 0..20 {
            let mut shrunk =
                shrink(wild(seed), MANY, &mut |run| run.setup.faults.iter().any(culprit)).unwrap();
            // The crash names site 6. So site 6 and the sites below it must remain.
            let expected = Setup {
                nodes: 7,
                seed,
                faults: vec![Fault::parse_crash("6@0").unwrap()],
                ..Setup::default()
            };
            shrunk.candidate.setup.faults[0].until = None;
            shrunk.candidate.setup.faults[0].demanded = true;
            assert_eq!(shrunk.candidate, Candidate { setup: expected, work: 1 });
            assert!(shrunk.minimal);
            assert!(shrunk.trials < 250, "{}", shrunk.trials);
        }
    }

    #[test]
    fn two_faults_that_matter_together_both_remain() {
        let has = |run: &Candidate, wanted: fn(&FaultKind) -> bool| {
            run.setup.faults.iter().any(|fault| wanted(&fault.kind))
        };
        let mut fails = |run: &Candidate| {
            has(run, |kind| matches!(kind, FaultKind::Pause { .. }))
                && has(run, |kind| matches!(kind, FaultKind::Partition { .. }))
                && run.work >= 3
        };
        let shrunk = shrink(wild(7), MANY, &mut fails).unwrap().candidate;
        assert_eq!((shrunk.setup.faults.len(), shrunk.setup.nodes, shrunk.work), (2, 2, 3));
        assert_eq!(shrunk.setup.validate(), Ok(()));
    }

    #[test]
    fn a_fault_moves_to_where_it_matters_and_lasts_no_longer() {
        let covers = |fault: &Fault, ms: u64| fault.covers(ms * 1_000_000);
        let mut fails = |run: &Candidate| {
            run.setup.faults.iter().any(|fault| covers(fault, 7) && covers(fault, 9) && !covers(fault, 1))
        };
        let mut start = wild(1);
        start.setup.faults = vec![Fault::parse_pause("2@3456us..98765us").unwrap()];
        let shrunk = shrink(start, MANY, &mut fails).unwrap().candidate;
        let [fault] = &shrunk.setup.faults[..] else { panic!("one fault: {shrunk:?}") };
        assert_eq!(fault.to_string(), "--pause 0@2ms..10ms");
    }

    #[test]
    fn a_number_that_matters_is_found_exactly() {
        let least = |nodes: u32, work: u64| {
            shrink(wild(3), MANY, &mut |run| run.setup.nodes >= nodes && run.work >= work).unwrap().candidate
        };
        for (nodes, work) in [(1, 1), (2, 37), (5, 99), (9, 100)] {
            let shrunk = least(nodes, work);
            assert_eq!((shrunk.setup.nodes, shrunk.work), (nodes, work));
            assert_eq!(shrunk.setup, Setup { nodes, seed: 3, ..Setup::default() });
        }
    }

    #[test]
    fn the_part_of_the_network_that_matters_remains() {
        let mut start = wild(5);
        start.setup.duplicate = Ratio::percent(10);
        start.setup.order = Order::Any;
        start.setup.delay = "exponential:3ms".parse().unwrap();
        let mut fails = |run: &Candidate| {
            run.setup.duplicate > Ratio::ZERO && run.setup.delay.mean() == Duration::from_millis(3)
        };
        let shrunk = shrink(start, MANY, &mut fails).unwrap().candidate.setup;
        let delay = Delay::Constant(Duration::from_millis(3));
        let duplicate = Ratio::percent(10);
        assert_eq!(shrunk, Setup { nodes: 1, seed: 5, delay, duplicate, ..Setup::default() });
    }

    #[test]
    fn a_site_that_goes_takes_its_faults_and_links_along() {
        let mut setup = Setup { nodes: 4, ..Setup::default() };
        setup.faults = vec![
            Fault::parse_crash("1@1ms").unwrap(),
            Fault::parse_pause("3@1ms..2ms").unwrap(),
            Fault::parse_partition("1+3@1ms..2ms").unwrap(),
            Fault::parse_partition("1@1ms..2ms").unwrap(),
        ];
        setup.links = vec!["1>3=constant:5ms".parse().unwrap(), "2>3=constant:6ms".parse().unwrap()];
        let smaller = restrict(&setup, &[NodeId(0), NodeId(2), NodeId(3)]);
        let faults: Vec<_> = smaller.faults.iter().map(ToString::to_string).collect();
        let links: Vec<_> = smaller.links.iter().map(ToString::to_string).collect();
        assert_eq!(faults, ["--pause 2@1ms..2ms", "--partition 2@1ms..2ms"]);
        assert_eq!(links, ["1>2=constant:6ms"]);
    }

    #[test]
    fn a_run_that_does_not_fail_is_not_shrunk() {
        assert_eq!(shrink(wild(1), MANY, &mut |_| false), None);
    }

    #[test]
    fn trials_are_bounded_and_what_is_returned_has_failed() {
        let mut tried = 0;
        let mut last_failure = None;
        let mut fails = |run: &Candidate| {
            tried += 1;
            let failed = run.setup.faults.len() >= 2;
            last_failure = if failed { Some(run.clone()) } else { last_failure.take() };
            failed
        };
        let shrunk = shrink(wild(2), 5, &mut fails).unwrap();
        assert_eq!((tried, shrunk.trials, shrunk.minimal), (5, 5, false));
        assert_eq!(Some(shrunk.candidate), last_failure);
    }
}
