//! The arbiter: gives its grant to one request at a time, and prefers the oldest.
//!
//! **Rules** \[M85 §4\], corrected by \[S87\]. On a REQUEST while no site has the grant: GRANT. Otherwise:
//! 1. If the granted request or *any* waiting request is older: send FAILED to the new requester.
//! 2. Otherwise the new request becomes the head of the queue. Send FAILED to every waiting request that has
//!    not received one, and INQUIRE to the holder unless one is outstanding. The FAILED *is the correction*:
//!    without it, the overtaken requester never learns that it is stuck, and never yields.
//!
//! On YIELD or RELEASE by the holder: forget the outstanding INQUIRE, put a yielded request back into the
//! queue, and send GRANT to the oldest. A request that yielded needs no FAILED.
//!
//! **Trap**: without the FAILED of rule 2, three contenders at one arbiter deadlock. Two contenders never do,
//! so small examples do not show the error.

use alloc::vec::Vec;

use conclave_kernel::NodeId;
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Fence, Message, Stamp};

/// One site's arbiter. It keeps at most one request of each site, so at most N.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Arbiter {
    pub(crate) holder: Option<Holder>,
    /// The waiting requests, youngest first: the head of the queue is the last. Empty if no request is
    /// granted.
    pub(crate) waiting: Vec<Waiting>,
    /// The largest fence that this arbiter knows.
    fence: Fence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) request: Stamp,
    pub(crate) round: u32,
    /// Whether an INQUIRE to the holder is outstanding.
    pub(crate) inquired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) request: Stamp,
    /// The number of times that the request was granted here and yielded.
    pub(crate) round: u32,
    /// Whether the requester knows that an older request exists: it received FAILED, or it yielded.
    pub(crate) told: bool,
    /// The request for which the metrics count the next grant: the one that displaced this request, or this
    /// request itself.
    pub(crate) account: Stamp,
}

/// The messages that an arbiter sends in one step, each to the site whose request it names. At most two:
/// FAILED to the overtaken head (all others have received it before) and INQUIRE to the holder.
pub(crate) type Answers = SmallVec<[Message; 2]>;

impl Arbiter {
    pub(crate) fn on_request(&mut self, theirs: Stamp) -> Answers {
        if self.is_ghost(theirs) {
            return Answers::new();
        }
        let newcomer = Waiting { request: theirs, round: 0, told: false, account: theirs };
        let Some(holder) = &mut self.holder else { return smallvec![self.grant(newcomer)] };
        let head = self.waiting.last().map_or(holder.request, |head| head.request.min(holder.request));
        if head < theirs {
            self.enqueue(Waiting { told: true, ..newcomer });
            return smallvec![Message::Failed(theirs)];
        }
        let mut answers = Answers::new();
        for overtaken in self.waiting.iter_mut().filter(|waiting| !waiting.told) {
            overtaken.told = true;
            answers.push(Message::Failed(overtaken.request));
        }
        if !holder.inquired {
            holder.inquired = true;
            let (request, round) = (holder.request, holder.round);
            answers.push(Message::Inquire { request, round, rival: theirs });
        }
        self.enqueue(newcomer);
        answers
    }

    pub(crate) fn on_yield(&mut self, theirs: Stamp, round: u32, rival: Stamp) -> Answers {
        if self.holder.is_none_or(|holder| holder.request != theirs || holder.round != round) {
            return Answers::new(); // a late duplicate
        }
        self.enqueue(Waiting { request: theirs, round: round + 1, told: true, account: rival });
        self.grant_to_head()
    }

    pub(crate) fn on_release(&mut self, theirs: Stamp, fence: Fence) -> Answers {
        self.fence = self.fence.max(fence);
        if self.holder.is_none_or(|holder| holder.request != theirs) {
            return Answers::new(); // a late duplicate
        }
        self.grant_to_head()
    }

    /// Whether no request is granted or waiting.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.holder.is_none() && self.waiting.is_empty()
    }

    pub(crate) fn grant_to_head(&mut self) -> Answers {
        self.holder = None;
        self.waiting.pop().map(|head| self.grant(head)).into_iter().collect()
    }

    fn grant(&mut self, to: Waiting) -> Message {
        let Waiting { request, round, account, .. } = to;
        self.holder = Some(Holder { request, round, inquired: false });
        Message::Grant { request, round, fence: self.fence, account }
    }

    pub(crate) fn enqueue(&mut self, newcomer: Waiting) {
        let place = self.waiting.partition_point(|waiting| waiting.request > newcomer.request);
        self.waiting.insert(place, newcomer);
    }

    /// Whether the request is a duplicate, or is over. A site makes one request at a time, so only its latest
    /// request counts. If an older request of the same site still waits, it is over, and this method removes
    /// it.
    fn is_ghost(&mut self, theirs: Stamp) -> bool {
        let same = |request: Stamp, site: NodeId| request.site == site && request >= theirs;
        if self.holder.is_some_and(|holder| same(holder.request, theirs.site))
            || self.waiting.iter().any(|waiting| same(waiting.request, theirs.site))
        {
            return true;
        }
        self.waiting.retain(|waiting| waiting.request.site != theirs.site);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(time: u64, site: u32) -> Stamp {
        Stamp::new(time, NodeId(site))
    }

    fn grant(request: Stamp, round: u32, account: Stamp) -> Message {
        Message::Grant { request, round, fence: Fence(0), account }
    }

    const A: Stamp = Stamp::new(1, NodeId(0));
    const B: Stamp = Stamp::new(2, NodeId(1));
    const C: Stamp = Stamp::new(3, NodeId(2));
    const D: Stamp = Stamp::new(4, NodeId(3));

    #[test]
    fn the_first_is_granted_and_a_younger_one_fails() {
        let mut arbiter = Arbiter::default();
        assert_eq!(arbiter.on_request(A)[..], [grant(A, 0, A)]);
        assert_eq!(arbiter.on_request(B)[..], [Message::Failed(B)]);
        assert_eq!(
            arbiter.on_release(A, Fence(7))[..],
            [Message::Grant { request: B, round: 0, fence: Fence(7), account: B }]
        );
    }

    #[test]
    fn an_older_one_makes_the_arbiter_inquire_and_the_yielded_request_waits_again() {
        let mut arbiter = Arbiter::default();
        arbiter.on_request(B);
        assert_eq!(arbiter.on_request(A)[..], [Message::Inquire { request: B, round: 0, rival: A }]);
        assert_eq!(arbiter.on_yield(B, 0, A)[..], [grant(A, 0, A)]);
        assert_eq!(arbiter.on_release(A, Fence(0))[..], [grant(B, 1, A)], "on A's account");
        assert!(arbiter.on_release(B, Fence(0)).is_empty());
        assert_eq!(arbiter, Arbiter::default());
    }

    #[test]
    fn a_head_that_is_overtaken_is_told() {
        // [S87]: three contenders at one arbiter. D has the grant, B waits at the head, A overtakes B.
        let mut arbiter = Arbiter::default();
        arbiter.on_request(D);
        assert_eq!(arbiter.on_request(B)[..], [Message::Inquire { request: D, round: 0, rival: B }]);
        assert_eq!(
            arbiter.on_request(C)[..],
            [Message::Failed(C)],
            "older than the holder, not than the head"
        );
        assert_eq!(arbiter.on_request(A)[..], [Message::Failed(B)], "one INQUIRE is outstanding already");
        assert_eq!(arbiter.on_yield(D, 0, B)[..], [grant(A, 0, A)]);
        let order = [(A, grant(B, 0, B)), (B, grant(C, 0, C)), (C, grant(D, 1, B))];
        for (holder, next) in order {
            assert_eq!(arbiter.on_release(holder, Fence(0))[..], [next]);
        }
    }

    #[test]
    fn a_holder_is_inquired_again_after_it_came_back() {
        let mut arbiter = Arbiter::default();
        arbiter.on_request(D);
        arbiter.on_request(C);
        arbiter.on_yield(D, 0, C);
        arbiter.on_release(C, Fence(0));
        assert_eq!(arbiter.on_request(B)[..], [Message::Inquire { request: D, round: 1, rival: B }]);
        assert!(arbiter.on_yield(D, 0, C).is_empty(), "a duplicate of the first");
        assert_eq!(arbiter.on_yield(D, 1, B)[..], [grant(B, 0, B)]);
    }

    #[test]
    fn equal_times_are_decided_by_the_site() {
        let mut arbiter = Arbiter::default();
        arbiter.on_request(stamp(5, 2));
        assert_eq!(arbiter.on_request(stamp(5, 3))[..], [Message::Failed(stamp(5, 3))]);
        assert!(matches!(arbiter.on_request(stamp(5, 1))[..], [Message::Inquire { .. }]));
    }

    #[test]
    fn duplicates_and_ghosts_of_a_site_are_recognised() {
        let mut arbiter = Arbiter::default();
        arbiter.on_request(A);
        assert!(arbiter.on_request(A).is_empty());
        arbiter.on_request(stamp(8, 1));
        assert!(arbiter.on_request(B).is_empty(), "site 1 asked later since");
        arbiter.on_request(stamp(9, 1));
        assert_eq!(arbiter.waiting.len(), 1, "a newer request of a site replaces one that cannot be alive");
        assert!(arbiter.on_release(B, Fence(0)).is_empty());
        assert_eq!(arbiter.on_release(A, Fence(0))[..], [grant(stamp(9, 1), 0, stamp(9, 1))]);
    }
}
