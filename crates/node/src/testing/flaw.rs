//! Bugs that a test plants.

/// A bug in the node that a test plants. If a harness does not find the bug, it does not test the rule that
/// the bug breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The leader answers a keep-alive without a round.
    AnswersWithoutRound,
    /// A node that leads again continues the leases of the time when it led before.
    KeepsOldLeases,
    /// The leader extends a lease after it has proposed its end.
    ExtendsAnEndingLease,
    /// A keep-alive is answered although a round has confirmed another term than the one in which it was
    /// counted.
    AnswersInAnyTerm,
    /// A round serves requests that arrived after it started.
    ServesLateRequests,
    /// A resumed session keeps its old connection, which gets the replies.
    KeepsOldConnection,
    /// An event of a watch is dropped if the outbox is full, without a resync.
    DropsEventsWhenFull,
    /// A watch that continues after an index starts at the present instead.
    ForgetsWatchIndex,
    /// Reads are served while the state of a single node contains entries that are not on disk.
    ServesUnsyncedReads,
    /// A single node sends every grant before the sync, not only a grant to the certain next waiter.
    SendsAnyGrantEarly,
    /// A single node restarts without raising the fences.
    KeepsFencesAtRestart,
    /// A single node restarts without moving all waiters before all later requests.
    KeepsQueuesAtRestart,
    /// A read shows changes whose events the node has not handled yet.
    ReadsAheadOfEvents,
    /// A change of files that is sent again is applied again.
    AppliesRetries,
    /// A request that is rejected as `overloaded` is proposed all the same.
    ProposesWhatItRejects,
}
