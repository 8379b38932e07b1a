//! Early grants: grants that a single node may send before the release is durable, because no crash can
//! change the next holder.
//!
//! **Intuition.** A holder releases a name, and the next waiter in the queue gets it. The whole queue is
//! already durable, and with it the identity of the next waiter. Only the release itself is not durable yet,
//! and the next waiter need not wait for it. If the power fails now, the log still shows the old holder. But
//! its client has given the name up and will send the release again. Then the name goes to the same next
//! waiter that already received the grant. So a name can change hands many times within one sync, and every
//! grant that was sent stays true.
//!
//! **Rules.** A grant may be sent early, as soon as command `after` is durable, under four conditions:
//! - The client that held the name released it. The grant had only this name, and its owner had nothing else.
//! - The next waiter is *plain*: it waits without a limit for this one name, exclusively, with an owner of
//!   its own, and is no campaign. So it holds nothing, it is in no deadlock, and no other waiter overtakes
//!   it.
//! - Since `after`, every request before it has left the queue in the regular way: it was granted the name
//!   and its client released it. Cancels, expiries, victims, breaks and choices of another name are
//!   irregular; they set `Lock::order_broken_at`. After a crash such a request would be in the queue again,
//!   and might be granted first.
//! - The next waiter has been in the queue since `after` or earlier.
//!
//! Then, in every state from `after` on, the next waiter waits. All requests before it belong to clients that
//! have given the name up.
//!
//! **After a restart**, the log lacks two facts. First, no later request may be granted before the next
//! waiter, whatever its priority. So all waiters are moved to the front, in their order. Second, fences were
//! sent that are not in the log. So all later fences are raised by more than the fences that may have been
//! sent. [`Command::SingleNodeRestarted`](super::Command::SingleNodeRestarted) does both, before any request
//! is served.
//!
//! **Trap.** After a restart, the next waiter still waits in the state, but its client knows that it holds
//! the name. A release from this client ends the wait.
//!
//! This module decides only which grants *may* be sent early. Only a single node applies entries ahead of its
//! disk (`crates/service/src/replica/speculation.rs`, `docs/decisions/0021-early-grants.md`).

use conclave_deadlock::Demand;

use super::command::Position;
use super::grant::Work;
use super::lock::{Grant, LockId, Locks};
use super::rank::{Rank, Ticket};

/// The number by which fences grow at a restart. If more than this number of applied commands are not
/// durable, no grant is sent early.
pub const FENCE_GAP: u64 = 1 << 14;

impl Locks {
    /// Returns whether a grant has only one name, held exclusively, by an owner without a label and without
    /// anything else.
    pub(super) fn is_simple_grant(&self, ticket: Ticket, grant: &Grant) -> bool {
        let [item] = grant.items[..] else { return false };
        let (owner, lock) = (self.owner(grant.owner), self.lock(item.lock));
        item.demand == Demand::Exclusive
            && owner.label.is_none()
            && owner.waiting.is_none()
            && owner.holds.len() == 1
            && lock.campaign != Some(ticket)
    }

    /// Returns the name that a waiter takes over if it is granted now. The waiter must be plain and the first
    /// in the queue.
    pub(super) fn next_waiter(&self, ticket: Ticket) -> Option<LockId> {
        let waiter = self.waiter(ticket);
        let claim = waiter.wants.as_single().filter(|claim| claim.demand == Demand::Exclusive)?;
        let (owner, lock) = (self.owner(waiter.owner), self.lock(claim.resource));
        let is_plain = waiter.owner.0 == ticket.0 && owner.label.is_none() && waiter.value.is_none();
        let is_first = lock.queue.first_key_value().is_some_and(|(first, _)| *first == waiter.rank);
        (is_plain && is_first && lock.upgraders.is_empty()).then_some(claim.resource)
    }

    /// Returns the early grant of this command, if there is one, with the number of the command that must be
    /// durable for it. Called at the end of the command.
    pub(super) fn early_grant(&mut self, at: Position, work: &mut Work) -> Option<(Ticket, u64)> {
        let next_waiter =
            work.next_waiter.filter(|(_, id)| work.given_back.is_some() && !work.order_broken.contains(id));
        for id in work.order_broken.drain(..) {
            self.lock_mut(id).order_broken_at = at.index;
        }
        next_waiter.map(|(ticket, id)| (ticket, self.lock(id).order_broken_at.max(ticket.0)))
    }

    /// Returns whether the request waits, but its client may have received an early grant before a restart.
    pub(super) fn may_have_early_grant(&self, ticket: Ticket) -> bool {
        self.waiters.get(&ticket).is_some_and(|waiter| waiter.rank.is_moved_on())
    }

    /// Raises all later fences: the first half of [`super::Command::SingleNodeRestarted`].
    pub(super) fn raise_fences(&mut self, fences: u64) {
        self.fence_base = self.fence_base.saturating_add(fences);
    }

    /// Moves all waiters before all later requests: the second half of
    /// [`super::Command::SingleNodeRestarted`].
    pub(super) fn move_waiters_on(&mut self) {
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
