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

use crate::mutants::flawed::{Fallible, Flawed, View};
use crate::mutants::generic::{Rule, Stage};
use crate::snapshot::bank::Bank;
use crate::snapshot::{Command, Event, Snapshot};

pub use table::MUTANTS;

/// The view of the snapshot problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfSnapshot;

impl<P: Snapshot<Bank>> View<P> for OfSnapshot {
    const RULES: &'static [Rule] = Rule::WITHOUT_INSIDE;

    fn kind(message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn after_command(_: &Command<Bank>) -> Option<Stage> {
        None
    }

    fn after_event(event: &Event<Bank>) -> Option<Stage> {
        match event {
            Event::Recorded(_) => Some(Stage::Asking),
            Event::Complete(_) => Some(Stage::Idle),
            Event::Refused { .. } | Event::App(_) => None,
        }
    }
}

impl<P: Fallible + Snapshot<Bank>> Snapshot<Bank> for Flawed<P, OfSnapshot> {
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
