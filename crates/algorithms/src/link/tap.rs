//! Access to the effects of an inner protocol, for layers that number, colour or count its messages.
//!
//! [`Cx::drive`] wraps messages by a function that knows neither the receiver nor the layer. The envelope of
//! some layers depends on either: a number per link, a clock, a colour. Such a layer takes the effects of the
//! inner protocol unchanged and in order, and sends its own messages instead.

use conclave_kernel::{Cx, Effect, Env, Input, NodeId, Protocol, Sink};
use smallvec::SmallVec;

/// The effects of one step of an inner protocol. Up to four need no heap allocation.
pub(crate) type Tapped<I> = SmallVec<[Effect<I>; 4]>;

/// Runs one step of an inner protocol and returns its effects. Its random choices come from the outer
/// context.
pub(crate) fn tap<P: Protocol, I: Protocol>(cx: &mut Cx<'_, P>, inner: &mut I, input: Input<I>) -> Tapped<I> {
    tap_with(cx, |cx| inner.step(input, cx))
}

/// Runs a function as a step of an inner protocol and returns its effects. Its random choices come from the
/// outer context.
pub(crate) fn tap_with<P: Protocol, I: Protocol>(
    cx: &mut Cx<'_, P>,
    step: impl FnOnce(&mut Cx<'_, I>),
) -> Tapped<I> {
    let env =
        Env { me: cx.me(), nodes: cx.members().len() as u32, now: cx.now(), incarnation: cx.incarnation() };
    let mut tap = Tap { cx, effects: SmallVec::new() };
    step(&mut Cx::new(env, &mut tap));
    tap.effects
}

/// Calls `send` for each receiver of an effect that sends, with a copy of the message. Other effects have no
/// receivers.
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

/// Carries out the effects of an inner protocol, but passes its messages to `send`, which wraps them. The
/// layer emits the inner events as its own.
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
