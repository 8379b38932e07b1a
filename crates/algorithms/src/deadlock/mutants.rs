//! The deadlock problem has no flaws of its own algorithms yet, only the generic ones.

use conclave_kernel::{Card, NodeId, Protocol};

use crate::deadlock::locking::{self, Detecting, Estate, Locker, Locking, Way};
use crate::deadlock::site::Part;
use crate::deadlock::{Command, Detection, Event, Site};
use crate::mutants::flawed::{Fallible, Flawed, View};
use crate::mutants::generic::{Rule, Stage};

/// The view of the detectors of deadlocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfDeadlock;

impl<D: Detection> View<Site<D>> for OfDeadlock {
    const RULES: &'static [Rule] = Rule::WITHOUT_INSIDE;

    fn kind(message: &<Site<D> as Protocol>::Message) -> &'static str {
        Site::<D>::kind(message).0
    }

    fn after_command(command: &Command) -> Option<Stage> {
        matches!(command, Command::Ask { .. } | Command::Lend(_)).then_some(Stage::Asking)
    }

    fn after_event(event: &Event) -> Option<Stage> {
        matches!(event, Event::Proceeds { .. } | Event::Aborted { .. }).then_some(Stage::Idle)
    }
}

impl<D: Detection> Fallible for Site<D> {}

/// The view of the strategies against deadlocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfLocking;

impl<P: Locking> View<P> for OfLocking {
    const RULES: &'static [Rule] = Rule::WITHOUT_INSIDE;

    fn kind(message: &P::Message) -> &'static str {
        P::kind(message).0
    }

    fn after_command(command: &locking::Command) -> Option<Stage> {
        matches!(command, locking::Command::Lock(_)).then_some(Stage::Asking)
    }

    fn after_event(event: &locking::Event) -> Option<Stage> {
        (*event != locking::Event::Refused).then_some(Stage::Idle)
    }
}

impl<W: Way> Fallible for Locker<W> {}
impl<D: Detection> Fallible for Detecting<D> {}

impl<P: Fallible + Locking> Locking for Flawed<P, OfLocking> {
    const CARD: Card = P::CARD;

    fn new(me: NodeId, estate: &Estate) -> Self {
        Self::new(P::new(me, estate), "")
    }

    fn kind(message: &Self::Message) -> (&'static str, Part) {
        P::kind(message)
    }
}
