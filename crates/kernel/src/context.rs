//! `Cx`: the only way out of a handler.

use core::ops::RangeInclusive;
use core::time::Duration;

use smallvec::SmallVec;

use crate::effect::{Effect, Sink};
use crate::node::{Members, NodeId, NodeSet};
use crate::protocol::{Input, Protocol};
use crate::time::Time;

/// What a handler may know of its surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Env {
    /// The site itself.
    pub me: NodeId,
    /// How many sites there are; their ids are `0..nodes`.
    pub nodes: u32,
    /// The local clock: never runs backwards, may be wrong, may drift.
    pub now: Time,
    /// How often the site has started: 0 at first, one more after every crash.
    pub incarnation: u32,
}

impl Env {
    /// Site `me` of `nodes`, at time zero of its first life.
    pub const fn new(me: NodeId, nodes: u32) -> Self {
        Self { me, nodes, now: Time::ZERO, incarnation: 0 }
    }
}

/// What every handler is handed: who am I, who else is there, what time is it, and the effects.
pub struct Cx<'a, P: Protocol> {
    env: Env,
    sink: &'a mut dyn Sink<P>,
}

impl<'a, P: Protocol> Cx<'a, P> {
    /// A context over a sink. Worlds call this; protocols never do.
    #[inline]
    pub fn new(env: Env, sink: &'a mut dyn Sink<P>) -> Self {
        Self { env, sink }
    }

    /// The site itself.
    #[inline]
    pub fn me(&self) -> NodeId {
        self.env.me
    }

    /// All sites, this one included.
    #[inline]
    pub fn members(&self) -> Members {
        Members::all(self.env.nodes)
    }

    /// All sites but this one.
    #[inline]
    pub fn peers(&self) -> Members {
        Members::except(self.env.nodes, self.env.me)
    }

    /// The local clock.
    #[inline]
    pub fn now(&self) -> Time {
        self.env.now
    }

    /// How often the site has crashed and come back.
    #[inline]
    pub fn incarnation(&self) -> u32 {
        self.env.incarnation
    }

    /// Sends one message. To send to oneself is allowed: it arrives like any other, and is not counted.
    #[inline]
    pub fn send(&mut self, to: NodeId, message: P::Message) {
        debug_assert!(to.0 < self.env.nodes, "{to} is not a member");
        self.sink.send(to, message);
    }

    /// Sends the same message to each of some peers (the sender, if among them, is skipped).
    #[inline]
    pub fn send_to(&mut self, to: NodeSet, message: P::Message) {
        self.sink.push(Effect::SendTo { to, message });
    }

    /// Sends the same message to every peer.
    #[inline]
    pub fn broadcast(&mut self, message: P::Message) {
        self.sink.push(Effect::Broadcast { message });
    }

    /// Asks for a reminder at some moment within `after` from now, on the local clock. A tag has one
    /// deadline: arming it again moves it.
    #[inline]
    pub fn arm(&mut self, timer: P::Timer, after: RangeInclusive<Duration>) {
        debug_assert!(after.start() <= after.end(), "an empty range never fires");
        self.sink.push(Effect::Arm { timer, min: *after.start(), max: *after.end() });
    }

    /// Takes a reminder back.
    #[inline]
    pub fn disarm(&mut self, timer: P::Timer) {
        self.sink.push(Effect::Disarm { timer });
    }

    /// Tells the layer above.
    #[inline]
    pub fn emit(&mut self, event: P::Event) {
        self.sink.push(Effect::Emit { event });
    }

    /// A number below `n`: the only dice. With `n` of 0 or 1 the answer is 0 and nothing is thrown.
    #[inline]
    pub fn choose(&mut self, n: u32) -> u32 {
        if n <= 1 { 0 } else { self.sink.choose(n) }
    }

    /// Runs one step of a protocol that lives inside this one: its messages and timers leave wrapped, its
    /// events come back as the answer, for the outer protocol to act on.
    pub fn drive<I: Protocol>(
        &mut self,
        inner: &mut I,
        input: Input<I>,
        wrap_message: fn(I::Message) -> P::Message,
        wrap_timer: fn(I::Timer) -> P::Timer,
    ) -> Emitted<I> {
        let mut layer = Layer { outer: &mut *self.sink, wrap_message, wrap_timer, emitted: SmallVec::new() };
        inner.step(input, &mut Cx { env: self.env, sink: &mut layer });
        layer.emitted
    }
}

/// The events of an inner protocol's step; a handful needs no heap.
pub type Emitted<I> = SmallVec<[<I as Protocol>::Event; 2]>;

/// The sink between two layers: wraps what the inner protocol says, keeps what it tells the outer one.
struct Layer<'a, P: Protocol, I: Protocol> {
    outer: &'a mut dyn Sink<P>,
    wrap_message: fn(I::Message) -> P::Message,
    wrap_timer: fn(I::Timer) -> P::Timer,
    emitted: Emitted<I>,
}

impl<P: Protocol, I: Protocol> Sink<I> for Layer<'_, P, I> {
    fn push(&mut self, effect: Effect<I>) {
        let wrapped = match effect {
            Effect::Send { to, message } => Effect::Send { to, message: (self.wrap_message)(message) },
            Effect::SendTo { to, message } => Effect::SendTo { to, message: (self.wrap_message)(message) },
            Effect::Broadcast { message } => Effect::Broadcast { message: (self.wrap_message)(message) },
            Effect::Arm { timer, min, max } => Effect::Arm { timer: (self.wrap_timer)(timer), min, max },
            Effect::Disarm { timer } => Effect::Disarm { timer: (self.wrap_timer)(timer) },
            Effect::Emit { event } => return self.emitted.push(event),
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

    #[test]
    fn dice_with_one_face_are_not_thrown() {
        struct NoDice;
        impl Sink<Echo> for NoDice {
            fn push(&mut self, _: Effect<Echo>) {}
            fn choose(&mut self, _: u32) -> u32 {
                unreachable!("a choice among one is no choice")
            }
        }
        let mut sink = NoDice;
        let mut cx = Cx::new(Env::new(NodeId(0), 2), &mut sink);
        assert_eq!((cx.choose(1), cx.choose(0)), (0, 0));
    }
}
