//! Random histories of all operations in all request models, compared with the reference implementation after
//! every step.

use std::collections::BTreeSet;
use std::vec::Vec;

use proptest::prelude::*;

use super::naive::{Naive, count_of};
use super::{Graph, claim};
use crate::graph::{Deadlock, GraphError, Link, Turn, Verdict, Why};
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
    graph: Graph,
    naive: Naive,
    entry: u64,
}

impl Twins {
    fn new() -> Self {
        let mut twins = Self { graph: Graph::new(), naive: Naive::default(), entry: 0 };
        SEMAPHORES.iter().for_each(|semaphore| twins.limit(*semaphore, 4));
        twins
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask { owner, class, request, resolves } => self.ask(owner, class, request, resolves),
            Step::Take { owner, resource, shared } => self.take(owner, resource, shared),
            Step::Release { owner, which, keeps } => {
                let held: Vec<_> = self.graph.holds(owner).collect();
                if let Some(held) = held.get(which) {
                    self.release(owner, *held, keeps);
                }
            }
            Step::Cancel { owner } => self.cancel(owner),
            Step::Remove { owner } => {
                self.graph.remove(owner);
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
        let before = self.naive.stuck();
        match self.graph.wait(owner, turn, request.clone()) {
            Err(GraphError::AlreadyWaiting) => assert!(self.naive.waits.contains_key(&owner)),
            Err(GraphError::Impossible) => {
                let limits = &self.naive.limits;
                let exists = |name: &u32, demand| count_of(demand) <= *limits.get(name).unwrap_or(&0);
                assert!(!request.is_satisfied(exists));
            }
            Err(error) => panic!("{error}"),
            Ok(verdict) => {
                self.naive.waits.insert(owner, (turn, request));
                if let Verdict::Deadlock(found) = &verdict {
                    let after = self.naive.stuck();
                    assert!(
                        after.difference(&before).all(|new| found.stuck.contains(new)),
                        "a victim is not reported"
                    );
                }
                if resolves
                    && !self.graph.resolve(owner, |found| found.why.candidates().into_iter().max()).is_empty()
                {
                    self.naive.waits.retain(|owner, _| self.graph.is_waiting(*owner));
                    assert!(!self.naive.closes(owner));
                }
            }
        }
    }

    fn take(&mut self, owner: u32, resource: u32, shared: bool) {
        let demand = match (SEMAPHORES.contains(&resource), shared) {
            (true, _) => Demand::Permits(1),
            (false, true) => Demand::Shared,
            (false, false) => Demand::Exclusive,
        };
        // Holds may exceed the limit of permits, because the limit may have been lowered.
        match self.graph.hold(owner, claim(resource, demand)) {
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
        assert!(self.graph.release(owner, held.resource, keep));
        match keep.filter(|keep| *keep != Demand::Permits(0)) {
            Some(keep) => self.naive.holds.insert((owner, held.resource), keep),
            None => self.naive.holds.remove(&(owner, held.resource)),
        };
    }

    fn cancel(&mut self, owner: u32) {
        assert_eq!(self.graph.cancel(owner), self.naive.waits.remove(&owner).is_some());
    }

    fn limit(&mut self, semaphore: u32, limit: u32) {
        self.graph.set_limit(semaphore, Some(limit)).unwrap();
        self.naive.limits.insert(semaphore, limit);
    }

    fn settle(&mut self) {
        loop {
            let mut line: Vec<(Turn, u32)> =
                self.naive.waits.iter().map(|(owner, wait)| (wait.0, *owner)).collect();
            line.sort_unstable();
            let next = line.iter().find_map(|(_, owner)| Some((*owner, self.graph.grantable(*owner)?)));
            let Some((owner, set)) = next else { break };
            self.graph.grant(owner, &set).unwrap();
            self.naive.waits.remove(&owner);
            set.into_iter().for_each(|claim| self.hold(owner, claim));
        }
        // Soft edges alone never keep a waiter: if no holder runs, each owner that still waits is stuck.
        if self.naive.holds.keys().all(|(holder, _)| self.naive.waits.contains_key(holder)) {
            assert_eq!(self.naive.stuck(), self.naive.waits.keys().copied().collect());
        }
    }

    fn compare(&self) {
        let stuck = self.naive.stuck();
        assert_eq!(self.graph.stuck(), stuck.iter().copied().collect::<Vec<_>>());
        for owner in 0..OWNERS {
            let holds: Vec<_> = self.graph.holds(owner).map(|held| (held.resource, held.demand)).collect();
            for (resource, demand) in &holds {
                assert_eq!(self.naive.holds.get(&(owner, *resource)), Some(demand));
            }
            assert_eq!(holds.len(), self.naive.holds.keys().filter(|(holder, _)| *holder == owner).count());
            let story = self.graph.explain(owner);
            assert_eq!(story.is_some(), stuck.contains(&owner));
            story.iter().for_each(|story| self.check_story(story, &stuck));
            match self.graph.examine(owner) {
                Verdict::Clear => assert!(!self.naive.closes(owner)),
                Verdict::Deadlock(found) => {
                    assert!(self.naive.closes(owner));
                    assert!(
                        found.stuck.contains(&owner) && found.stuck.iter().all(|owner| stuck.contains(owner))
                    );
                    self.check_closed(owner, &found);
                }
            }
            assert_eq!(self.graph.grantable(owner), self.naive.grantable(owner));
            for other in 0..OWNERS {
                let left = self.naive.left_over(&BTreeSet::from([other]), true);
                let expected = !left.contains(&owner);
                let is_waiting = self.naive.waits.contains_key(&owner);
                assert!(!is_waiting || self.graph.can_proceed_without(owner, &[other]) == expected);
            }
            let held_up = self.naive.left_over(&BTreeSet::from([owner]), true);
            let waiting = || self.naive.waits.keys().copied();
            let expected: Vec<u32> = waiting().filter(|waiter| held_up.contains(waiter)).collect();
            assert_eq!(self.graph.held_up_without(waiting(), &[owner]), expected);
        }
    }

    /// Checks that the owner whose wait closes a deadlock is part of it, and which of its members were stuck
    /// before.
    fn check_closed(&self, closer: u32, found: &Deadlock<u32, u32>) {
        let candidates = found.why.candidates();
        assert!(candidates.contains(&closer), "{closer}: {found:?}");
        let mut before = self.naive.clone();
        before.waits.remove(&closer);
        let before = before.stuck();
        let standing = self.graph.stuck_without(closer);
        assert!(standing.iter().all(|owner| before.contains(owner)));
        assert!(candidates.iter().all(|owner| !before.contains(owner) || standing.contains(owner)));
    }

    fn check_story(&self, story: &Deadlock<u32, u32>, stuck: &BTreeSet<u32>) {
        assert!(!story.why.candidates().is_empty());
        assert!(story.why.candidates().iter().all(|owner| stuck.contains(owner)));
        match &story.why {
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
