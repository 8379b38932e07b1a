//! The mutants of the mutex problem.
//!
//! | file | mutants of |
//! |---|---|
//! | `maekawa` | Maekawa's requester and arbiter |
//! | `stamps` | Lamport, Ricart-Agrawala, Roucairol-Carvalho |
//! | `tokens` | the rings, Suzuki-Kasami, Raymond, Naimi-Trehel, and the central coordinator |
//! | [`cyclic`] | Suzuki-Kasami with cyclic numbers, so that endless runs are cycles of states |
//! | `table` | (the list of all of them) |

pub mod cyclic;
mod maekawa;
mod stamps;
mod table;
mod tokens;

use conclave_kernel::{Card, NodeId};

use crate::mutants::flawed::{Fallible, Flawed};
use crate::mutex::{Bill, Group, Mutex};

pub use table::MUTANTS;

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
