//! The mutants of the mutex problem.
//!
//! | file | whose |
//! |---|---|
//! | `maekawa` | Maekawa's requester and arbiter |
//! | `stamps` | Lamport, Ricart-Agrawala, Roucairol-Carvalho |
//! | `tokens` | the rings, Suzuki-Kasami, Raymond, Naimi-Trehel; and the central coordinator |
//! | [`cyclic`] | Suzuki-Kasami with numbers that go round, so that endless runs are cycles |
//! | `table` | the list |

pub mod cyclic;
mod maekawa;
mod stamps;
mod table;
mod tokens;

use conclave_kernel::{Card, NodeId};

use super::flawed::{Fallible, Flawed};
use crate::mutex::{Bill, Group, Mutex};

pub use table::{MUTANTS, visit, visit_honest};

/// Something to be done with a mutant whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it; `make` makes a site of a group.
    fn visit<P: Mutex>(self, make: Make<P>) -> Self::Out;
}

/// What makes a site of a group.
pub type Make<P> = fn(NodeId, &Group) -> P;

impl<P: Fallible + Mutex> Mutex for Flawed<P> {
    const CARD: Card = P::CARD;
    const USES_QUORUMS: bool = P::USES_QUORUMS;

    fn new(me: NodeId, group: &Group) -> Self {
        Self::new(P::new(me, group), "")
    }

    fn bill(message: &Self::Message, from: NodeId, to: NodeId) -> Bill {
        P::bill(message, from, to)
    }

    fn clock(&self) -> u64 {
        self.site().clock()
    }
}
