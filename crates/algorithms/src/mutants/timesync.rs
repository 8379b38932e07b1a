//! The clock synchronisation problem has only the generic flaws here. Two algorithms that are wrong on purpose
//! stand beside the correct ones, in [`crate::timesync::mutants`].

use conclave_kernel::{Card, NodeId, Time};

use super::flawed::{Fallible, Flawed, View};
use super::generic::Rule;
use crate::election::Election;
use crate::timesync::cristian::Keep;
use crate::timesync::{Berkeley, Cristian, Dtp, Group, Marzullo, Ntp, Reading, TimeSync};

/// The view of the clock synchronisation problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfTimeSync;

impl<P: TimeSync> View<P> for OfTimeSync {
    const RULES: &'static [Rule] = Rule::OF_MESSAGES;

    fn kind(message: &P::Message) -> &'static str {
        P::kind(message)
    }
}

impl<K: Keep> Fallible for Cristian<K> {}
impl Fallible for Ntp {}
impl Fallible for Marzullo {}
impl<E: Election> Fallible for Berkeley<E> {}
impl Fallible for Dtp {}

impl<P: Fallible + TimeSync> TimeSync for Flawed<P, OfTimeSync> {
    const CARD: Card = P::CARD;

    fn new(me: NodeId, group: &Group) -> Self {
        Self::new(P::new(me, group), "")
    }

    fn kind(message: &Self::Message) -> &'static str {
        P::kind(message)
    }

    fn read(&self, now: Time) -> Reading {
        self.site().read(now)
    }
}
