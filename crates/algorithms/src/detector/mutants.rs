//! The detector problem has no flaws of its own algorithms yet, only the generic ones.

use conclave_kernel::{Card, NodeId, NodeSet};

use crate::detector::{Adaptive, Detector, Group, Heartbeat, PhiAccrual};
use crate::mutants::flawed::{Fallible, Flawed, View};
use crate::mutants::generic::Rule;

/// The view of the detector problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OfDetector;

impl<P: Detector> View<P> for OfDetector {
    const RULES: &'static [Rule] = Rule::OF_MESSAGES;

    fn kind(message: &P::Message) -> &'static str {
        P::kind(message)
    }
}

impl Fallible for Heartbeat {}
impl Fallible for Adaptive {}
impl Fallible for PhiAccrual {}

impl<P: Fallible + Detector> Detector for Flawed<P, OfDetector> {
    const CARD: Card = P::CARD;

    fn new(me: NodeId, group: &Group) -> Self {
        Self::new(P::new(me, group), "")
    }

    fn kind(message: &Self::Message) -> &'static str {
        P::kind(message)
    }

    fn suspects(&self) -> &NodeSet {
        self.site().suspects()
    }
}
