//! The reason of a deadlock: a cycle, a knot, or a sub-request that will never be satisfied.
//!
//! An owner that reduction leaves over is stuck; that is the *fact*. The *reason* is searched in the order in
//! which people understand it:
//! - A **cycle** of necessary waits explains AND: each owner needs what the next one holds, whatever else
//!   happens.
//! - A **knot** explains OR: all owners that can be reached are stuck, and each reaches all others.
//! - Otherwise the reason is the smallest **sub-request** that cannot be satisfied, with the owners that
//!   prevent it.
//!
//! **The traps.**
//! - An owner waits only for what it lacks. Of `a & (b | c)`, if `c` is available, the holder of `b` prevents
//!   nothing.
//! - An older deadlock may have been left unresolved, and a new one may lead to it. The new deadlock is
//!   explained only by owners that keep *each other* stuck. The owner whose wait closed it is one of them.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::super::request::{Claim, Demand, Node, Request};
use super::super::scc::{components, first_component};
use super::reduction::Reduction;
use super::slots::{Local, Slot};
use super::{Owner, Wait, WaitGraph, permits};

/// The reason why a wait closes a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "R: Ord + Clone + Serialize, O: Serialize"))]
#[serde(bound(deserialize = "R: Ord + Deserialize<'de>, O: Deserialize<'de>"))]
pub enum Why<R, O> {
    /// Each owner needs what the next one holds, and the last needs what the first holds.
    Cycle(Vec<Link<R, O>>),
    /// Each owner needs only one of several holders, but all of these are in the knot too; sorted.
    Knot(Vec<O>),
    /// This part of the waiter's request can never be satisfied.
    Unsatisfiable {
        /// The waiting owner.
        waiter: O,
        /// The smallest part of the request that fails.
        part: Request<R>,
        /// The owners that hold what the part needs and will never finish; sorted.
        holders: Vec<O>,
        /// The stuck owners that wait for the waiter, directly or indirectly, and for which it waits too;
        /// sorted.
        core: Vec<O>,
    },
}

/// `waiter` waits for `resource`, which `holder` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link<R, O> {
    /// The waiting owner.
    pub waiter: O,
    /// The resource for which it waits.
    pub resource: R,
    /// The owner that holds the resource.
    pub holder: O,
}

impl<R, O: Copy> Why<R, O> {
    /// Returns the owners among which a victim is chosen: those that keep each other stuck.
    pub fn candidates(&self) -> Vec<O> {
        match self {
            Self::Cycle(links) => links.iter().map(|link| link.waiter).collect(),
            Self::Knot(members) => members.clone(),
            Self::Unsatisfiable { core, .. } => core.clone(),
        }
    }
}

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    /// Returns the reason if the wait of a stuck owner closes a deadlock; `None` if it only waits for one.
    pub(super) fn closes(&self, reduction: &mut Reduction<'_, R, O>, start: Slot) -> Option<Why<R, O>> {
        if let Some(links) = self.path_back(reduction, start, Edges::Necessary) {
            return Some(Why::Cycle(links));
        }
        self.path_back(reduction, start, Edges::All)?;
        Some(self.why(reduction, start))
    }

    /// Returns whether the wait of `owner` can close a deadlock: only if another owner waits for something
    /// that it holds.
    pub(super) fn can_close(&self, owner: Slot) -> bool {
        let Owner { holds, wait } = &self.owners[owner];
        wait.is_some() && holds.iter().any(|held| !self.resources[*held].line.is_empty())
    }

    /// Returns the reason if no cycle of necessary waits is one.
    fn why(&self, reduction: &mut Reduction<'_, R, O>, start: Slot) -> Why<R, O> {
        let ahead = self.ahead(reduction, [start]);
        let knot = ahead.knot();
        if knot.contains(&start) && knot.iter().all(|member| self.is_content_with_any(reduction, *member)) {
            return Why::Knot(self.sorted(knot.into_iter()));
        }
        let part = self.failing_part(reduction, start);
        let holders = part.claims().flat_map(|claim| self.in_the_way(reduction, start, claim));
        let mut holders = self.sorted(holders.collect::<Vec<_>>().into_iter());
        holders.dedup();
        let part =
            part.map(|resource| *self.resources.name(resource)).expect("names are as different as slots");
        let core = self.sorted(ahead.core().into_iter());
        Why::Unsatisfiable { waiter: *self.owners.name(start), part, holders, core }
    }

    /// Returns the claims that a stuck owner lacks: those that are not available. A claim in a satisfied gate
    /// is not lacking.
    pub(super) fn lacking(&self, reduction: &mut Reduction<'_, R, O>, owner: Slot) -> Vec<Claim<Slot>> {
        let Some(Wait { request, claims, .. }) = &self.owners[owner].wait else { return Vec::new() };
        let mut is_lacking = |claim: &&Claim<Slot>| !reduction.available(owner, claim.resource, claim.demand);
        if is_conjunctive(request) {
            return claims.iter().filter(is_lacking).copied().collect();
        }
        // A satisfied part lacks nothing and gives `None`.
        let leaf = |claim: &Claim<Slot>| {
            // Permits of one semaphore that are named twice are available only together.
            let together =
                claims.iter().find(|most| claim.demand.is_permits() && most.resource == claim.resource);
            Some(together.unwrap_or(claim)).filter(&mut is_lacking).map(|claim| vec![*claim])
        };
        let lacking = request.fold(leaf, |gate, members| {
            let satisfied = members.iter().filter(|member| member.is_none()).count();
            let lacking = members.iter_mut().flat_map(core::mem::take).flatten();
            (satisfied < gate.need as usize).then(|| lacking.collect())
        });
        lacking.unwrap_or_default()
    }

    /// Returns the stuck holders that prevent the owner from getting its claim.
    fn in_the_way(&self, reduction: &mut Reduction<'_, R, O>, owner: Slot, claim: &Claim<Slot>) -> Vec<Slot> {
        if reduction.available(owner, claim.resource, claim.demand) {
            return Vec::new();
        }
        let blocked = self.resources[claim.resource].blocked.keys().copied();
        let is_other = |holder: &Slot| claim.demand.is_permits() || *holder != owner;
        blocked.filter(|holder| is_other(holder) && reduction.is_stuck(*holder)).collect()
    }

    /// Returns the shortest path from `start` over stuck owners back to `start`. Each resource is passed
    /// once, and again only with a larger demand. So converging paths cost as much as the graph, not as their
    /// product.
    fn path_back(
        &self,
        reduction: &mut Reduction<'_, R, O>,
        start: Slot,
        edges: Edges,
    ) -> Option<Vec<Link<R, O>>> {
        // On necessary edges, only a request without alternatives leads further.
        let lacking = |reduction: &mut Reduction<'_, R, O>, waiter: Slot| match &self.owners[waiter].wait {
            Some(wait) if edges == Edges::All || is_conjunctive(&wait.request) => {
                self.lacking(reduction, waiter)
            }
            _ => Vec::new(),
        };
        let leads_back = |waiter: Slot, lacks: &[Claim<Slot>]| {
            lacks.iter().find(|claim| self.is_edge(edges, waiter, claim, start)).map(|claim| claim.resource)
        };
        if !reduction.is_stuck(start) {
            return None;
        }
        let mut met = Local::new();
        met.meet(start);
        let mut via: Vec<Option<(usize, Slot)>> = vec![None];
        let mut lacks = vec![lacking(reduction, start)];
        if let Some(resource) = leads_back(start, &lacks[0]) {
            return Some(self.links(&met, &via, (0, resource), start));
        }
        let mut passed = Local::new();
        let mut passed_with: Vec<Demand> = Vec::new();
        let mut next = 0;
        while next < met.len() {
            let (number, waiter) = (next, met.slot(next));
            next += 1;
            for claim in core::mem::take(&mut lacks[number]) {
                let (pass, is_new) = passed.meet(claim.resource);
                if is_new {
                    passed_with.push(claim.demand);
                } else if claim.demand <= passed_with[pass] {
                    continue;
                }
                passed_with[pass] = claim.demand;
                for &holder in self.resources[claim.resource].blocked.keys() {
                    let is_edge = reduction.is_stuck(holder) && self.is_edge(edges, waiter, &claim, holder);
                    if !is_edge || !met.meet(holder).1 {
                        continue;
                    }
                    via.push(Some((number, claim.resource)));
                    // Look for the way back as soon as a holder is met: among many holders, the first may
                    // lead back.
                    let lacked = lacking(reduction, holder);
                    if let Some(resource) = leads_back(holder, &lacked) {
                        return Some(self.links(&met, &via, (met.len() - 1, resource), start));
                    }
                    lacks.push(lacked);
                }
            }
        }
        None
    }

    /// Returns whether `holder` prevents the claim, given that the claim is not available. A necessary edge
    /// holds even if all other owners finish.
    fn is_edge(&self, edges: Edges, waiter: Slot, claim: &Claim<Slot>, holder: Slot) -> bool {
        let semaphore = &self.resources[claim.resource];
        let Some(held) = semaphore.blocked.get(&holder) else { return false };
        match (claim.demand, edges) {
            (Demand::Shared | Demand::Exclusive, _) => holder != waiter,
            (Demand::Permits(_), Edges::All) => true,
            (Demand::Permits(count), Edges::Necessary) => {
                u64::from(count) + permits(Some(*held)) > u64::from(semaphore.limit.unwrap_or(0))
            }
        }
    }

    fn links(
        &self,
        met: &Local,
        via: &[Option<(usize, Slot)>],
        last: (usize, Slot),
        start: Slot,
    ) -> Vec<Link<R, O>> {
        let mut links = Vec::new();
        let (mut step, mut holder) = (Some(last), start);
        while let Some((waiter, resource)) = step {
            let (resource, slot) = (*self.resources.name(resource), met.slot(waiter));
            links.push(Link { waiter: *self.owners.name(slot), resource, holder: *self.owners.name(holder) });
            (step, holder) = (via[waiter], slot);
        }
        links.reverse();
        links
    }

    /// Returns the graph of everything for which `starts` wait, directly or indirectly.
    pub(super) fn ahead(
        &self,
        reduction: &mut Reduction<'_, R, O>,
        starts: impl IntoIterator<Item = Slot>,
    ) -> Ahead {
        let mut ahead = Ahead { nodes: Local::new(), first: vec![0], targets: Vec::new() };
        for start in starts {
            ahead.nodes.meet(owner_node(start));
        }
        while ahead.first.len() <= ahead.nodes.len() {
            let name = ahead.nodes.slot(ahead.first.len() - 1);
            let next: Vec<Slot> = if is_owner_node(name) {
                let lacking = self.lacking(reduction, name / 2);
                lacking.iter().map(|claim| resource_node(claim.resource)).collect()
            } else {
                let holders = self.resources[name / 2].blocked.keys();
                holders
                    .filter(|holder| reduction.is_stuck(**holder))
                    .map(|holder| owner_node(*holder))
                    .collect()
            };
            ahead.targets.extend(next.into_iter().map(|name| ahead.nodes.meet(name).0 as u32));
            let edges = u32::try_from(ahead.targets.len()).expect("no more edges than holds and claims");
            ahead.first.push(edges);
        }
        ahead
    }

    /// Returns whether the owner needs only one of several things (the OR model), each of which a single
    /// stuck holder prevents.
    fn is_content_with_any(&self, reduction: &mut Reduction<'_, R, O>, owner: Slot) -> bool {
        let Some(Wait { request, .. }) = &self.owners[owner].wait else { return false };
        request.nodes().iter().all(|node| !matches!(node, Node::Gate(gate) if gate.need > 1))
            && request.claims().all(|claim| self.in_the_way(reduction, owner, claim).len() <= 1)
    }

    /// Returns the smallest failing part of the request: descends while exactly one member fails.
    fn failing_part(&self, reduction: &mut Reduction<'_, R, O>, owner: Slot) -> Request<Slot> {
        let wait = self.owners[owner].wait.as_ref().expect("a stuck owner waits");
        let mut part = wait.request.clone();
        // Members of an entangled request may fail only together, so stop there.
        while !part.is_entangled() {
            let mut fails = |member: &Request<Slot>| {
                !member.is_satisfied(|&resource, demand| reduction.available(owner, resource, demand))
            };
            let mut failing: Vec<Request<Slot>> =
                part.members().into_iter().filter(|part| fails(part)).collect();
            match failing.pop() {
                Some(only) if failing.is_empty() => part = only,
                _ => break,
            }
        }
        part
    }

    pub(super) fn sorted(&self, slots: impl Iterator<Item = Slot>) -> Vec<O> {
        let mut names: Vec<O> = slots.map(|slot| *self.owners.name(slot)).collect();
        names.sort_unstable();
        names
    }
}

/// The owners and resources for which some stuck owners wait, directly or indirectly, as a graph. These
/// owners are its first nodes.
pub(super) struct Ahead {
    nodes: Local,
    /// The index of the first edge of each node, and the number of edges at the end.
    first: Vec<u32>,
    targets: Vec<u32>,
}

impl Ahead {
    /// Returns the owners of each strongly connected component that contains an owner.
    pub(super) fn components(&self) -> Vec<Vec<Slot>> {
        let edges = |node: u32| self.first[node as usize]..self.first[node as usize + 1];
        let component = components(self.nodes.len(), edges, |place| self.targets[place as usize]);
        let mut members: BTreeMap<u32, Vec<Slot>> = BTreeMap::new();
        for (number, component) in component.into_iter().enumerate() {
            let name = self.nodes.slot(number);
            if is_owner_node(name) {
                members.entry(component).or_default().push(name / 2);
            }
        }
        members.into_values().collect()
    }

    /// Returns owners that reach each other and no other owner.
    fn knot(&self) -> Vec<Slot> {
        let counts = core::iter::repeat_n(true, self.nodes.len());
        let edges = |node: u32| self.first[node as usize]..self.first[node as usize + 1];
        let component = first_component(0, counts, edges, |place| self.targets[place as usize]);
        self.owners_among(component.into_iter()).collect()
    }

    /// Returns the first owner, and the owners that wait for it, directly or indirectly.
    fn core(&self) -> Vec<Slot> {
        let mut sources: Vec<Vec<u32>> = vec![Vec::new(); self.nodes.len()];
        for (node, edges) in (0..).zip(self.first.windows(2)) {
            for target in &self.targets[edges[0] as usize..edges[1] as usize] {
                sources[*target as usize].push(node);
            }
        }
        let mut found = vec![0];
        let mut next = 0;
        while let Some(node) = found.get(next) {
            next += 1;
            found.extend(core::mem::take(&mut sources[*node as usize]));
        }
        found.sort_unstable();
        found.dedup();
        self.owners_among(found.into_iter()).collect()
    }

    fn owners_among(&self, nodes: impl Iterator<Item = u32>) -> impl Iterator<Item = Slot> {
        nodes
            .map(|node| self.nodes.slot(node as usize))
            .filter(|name| is_owner_node(*name))
            .map(|name| name / 2)
    }
}

/// Returns the node of an owner. Owners have even numbers, resources have odd numbers.
fn owner_node(owner: Slot) -> Slot {
    2 * owner
}

fn resource_node(resource: Slot) -> Slot {
    2 * resource + 1
}

fn is_owner_node(name: Slot) -> bool {
    name.is_multiple_of(2)
}

/// The kinds of waits that count as edges.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Edges {
    All,
    Necessary,
}

/// Returns whether all claims of the request are needed.
fn is_conjunctive(request: &Request<Slot>) -> bool {
    request.nodes().iter().all(|node| !matches!(node, Node::Gate(gate) if gate.need < gate.members))
}
