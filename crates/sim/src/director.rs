//! What stands above the algorithm in a run: the work, the judge and the meters.

use std::time::Duration;

use conclave_kernel::{Effect, NodeId, Protocol, Time};

use crate::world::Core;

/// Gives the sites their work and watches what they do. A problem of the laboratory is a director.
pub trait Director<P: Protocol> {
    /// What rides on every message for the judge's sake: the algorithm never sees it.
    type Note: Clone + Default;

    /// The run begins; the sites have started.
    fn on_begin(&mut self, desk: &mut Desk<'_, P, Self::Note>);

    /// A site told the layer above something.
    fn on_event(&mut self, node: NodeId, event: &P::Event, desk: &mut Desk<'_, P, Self::Note>);

    /// A command is about to be handed to a site.
    fn on_command(&mut self, node: NodeId, command: &P::Command, now: Time) {
        let _ = (node, command, now);
    }

    /// A step had this effect; called once for a broadcast, before it is expanded.
    fn on_effect(&mut self, node: NodeId, effect: &Effect<P>) {
        let _ = (node, effect);
    }

    /// A message leaves for another site; the answer rides on it.
    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) -> Self::Note;

    /// A message is about to be handed to a site.
    fn on_deliver(&mut self, from: NodeId, to: NodeId, note: &Self::Note);

    /// An alarm that the director set.
    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (key, desk);
    }

    /// Nothing is under way: no message, no command, no alarm.
    fn on_quiet(&mut self, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = desk;
    }

    /// A site died.
    fn on_crash(&mut self, node: NodeId, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (node, desk);
    }

    /// A site's clock jumped by so many nanoseconds.
    fn on_step(&mut self, node: NodeId, by: i64, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (node, by, desk);
    }

    /// A site is back.
    fn on_recover(&mut self, node: NodeId, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (node, desk);
    }
}

/// What a director may do while the run goes on.
pub struct Desk<'a, P: Protocol, N> {
    pub(crate) core: &'a mut Core<P, N>,
    pub(crate) nodes: &'a [P],
}

impl<P: Protocol, N> Desk<'_, P, N> {
    /// The world's time.
    #[inline]
    pub fn now(&self) -> Time {
        Time(self.core.now)
    }

    /// A site's state, to look at.
    pub fn node(&self, node: NodeId) -> &P {
        &self.nodes[node.index()]
    }

    /// Whether the site is up.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.core.sites[node.index()].up
    }

    /// Hands a site a command, once everything under way at this moment is done.
    #[inline]
    pub fn command(&mut self, node: NodeId, command: P::Command) {
        self.core.command(Duration::ZERO, node, command);
    }

    /// Hands a site a command after a while.
    #[inline]
    pub fn command_in(&mut self, after: Duration, node: NodeId, command: P::Command) {
        self.core.command(after, node, command);
    }

    /// Asks for [`Director::on_wake`] with that key after a while.
    #[inline]
    pub fn wake_in(&mut self, after: Duration, key: u64) {
        self.core.wake(after, key);
    }

    /// Ends the run after this step.
    pub fn stop(&mut self) {
        self.core.stopped = true;
    }
}
