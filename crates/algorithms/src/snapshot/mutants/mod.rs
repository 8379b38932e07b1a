//! The mutants of the snapshot problem, with the bank as application.
//!
//! | file | mutants of |
//! |---|---|
//! | `chandy_lamport` | Chandy-Lamport: markers |
//! | `lai_yang` | Lai-Yang: colours and counts |
//! | `table` | (the list of all of them) |

mod chandy_lamport;
mod lai_yang;
mod table;

use conclave_kernel::{Card, NodeId};

use crate::mutants::flawed::{Fallible, Flawed};
use crate::snapshot::Snapshot;
use crate::snapshot::bank::Bank;

pub use table::MUTANTS;

impl<P: Fallible + Snapshot<Bank>> Snapshot<Bank> for Flawed<P> {
    const CARD: Card = P::CARD;

    fn new(me: NodeId, nodes: u32, app: Bank) -> Self {
        Self::new(P::new(me, nodes, app), "")
    }

    fn app(&self) -> &Bank {
        self.site().app()
    }

    fn kind(message: &Self::Message) -> &'static str {
        P::kind(message)
    }

    fn carried(message: &Self::Message) -> Option<&crate::snapshot::bank::Money> {
        P::carried(message)
    }
}
