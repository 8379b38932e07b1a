//! The planted bugs.

/// A bug in `replica/` that the seeds must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A node sends its vote before the vote is durable.
    VotesBeforeSync,
    /// A node reports entries as durable when they are queued for the log.
    AppendsBeforeSync,
    /// A single node sends results before the entries are durable.
    RepliesBeforeSync,
    /// A leader confirms a read without a round of a quorum.
    ReadsWithoutRound,
    /// A leader that restarts continues to lead in its old term.
    LeadsAfterRestart,
    /// An installed snapshot loses the index of its last entry.
    ForgetsEndOfSnapshot,
    /// A forwarded proposal without a reply is reported as not proposed.
    RefusesUnknown,
}

impl Flaw {
    pub(super) const ALL: [Self; 7] = [
        Self::VotesBeforeSync,
        Self::AppendsBeforeSync,
        Self::RepliesBeforeSync,
        Self::ReadsWithoutRound,
        Self::LeadsAfterRestart,
        Self::ForgetsEndOfSnapshot,
        Self::RefusesUnknown,
    ];
}
