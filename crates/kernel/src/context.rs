//! `Cx`: the only interface between a handler and its world.

use core::ops::RangeInclusive;
use core::time::Duration;

use smallvec::SmallVec;

use crate::effect::{Effect, Sink};
use crate::node::{Members, NodeId, NodeSet};
use crate::protocol::{Input, Protocol};
use crate::time::Time;

/// The facts about its surroundings that a handler may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Env {
    /// The id of this site.
    pub me: NodeId,
    /// The number of sites. Their ids are `0..nodes`.
    pub nodes: u32,
    /// The local clock. It never runs backwards, but it may be wrong and may drift.
    pub now: Time,
    /// The number of restarts after a crash: 0 until the first crash.
    pub incarnation: u32,
}

impl Env {
    /// Returns the environment of site `me` of `nodes`, at time zero and before any crash.
    pub const fn new(me: NodeId, nodes: u32) -> Self {
        Self { me, nodes, now: Time::ZERO, incarnation: 0 }
    }
}

/// The context of one handler call: the facts of [`Env`], and the methods that request effects from the
/// world.
pub struct Cx<'a, P: Protocol> {
    env: Env,
    sink: &'a mut dyn Sink<P>,
}

impl<'a, P: Protocol> Cx<'a, P> {
    /// Creates a context over a sink. Worlds call this; protocols never do.
    #[inline]
    pub fn new(env: Env, sink: &'a mut dyn Sink<P>) -> Self {
        Self { env, sink }
    }

    /// Returns the id of this site.
    #[inline]
    pub fn me(&self) -> NodeId {
        self.env.me
    }

    /// Returns all sites, with this one.
    #[inline]
    pub fn members(&self) -> Members {
        Members::all(self.env.nodes)
    }

    /// Returns all sites except this one.
    #[inline]
    pub fn peers(&self) -> Members {
        Members::except(self.env.nodes, self.env.me)
    }

    /// Returns the reading of the local clock.
    #[inline]
    pub fn now(&self) -> Time {
        self.env.now
    }

    /// Returns how often this site has crashed and recovered.
    #[inline]
    pub fn incarnation(&self) -> u32 {
        self.env.incarnation
    }

    /// Sends one message. A site may send to itself: the message arrives like any other, but costs do not
    /// count it.
    #[inline]
    pub fn send(&mut self, to: NodeId, message: P::Message) {
        debug_assert!(to.0 < self.env.nodes, "{to} is not a member");
        self.sink.send(to, message);
    }

    /// Sends the same message to each site of a set. The world skips the sender if the set contains it.
    #[inline]
    pub fn send_to(&mut self, to: NodeSet, message: P::Message) {
        self.sink.push(Effect::SendTo { to, message });
    }

    /// Sends the same message to all other sites.
    #[inline]
    pub fn broadcast(&mut self, message: P::Message) {
        self.sink.push(Effect::Broadcast { message });
    }

    /// Sets a timer, which fires once at some moment in the range `after`, counted from now on the local
    /// clock. A tag has at most one deadline: arming it again replaces the earlier deadline.
    #[inline]
    pub fn arm(&mut self, timer: P::Timer, after: RangeInclusive<Duration>) {
        debug_assert!(after.start() <= after.end(), "the range of the timer is empty");
        self.sink.push(Effect::Arm { timer, min: *after.start(), max: *after.end() });
    }

    /// Cancels a timer. Has no effect if the timer is not set.
    #[inline]
    pub fn disarm(&mut self, timer: P::Timer) {
        self.sink.push(Effect::Disarm { timer });
    }

    /// Sends an event to the layer above.
    #[inline]
    pub fn emit(&mut self, event: P::Event) {
        self.sink.push(Effect::Emit { event });
    }

    /// Returns a number below `n`: the only source of random numbers. If `n` is 0 or 1, it returns 0 and
    /// draws nothing.
    #[inline]
    pub fn choose(&mut self, n: u32) -> u32 {
        if n <= 1 { 0 } else { self.sink.choose(n) }
    }

    /// Runs one step of a protocol that lives inside this one. The world receives the messages and timers of
    /// the inner protocol in wrapped form. The events of the inner protocol are returned, and the outer
    /// protocol acts on them.
    ///
    /// Effects that the outer protocol requests in reply come after all effects of the inner step. If the
    /// outer protocol only repeats the events, use [`Cx::delegate`], which keeps their places.
    pub fn drive<I: Protocol>(
        &mut self,
        inner: &mut I,
        input: Input<I>,
        wrap_message: fn(I::Message) -> P::Message,
        wrap_timer: fn(I::Timer) -> P::Timer,
    ) -> Emitted<I> {
        let mut emitted = Emitted::<I>::new();
        let on_event = |_: &mut dyn Sink<P>, event| emitted.push(event);
        let mut layer = Layer { outer: &mut *self.sink, wrap_message, wrap_timer, on_event };
        inner.step(input, &mut Cx { env: self.env, sink: &mut layer });
        emitted
    }

    /// Runs one step of a protocol that lives inside this one and whose events are events of this one.
    /// Messages, timers and events reach the world in the order in which the inner protocol requested them.
    ///
    /// The order matters to a judge: a message that was sent after an exit carries the news of that exit.
    pub fn delegate<I: Protocol<Event = P::Event>>(
        &mut self,
        inner: &mut I,
        input: Input<I>,
        wrap_message: fn(I::Message) -> P::Message,
        wrap_timer: fn(I::Timer) -> P::Timer,
    ) {
        let on_event = |outer: &mut dyn Sink<P>, event| outer.push(Effect::Emit { event });
        let mut layer = Layer { outer: &mut *self.sink, wrap_message, wrap_timer, on_event };
        inner.step(input, &mut Cx { env: self.env, sink: &mut layer });
    }
}

/// The events of one step of an inner protocol. Up to two need no heap allocation.
pub type Emitted<I> = SmallVec<[<I as Protocol>::Event; 2]>;

/// The sink between two layers. It wraps the messages and timers of the inner protocol and passes its events
/// to `on_event`.
struct Layer<'a, P: Protocol, I: Protocol, E: FnMut(&mut dyn Sink<P>, I::Event)> {
    outer: &'a mut dyn Sink<P>,
    wrap_message: fn(I::Message) -> P::Message,
    wrap_timer: fn(I::Timer) -> P::Timer,
    on_event: E,
}

impl<P: Protocol, I: Protocol, E: FnMut(&mut dyn Sink<P>, I::Event)> Sink<I> for Layer<'_, P, I, E> {
    fn push(&mut self, effect: Effect<I>) {
        let wrapped = match effect {
            Effect::Send { to, message } => Effect::Send { to, message: (self.wrap_message)(message) },
            Effect::SendTo { to, message } => Effect::SendTo { to, message: (self.wrap_message)(message) },
            Effect::Broadcast { message } => Effect::Broadcast { message: (self.wrap_message)(message) },
            Effect::Arm { timer, min, max } => Effect::Arm { timer: (self.wrap_timer)(timer), min, max },
            Effect::Disarm { timer } => Effect::Disarm { timer: (self.wrap_timer)(timer) },
            Effect::Emit { event } => return (self.on_event)(&mut *self.outer, event),
        };
        self.outer.push(wrapped);
    }

    fn choose(&mut self, n: u32) -> u32 {
        self.outer.choose(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Buffer;
    use crate::protocol::Never;
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    struct Echo;

    impl Protocol for Echo {
        type Message = u8;
        type Timer = Never;
        type Command = u8;
        type Event = u8;
        fn on_message(&mut self, from: NodeId, message: u8, cx: &mut Cx<'_, Self>) {
            cx.send(from, message);
            cx.emit(message);
        }
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    enum Wrapped {
        Inner(u8),
    }

    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    struct Outer {
        inner: Echo,
    }

    impl Protocol for Outer {
        type Message = Wrapped;
        type Timer = Never;
        type Command = ();
        type Event = u16;
        fn on_message(&mut self, from: NodeId, message: Wrapped, cx: &mut Cx<'_, Self>) {
            let Wrapped::Inner(message) = message;
            let input = Input::Message { from, message };
            for event in cx.drive(&mut self.inner, input, Wrapped::Inner, |never| match never {}) {
                cx.emit(u16::from(event) + 1000);
            }
        }
    }

    #[test]
    fn a_layer_wraps_what_the_inner_protocol_says_and_hears_its_events() {
        let mut world = Buffer::default();
        let mut cx = Cx::new(Env::new(NodeId(0), 2), &mut world);
        Outer::default().on_message(NodeId(1), Wrapped::Inner(5), &mut cx);
        assert_eq!(
            world.effects,
            [Effect::Send { to: NodeId(1), message: Wrapped::Inner(5) }, Effect::Emit { event: 1005 }]
        );
    }

    /// Emits before it sends, like a site that leaves and then replies.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    struct Leaver;

    impl Protocol for Leaver {
        type Message = u8;
        type Timer = Never;
        type Command = ();
        type Event = u16;
        fn on_message(&mut self, _: NodeId, _: u8, _: &mut Cx<'_, Self>) {}
        fn on_command(&mut self, (): (), cx: &mut Cx<'_, Self>) {
            cx.send(NodeId(1), 1);
            cx.emit(7);
            cx.send(NodeId(1), 2);
        }
    }

    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    struct Through {
        inner: Leaver,
    }

    impl Protocol for Through {
        type Message = Wrapped;
        type Timer = Never;
        type Command = ();
        type Event = u16;
        fn on_message(&mut self, _: NodeId, _: Wrapped, _: &mut Cx<'_, Self>) {}
        fn on_command(&mut self, command: (), cx: &mut Cx<'_, Self>) {
            cx.delegate(&mut self.inner, Input::Command(command), Wrapped::Inner, |never| match never {});
        }
    }

    #[test]
    fn delegated_events_keep_their_places_among_the_messages() {
        let mut world = Buffer::default();
        let mut cx = Cx::new(Env::new(NodeId(0), 2), &mut world);
        Through::default().on_command((), &mut cx);
        let send = |message| Effect::Send { to: NodeId(1), message: Wrapped::Inner(message) };
        assert_eq!(world.effects, [send(1), Effect::Emit { event: 7 }, send(2)]);
    }

    #[test]
    fn dice_with_one_face_are_not_thrown() {
        struct NoDice;
        impl Sink<Echo> for NoDice {
            fn push(&mut self, _: Effect<Echo>) {}
            fn choose(&mut self, _: u32) -> u32 {
                unreachable!("a choice of one must not reach the sink")
            }
        }
        let mut sink = NoDice;
        let mut cx = Cx::new(Env::new(NodeId(0), 2), &mut sink);
        assert_eq!((cx.choose(1), cx.choose(0)), (0, 0));
    }
}
