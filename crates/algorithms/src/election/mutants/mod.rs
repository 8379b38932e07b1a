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

use crate::election::{Command, Election, Event, Group};
use crate::mutants::flawed::{Fallible, Flawed, View};
use crate::mutants::generic::{Rule, Stage};

pub use table::MUTANTS;

/// The view of the election problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfElection;

impl<P: Election> View<P> for OfElection {
    const RULES: &'static [Rule] = Rule::ALL;

    fn kind(message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn after_command(command: &Command) -> Option<Stage> {
        (*command == Command::Elect).then_some(Stage::Asking)
    }

    fn after_event(event: &Event) -> Option<Stage> {
        match event {
            Event::Elected { .. } => Some(Stage::Inside),
            Event::Vacant => Some(Stage::Asking),
        }
    }
}

impl<P: Fallible + Election> Election for Flawed<P, OfElection> {
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
