//! The result of an election at one site: the leader, as far as the site knows.

use conclave_kernel::{Cx, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::Event;

/// The variable *elected* of the papers: undefined, or the leader. The layer above receives an event at every
/// change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seat {
    leader: Option<NodeId>,
}

impl Seat {
    /// Returns the leader, as far as the site knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// Makes the leader undefined, because the site takes part in an election.
    pub fn vacate<P: Protocol<Event = Event>>(&mut self, cx: &mut Cx<'_, P>) {
        if self.leader.take().is_some() {
            cx.emit(Event::Vacant);
        }
    }

    /// Sets the leader: the site has decided.
    pub fn fill<P: Protocol<Event = Event>>(&mut self, leader: NodeId, cx: &mut Cx<'_, P>) {
        if self.leader.replace(leader) != Some(leader) {
            cx.emit(Event::Elected { leader });
        }
    }
}
