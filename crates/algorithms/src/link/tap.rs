//! What a layer needs that numbers, colours or counts what the protocol inside it sends.
//!
//! [`Cx::drive`] wraps messages by a function that knows neither receiver nor layer. A layer whose envelope
//! depends on either (a number a link, a clock, a colour) takes the inner protocol's effects as they are, in
//! order, and sends what it likes in their place.

use conclave_kernel::{Cx, Effect, Env, Input, NodeId, Protocol, Sink};
use smallvec::SmallVec;

/// The effects of an inner protocol's step; a handful needs no heap.
pub(crate) type Tapped<I> = SmallVec<[Effect<I>; 4]>;

/// Runs one step of a protocol inside another and hands back what it asked for. Its dice are the outer one's.
pub(crate) fn tap<P: Protocol, I: Protocol>(cx: &mut Cx<'_, P>, inner: &mut I, input: Input<I>) -> Tapped<I> {
    let env =
        Env { me: cx.me(), nodes: cx.members().len() as u32, now: cx.now(), incarnation: cx.incarnation() };
    let mut tap = Tap { cx, effects: SmallVec::new() };
    inner.step(input, &mut Cx::new(env, &mut tap));
    tap.effects
}

/// The receivers of an effect that sends, one by one, with a copy of the message each; other effects have
/// none.
pub(crate) fn each_receiver<P: Protocol, I: Protocol>(
    cx: &mut Cx<'_, P>,
    effect: Effect<I>,
    mut send: impl FnMut(&mut Cx<'_, P>, NodeId, I::Message),
) {
    match effect {
        Effect::Send { to, message } => send(cx, to, message),
        Effect::SendTo { to, message } => {
            let me = cx.me();
            to.iter().filter(|to| *to != me).for_each(|to| send(cx, to, message.clone()));
        }
        Effect::Broadcast { message } => {
            cx.peers().iter().for_each(|to| send(cx, to, message.clone()));
        }
        Effect::Arm { .. } | Effect::Disarm { .. } | Effect::Emit { .. } => {}
    }
}

struct Tap<'a, 'c, P: Protocol, I: Protocol> {
    cx: &'a mut Cx<'c, P>,
    effects: Tapped<I>,
}

impl<P: Protocol, I: Protocol> Sink<I> for Tap<'_, '_, P, I> {
    fn push(&mut self, effect: Effect<I>) {
        self.effects.push(effect);
    }

    fn choose(&mut self, n: u32) -> u32 {
        self.cx.choose(n)
    }
}

/// Does what an inner protocol asked for, except that what it sends is the layer's to wrap. Its events are
/// the layer's own.
pub(crate) fn relay<P: Protocol, I: Protocol<Event = P::Event>>(
    cx: &mut Cx<'_, P>,
    effects: Tapped<I>,
    wrap_timer: fn(I::Timer) -> P::Timer,
    mut send: impl FnMut(&mut Cx<'_, P>, NodeId, I::Message),
) {
    for effect in effects {
        match effect {
            Effect::Arm { timer, min, max } => cx.arm(wrap_timer(timer), min..=max),
            Effect::Disarm { timer } => cx.disarm(wrap_timer(timer)),
            Effect::Emit { event } => cx.emit(event),
            sends => each_receiver(cx, sends, &mut send),
        }
    }
}
