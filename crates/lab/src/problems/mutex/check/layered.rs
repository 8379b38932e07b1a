//! The layered mutex algorithms in the checker: the core of the algorithm over every detector of a class.
//!
//! The heartbeats of a real detector never end. So the checker explores the core over the [`Oracle`], which
//! makes every report that a detector of its class could make. Any number of sites may crash, within the
//! budget of the case.

use conclave_algorithms::detector::{Class, Oracle};
use conclave_algorithms::mutants::flawed::{Fallible, Flawed};
use conclave_algorithms::mutex::layered::{self, Command, Core};
use conclave_algorithms::mutex::mutants::OfCore;
use conclave_algorithms::mutex::spec::{FENCES, ME1, ME2};
use conclave_algorithms::mutex::{self, Event, Fence, Group};
use conclave_check::{Checker, Findings, Model, Monitor, Offer, Options, Timing};
use conclave_kernel::{NodeId, Property};

use super::{CONTENTION, Case, DEFERRAL, FOREVER, Judged};
use crate::case::{self, Entry, bit};

macro_rules! explored {
    ($core:ty) => {
        Entry { card: &<$core as Core>::CARD, has_flaw: case::has_flaw::<$core>, checker: checker::<$core> }
    };
}

/// The layered algorithms, each by its core.
pub(super) static ENTRIES: &[Entry<Case>] = &layered::each_core!(explored);

fn checker<P: Fallible + Core>(case: &Case, options: &Options, judges: bool) -> Result<Checker, String> {
    let judged = case.judged();
    if matches!(judged, Judged::Causality | Judged::Order) || case.work.entries == FOREVER {
        return Err(format!(
            "causality and endless requests of {} are not explored: its detector informs sites without messages; \
             use `conclave sim`",
            P::CARD.path()
        ));
    }
    let class = match case.work.mistakes {
        0 => Class::Perfect,
        mistakes => Class::EventuallyPerfect { mistakes },
    };
    let model = OverOracle::<Flawed<P, OfCore>> {
        group: Group::new(case.world.nodes),
        entries: case.work.entries,
        class,
        judges_fences: judges && judged == Judged::Fences,
        name: P::CARD.path().to_string(),
        about: case::about(case),
        kind: P::kind,
        make: |me, group, flaw| Flawed::new(P::new(me, group), flaw),
        flaw: case.flaw.clone().unwrap_or_default(),
    };
    let mut options = case.world.options(options);
    if P::NEEDS_SYNCHRONY {
        // The timeouts of the election are derived from the longest delay.
        options.timing = Timing::Sync { delay: case.world.sync.unwrap_or(1), tick: mutex::LONGEST_DELAY };
    }
    Checker::new(model, &options).map_err(|error| error.to_string())
}

/// A protocol that takes the commands of a core.
trait Commanded: conclave_kernel::Protocol<Command = Command, Event = Event> {}
impl<P: conclave_kernel::Protocol<Command = Command, Event = Event>> Commanded for P {}

/// A core over every detector of a class.
#[derive(Clone)]
struct OverOracle<P: Commanded> {
    group: Group,
    entries: u8,
    class: Class,
    judges_fences: bool,
    name: String,
    about: String,
    kind: fn(&P::Message) -> &'static str,
    make: fn(NodeId, &Group, &str) -> P,
    flaw: String,
}

impl<P: Commanded> Model for OverOracle<P> {
    type Protocol = P;
    type Monitor = Watch;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn scenario(&self) -> String {
        self.about.clone()
    }

    fn nodes(&self) -> u32 {
        self.group.nodes
    }

    fn site(&self, me: NodeId) -> P {
        (self.make)(me, &self.group, &self.flaw)
    }

    fn monitor(&self) -> Watch {
        Watch {
            oracle: Oracle::new(self.group.nodes, self.class),
            left: vec![self.entries; self.group.nodes as usize],
            asking: 0,
            inside: None,
            last_fence: self.judges_fences.then_some(Fence(0)),
        }
    }

    fn liveness(&self) -> Property {
        ME2
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        (self.kind)(message)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &[CONTENTION, DEFERRAL, AFTER_A_CRASH]
    }
}

/// An observation that an exploration with crashes should make: the algorithm continues after a crash.
pub const AFTER_A_CRASH: &str = "a site is inside after a crash";

/// The work, the oracle and the judge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watch {
    oracle: Oracle,
    left: Vec<u8>,
    /// The sites that wait, one bit per site.
    asking: u64,
    inside: Option<NodeId>,
    /// The largest fence so far; `None` if fences are not judged.
    last_fence: Option<Fence>,
}

impl<P: Commanded> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command>)) {
        for saying in self.oracle.sayings() {
            let command = Command::Detector(saying.event);
            offer(Offer { node: saying.site, command, required: saying.required });
        }
        for (site, left) in (0..).map(NodeId).zip(&self.left) {
            if self.inside == Some(site) {
                let command = Command::Mutex(mutex::Command::Release);
                offer(Offer { node: site, command, required: true });
            } else if *left > 0 && self.asking & bit(site) == 0 {
                let command = Command::Mutex(mutex::Command::Acquire);
                offer(Offer { node: site, command, required: false });
            }
        }
    }

    fn pending(&self) -> u64 {
        self.asking
    }

    fn shows(&self) -> u64 {
        let has_crashed = (0..self.left.len() as u32).any(|site| self.oracle.has_crashed(NodeId(site)));
        u64::from(self.asking.count_ones() > 1)
            | u64::from(self.asking != 0 && self.inside.is_some()) << 1
            | u64::from(has_crashed && self.inside.is_some()) << 2
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _: &mut Findings) {
        match command {
            Command::Mutex(mutex::Command::Acquire) => {
                self.left[node.index()] -= 1;
                self.asking |= bit(node);
            }
            Command::Mutex(_) => {}
            Command::Detector(event) => self.oracle.told(node, *event),
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        match event {
            Event::Granted { fence } => {
                if let Some(other) = self.inside.replace(node) {
                    findings.breach(&ME1, format!("{node} entered while {other} was inside"));
                }
                if let Some(last) = &mut self.last_fence {
                    if *fence <= *last {
                        let why = format!("{node} was granted fence {fence} after fence {last}");
                        findings.breach(&FENCES, why);
                    }
                    *last = *fence;
                }
                self.asking &= !bit(node);
            }
            Event::Released => self.inside = self.inside.filter(|inside| *inside != node),
            Event::Refused(_) => {}
        }
    }

    fn on_crash(&mut self, node: NodeId, _: &mut Findings) {
        self.oracle.crashes(node);
        self.left[node.index()] = 0;
        self.asking &= !bit(node);
        self.inside = self.inside.filter(|inside| *inside != node);
    }

    fn on_recover(&mut self, node: NodeId, _: &mut Findings) {
        self.oracle.recovers(node);
    }
}
