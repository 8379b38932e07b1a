//! Handovers: grants that are foregone, because what is on disk leaves no other outcome.
//!
//! **Intuition.** A name changes hands when its holder gives it back and the next in line gets it. Whose turn it would be was
//! durable long before: the disk has had the whole line. What it does not have yet is only the holder's word that it is
//! done, and for that the next one need not wait. If the power goes now, the log says that the old holder still holds;
//! but that one has given the name up and will say so again, and whoever is granted it in the end is the very one who
//! was told so. So a hot lock changes hands many times in one sync, and nobody is told anything that could turn out
//! otherwise.
//!
//! **Rules.** A grant is foregone, from command `after` on, if
//! - the name was given back by the client that held it: alone, by an owner that has nothing else;
//! - the one who gets it was the first in line and *plain*: it waits without a limit for this one name, exclusively, by an
//!   owner of its own, and is no campaign. Such a one holds nothing, so it is in no deadlock and nobody overtakes it;
//! - since `after` everybody who was in line before it has left by having the name and giving it back in the same way. Whoever
//!   leaves otherwise (a cancel, an expiry, a victim, a break, a choice of another name) *disturbs* the line: after a
//!   crash it would be back, and might be granted first;
//! - the heir itself is in line since `after` or before.
//!
//! Then in every state from `after` on the heir waits, and before it there are only such as have given up the name.
//!
//! **After a restart** two things must hold that the log does not say. Nobody who comes later may get before the heir, whatever
//! its priority: so all who wait are moved on, in their order. And fences were handed out that are not in the log: so all
//! that follow are larger by more than could have been. Both is done by [`Command::Restarted`](super::Command::Restarted), before
//! anybody is served.
//!
//! **The trap.** After a restart the heir waits where its client knows that it holds. Its release ends the wait.
//!
//! Whether anybody is told early is not decided here: only a node that is alone is ahead of its disk
//! (`replica/ahead.rs`, `docs/decisions/0021-early-grants.md`).

use conclave_algorithms::deadlock::Demand;

use super::grant::{Moment, Work};
use super::lock::{Grant, LockId, Locks};
use super::rank::{Rank, Ticket};

/// By how much fences leap at a restart. Nothing is told early by a node that has applied as many commands beyond what is
/// durable.
pub const FENCE_LEAP: u64 = 1 << 14;

impl Locks {
    /// Whether a grant is of one name alone, by an owner that has nothing else.
    pub(super) fn is_plain_grant(&self, ticket: Ticket, grant: &Grant) -> bool {
        let [item] = grant.items[..] else { return false };
        let (owner, lock) = (self.owner(grant.owner), self.lock(item.lock));
        item.demand == Demand::Exclusive
            && owner.label.is_none()
            && owner.waiting.is_none()
            && owner.holds.len() == 1
            && lock.campaign != Some(ticket)
    }

    /// The name that a waiter inherits if it is granted now: it is plain, and the first in line.
    pub(super) fn heir(&self, ticket: Ticket) -> Option<LockId> {
        let waiter = self.waiter(ticket);
        let claim = waiter.wants.as_single().filter(|claim| claim.demand == Demand::Exclusive)?;
        let (owner, lock) = (self.owner(waiter.owner), self.lock(claim.resource));
        let is_plain = waiter.owner.0 == ticket.0 && owner.label.is_none() && waiter.value.is_none();
        let is_first = lock.queue.first_key_value().is_some_and(|(first, _)| *first == waiter.rank);
        (is_plain && is_first && lock.upgraders.is_empty()).then_some(claim.resource)
    }

    /// The foregone grant of the command, if there is one, and since which command it is; the command is over.
    pub(super) fn foregone(&mut self, moment: Moment, work: &mut Work) -> Option<(Ticket, u64)> {
        let heir = work.heir.filter(|(_, id)| work.given_back.is_some() && !work.disturbed.contains(id));
        for id in work.disturbed.drain(..) {
            self.lock_mut(id).disturbed = moment.index;
        }
        heir.map(|(ticket, id)| (ticket, self.lock(id).disturbed.max(ticket.0)))
    }

    /// Whether it waits, but may have been told before a restart that it holds.
    pub(super) fn may_have_been_told(&self, ticket: Ticket) -> bool {
        self.waiters.get(&ticket).is_some_and(|waiter| waiter.rank.is_moved_on())
    }

    /// See [`super::Command::Restarted`].
    pub(super) fn on_restarted(&mut self, fences: u64) {
        self.fence_base = self.fence_base.saturating_add(fences);
        let soft_blocked = std::mem::take(&mut self.soft_blocked);
        self.clear_indexes();
        for waiter in self.waiters.values_mut() {
            waiter.rank = waiter.rank.moved_on();
            let owner = self.owners.get_mut(&waiter.owner).expect("a waiter has an owner");
            owner.waiting = Some(waiter.rank);
        }
        self.soft_blocked = soft_blocked.into_iter().map(Rank::moved_on).collect();
        let tickets: Vec<Ticket> = self.waiters.keys().copied().collect();
        tickets.into_iter().for_each(|ticket| self.index(ticket));
    }
}
