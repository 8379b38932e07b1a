//! The network: it decides when a message arrives, how often, or that it is lost.
//!
//! The fault plan is fixed before the run, so the network decides about a message when it is sent. It moves
//! the arrival behind the end of each pause that the message meets, and of each partition that holds
//! messages. Each link has its own random stream. Within it, each decision about a message (delay, loss,
//! damage, duplication) has its own stream. So removing one fault from a run leaves all other draws
//! unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use conclave_kernel::{NodeId, Prng, Ratio, time};

use crate::fault::{CutLoss, Fault, FaultKind};
use crate::setup::{Delay, Link, Order, Setup};

/// The decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The message arrives at `at`. A copy may arrive at `copy`, later and without regard to the order of the
    /// link.
    Arrives {
        at: u64,
        copy: Option<u64>,
    },
    Lost,
    Corrupted,
    /// Its link was cut while it was in transit.
    Cut,
    /// It waits for the end of a partition or pause that never ends.
    Held,
}

#[derive(Debug)]
pub(crate) struct Network {
    /// The delay of every message, if no message can meet any fault; else `None`.
    plain: Option<u64>,
    setup: Setup,
    partitions: Vec<Fault>,
    pauses: Vec<Fault>,
    links: Links,
    causal: Option<Causal>,
}

impl Network {
    pub(crate) fn new(setup: &Setup) -> Self {
        let of_kind = |wanted: fn(&FaultKind) -> bool| {
            setup.faults.iter().filter(|fault| wanted(&fault.kind)).cloned().collect::<Vec<_>>()
        };
        let partitions = of_kind(|kind| matches!(kind, FaultKind::Partition { .. }));
        let pauses = of_kind(|kind| matches!(kind, FaultKind::Pause { .. }));
        let harmless = [setup.loss, setup.duplicate, setup.corrupt] == [Ratio::ZERO; 3]
            && partitions.is_empty()
            && pauses.is_empty()
            && setup.links.is_empty();
        let plain = match setup.delay {
            Delay::Constant(delay) if harmless => Some(time::nanos(delay)),
            _ => None,
        };
        let causal = (setup.order == Order::Causal && plain.is_none()).then(|| Causal::new(setup.nodes));
        Self { plain, setup: setup.clone(), partitions, pauses, links: Links::new(setup), causal }
    }

    /// Returns the delay of every message, if no message can meet any fault.
    #[inline]
    pub(crate) fn plain(&self) -> Option<u64> {
        self.plain
    }

    /// Records the causal past of the sender, if the order is causal.
    #[inline]
    pub(crate) fn depart(&mut self, from: NodeId, id: u64) {
        if let Some(causal) = &mut self.causal {
            causal.depart(from, id);
        }
    }

    /// Adds the causal past of a delivered message to that of its receiver.
    #[inline]
    pub(crate) fn deliver(&mut self, to: NodeId, id: u64) {
        if let Some(causal) = &mut self.causal {
            causal.deliver(to, id);
        }
    }

    /// Returns the first moment from `at` on at which the site is not paused; `None` if the pause never ends.
    pub(crate) fn awake(&self, node: NodeId, mut at: u64) -> Option<u64> {
        let asleep =
            |at| self.pauses.iter().find(|pause| pause.kind == FaultKind::Pause { node } && pause.covers(at));
        while let Some(pause) = asleep(at) {
            at = time::nanos(pause.until?);
        }
        Some(at)
    }

    /// Decides about a message that is sent now.
    pub(crate) fn fate(&mut self, from: NodeId, to: NodeId, now: u64) -> Fate {
        let draw = self.links.next(from, to);
        let delay = draw.delay.unwrap_or(self.setup.delay);
        if draw.dice(LOSS).chance(self.setup.loss) {
            return Fate::Lost;
        }
        if draw.dice(CORRUPTION).chance(self.setup.corrupt) {
            return Fate::Corrupted;
        }
        let mut at = now.saturating_add(sample(delay, &mut draw.dice(DELAY)));
        match self.setup.order {
            Order::Fifo => at = at.max(draw.last_arrival),
            Order::Causal => at = at.max(self.causal.as_ref().map_or(0, |causal| causal.bound(from, to))),
            Order::Any => {}
        }
        let at = match self.past_faults(from, to, now, at) {
            Ok(at) => at,
            Err(fate) => return fate,
        };
        self.links.arrives(from, to, at);
        if let Some(causal) = &mut self.causal {
            causal.sent(from, to, at);
        }
        let mut dice = draw.dice(DUPLICATION);
        let copy = dice.chance(self.setup.duplicate).then(|| at.saturating_add(sample(delay, &mut dice)));
        let copy = copy.and_then(|copy| self.past_faults(from, to, now, copy).ok());
        Fate::Arrives { at, copy }
    }

    /// Moves an arrival behind the partitions and pauses that the message meets.
    fn past_faults(&self, from: NodeId, to: NodeId, sent: u64, mut at: u64) -> Result<u64, Fate> {
        loop {
            let before = at;
            for cut in self.partitions.iter().filter(|cut| severs(cut, from, to)) {
                let FaultKind::Partition { loss, .. } = cut.kind else { continue };
                match loss {
                    CutLoss::Drop if cut.meets(sent, at) => return Err(Fate::Cut),
                    CutLoss::Hold if cut.covers(at) => at = time::nanos(cut.until.ok_or(Fate::Held)?),
                    _ => {}
                }
            }
            at = self.awake(to, at).ok_or(Fate::Held)?;
            if at == before {
                return Ok(at);
            }
        }
    }
}

fn severs(cut: &Fault, from: NodeId, to: NodeId) -> bool {
    matches!(&cut.kind, FaultKind::Partition { group, .. } if group.contains(from) != group.contains(to))
}

fn sample(delay: Delay, dice: &mut Prng) -> u64 {
    match delay {
        Delay::Constant(delay) => time::nanos(delay),
        Delay::Uniform(low, high) => dice.between(time::nanos(low), time::nanos(high)),
        Delay::Exponential(mean) => (-libm::log(1.0 - dice.unit()) * time::nanos(mean) as f64) as u64,
        Delay::LogNormal(median, sigma) => {
            let radius = libm::sqrt(-2.0 * libm::log(1.0 - dice.unit()));
            let normal = radius * libm::cos(core::f64::consts::TAU * dice.unit());
            (time::nanos(median) as f64 * libm::exp(sigma * normal)) as u64
        }
    }
}

const DELAY: u64 = 0;
const LOSS: u64 = 1;
const CORRUPTION: u64 = 2;
const DUPLICATION: u64 = 3;

/// The state of every link that was ever used. It is a table in small groups and a map in large ones.
#[derive(Debug)]
struct Links {
    seed: u64,
    nodes: u64,
    special: Vec<Link>,
    table: Vec<LinkState>,
    map: BTreeMap<u64, LinkState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LinkState {
    sent: u64,
    last_arrival: u64,
}

/// The random streams of one message.
#[derive(Clone, Copy, Debug)]
struct Draw {
    stream: u64,
    number: u64,
    last_arrival: u64,
    delay: Option<Delay>,
}

impl Draw {
    fn dice(&self, question: u64) -> Prng {
        Prng::stream(self.stream, self.number, question)
    }
}

const LARGEST_TABLE: u64 = 1 << 20;

impl Links {
    fn new(setup: &Setup) -> Self {
        let nodes = u64::from(setup.nodes);
        let rows = if nodes * nodes <= LARGEST_TABLE { (nodes * nodes) as usize } else { 0 };
        Self {
            seed: setup.seed,
            nodes,
            special: setup.links.clone(),
            table: vec![LinkState::default(); rows],
            map: BTreeMap::new(),
        }
    }

    fn next(&mut self, from: NodeId, to: NodeId) -> Draw {
        let stream = self.seed ^ ((u64::from(from.0) << 32 | u64::from(to.0)).rotate_left(17));
        let delay =
            self.special.iter().find(|link| (link.from, link.to) == (from, to)).map(|link| link.delay);
        let state = self.state(from, to);
        state.sent += 1;
        Draw { stream, number: state.sent, last_arrival: state.last_arrival, delay }
    }

    fn arrives(&mut self, from: NodeId, to: NodeId, at: u64) {
        let state = self.state(from, to);
        state.last_arrival = state.last_arrival.max(at);
    }

    fn state(&mut self, from: NodeId, to: NodeId) -> &mut LinkState {
        let index = u64::from(from.0) * self.nodes + u64::from(to.0);
        match self.table.is_empty() {
            false => &mut self.table[index as usize],
            true => self.map.entry(index).or_default(),
        }
    }
}

/// Causal order. `known[i][j]` is the latest arrival at `j` of any message in the causal past of `i`. A
/// message from `i` to `j` must not arrive before that moment. `under_way` holds, for each message, the
/// causal past of its sender.
#[derive(Debug)]
struct Causal {
    known: Vec<Arc<Vec<u64>>>,
    under_way: BTreeMap<u64, Arc<Vec<u64>>>,
}

impl Causal {
    fn new(nodes: u32) -> Self {
        let nothing = Arc::new(vec![0; nodes as usize]);
        let known = (0..nodes).map(|_| Arc::clone(&nothing)).collect();
        Self { known, under_way: BTreeMap::new() }
    }

    fn bound(&self, from: NodeId, to: NodeId) -> u64 {
        self.known[from.index()][to.index()]
    }

    fn sent(&mut self, from: NodeId, to: NodeId, at: u64) {
        let known = Arc::make_mut(&mut self.known[from.index()]);
        known[to.index()] = known[to.index()].max(at);
    }

    fn depart(&mut self, from: NodeId, id: u64) {
        self.under_way.insert(id, Arc::clone(&self.known[from.index()]));
    }

    fn deliver(&mut self, to: NodeId, id: u64) {
        // A copy adds nothing: its past was merged at the first delivery.
        let Some(past) = self.under_way.remove(&id) else { return };
        let known = Arc::make_mut(&mut self.known[to.index()]);
        for (mine, theirs) in known.iter_mut().zip(past.iter()) {
            *mine = (*mine).max(*theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn random() -> Setup {
        Setup { delay: "uniform:1us..1ms".parse().unwrap(), ..Setup::default() }
    }

    fn arrivals(setup: &Setup, count: u64) -> Vec<u64> {
        let mut network = Network::new(setup);
        (0..count)
            .filter_map(|sent| match network.fate(A, B, sent * 1000) {
                Fate::Arrives { at, .. } => Some(at),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn fifo_links_keep_the_order_and_others_do_not() {
        assert!(arrivals(&random(), 200).is_sorted());
        assert!(!arrivals(&Setup { order: Order::Any, ..random() }, 200).is_sorted());
    }

    #[test]
    fn taking_the_losses_away_leaves_the_delays_as_they_were() {
        let calm = Setup { order: Order::Any, ..random() };
        let all = arrivals(&calm, 500);
        let some = arrivals(&Setup { loss: Ratio::percent(20), ..calm }, 500);
        assert!(some.len() < 450 && some.len() > 350, "{}", some.len());
        assert!(some.iter().all(|arrival| all.contains(arrival)));
    }

    #[test]
    fn a_holding_partition_delivers_at_the_heal_and_a_dropping_one_never() {
        let cut =
            |text: &str| Setup { faults: vec![Fault::parse_partition(text).unwrap()], ..Setup::default() };
        let fate = |text, sent| Network::new(&cut(text)).fate(A, B, sent);
        let (ms, heal) = (1_000_000, 9_000_000);
        assert_eq!(fate("0@2ms..9ms", 0), Fate::Arrives { at: ms, copy: None });
        assert_eq!(fate("0@2ms..9ms", 3 * ms), Fate::Arrives { at: heal, copy: None });
        assert_eq!(fate("0@2ms..9ms,drop", 3 * ms), Fate::Cut);
        assert_eq!(
            fate("0@2100us..2200us,drop", 2 * ms),
            Fate::Cut,
            "cut and healed while it was on its way"
        );
        assert_eq!(fate("0@2ms", 3 * ms), Fate::Held);
        assert_eq!(fate("0+1@2ms..9ms", 3 * ms), Fate::Arrives { at: 4 * ms, copy: None });
    }

    #[test]
    fn a_paused_site_gets_its_messages_when_it_goes_on() {
        let setup = Setup { faults: vec![Fault::parse_pause("1@2ms..9ms").unwrap()], ..Setup::default() };
        let fate = Network::new(&setup).fate(A, B, 3_000_000);
        assert_eq!(fate, Fate::Arrives { at: 9_000_000, copy: None });
    }

    #[test]
    fn causal_order_holds_through_a_third_site() {
        // A sends to C and then to B; B sends to C. C must receive A's message first, although that link is
        // slow.
        let slow: Link = "0>2=constant:50ms".parse().unwrap();
        let setup = Setup { order: Order::Causal, links: vec![slow], ..Setup::default() };
        let mut network = Network::new(&setup);
        let (c, ms) = (NodeId(2), 1_000_000);
        assert_eq!(network.fate(A, c, 0), Fate::Arrives { at: 50 * ms, copy: None });
        let to_b = network.fate(A, B, 0);
        assert_eq!(to_b, Fate::Arrives { at: ms, copy: None });
        network.depart(A, 7);
        network.deliver(B, 7);
        assert_eq!(network.fate(B, c, ms), Fate::Arrives { at: 50 * ms, copy: None });
    }

    #[test]
    fn delays_have_the_mean_that_they_say() {
        for text in ["uniform:1ms..3ms", "exponential:2ms", "lognormal:1ms,0.8"] {
            let delay: Delay = text.parse().unwrap();
            let mut dice = Prng::new(5);
            let total: u64 = (0..100_000).map(|_| sample(delay, &mut dice)).sum();
            let (mean, promised) = (total as f64 / 1e5, time::nanos(delay.mean()) as f64);
            assert!((mean / promised - 1.0).abs() < 0.02, "{text}: {mean} against {promised}");
        }
        assert_eq!(sample(Delay::Constant(Duration::from_secs(1)), &mut Prng::new(1)), 1_000_000_000);
    }
}
