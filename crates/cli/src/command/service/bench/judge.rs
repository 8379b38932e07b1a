//! The grants that this process holds, checked against exclusion and the order of fences.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use conclave_client::Guard;
use conclave_core::Claim;

/// A table of grants. Counts each grant that violates exclusion or the order of fences.
#[derive(Default)]
pub struct Judge {
    names: Mutex<HashMap<String, Holders>>,
    violations: AtomicU64,
}

#[derive(Default)]
struct Holders {
    exclusive: u32,
    shared: u32,
    /// The largest fence of an exclusive grant.
    last_exclusive: u64,
    /// The largest fence of any grant.
    last: u64,
}

impl Judge {
    /// Records a grant that has arrived.
    pub fn enter(&self, guard: &Guard) {
        for held in guard.names() {
            self.enter_one(&held.name, held.claim, held.fence.0);
        }
    }

    /// Removes a grant whose release is about to be sent.
    pub fn leave(&self, guard: &Guard) {
        let mut names = self.names();
        for held in guard.names() {
            if let Some(holders) = names.get_mut(&held.name) {
                match held.claim {
                    Claim::Exclusive => holders.exclusive -= 1,
                    Claim::Shared => holders.shared -= 1,
                    Claim::Permits(_) => {}
                }
            }
        }
    }

    /// The number of violations.
    pub fn violations(&self) -> u64 {
        self.violations.load(Ordering::Relaxed)
    }

    /// The lock is never poisoned in practice; after a panic, the table would still be consistent.
    fn names(&self) -> MutexGuard<'_, HashMap<String, Holders>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter_one(&self, name: &str, claim: Claim, fence: u64) {
        let mut names = self.names();
        if !names.contains_key(name) {
            names.insert(name.to_owned(), Holders::default());
        }
        let Some(holders) = names.get_mut(name) else { return };
        let allowed = match claim {
            Claim::Exclusive => {
                let alone = holders.exclusive == 0 && holders.shared == 0;
                let in_order = fence > holders.last;
                holders.exclusive += 1;
                holders.last_exclusive = holders.last_exclusive.max(fence);
                alone && in_order
            }
            Claim::Shared => {
                holders.shared += 1;
                holders.exclusive == 0 && fence > holders.last_exclusive
            }
            Claim::Permits(_) => true,
        };
        holders.last = holders.last.max(fence);
        if !allowed {
            self.violations.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(grants: &[(Claim, u64)]) -> u64 {
        let judge = Judge::default();
        grants.iter().for_each(|(claim, fence)| judge.enter_one("x", *claim, *fence));
        judge.violations()
    }

    #[test]
    fn two_at_a_time_are_seen() {
        assert_eq!(violations(&[(Claim::Exclusive, 1)]), 0);
        assert_eq!(violations(&[(Claim::Exclusive, 1), (Claim::Exclusive, 2)]), 1);
        assert_eq!(violations(&[(Claim::Shared, 1), (Claim::Shared, 1)]), 0);
        assert_eq!(violations(&[(Claim::Shared, 1), (Claim::Exclusive, 2)]), 1);
        assert_eq!(violations(&[(Claim::Exclusive, 1), (Claim::Shared, 2)]), 1);
    }

    #[test]
    fn a_fence_that_does_not_grow_is_seen() {
        let judge = Judge::default();
        judge.enter_one("x", Claim::Exclusive, 5);
        judge.names().get_mut("x").expect("entered").exclusive = 0;
        judge.enter_one("x", Claim::Exclusive, 5);
        assert_eq!(judge.violations(), 1);
    }
}
