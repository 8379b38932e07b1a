//! The verdict on a [`Standing`]: who is stuck, why, and whom to abort.

use std::cmp::Reverse;

use conclave_algorithms::deadlock::Claim;
use conclave_algorithms::deadlock::batch::{Analysis, Reason};

use super::lowering::{Lowering, Obstacle};
use super::{Policy, Process, Refusal, Resource, Standing, Target, Wish};

/// What a [`Standing`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Who waits for ever, in order of first mention.
    pub stuck: Vec<Process>,
    /// Why: reasons that together explain all of them.
    pub why: Vec<Why>,
    /// How many more reasons there are.
    pub why_left_out: usize,
    /// Whom to abort so that nobody is stuck, in the order of choice; nobody by [`Policy::None`].
    pub victims: Vec<Process>,
    /// Who would be stuck, too, if all that is perhaps held were held.
    pub perhaps: Vec<Process>,
}

/// Why somebody is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Each needs what the next one has, and the last what the first has.
    Cycle(Vec<Link>),
    /// Each would be content with one of several, but all of them are in here.
    Knot(Vec<Process>),
    /// This part of what the process waits for can never be had.
    Unsatisfiable {
        /// Who asks.
        process: Process,
        /// The smallest part that fails.
        part: Wish,
        /// Who stands in its way for ever.
        holders: Vec<Process>,
    },
}

/// One wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Who waits.
    pub waiter: Process,
    /// For what; `None`: for the process itself.
    pub resource: Option<Resource>,
    /// Who has it.
    pub holder: Process,
}

impl Standing {
    /// Judges it; at most `most_reasons` reasons are told, each of which may cost a walk over the whole graph.
    ///
    /// # Errors
    /// [`Refusal::Full`] if the graph has more nodes or waits than 32 bits count.
    pub fn judge(&self, policy: Policy, most_reasons: usize) -> Result<Findings, Refusal> {
        let snapshot = Lowering::run(self, false).map_err(|_| Refusal::Full)?;
        let analysis = snapshot.analyse();
        let stuck: Vec<Process> = analysis.stuck().collect();
        let representatives = if stuck.is_empty() { Vec::new() } else { analysis.representatives() };
        let told = representatives.iter().take(most_reasons);
        let why = told.filter_map(|process| self.why(&analysis, *process)).collect();
        Ok(Findings {
            why,
            why_left_out: representatives.len().saturating_sub(most_reasons),
            victims: if stuck.is_empty() { Vec::new() } else { self.victims(&analysis, policy) },
            perhaps: self.perhaps_stuck(&analysis)?,
            stuck,
        })
    }

    fn victims(&self, analysis: &Analysis<'_>, policy: Policy) -> Vec<Process> {
        let since = |process: Process| Reverse(self.processes[process as usize].since);
        match policy {
            Policy::Youngest => analysis.victims(since),
            Policy::LowestPriority => {
                analysis.victims(|process| (self.processes[process as usize].priority, since(process)))
            }
            Policy::FewestLocks => analysis.victims(|process| (self.certainly_held(process), since(process))),
            Policy::Requester => {
                let order = |process: Process| {
                    Reverse(self.processes[process as usize].wait.as_ref().map(|wait| wait.order))
                };
                analysis.victims(order)
            }
            Policy::None => Vec::new(),
        }
    }

    fn certainly_held(&self, process: Process) -> usize {
        self.holds
            .range((process, 0, false)..=(process, Resource::MAX, true))
            .filter(|(.., perhaps)| !perhaps)
            .count()
    }

    fn perhaps_stuck(&self, certain: &Analysis<'_>) -> Result<Vec<Process>, Refusal> {
        if self.resources.iter().all(|resource| resource.perhaps.is_empty()) {
            return Ok(Vec::new());
        }
        let snapshot = Lowering::run(self, true).map_err(|_| Refusal::Full)?;
        let analysis = snapshot.analyse();
        Ok(analysis.stuck().filter(|process| !certain.is_stuck(*process)).collect())
    }

    fn why(&self, analysis: &Analysis<'_>, process: Process) -> Option<Why> {
        Some(match analysis.why(process)? {
            Reason::Cycle(members) => {
                let next = members.iter().cycle().skip(1);
                Why::Cycle(
                    members.iter().zip(next).map(|(waiter, holder)| self.link(*waiter, *holder)).collect(),
                )
            }
            Reason::Knot(members) => Why::Knot(members),
            Reason::Unsatisfiable { .. } => {
                let wait = self.processes[process as usize].wait.as_ref()?;
                // Where claims add up, members do not fail one by one.
                let part = match wait.terms {
                    Some(_) => &wait.wish,
                    None => self.failing_part(analysis, process, &wait.wish),
                };
                let obstacles = part
                    .claims()
                    .into_iter()
                    .flat_map(|claim| self.stuck_in_the_way(analysis, process, claim));
                let mut holders: Vec<Process> = obstacles.collect();
                holders.sort_unstable();
                holders.dedup();
                Why::Unsatisfiable { process, part: part.clone(), holders }
            }
        })
    }

    /// The resource by which `holder` stands in the way of `waiter`.
    fn link(&self, waiter: Process, holder: Process) -> Link {
        let claims = self.wish(waiter).map(Wish::claims).unwrap_or_default();
        let has = |claim: &Claim<Target>| match claim.resource {
            Target::Process(_) => None,
            Target::Resource(resource) => {
                let holds = self.resources[resource as usize].holders.contains(holder);
                // A lock is re-entrant: one's own is not in one's way.
                (holds && (holder != waiter || claim.demand.is_permits())).then_some(resource)
            }
        };
        let is_direct = claims.iter().any(|claim| claim.resource == Target::Process(holder));
        let resource = if is_direct { None } else { claims.iter().find_map(has) };
        Link { waiter, resource, holder }
    }

    /// Descends into the only member that fails, as long as there is exactly one.
    fn failing_part<'w>(&self, analysis: &Analysis<'_>, process: Process, wish: &'w Wish) -> &'w Wish {
        let mut part = wish;
        while let Wish::Gate { members, .. } = part {
            let mut failing = members.iter().filter(|member| self.fails(analysis, process, member));
            match (failing.next(), failing.next()) {
                (Some(only), None) => part = only,
                _ => break,
            }
        }
        part
    }

    /// As deep as requests may be.
    fn fails(&self, analysis: &Analysis<'_>, process: Process, wish: &Wish) -> bool {
        match wish {
            Wish::Claim(claim) => match self.obstacle_of(process, *claim) {
                Obstacle::Free => false,
                Obstacle::All(holders) => holders.iter().any(|holder| analysis.is_stuck(*holder)),
                Obstacle::Permits { shortage, holders } => {
                    let finishing = holders.iter().filter(|(holder, _)| !analysis.is_stuck(*holder));
                    finishing.map(|(_, permits)| u64::from(*permits)).sum::<u64>() < u64::from(shortage)
                }
            },
            Wish::Gate { need, members } => {
                let had = members.iter().filter(|member| !self.fails(analysis, process, member)).count();
                had < *need as usize
            }
        }
    }

    fn stuck_in_the_way(
        &self,
        analysis: &Analysis<'_>,
        process: Process,
        claim: Claim<Target>,
    ) -> Vec<Process> {
        let mut holders = match self.obstacle_of(process, claim) {
            Obstacle::Free => Vec::new(),
            Obstacle::All(holders) => holders,
            Obstacle::Permits { holders, .. } => holders.into_iter().map(|(holder, _)| holder).collect(),
        };
        holders.retain(|holder| analysis.is_stuck(*holder));
        holders
    }

    fn obstacle_of(&self, process: Process, claim: Claim<Target>) -> Obstacle {
        match claim.resource {
            Target::Process(target) => Obstacle::All(vec![target]),
            Target::Resource(resource) => self.obstacle(process, resource, claim.demand, false),
        }
    }
}
