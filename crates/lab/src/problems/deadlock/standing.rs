//! A wait-for graph at one moment, as somebody wrote it down: who is stuck, why, and whom to abort.
//!
//! **Intuition.** Processes hold resources and wait for resources, or, as the theory writes it, for each other. All of
//! it is lowered to one [`Snapshot`](conclave_algorithms::deadlock::batch::Snapshot), which is peeled in linear time: a
//! million processes are no trouble.
//!
//! **Rules.**
//! - A lock does not stand in its own holder's way (it is re-entrant); permits do, and so does a process that waits
//!   for itself: that is a cycle of one (citus#1572).
//! - Waiters of one resource do not wait for each other: an earlier waiter is perhaps next, not a holder.
//! - What is *perhaps* held is no edge (matrixone#26922). It is judged apart: who would be stuck if it were.
//! - A name is a process, however it looks: two transactions of one node are two processes (citus#1803).
//!
//! **The trap.** Claims of one request on one semaphore add up, so that `pool*2 & (pool*2 | x)` is no tree of
//! independent gates; such a request is lowered by its AND-OR form.

mod lowering;
mod names;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use conclave_algorithms::deadlock::request::MAX_ENTANGLED_ALTERNATIVES;
use conclave_algorithms::deadlock::{Claim, Demand, Limits, Request, RequestError};
use serde::Serialize;

use names::Names;
pub use why::{Findings, Link, Why};

/// How large one request may be.
pub const LIMITS: Limits = Limits { claims: 65_536, depth: 64 };

/// The number of a process, in order of first mention.
pub type Process = u32;
/// The number of a resource, in order of first mention.
pub type Resource = u32;

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Until that process has finished; the demand does not matter.
    Process(Process),
    /// A lock or permits of a semaphore.
    Resource(Resource),
}

/// What a process waits for: a tree of thresholds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// One target.
    Claim(Claim<Target>),
    /// At least so many of the members.
    Gate {
        /// How many.
        need: u32,
        /// Of which.
        members: Vec<Wish>,
    },
}

/// Who holds what and who waits for what, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    process_names: Names,
    resource_names: Names,
    processes: Vec<ProcessState>,
    resources: Vec<ResourceState>,
    /// Who holds which resource, and whether only perhaps.
    holds: BTreeSet<(Process, Resource, bool)>,
    /// Waits so far: the order in which they came.
    waits: u64,
}

/// Whom to abort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Who came last.
    #[default]
    Youngest,
    /// Who matters least; of equals the youngest.
    LowestPriority,
    /// Who holds least; of equals the youngest.
    FewestLocks,
    /// Whose wait came last.
    Requester,
    /// Nobody.
    None,
}

/// Why something was refused; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The process waits already.
    AlreadyWaiting,
    /// Somebody else holds the lock in a conflicting mode.
    Conflict(Process),
    /// Permits of a lock.
    NotASemaphore(Resource),
    /// A lock on a semaphore.
    NotALock(Resource),
    /// More permits than the semaphore has.
    Impossible {
        /// The semaphore.
        resource: Resource,
        /// What it has.
        limit: u32,
    },
    /// It is no request.
    Request(RequestError),
    /// More than 32 bits count.
    Full,
}

impl Standing {
    /// Nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// The process of that name.
    pub fn process(&mut self, name: &str) -> Process {
        let index = self.process_names.intern(name);
        if index as usize == self.processes.len() {
            self.processes.push(ProcessState { since: i64::from(index), ..ProcessState::default() });
        }
        index
    }

    /// The resource of that name: a lock unless [`Standing::set_limit`] says otherwise.
    pub fn resource(&mut self, name: &str) -> Resource {
        let index = self.resource_names.intern(name);
        if index as usize == self.resources.len() {
            self.resources.push(ResourceState::default());
        }
        index
    }

    /// Makes the resource a semaphore; before anybody holds it or waits for it.
    pub fn set_limit(&mut self, resource: Resource, permits: u32) {
        self.resources[resource as usize].limit = Some(permits);
    }

    /// Whether the resource is a semaphore.
    pub fn is_semaphore(&self, resource: Resource) -> bool {
        self.resources[resource as usize].limit.is_some()
    }

    /// How much the process matters: the more, the larger. 0 unless said.
    pub fn set_priority(&mut self, process: Process, priority: i64) {
        self.processes[process as usize].priority = priority;
    }

    /// When the process began, in any unit that grows. Unless said, the order of first mention.
    pub fn set_since(&mut self, process: Process, since: i64) {
        self.processes[process as usize].since = since;
    }

    /// The process holds that, or perhaps does.
    ///
    /// # Errors
    /// A lock that somebody else certainly holds in a conflicting mode; the wrong kind of demand.
    pub fn hold(&mut self, process: Process, claim: Claim<Resource>, perhaps: bool) -> Result<(), Refusal> {
        self.check_kind(claim)?;
        let state = &mut self.resources[claim.resource as usize];
        let is_conflict = |(holder, held): &(Process, Demand)| {
            let harmless =
                claim.demand.is_permits() || (claim.demand, *held) == (Demand::Shared, Demand::Shared);
            *holder != process && !harmless
        };
        // Shared holders are all alike: the first other one tells.
        if !perhaps && let Some((other, _)) = state.holders.iter().take(2).find(is_conflict) {
            return Err(Refusal::Conflict(other));
        }
        let holders = if perhaps { &mut state.perhaps } else { &mut state.holders };
        let held = holders.entry(process, claim.demand);
        let merged = held.and(claim.demand).expect("of one kind, as was checked");
        // What was just inserted is not held twice.
        let is_new = self.holds.insert((process, claim.resource, perhaps));
        if !is_new {
            *held = merged;
        }
        Ok(())
    }

    /// The process waits.
    ///
    /// # Errors
    /// It waits already; the request is none, asks for more permits than there are, or for the wrong kind.
    pub fn wait(&mut self, process: Process, wish: Wish) -> Result<(), Refusal> {
        if self.processes[process as usize].wait.is_some() {
            return Err(Refusal::AlreadyWaiting);
        }
        if wish.is_plain() {
            return self.waits(process, wish, None);
        }
        let request = wish.request().map_err(Refusal::Request)?;
        request.check(LIMITS).map_err(Refusal::Request)?;
        for Claim { resource, demand } in request.claims() {
            let Target::Resource(resource) = *resource else { continue };
            self.check_kind(Claim { resource, demand: *demand })?;
            if let (Demand::Permits(count), Some(limit)) = (*demand, self.resources[resource as usize].limit)
                && count > limit
            {
                return Err(Refusal::Impossible { resource, limit });
            }
        }
        let terms = if request.is_entangled() {
            let terms = request.to_and_or(MAX_ENTANGLED_ALTERNATIVES).map_err(Refusal::Request)?;
            Some(self.possible(terms)?)
        } else {
            None
        };
        self.waits(process, wish, terms)
    }

    /// How many processes there are.
    pub fn processes(&self) -> u32 {
        u32::try_from(self.processes.len()).expect("names are 32 bits wide")
    }

    /// How many of them wait.
    pub fn waiting(&self) -> usize {
        self.processes.iter().filter(|process| process.wait.is_some()).count()
    }

    /// How many resources there are.
    pub fn resources(&self) -> u32 {
        u32::try_from(self.resources.len()).expect("names are 32 bits wide")
    }

    /// The name of a process.
    pub fn process_name(&self, process: Process) -> &str {
        self.process_names.name(process)
    }

    /// The name of a resource.
    pub fn resource_name(&self, resource: Resource) -> &str {
        self.resource_names.name(resource)
    }

    /// What the process waits for.
    pub fn wish(&self, process: Process) -> Option<&Wish> {
        self.processes[process as usize].wait.as_ref().map(|wait| &wait.wish)
    }

    /// How many permits the resource has, if it is a semaphore.
    pub fn limit(&self, resource: Resource) -> Option<u32> {
        self.resources[resource as usize].limit
    }

    /// Who holds the resource: the process, what of it, and whether only perhaps.
    pub fn holders(&self, resource: Resource) -> impl Iterator<Item = (Process, Demand, bool)> {
        let ResourceState { holders, perhaps, .. } = &self.resources[resource as usize];
        let certain = holders.iter().map(|(process, demand)| (process, demand, false));
        certain.chain(perhaps.iter().map(|(process, demand)| (process, demand, true)))
    }

    /// A wish as people write it, within [`LIMITS`] deep.
    pub fn describe(&self, wish: &Wish) -> String {
        match wish {
            Wish::Claim(Claim { resource: Target::Process(process), .. }) => {
                self.process_name(*process).to_owned()
            }
            Wish::Claim(Claim { resource: Target::Resource(resource), demand }) => {
                let name = self.resource_name(*resource);
                match demand {
                    Demand::Exclusive => name.to_owned(),
                    Demand::Shared => format!("{name}:shared"),
                    Demand::Permits(count) => format!("{name}*{count}"),
                }
            }
            Wish::Gate { need, members } => {
                let bracketed = |member: &Wish| match member {
                    Wish::Gate { need: 1, .. } if members.len() > 1 => format!("({})", self.describe(member)),
                    _ => self.describe(member),
                };
                match *need as usize {
                    all if all == members.len() => {
                        members.iter().map(bracketed).collect::<Vec<_>>().join(" & ")
                    }
                    1 => members.iter().map(|member| self.describe(member)).collect::<Vec<_>>().join(" | "),
                    _ => {
                        let members: Vec<_> = members.iter().map(|member| self.describe(member)).collect();
                        format!("{need} of ({})", members.join(", "))
                    }
                }
            }
        }
    }

    fn waits(&mut self, process: Process, wish: Wish, terms: Option<Terms>) -> Result<(), Refusal> {
        self.waits += 1;
        let terms = terms.map(Box::new);
        self.processes[process as usize].wait = Some(Wait { wish, terms, order: self.waits });
        Ok(())
    }

    fn check_kind(&self, claim: Claim<Resource>) -> Result<(), Refusal> {
        match (claim.demand.is_permits(), self.is_semaphore(claim.resource)) {
            (true, false) => Err(Refusal::NotASemaphore(claim.resource)),
            (false, true) => Err(Refusal::NotALock(claim.resource)),
            _ => Ok(()),
        }
    }

    /// The alternatives that do not ask for more than exists; claims have been added up.
    fn possible(&self, mut terms: Terms) -> Result<Terms, Refusal> {
        let excess = |claim: &Claim<Target>| match (claim.resource, claim.demand) {
            (Target::Resource(resource), Demand::Permits(count)) => {
                let limit = self.resources[resource as usize].limit.filter(|limit| count > *limit)?;
                Some(Refusal::Impossible { resource, limit })
            }
            _ => None,
        };
        let mut last = None;
        terms.retain(|term| {
            let refused = term.iter().find_map(excess);
            let keep = refused.is_none();
            last = refused.or(last.take());
            keep
        });
        match last {
            Some(refused) if terms.is_empty() => Err(refused),
            _ => Ok(terms),
        }
    }
}

impl Wish {
    /// Every claim, from the left.
    pub fn claims(&self) -> Vec<Claim<Target>> {
        let mut claims = Vec::new();
        let mut rest = vec![self];
        while let Some(wish) = rest.pop() {
            match wish {
                Self::Claim(claim) => claims.push(*claim),
                Self::Gate { members, .. } => rest.extend(members.iter().rev()),
            }
        }
        claims
    }

    /// Whether everything in it is needed.
    pub fn is_conjunctive(&self) -> bool {
        let mut rest = vec![self];
        while let Some(wish) = rest.pop() {
            if let Self::Gate { need, members } = wish {
                if (*need as usize) < members.len() {
                    return false;
                }
                rest.extend(members);
            }
        }
        true
    }

    /// Whether it is for processes only, all or any of a few: what can only be right needs no further look.
    fn is_plain(&self) -> bool {
        let is_process = |wish: &Self| matches!(wish, Self::Claim(Claim { resource: Target::Process(_), demand }) if !demand.is_permits());
        match self {
            Self::Claim(_) => is_process(self),
            Self::Gate { need, members } => {
                let is_plain_need = *need == 1 || *need as usize == members.len();
                (1..=LIMITS.claims).contains(&members.len())
                    && is_plain_need
                    && members.iter().all(is_process)
            }
        }
    }

    /// As the one request type, which knows what a request is.
    fn request(&self) -> Result<Request<Target>, RequestError> {
        match self {
            Self::Claim(claim) => Request::one(*claim),
            Self::Gate { need, members } => {
                let members: Result<Vec<_>, _> = members.iter().map(Self::request).collect();
                Request::at_least(*need, members?)
            }
        }
    }
}

impl FromStr for Policy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "youngest" => Ok(Self::Youngest),
            "lowest-priority" => Ok(Self::LowestPriority),
            "fewest-locks" => Ok(Self::FewestLocks),
            "requester" => Ok(Self::Requester),
            "none" => Ok(Self::None),
            _ => Err("expected youngest, lowest-priority, fewest-locks, requester or none".into()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Youngest => "youngest",
            Self::LowestPriority => "lowest-priority",
            Self::FewestLocks => "fewest-locks",
            Self::Requester => "requester",
            Self::None => "none",
        })
    }
}

#[derive(Clone, Debug, Default)]
struct ProcessState {
    wait: Option<Wait>,
    priority: i64,
    since: i64,
}

/// Alternatives, each of which is all of its claims.
type Terms = Vec<Vec<Claim<Target>>>;

#[derive(Clone, Debug)]
struct Wait {
    wish: Wish,
    /// The AND-OR form, where claims add up; boxed, for it is rare and there are many waits.
    terms: Option<Box<Terms>>,
    order: u64,
}

#[derive(Clone, Debug, Default)]
struct ResourceState {
    limit: Option<u32>,
    holders: Holders,
    perhaps: Holders,
}

/// Who holds a resource: mostly nobody or one, and then no map is made.
#[derive(Clone, Debug, Default)]
enum Holders {
    #[default]
    Nobody,
    One(Process, Demand),
    Several(BTreeMap<Process, Demand>),
}

impl Holders {
    fn iter(&self) -> impl Iterator<Item = (Process, Demand)> {
        let (one, several) = match self {
            Self::Nobody => (None, None),
            Self::One(process, demand) => (Some((*process, *demand)), None),
            Self::Several(holders) => (None, Some(holders)),
        };
        let several = several.into_iter().flat_map(|holders| holders.iter());
        one.into_iter().chain(several.map(|(process, demand)| (*process, *demand)))
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    fn contains(&self, process: Process) -> bool {
        match self {
            Self::Nobody => false,
            Self::One(holder, _) => *holder == process,
            Self::Several(holders) => holders.contains_key(&process),
        }
    }

    /// What the process holds; the demand, if it held nothing before.
    fn entry(&mut self, process: Process, demand: Demand) -> &mut Demand {
        if self.is_empty() {
            *self = Self::One(process, demand);
        }
        if let Self::One(holder, held) = *self
            && holder != process
        {
            *self = Self::Several(BTreeMap::from([(holder, held)]));
        }
        match self {
            Self::Several(holders) => holders.entry(process).or_insert(demand),
            Self::One(_, held) => held,
            Self::Nobody => unreachable!("somebody was put there"),
        }
    }
}
