//! The mutants of the election problem.
//!
//! | file | mutants of |
//! |---|---|
//! | `rings` | Chang-Roberts and Hirschberg-Sinclair |
//! | `bully` | bully, and the election over a detector |
//! | `table` | (the list of all of them) |

mod bully;
mod rings;
mod table;

use conclave_kernel::{Card, NodeId};

use crate::election::{Election, Group};
use crate::mutants::flawed::{Fallible, Flawed};

pub use table::MUTANTS;

impl<P: Fallible + Election> Election for Flawed<P> {
    const CARD: Card = P::CARD;

    fn new(me: NodeId, group: &Group) -> Self {
        Self::new(P::new(me, group), "")
    }

    fn kind(message: &Self::Message) -> &'static str {
        P::kind(message)
    }

    fn is_background(message: &Self::Message) -> bool {
        P::is_background(message)
    }
}
