//! The planted bugs.

use conclave_client::testing::Flaw as ClientFlaw;
use conclave_node::testing::Flaw as NodeFlaw;

use crate::scenario::Scenario;
use crate::site::DRIFT_PPM;

/// A bug that the harness must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A bug in the node.
    Node(NodeFlaw),
    /// A bug in the client.
    Client(ClientFlaw),
    /// The service assumes that clocks do not drift.
    IgnoresDrift,
    /// Consensus writes the present term into the end of a lease that was counted in another.
    ExpiresInAnyTerm,
    /// A single node sends the replies of an entry before the entry is synced.
    RepliesBeforeSync,
}

impl Bug {
    /// All bugs, each with the scenario that finds it.
    pub const ALL: [(Self, Scenario); 19] = [
        (Self::Client(ClientFlaw::CountsFromReply), Scenario::Leases),
        (Self::Node(NodeFlaw::AnswersWithoutRound), Scenario::Leases),
        (Self::Node(NodeFlaw::KeepsOldLeases), Scenario::Leases),
        (Self::IgnoresDrift, Scenario::Leases),
        (Self::ExpiresInAnyTerm, Scenario::Leases),
        (Self::Node(NodeFlaw::ExtendsAnEndingLease), Scenario::Leases),
        (Self::Node(NodeFlaw::AnswersInAnyTerm), Scenario::Leases),
        (Self::Node(NodeFlaw::ServesLateRequests), Scenario::Cluster),
        (Self::Node(NodeFlaw::KeepsOldConnection), Scenario::Cluster),
        (Self::Node(NodeFlaw::DropsEventsWhenFull), Scenario::Cluster),
        (Self::Node(NodeFlaw::ForgetsWatchIndex), Scenario::Cluster),
        (Self::Node(NodeFlaw::ReadsAheadOfEvents), Scenario::Cluster),
        (Self::Node(NodeFlaw::AppliesRetries), Scenario::Cluster),
        (Self::Node(NodeFlaw::ProposesWhatItRejects), Scenario::Cluster),
        (Self::Node(NodeFlaw::ServesUnsyncedReads), Scenario::Single),
        (Self::Node(NodeFlaw::SendsAnyGrantEarly), Scenario::Single),
        (Self::Node(NodeFlaw::KeepsFencesAtRestart), Scenario::Single),
        (Self::Node(NodeFlaw::KeepsQueuesAtRestart), Scenario::Single),
        (Self::RepliesBeforeSync, Scenario::Single),
    ];

    /// Returns the drift that the service assumes. It sends its clients the same number.
    pub fn assumed_drift_ppm(bug: Option<Self>) -> u32 {
        if bug == Some(Self::IgnoresDrift) { 0 } else { DRIFT_PPM }
    }

    pub fn of_node(self) -> Option<NodeFlaw> {
        match self {
            Self::Node(flaw) => Some(flaw),
            _ => None,
        }
    }

    pub fn of_client(self) -> Option<ClientFlaw> {
        match self {
            Self::Client(flaw) => Some(flaw),
            _ => None,
        }
    }
}
