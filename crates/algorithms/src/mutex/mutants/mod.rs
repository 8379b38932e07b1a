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

use crate::election::Election;
use crate::mutants::flawed::{Fallible, Flawed, View};
use crate::mutants::generic::{Rule, Stage};
use crate::mutex::central::elected::ElectedCore;
use crate::mutex::layered::{self, Core};
use crate::mutex::{Bill, Command, CrashTolerant, Event, Group, Mutex};

pub use table::MUTANTS;

/// The view of the mutex problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfMutex;

impl<P: Mutex> View<P> for OfMutex {
    const RULES: &'static [Rule] = Rule::ALL;

    fn kind(message: &P::Message) -> &'static str {
        // The kind of a message does not depend on its sender and receiver.
        P::bill(message, NodeId(0), NodeId(0)).kind
    }

    fn after_command(command: &Command) -> Option<Stage> {
        (*command == Command::Acquire).then_some(Stage::Asking)
    }

    fn after_event(event: &Event) -> Option<Stage> {
        stage_after(event)
    }
}

/// Returns the stage of a site's work after an event; `None` if the event does not change it.
const fn stage_after(event: &Event) -> Option<Stage> {
    match event {
        Event::Granted { .. } => Some(Stage::Inside),
        Event::Released => Some(Stage::Idle),
        Event::Refused(_) => None,
    }
}

impl<P: Fallible + Mutex> Mutex for Flawed<P, OfMutex> {
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

/// The view of the cores of layered algorithms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfCore;

impl<P: Core> View<P> for OfCore {
    const RULES: &'static [Rule] = Rule::ALL;

    fn kind(message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn after_command(command: &layered::Command) -> Option<Stage> {
        (*command == layered::Command::Mutex(Command::Acquire)).then_some(Stage::Asking)
    }

    fn after_event(event: &Event) -> Option<Stage> {
        stage_after(event)
    }
}

impl Fallible for CrashTolerant {}
impl<E: Election> Fallible for ElectedCore<E> {}
