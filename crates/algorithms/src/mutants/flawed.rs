//! The common basis of all mutants: an algorithm with one handler replaced, or with its messages changed.

use alloc::boxed::Box;
use core::convert::identity;
use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;

use conclave_kernel::{Buffer, Cx, Effect, Env, Input, NodeId, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::generic::{Generic, Rule, Stage};
use crate::link::tap::tap_with;

/// A second version of an algorithm's step.
pub type Step<P> = fn(&mut P, &mut Memory, Input<P>, &mut Cx<'_, P>);

/// An algorithm, of any problem, for which flaws exist.
pub trait Fallible: Protocol {
    /// The flaws, by name. An algorithm without flaws of its own keeps the empty list.
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[];
}

/// Additional state that a flaw may need, besides the state of the algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Memory {
    pub(crate) count: u64,
    pub(crate) sites: NodeSet,
}

/// The view of a problem on its protocols, which the generic flaws need.
pub trait View<P: Protocol>: Clone + Debug + Eq + Hash + Send + 'static {
    /// The rules of [`super::generic::Rule`] that make sense for the problem.
    const RULES: &'static [Rule];

    /// Returns the kind of a message as the paper spells it.
    fn kind(message: &P::Message) -> &'static str;

    /// Returns the stage of a site's work after a command; `None` if the command does not change it.
    fn after_command(command: &P::Command) -> Option<Stage> {
        let _ = command;
        None
    }

    /// Returns the stage of a site's work after an event; `None` if the event does not change it.
    fn after_event(event: &P::Event) -> Option<Stage> {
        let _ = event;
        None
    }
}

/// An algorithm with a flaw. It has the same messages and the same card as the algorithm. All flaws of an
/// algorithm share this one type, because the checker compiles separate code for each type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Flawed<P: Fallible, V: View<P>> {
    site: P,
    flaw: Flaw,
    view: PhantomData<V>,
}

/// The flaw of a site, with the state that it needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Flaw {
    /// The site is unmodified.
    None,
    /// One of [`Fallible::FLAWS`], by its index.
    Own(usize, Memory),
    /// A flaw without code of the algorithm.
    Generic(Box<Generic>, Stage),
}

impl<P: Fallible, V: View<P>> Flawed<P, V> {
    /// Creates a site with the flaw of this name: one of the algorithm, or a generic one. If there is no such
    /// flaw, the site is unmodified.
    pub fn new(site: P, name: &str) -> Self {
        let own = P::FLAWS.iter().position(|(known, _)| *known == name);
        let flaw = match (own, name.parse()) {
            (Some(index), _) => Flaw::Own(index, Memory::default()),
            (None, Ok(generic)) => Flaw::Generic(Box::new(generic), Stage::Idle),
            (None, Err(_)) => Flaw::None,
        };
        Self { site, flaw, view: PhantomData }
    }

    /// Returns the site of the real algorithm.
    pub fn site(&self) -> &P {
        &self.site
    }

    fn run(&mut self, input: Input<P>, cx: &mut Cx<'_, Self>) {
        let effects = match &mut self.flaw {
            Flaw::None => return cx.delegate(&mut self.site, input, identity, identity),
            Flaw::Own(index, memory) => {
                let (_, step) = P::FLAWS[*index];
                tap_with(cx, |cx| step(&mut self.site, memory, input, cx))
            }
            Flaw::Generic(flaw, stage) => {
                if let Input::Command(command) = &input {
                    *stage = V::after_command(command).unwrap_or(*stage);
                }
                let effects = tap_with(cx, |cx| flaw.step::<P, V>(&mut self.site, *stage, input, cx));
                for effect in &effects {
                    if let Effect::Emit { event } = effect {
                        *stage = V::after_event(event).unwrap_or(*stage);
                    }
                }
                effects
            }
        };
        effects.into_iter().for_each(|effect| forward(effect, cx));
    }
}

impl<P: Fallible, V: View<P>> Protocol for Flawed<P, V> {
    type Message = <P as Protocol>::Message;
    type Timer = <P as Protocol>::Timer;
    type Command = <P as Protocol>::Command;
    type Event = <P as Protocol>::Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Self::Message, cx: &mut Cx<'_, Self>) {
        self.run(Input::Message { from, message }, cx);
    }

    fn on_timer(&mut self, timer: Self::Timer, cx: &mut Cx<'_, Self>) {
        self.run(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: Self::Command, cx: &mut Cx<'_, Self>) {
        self.run(Input::Command(command), cx);
    }

    fn on_recover(&mut self, cx: &mut Cx<'_, Self>) {
        self.run(Input::Recover, cx);
    }
}

/// Runs only the handler, without the guards.
pub(crate) fn handle<P: Protocol>(site: &mut P, input: Input<P>, cx: &mut Cx<'_, P>) {
    match input {
        Input::Start => site.on_start(cx),
        Input::Recover => site.on_recover(cx),
        Input::Message { from, message } => site.on_message(from, message, cx),
        Input::Timer(timer) => site.on_timer(timer, cx),
        Input::Command(command) => site.on_command(command, cx),
    }
}

/// Runs a whole step of the real code, and passes each effect through `tamper` first.
pub(crate) fn tampered<P: Protocol>(
    site: &mut P,
    input: Input<P>,
    cx: &mut Cx<'_, P>,
    mut tamper: impl FnMut(Effect<P>) -> Option<Effect<P>>,
) {
    let mut said = Buffer::default();
    site.step(input, &mut Cx::new(env(cx), &mut said));
    said.effects.into_iter().filter_map(&mut tamper).for_each(|effect| forward(effect, cx));
}

/// Returns the environment of a context.
pub(crate) fn env<P: Protocol>(cx: &Cx<'_, P>) -> Env {
    let nodes = cx.members().len() as u32;
    Env { me: cx.me(), nodes, now: cx.now(), incarnation: cx.incarnation() }
}

/// Requests the same effect from another context.
pub(crate) fn forward<P, Q>(effect: Effect<P>, cx: &mut Cx<'_, Q>)
where
    P: Protocol,
    Q: Protocol<Message = P::Message, Timer = P::Timer, Event = P::Event>,
{
    match effect {
        Effect::Send { to, message } => cx.send(to, message),
        Effect::SendTo { to, message } => cx.send_to(to, message),
        Effect::Broadcast { message } => cx.broadcast(message),
        Effect::Arm { timer, min, max } => cx.arm(timer, min..=max),
        Effect::Disarm { timer } => cx.disarm(timer),
        Effect::Emit { event } => cx.emit(event),
    }
}
