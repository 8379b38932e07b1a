//! The planted bugs.

use conclave_client::testing::Flaw as ClientFlaw;
use conclave_node::testing::Flaw as NodeFlaw;

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
}

impl Bug {
    pub const ALL: [Self; 7] = [
        Self::Client(ClientFlaw::CountsFromReply),
        Self::Node(NodeFlaw::AnswersWithoutRound),
        Self::Node(NodeFlaw::KeepsOldLeases),
        Self::IgnoresDrift,
        Self::ExpiresInAnyTerm,
        Self::Node(NodeFlaw::ExtendsAnEndingLease),
        Self::Node(NodeFlaw::AnswersInAnyTerm),
    ];

    /// Returns the drift that the service assumes. It tells its clients the same number.
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
