//! Bugs that a test plants.

/// A bug in the node that a test plants. A harness that does not find it does not test the rule that the bug breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The leader answers a keep-alive without a round.
    AnswersWithoutRound,
    /// A node that leads again continues the leases of the time when it led before.
    KeepsOldLeases,
    /// The leader extends a lease after it has proposed its end.
    ExtendsAnEndingLease,
    /// A keep-alive is answered although a round has confirmed another term than the one in which it was counted.
    AnswersInAnyTerm,
}
