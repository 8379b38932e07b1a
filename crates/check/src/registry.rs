//! The contents of states, each stored once under a number, and shared by the threads.

use conclave_kernel::{Effect, Input, NodeId, Protocol};

use crate::inbox::Inbox;
use crate::intern::Interner;
use crate::local::Local;
use crate::model::{Model, Monitor};
use crate::options::{Faults, Options, Order, Timing};

/// The algorithm of a model, and the types that belong to it.
pub(crate) type ProtocolOf<M> = <M as Model>::Protocol;
pub(crate) type NoteOf<M> = <<M as Model>::Monitor as Monitor<ProtocolOf<M>>>::Note;

/// The rules of the exploration, and the contents of states that do not depend on the algorithm.
pub(crate) struct Ground {
    pub(crate) nodes: u32,
    pub(crate) order: Order,
    pub(crate) timing: Timing,
    pub(crate) faults: Faults,
    /// Whether messages carry notes.
    pub(crate) notes: bool,
    /// The renamings whose states count as one; empty unless requested.
    pub(crate) symmetries: Vec<Vec<NodeId>>,
    pub(crate) packets: Interner<Packet>,
    pub(crate) inboxes: Interner<Inbox>,
}

/// The ground, and the interners of the contents whose types the model defines.
pub(crate) struct Registry<M: Model> {
    pub(crate) model: M,
    pub(crate) ground: Ground,
    pub(crate) locals: Interner<Local<ProtocolOf<M>>>,
    pub(crate) inputs: Interner<Input<ProtocolOf<M>>>,
    pub(crate) notes: Interner<NoteOf<M>>,
    pub(crate) observations: Interner<Observation<ProtocolOf<M>>>,
    pub(crate) monitors: Interner<M::Monitor>,
}

/// A message with its sender, its receiver and its note. `input` is the number of the receiver's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Packet {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) input: u32,
    pub(crate) note: u32,
}

/// The part of a step that the monitor sees. Number 0 is a step that shows nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Observation<P: Protocol> {
    pub(crate) node: NodeId,
    pub(crate) cause: Cause<P>,
    pub(crate) effects: Vec<Seen<P>>,
}

/// The cause of a step, as the monitor sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause<P: Protocol> {
    /// The monitor does not see the cause.
    Silent,
    Message(NodeId),
    Command(P::Command),
    Crash,
    Recover,
}

/// An effect that the monitor sees.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seen<P: Protocol> {
    Event(P::Event),
    /// The receiver, and the number of its input.
    Send(NodeId, u32),
}

/// The number 0 also stands for the empty inbox and the unit note.
pub(crate) const NOTHING: u32 = 0;

impl<M: Model> Registry<M> {
    pub(crate) fn new(model: M, options: &Options) -> Self {
        let registry = Self {
            ground: Ground {
                nodes: model.nodes(),
                order: options.order,
                timing: options.timing,
                faults: options.faults,
                notes: model.monitor().has_notes(),
                symmetries: if options.symmetry { model.symmetries() } else { Vec::new() },
                packets: Interner::new(),
                inboxes: Interner::new(),
            },
            locals: Interner::new(),
            inputs: Interner::new(),
            notes: Interner::new(),
            observations: Interner::new(),
            monitors: Interner::new(),
            model,
        };
        let nothing = Observation { node: NodeId(0), cause: Cause::Silent, effects: Vec::new() };
        registry.observations.intern(nothing);
        registry.ground.inboxes.intern(Inbox::default());
        registry.notes.intern(NoteOf::<M>::default());
        registry
    }
}

/// The messages of a step in the order sent, each with its receiver.
pub(crate) fn sends<P: Protocol>(
    me: NodeId,
    nodes: u32,
    effect: &Effect<P>,
) -> impl Iterator<Item = (NodeId, &P::Message)> {
    let (one, message) = match effect {
        Effect::Send { to, message } => (Some(*to), Some(message)),
        Effect::SendTo { message, .. } | Effect::Broadcast { message } => (None, Some(message)),
        _ => (None, None),
    };
    let receives = move |node: NodeId| match effect {
        Effect::Send { .. } => Some(node) == one,
        Effect::SendTo { to, .. } => node != me && to.contains(node),
        _ => node != me,
    };
    message.into_iter().flat_map(move |message| {
        (0..nodes).map(NodeId).filter(move |node| receives(*node)).map(move |node| (node, message))
    })
}
