//! A site's own side of the problem: who leads, as far as it knows.

use conclave_kernel::{Cx, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::Event;

/// The papers' *elected*: undefined, or a site. Every change of it is told to the layer above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seat {
    leader: Option<NodeId>,
}

impl Seat {
    /// Who leads, as far as the site knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// The site takes part in an election: who leads is undefined until it is over.
    pub fn vacate<P: Protocol<Event = Event>>(&mut self, cx: &mut Cx<'_, P>) {
        if self.leader.take().is_some() {
            cx.emit(Event::Vacant);
        }
    }

    /// The site decides.
    pub fn fill<P: Protocol<Event = Event>>(&mut self, leader: NodeId, cx: &mut Cx<'_, P>) {
        if self.leader.replace(leader) != Some(leader) {
            cx.emit(Event::Elected { leader });
        }
    }
}
