//! The mutants of the snapshot problem, around the bank.
//!
//! | file | whose |
//! |---|---|
//! | `chandy_lamport` | markers, and what they divide |
//! | `lai_yang` | colours, and counts |
//! | `table` | the list |

mod chandy_lamport;
mod lai_yang;
mod table;

use conclave_kernel::{Card, NodeId};

use super::flawed::{Fallible, Flawed};
use crate::snapshot::Snapshot;
use crate::snapshot::bank::Bank;

pub use table::{MUTANTS, visit, visit_honest};

/// Something to be done with a mutant whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it; `make` makes a site of a group of that size, around the bank's.
    fn visit<P: Snapshot<Bank>>(self, make: Make<P>) -> Self::Out;
}

/// What makes a site of a group of that size, around the bank's.
pub type Make<P> = fn(NodeId, u32, Bank) -> P;

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
