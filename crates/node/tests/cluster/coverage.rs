//! The situations that a set of runs must contain. A situation that never occurs is not tested.

use std::collections::BTreeMap;

macro_rules! situations {
    ($($name:ident)*) => {
        /// A situation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Situation {
            $($name,)*
        }

        impl Situation {
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

situations! {
    Held LeaseExtended Granted HandedOn Jeopardy Lost RegrantedAfterExpiry LeaderChangedWhileHeld Forwarded
    Resumed Retried Broken EndedByOperator Campaigned PermitsShared ManyNames Conflicted
    EffectsLate EventDelivered Resynced WatchContinued ReadServed
    Overloaded OutboxFull OutboxOverflowed ReadingPaused ConnectionBroken RestartedServer Restored
    ProposalUnknown ProposalDelayed RoundFailed
    EarlyGrant EarlyGrantLost EntryLost EntrySurvived
}

/// The number of times that each situation has occurred.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<Situation, u64>);

impl Coverage {
    pub fn see(&mut self, situation: Situation) {
        *self.0.entry(situation).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (situation, count) in &other.0 {
            *self.0.entry(*situation).or_default() += count;
        }
    }

    /// Returns the situations of a list that have not occurred.
    pub fn missing(&self, expected: &[Situation]) -> Vec<Situation> {
        expected.iter().copied().filter(|situation| !self.0.contains_key(situation)).collect()
    }
}
