//! Swarms: worlds whose faults are drawn from a seed.
//!
//! Runs with every fault at a moderate rate are all of the same kind. So each seed switches some kinds of
//! fault off completely and gives the others extreme rates. Over many seeds, all combinations occur. The
//! [`Profile`] states which kinds may be drawn at all; it follows from the assumptions of the algorithm.
//!
//! **Rules**
//! 1. Every kind of fault has its own random stream. Forbidding one kind leaves the draws of all others
//!    unchanged.
//! 2. Drawn faults are never demanded ([`Fault::demanded`]): a run may end before they begin.
//! 3. Faults end before progress is judged. Pauses and partitions end within the profile's length, and so do
//!    crashes unless the profile lets sites stay down. After that, the run can be required to make progress.
//!
//! **Trap**: if delays were scaled down, the run could end before its faults begin. So delays are only scaled
//! up, and a run takes at least its estimated length.

use std::time::Duration;

use conclave_kernel::{Needs, NodeId, NodeSet, Prng, Ratio, time};

use crate::fault::{CutLoss, Fault, FaultKind, Recovery};
use crate::setup::{Delay, Link, Order, Setup};

/// The kinds of faults that a swarm may draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The approximate duration of a run without faults, in the world's time.
    pub length: Duration,
    /// Delays of all kinds and lengths, and links that are slower than the others. If false, the delays of
    /// the base stay.
    pub delays: bool,
    /// Message orders other than that of the base. Causal order may be drawn in any case, because it is
    /// stronger than FIFO.
    pub reorder: bool,
    /// Partitions that hold their messages until they end.
    pub partitions: bool,
    /// Pauses.
    pub pauses: bool,
    /// Clocks that are ahead, fast or slow.
    pub clocks: bool,
    /// Messages that are lost, damaged, or destroyed by a partition.
    pub loss: bool,
    /// Duplicated messages.
    pub duplication: bool,
    /// The largest number of sites that crash. Each crashes once.
    pub crashes: u32,
    /// Whether a crashed site may stay down for ever.
    pub stay_down: bool,
    /// Whether a recovering site may have lost its state.
    pub amnesia: bool,
}

impl Profile {
    /// Returns a profile with asynchrony only: any delays, any order, holding partitions, pauses, and wrong
    /// clocks.
    pub const fn asynchronous(length: Duration) -> Self {
        Self {
            length,
            delays: true,
            reorder: true,
            partitions: true,
            pauses: true,
            clocks: true,
            loss: false,
            duplication: false,
            crashes: 0,
            stay_down: false,
            amnesia: false,
        }
    }

    /// Returns a profile with all faults that an algorithm with these assumptions must tolerate, except
    /// crashes. The problem decides how many sites may crash.
    pub const fn within(needs: Needs, length: Duration) -> Self {
        let asynchronous = !needs.synchrony;
        Self {
            delays: asynchronous,
            reorder: !needs.fifo,
            partitions: asynchronous,
            pauses: asynchronous,
            clocks: asynchronous,
            loss: !needs.no_loss,
            duplication: !needs.no_duplication,
            ..Self::asynchronous(length)
        }
    }
}

/// Draws a world: the base, plus the faults that the seed and the profile allow. The same seed draws the same
/// world. The seed is also the seed of the world itself.
pub fn swarm(seed: u64, base: &Setup, profile: &Profile) -> Setup {
    let mut setup = Setup { seed, ..base.clone() };
    let draw = Draw { seed, base, length: time::nanos(profile.length).max(1) };
    if profile.delays {
        draw.delay(&mut setup);
        draw.links(&mut setup);
    }
    draw.order(&mut setup, profile.reorder);
    if profile.clocks {
        draw.clocks(&mut setup);
    }
    if profile.loss {
        draw.rate(LOSS, 300, &mut setup.loss);
        draw.rate(CORRUPTION, 200, &mut setup.corrupt);
        draw.partitions(DROPPING, CutLoss::Drop, &mut setup.faults);
    }
    if profile.duplication {
        draw.rate(DUPLICATION, 500, &mut setup.duplicate);
    }
    if profile.partitions {
        draw.partitions(HOLDING, CutLoss::Hold, &mut setup.faults);
    }
    if profile.pauses {
        draw.pauses(&mut setup.faults);
    }
    draw.crashes(profile, &mut setup.faults);
    debug_assert_eq!(setup.validate(), base.validate(), "a swarm draws only valid setups");
    setup
}

struct Draw<'a> {
    seed: u64,
    base: &'a Setup,
    /// The profile's length, in nanoseconds.
    length: u64,
}

/// The random streams. Changing one of these numbers changes the world of every seed.
const DELAY: u64 = 0x7377_0001;
const LINKS: u64 = 0x7377_0002;
const ORDER: u64 = 0x7377_0003;
const CLOCKS: u64 = 0x7377_0004;
const LOSS: u64 = 0x7377_0005;
const CORRUPTION: u64 = 0x7377_0006;
const DUPLICATION: u64 = 0x7377_0007;
const HOLDING: u64 = 0x7377_0008;
const DROPPING: u64 = 0x7377_0009;
const PAUSES: u64 = 0x7377_000a;
const CRASHES: u64 = 0x7377_000b;

/// The largest number of faults of one kind, except crashes.
const MOST_OF_A_KIND: u64 = 6;

impl Draw<'_> {
    /// Returns the random stream of one kind of fault, or `None` if this seed switches the kind off.
    fn kind(&self, kind: u64) -> Option<Prng> {
        let mut dice = Prng::stream(self.seed, kind, 0);
        dice.chance(Ratio::percent(50)).then_some(dice)
    }

    fn delay(&self, setup: &mut Setup) {
        if let Some(mut dice) = self.kind(DELAY) {
            setup.delay = self.some_delay(&mut dice, 1);
        }
    }

    /// Draws a delay of any kind. Its mean is roughly `factor` to `8 * factor` times the mean of the base.
    fn some_delay(&self, dice: &mut Prng, factor: u32) -> Delay {
        let unit = self.base.delay.mean().max(Duration::from_nanos(1000)) * factor;
        let mean = unit * (1 << dice.below(4));
        match dice.below(4) {
            0 => Delay::Constant(mean),
            1 => Delay::Uniform(mean / (1 << dice.below(10)), mean * 2),
            2 => Delay::Exponential(mean),
            _ => Delay::LogNormal(mean, dice.between(1, 20) as f64 / 10.0),
        }
    }

    /// Draws a few links with longer delays than the base has.
    fn links(&self, setup: &mut Setup) {
        let nodes = u64::from(self.base.nodes);
        let Some(mut dice) = self.kind(LINKS).filter(|_| nodes > 1) else { return };
        for _ in 0..dice.between(1, MOST_OF_A_KIND) {
            let from = dice.below(nodes);
            let to = (from + dice.between(1, nodes - 1)) % nodes;
            let (from, to) = (NodeId(from as u32), NodeId(to as u32));
            let delay = self.some_delay(&mut dice, 8);
            if setup.links.iter().all(|link| (link.from, link.to) != (from, to)) {
                setup.links.push(Link { from, to, delay });
            }
        }
    }

    fn order(&self, setup: &mut Setup, reorder: bool) {
        let Some(mut dice) = self.kind(ORDER) else { return };
        let causal = dice.chance(Ratio::percent(30));
        setup.order = match () {
            () if causal => Order::Causal,
            () if reorder => Order::Any,
            () => setup.order,
        };
    }

    fn clocks(&self, setup: &mut Setup) {
        if let Some(mut dice) = self.kind(CLOCKS) {
            setup.clocks.skew = Duration::from_nanos(dice.below(self.length));
            setup.clocks.drift_ppm = 1 << dice.below(18);
        }
    }

    /// Draws a rate between one in a thousand and `most` in a thousand. All orders of magnitude are equally
    /// likely.
    fn rate(&self, kind: u64, most: u64, rate: &mut Ratio) {
        if let Some(mut dice) = self.kind(kind) {
            let ceiling = (1 << dice.between(0, u64::from(most.ilog2()) + 1)).min(most);
            *rate = Ratio(dice.between(1, ceiling) as u32 * 1_000_000);
        }
    }

    fn partitions(&self, kind: u64, loss: CutLoss, faults: &mut Vec<Fault>) {
        let Some(mut dice) = self.kind(kind).filter(|_| self.base.nodes > 1) else { return };
        for _ in 0..dice.between(1, MOST_OF_A_KIND) {
            let group = self.group(&mut dice);
            faults.push(self.fault(FaultKind::Partition { group, loss }, &mut dice));
        }
    }

    /// Draws a group of some sites but not all: often one site, otherwise each site with the same
    /// probability.
    fn group(&self, dice: &mut Prng) -> NodeSet {
        let nodes = self.base.nodes;
        let one = NodeId(dice.below(u64::from(nodes)) as u32);
        if dice.chance(Ratio::percent(30)) {
            return [one].into_iter().collect();
        }
        let other = NodeId((one.0 + dice.between(1, u64::from(nodes) - 1) as u32) % nodes);
        let share = Ratio::percent(dice.between(10, 60) as u32);
        let mut group: NodeSet = (0..nodes).map(NodeId).filter(|_| dice.chance(share)).collect();
        group.insert(one);
        group.remove(other);
        group
    }

    fn pauses(&self, faults: &mut Vec<Fault>) {
        let Some(mut dice) = self.kind(PAUSES) else { return };
        for _ in 0..dice.between(1, MOST_OF_A_KIND) {
            let node = NodeId(dice.below(u64::from(self.base.nodes)) as u32);
            faults.push(self.fault(FaultKind::Pause { node }, &mut dice));
        }
    }

    /// Draws crashes of distinct sites, which the base does not crash already. Two crashes of one site must
    /// not overlap.
    fn crashes(&self, profile: &Profile, faults: &mut Vec<Fault>) {
        let most = u64::from(profile.crashes.min(self.base.nodes));
        let Some(mut dice) = self.kind(CRASHES).filter(|_| most > 0) else { return };
        let is_crash = |fault: &&Fault| matches!(fault.kind, FaultKind::Crash { .. });
        let mut taken: NodeSet = self.base.faults.iter().filter(is_crash).flat_map(sites).collect();
        for _ in 0..dice.between(1, most) {
            let node = NodeId(dice.below(u64::from(self.base.nodes)) as u32);
            let (forgets, stays) = (dice.chance(Ratio::percent(50)), dice.chance(Ratio::percent(30)));
            let recovery = if forgets && profile.amnesia { Recovery::Amnesia } else { Recovery::Stable };
            let mut fault = self.fault(FaultKind::Crash { node, recovery }, &mut dice);
            if stays && profile.stay_down {
                fault.until = None;
            }
            if taken.insert(node) {
                faults.push(fault);
            }
        }
    }

    /// Draws the start and the end of a fault, within the length. All orders of magnitude of its duration are
    /// equally likely.
    fn fault(&self, kind: FaultKind, dice: &mut Prng) -> Fault {
        let longest = self.length >> dice.below(10);
        let lasts = dice.between(1, longest.max(1));
        let at = dice.below(self.length.saturating_sub(lasts).max(1));
        let until = Some(Duration::from_nanos(at + lasts));
        Fault { kind, at: Duration::from_nanos(at), until, demanded: false }
    }
}

fn sites(fault: &Fault) -> Vec<NodeId> {
    fault.nodes().iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LENGTH: Duration = Duration::from_millis(100);

    fn everything() -> Profile {
        let asynchronous = Profile::asynchronous(LENGTH);
        Profile { loss: true, duplication: true, crashes: 2, stay_down: true, amnesia: true, ..asynchronous }
    }

    fn draw(seed: u64, profile: &Profile) -> Setup {
        swarm(seed, &Setup::default(), profile)
    }

    /// Returns the names of the kinds of delay, order and fault that a world has.
    fn kinds(setup: &Setup) -> BTreeSet<&'static str> {
        let delay = |delay| match delay {
            Delay::Constant(_) => "constant",
            Delay::Uniform(..) => "uniform",
            Delay::Exponential(_) => "exponential",
            Delay::LogNormal(..) => "lognormal",
        };
        let order = match setup.order {
            Order::Fifo => "fifo",
            Order::Any => "any",
            Order::Causal => "causal",
        };
        let fault = |fault: &Fault| match (&fault.kind, fault.until) {
            (FaultKind::Crash { .. }, None) => "stays down",
            (FaultKind::Crash { recovery: Recovery::Stable, .. }, _) => "crash",
            (FaultKind::Crash { recovery: Recovery::Amnesia, .. }, _) => "amnesia",
            (FaultKind::Pause { .. }, _) => "pause",
            (FaultKind::Partition { loss: CutLoss::Hold, .. }, _) => "partition",
            (FaultKind::Partition { loss: CutLoss::Drop, .. }, _) => "dropping partition",
            (FaultKind::Step { .. }, _) => "step",
        };
        let mut kinds: BTreeSet<_> = setup.faults.iter().map(fault).collect();
        kinds.extend([delay(setup.delay), order]);
        kinds.extend((!setup.links.is_empty()).then_some("links"));
        kinds.extend((setup.loss > Ratio::ZERO).then_some("loss"));
        kinds.extend((setup.corrupt > Ratio::ZERO).then_some("corruption"));
        kinds.extend((setup.duplicate > Ratio::ZERO).then_some("duplication"));
        kinds.extend((setup.clocks != Default::default()).then_some("clocks"));
        kinds
    }

    #[test]
    fn every_kind_occurs_and_every_kind_is_switched_off_within_200_seeds() {
        let drawn: Vec<_> = (0..200).map(|seed| kinds(&draw(seed, &everything()))).collect();
        let all = "amnesia any causal clocks constant corruption crash dropping-partition duplication exponential \
                   fifo links lognormal loss partition pause stays-down uniform";
        for kind in all.split_whitespace().map(|kind| kind.replace('-', " ")) {
            let times = drawn.iter().filter(|kinds| kinds.contains(&*kind)).count();
            assert!((5..195).contains(&times), "{kind}: {times} of 200");
        }
        let seen: BTreeSet<_> = drawn.into_iter().flatten().collect();
        assert_eq!(seen.len(), all.split_whitespace().count(), "a kind that the list above lacks");
    }

    #[test]
    fn the_same_seed_draws_the_same_world() {
        for seed in 0..50 {
            assert_eq!(draw(seed, &everything()), draw(seed, &everything()));
            assert_ne!(draw(seed, &everything()), draw(seed + 1, &everything()));
        }
    }

    #[test]
    fn to_forbid_one_kind_leaves_the_others_as_they_were() {
        let is = |wanted: fn(&FaultKind) -> bool| move |fault: &Fault| wanted(&fault.kind);
        for seed in 0..200 {
            let full = draw(seed, &everything());
            let without = |profile: Profile| draw(seed, &profile);

            let mut expected = full.clone();
            expected.faults.retain(|fault| !is(|kind| matches!(kind, FaultKind::Pause { .. }))(fault));
            assert_eq!(without(Profile { pauses: false, ..everything() }), expected);

            let mut expected = full.clone();
            expected.faults.retain(|fault| !is(|kind| matches!(kind, FaultKind::Crash { .. }))(fault));
            assert_eq!(without(Profile { crashes: 0, ..everything() }), expected);

            let calm = without(Profile { delays: false, ..everything() });
            assert_eq!(Setup { delay: calm.delay, links: calm.links.clone(), ..full.clone() }, calm);
            let certain = without(Profile { duplication: false, ..everything() });
            assert_eq!(Setup { duplicate: Ratio::ZERO, ..full.clone() }, certain);
        }
    }

    #[test]
    fn what_the_profile_forbids_is_never_drawn() {
        let profile = Profile::within(Needs::RELIABLE_FIFO, LENGTH);
        let allowed = BTreeSet::from([
            "causal",
            "clocks",
            "constant",
            "exponential",
            "fifo",
            "links",
            "lognormal",
            "partition",
            "pause",
            "uniform",
        ]);
        let seen: BTreeSet<_> = (0..500).flat_map(|seed| kinds(&draw(seed, &profile))).collect();
        assert_eq!(seen, allowed);

        let synchronous = Profile::within(Needs { synchrony: true, ..Needs::RELIABLE_FIFO }, LENGTH);
        let seen: BTreeSet<_> = (0..500).flat_map(|seed| kinds(&draw(seed, &synchronous))).collect();
        assert_eq!(seen, BTreeSet::from(["causal", "constant", "fifo"]));
    }

    #[test]
    fn faults_strike_within_the_run_are_not_demanded_and_heal() {
        let healing = Profile { stay_down: false, ..everything() };
        for seed in 0..500 {
            for fault in draw(seed, &healing).faults {
                let until = fault.until.expect("a swarm's faults end");
                assert!(fault.at < until && until <= LENGTH, "{fault}");
                assert!(!fault.demanded);
            }
        }
    }

    #[test]
    fn groups_of_any_size_get_valid_worlds_and_partitions_that_cut() {
        for nodes in [1, 2, 3, 200] {
            for seed in 0..200 {
                let setup = swarm(seed, &Setup { nodes, ..Setup::default() }, &everything());
                assert_eq!(setup.validate(), Ok(()));
                let mut crashed = NodeSet::new();
                for fault in &setup.faults {
                    match &fault.kind {
                        FaultKind::Partition { group, .. } => {
                            assert!((1..nodes as usize).contains(&group.len()), "{fault}");
                        }
                        FaultKind::Crash { node, .. } => {
                            assert!(crashed.insert(*node), "{node} crashes twice");
                        }
                        FaultKind::Pause { .. } | FaultKind::Step { .. } => {}
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_asked_for_is_kept() {
        let asked = Fault::parse_crash("1@5ms..9ms").unwrap();
        let base = Setup { faults: vec![asked.clone()], ..Setup::default() };
        for seed in 0..100 {
            let faults = swarm(seed, &base, &everything()).faults;
            assert_eq!(faults[0], asked);
            let crashes_of_1 =
                faults.iter().filter(|fault| fault.to_string().starts_with("--crash 1@")).count();
            assert_eq!(crashes_of_1, 1);
        }
    }
}
