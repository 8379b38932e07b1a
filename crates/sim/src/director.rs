//! The layer above the algorithm in a run: it creates the work, judges the run and measures it.

use std::time::Duration;

use conclave_kernel::{Effect, NodeId, Protocol, Time};

use crate::world::Core;

/// Gives commands to the sites and observes them. Each problem of the laboratory implements a director.
pub trait Director<P: Protocol> {
    /// Data that the director attaches to every message, for its judge. The algorithm never sees it.
    type Note: Clone + Default;

    /// Called once at the beginning of the run, after all sites have started.
    fn on_begin(&mut self, desk: &mut Desk<'_, P, Self::Note>);

    /// Called when a site sends an event to the layer above.
    fn on_event(&mut self, node: NodeId, event: &P::Event, desk: &mut Desk<'_, P, Self::Note>);

    /// Called just before a site receives a command.
    fn on_command(&mut self, node: NodeId, command: &P::Command, now: Time) {
        let _ = (node, command, now);
    }

    /// Called for each effect of a step. A broadcast is one effect: the call comes before the world expands
    /// it.
    fn on_effect(&mut self, node: NodeId, effect: &Effect<P>) {
        let _ = (node, effect);
    }

    /// Called for each message when it is sent, also from a site to itself. The result is attached to the
    /// message.
    fn on_send(&mut self, from: NodeId, to: NodeId, message: &P::Message) -> Self::Note;

    /// Called just before a site receives a message.
    fn on_deliver(&mut self, from: NodeId, to: NodeId, note: &Self::Note);

    /// Called at a moment that the director requested with [`Desk::wake_in`].
    fn on_wake(&mut self, key: u64, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (key, desk);
    }

    /// Called when no message, command or requested wake-up is pending. Timers and faults may still be
    /// pending.
    fn on_quiet(&mut self, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = desk;
    }

    /// Called when a site has crashed.
    fn on_crash(&mut self, node: NodeId, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (node, desk);
    }

    /// Called when a site's clock has jumped by `by` nanoseconds.
    fn on_step(&mut self, node: NodeId, by: i64, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (node, by, desk);
    }

    /// Called when a site has recovered and has taken its first step.
    fn on_recover(&mut self, node: NodeId, desk: &mut Desk<'_, P, Self::Note>) {
        let _ = (node, desk);
    }
}

/// The operations that a director may use during a run.
pub struct Desk<'a, P: Protocol, N> {
    pub(crate) core: &'a mut Core<P, N>,
    pub(crate) nodes: &'a [P],
}

impl<P: Protocol, N> Desk<'_, P, N> {
    /// Returns the world's time.
    #[inline]
    pub fn now(&self) -> Time {
        Time(self.core.now)
    }

    /// Returns the state of a site.
    pub fn node(&self, node: NodeId) -> &P {
        &self.nodes[node.index()]
    }

    /// Returns whether a site is up.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.core.sites[node.index()].up
    }

    /// Sends a command to a site, to arrive at the present time. Events that are already scheduled for this
    /// time come first.
    #[inline]
    pub fn command(&mut self, node: NodeId, command: P::Command) {
        self.core.command(Duration::ZERO, node, command);
    }

    /// Sends a command to a site, to arrive after the given duration.
    #[inline]
    pub fn command_in(&mut self, after: Duration, node: NodeId, command: P::Command) {
        self.core.command(after, node, command);
    }

    /// Requests a call of [`Director::on_wake`] with this key after the given duration.
    #[inline]
    pub fn wake_in(&mut self, after: Duration, key: u64) {
        self.core.wake(after, key);
    }

    /// Records progress: the limits on events and time without progress start again. A director calls this
    /// only when something happens that happens a bounded number of times in a run. Otherwise a livelock never
    /// ends.
    #[inline]
    pub fn progress(&mut self) {
        self.core.progress();
    }

    /// Ends the run after the present step.
    pub fn stop(&mut self) {
        self.core.stop();
    }
}
