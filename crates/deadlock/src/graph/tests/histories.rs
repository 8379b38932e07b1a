//! Random histories in all request models. After every step, a graph is built of the situation, and
//! compared with the reference implementation.

use std::collections::BTreeSet;
use std::vec::Vec;

use proptest::prelude::*;

use super::naive::{Naive, count_of};
use super::{Graph, claim, stuck_anyway};
use crate::graph::{GraphError, Link, Turn, Why};
use crate::request::tests::any_request;
use crate::request::{Claim, Demand, Request};

const OWNERS: u32 = 6;
const SEMAPHORES: [u32; 2] = [4, 5];

#[derive(Clone, Debug)]
enum Step {
    /// A request. If it cannot be granted, the owner waits. A deadlock is resolved by its youngest owner, or
    /// left unresolved.
    Ask {
        owner: u32,
        class: i64,
        request: Request<u32>,
        resolves: bool,
    },
    /// A hold given to a running or waiting owner, if the resource is free.
    Take {
        owner: u32,
        resource: u32,
        shared: bool,
    },
    Release {
        owner: u32,
        which: usize,
        keeps: bool,
    },
    Cancel {
        owner: u32,
    },
    Remove {
        owner: u32,
    },
    Limit {
        semaphore: usize,
        limit: u32,
    },
    /// Grant waiters in order until no waiter can be granted.
    Settle,
}

fn any_step() -> impl Strategy<Value = Step> {
    let owner = 0..OWNERS;
    prop_oneof![
        8 => (owner.clone(), 0..2i64, any_request(), any::<bool>())
            .prop_map(|(owner, class, request, resolves)| Step::Ask { owner, class, request, resolves }),
        6 => (owner.clone(), 0..6u32, any::<bool>())
            .prop_map(|(owner, resource, shared)| Step::Take { owner, resource, shared }),
        3 => (owner.clone(), 0..4usize, any::<bool>())
            .prop_map(|(owner, which, keeps)| Step::Release { owner, which, keeps }),
        1 => owner.clone().prop_map(|owner| Step::Cancel { owner }),
        1 => owner.prop_map(|owner| Step::Remove { owner }),
        1 => (0..2usize, 1..6u32).prop_map(|(semaphore, limit)| Step::Limit { semaphore, limit }),
        2 => Just(Step::Settle),
    ]
}

struct Twins {
    naive: Naive,
    entry: u64,
}

impl Twins {
    fn new() -> Self {
        let mut twins = Self { naive: Naive::default(), entry: 0 };
        SEMAPHORES.iter().for_each(|semaphore| twins.limit(*semaphore, 4));
        twins
    }

    /// Builds the graph of the situation.
    fn graph(&self) -> Graph {
        let mut graph = self.held();
        for (owner, (turn, request)) in &self.naive.waits {
            graph.enqueue(*owner, *turn, request.clone()).unwrap();
        }
        graph
    }

    /// Builds the graph of the situation without waits.
    fn held(&self) -> Graph {
        let mut graph = Graph::new();
        for (semaphore, limit) in &self.naive.limits {
            graph.set_limit(*semaphore, Some(*limit)).unwrap();
        }
        for ((owner, resource), demand) in &self.naive.holds {
            graph.hold(*owner, claim(*resource, *demand)).unwrap();
        }
        graph
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask { owner, class, request, resolves } => self.ask(owner, class, request, resolves),
            Step::Take { owner, resource, shared } => self.take(owner, resource, shared),
            Step::Release { owner, which, keeps } => {
                let held: Vec<_> =
                    self.naive.holds.iter().filter(|((holder, _), _)| *holder == owner).collect();
                if let Some(((_, resource), demand)) = held.get(which) {
                    self.release(owner, claim(*resource, **demand), keeps);
                }
            }
            Step::Cancel { owner } => _ = self.naive.waits.remove(&owner),
            Step::Remove { owner } => {
                self.naive.waits.remove(&owner);
                self.naive.holds.retain(|(holder, _), _| *holder != owner);
            }
            Step::Limit { semaphore, limit } => self.limit(SEMAPHORES[semaphore], limit),
            Step::Settle => self.settle(),
        }
    }

    fn ask(&mut self, owner: u32, class: i64, request: Request<u32>, resolves: bool) {
        self.entry += 1;
        let turn = Turn { class, entry: self.entry };
        let mut graph = self.graph();
        match graph.enqueue(owner, turn, request.clone()) {
            Err(GraphError::AlreadyWaiting) => assert!(self.naive.waits.contains_key(&owner)),
            Err(GraphError::Impossible) => assert!(!self.exists(&request)),
            Err(error) => panic!("{error}"),
            Ok(()) => {
                self.naive.waits.insert(owner, (turn, request));
                let mut resolution = graph.resolution(owner);
                while let Some(why) = resolution.find().filter(|_| resolves) {
                    let victim = why.candidates().into_iter().max().expect("a deadlock has members");
                    resolution.cancel(victim);
                    self.naive.waits.remove(&victim);
                    assert_eq!(resolution.find().is_some(), self.naive.closes(owner));
                }
            }
        }
    }

    /// Returns whether a request can be satisfied when all permits are free.
    fn exists(&self, request: &Request<u32>) -> bool {
        let limits = &self.naive.limits;
        request.is_satisfied(|name: &u32, demand| count_of(demand) <= *limits.get(name).unwrap_or(&0))
    }

    fn take(&mut self, owner: u32, resource: u32, shared: bool) {
        let demand = match (SEMAPHORES.contains(&resource), shared) {
            (true, _) => Demand::Permits(1),
            (false, true) => Demand::Shared,
            (false, false) => Demand::Exclusive,
        };
        // Holds may exceed the limit of permits, because the limit may have been lowered.
        match self.held().hold(owner, claim(resource, demand)) {
            Err(error) => assert_eq!(error, GraphError::Conflict),
            Ok(()) => self.hold(owner, claim(resource, demand)),
        }
    }

    fn hold(&mut self, owner: u32, claim: Claim<u32>) {
        let held = self.naive.holds.get(&(owner, claim.resource)).copied();
        let total = match (held, claim.demand) {
            (None, more) => more,
            (Some(Demand::Permits(have)), Demand::Permits(more)) => Demand::Permits(have + more),
            (Some(have), more) => have.max(more),
        };
        self.naive.holds.insert((owner, claim.resource), total);
    }

    fn release(&mut self, owner: u32, held: Claim<u32>, keeps: bool) {
        let keep = match held.demand {
            Demand::Permits(count) if keeps => Some(Demand::Permits(count - 1)),
            Demand::Exclusive | Demand::Shared if keeps => Some(Demand::Shared),
            _ => None,
        };
        match keep.filter(|keep| *keep != Demand::Permits(0)) {
            Some(keep) => self.naive.holds.insert((owner, held.resource), keep),
            None => self.naive.holds.remove(&(owner, held.resource)),
        };
    }

    /// Sets a limit. Waits that it makes impossible end.
    fn limit(&mut self, semaphore: u32, limit: u32) {
        self.naive.limits.insert(semaphore, limit);
        let mut waits = std::mem::take(&mut self.naive.waits);
        waits.retain(|_, (_, request)| self.exists(request));
        self.naive.waits = waits;
    }

    fn settle(&mut self) {
        loop {
            let mut line: Vec<(Turn, u32)> =
                self.naive.waits.iter().map(|(owner, wait)| (wait.0, *owner)).collect();
            line.sort_unstable();
            let next = line.iter().find_map(|(_, owner)| Some((*owner, self.naive.grantable(*owner)?)));
            let Some((owner, set)) = next else { break };
            self.naive.waits.remove(&owner);
            set.into_iter().for_each(|claim| self.hold(owner, claim));
        }
        // Soft edges alone never keep a waiter: if no holder runs, each owner that still waits is stuck.
        if self.naive.holds.keys().all(|(holder, _)| self.naive.waits.contains_key(holder)) {
            assert_eq!(self.naive.stuck(), self.naive.waits.keys().copied().collect());
        }
    }

    fn compare(&self) {
        let (graph, stuck) = (self.graph(), self.naive.stuck());
        assert_eq!(graph.stuck(), stuck.iter().copied().collect::<Vec<_>>());
        for owner in 0..OWNERS {
            let why = graph.resolution(owner).find();
            assert_eq!(why.is_some(), self.naive.closes(owner));
            why.iter().for_each(|why| self.check_closed(&graph, owner, why, &stuck));
            let held_up = self.naive.left_over(&BTreeSet::from([owner]), true);
            let waiting = || self.naive.waits.keys().copied();
            let expected: Vec<u32> = waiting().filter(|waiter| held_up.contains(waiter)).collect();
            assert_eq!(graph.held_up_without(waiting(), &[owner]), expected);
        }
    }

    /// Checks that the owner whose wait closes a deadlock is part of it, and which owners were stuck before.
    fn check_closed(&self, graph: &Graph, closer: u32, why: &Why<u32, u32>, stuck: &BTreeSet<u32>) {
        let candidates = why.candidates();
        assert!(candidates.contains(&closer), "{closer}: {why:?}");
        assert!(candidates.iter().all(|owner| stuck.contains(owner)));
        let mut before = self.naive.clone();
        before.waits.remove(&closer);
        let before = before.stuck();
        let standing = stuck_anyway(graph, closer, 0..OWNERS);
        assert!(standing.iter().all(|owner| before.contains(owner)));
        assert!(candidates.iter().all(|owner| !before.contains(owner) || standing.contains(owner)));
        match why {
            Why::Cycle(links) => {
                let next = links.iter().cycle().skip(1);
                assert!(links.iter().zip(next).all(|(link, next)| link.holder == next.waiter));
                for Link { waiter, resource, holder } in links {
                    assert!(self.naive.holds.contains_key(&(*holder, *resource)));
                    assert!(self.naive.waits[waiter].1.names().any(|name| name == resource));
                }
            }
            Why::Knot(members) => {
                // No other owner would help: if all others finish, all members of the knot are still stuck.
                let mut alone = self.naive.clone();
                alone.waits.retain(|owner, _| members.contains(owner));
                assert_eq!(alone.stuck(), members.iter().copied().collect());
            }
            Why::Unsatisfiable { waiter, holders, part, .. } => {
                let names: Vec<_> = part.names().collect();
                let holds_part =
                    |holder: &u32| names.iter().any(|name| self.naive.holds.contains_key(&(*holder, **name)));
                assert!(stuck.contains(waiter) && holders.iter().all(holds_part));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn a_random_history_agrees_with_the_definitions_after_every_step(
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let mut twins = Twins::new();
        for step in steps {
            twins.step(step);
            twins.compare();
        }
    }
}
