//! The checked system, addressed by numbers.
//!
//! The search is the same for every algorithm: it computes with the numbers of items. Only the items depend
//! on the model. [`System`] separates the two. Each of its methods is called once for each combination of
//! numbers, and the result is remembered. So a dynamic call is cheap enough, and the searches are compiled
//! once and not once per algorithm.

use conclave_kernel::trace::{Json, RawEffect, RawInput};
use conclave_kernel::{Effect, Input, NodeId};

use crate::local::{Local, Stepped};
use crate::model::{Breach, Findings, Model, Monitor, Renamed};
use crate::options::Recovery;
use crate::registry::{Cause, Ground, NOTHING, Observation, Packet, ProtocolOf, Registry, Seen, sends};

/// A model with its interners, in the form that the searches use.
pub(crate) trait System: Sync {
    fn ground(&self) -> &Ground;

    /// Returns the states of the sites before the start, and the monitor.
    fn beginning(&self) -> (Vec<u32>, u32);

    /// Returns the input with which a site starts.
    fn start(&self) -> u32;

    /// Returns the results of an input in a site's state, one for each combination of random choices. The
    /// error is the site, if there are too many.
    fn step(&self, local: u32, input: u32) -> Result<Vec<Step>, NodeId>;

    /// Returns the monitor's judgement of an observation and of the message's note.
    fn judge(&self, monitor: u32, observation: u32, note: u32) -> Judged;

    /// Returns whether the site is up, and its timers that can fire, as inputs.
    fn site(&self, local: u32) -> (bool, Vec<u32>);

    /// Returns the commands that the monitor offers, and the open obligations.
    fn watch(&self, monitor: u32) -> Watch;

    /// Returns a site's state one tick later; `None` if a timer must fire first.
    fn tick(&self, local: u32) -> Option<u32>;

    /// Judges a state without possible steps.
    fn at_rest(&self, locals: &[u32], monitor: u32) -> Option<Breach>;

    /// Returns the kind of a message; `None` if the input is no message.
    fn kind(&self, input: u32) -> Option<&'static str>;

    /// Returns the name of the property that an endless wait violates.
    fn liveness(&self) -> &'static str;

    /// Returns the name of the property that is violated if an obligation opens again for ever.
    fn stability(&self) -> Option<&'static str>;

    /// Returns the names of the observations that an exploration should make.
    fn sometimes(&self) -> &'static [&'static str];

    /// Returns the kinds of the messages that were sent, in order of their first appearance.
    fn kinds(&self) -> Vec<&'static str>;

    /// Returns the approximate size of the interners in bytes.
    fn bytes(&self) -> usize;

    /// Returns `problem/name` of the algorithm, and the data that is needed to explore the model again.
    fn about(&self) -> (String, String);

    /// Returns an input as a trace holds it.
    fn input(&self, input: u32) -> RawInput;

    /// Returns the effects of an input in a site's state, for one combination of random choices, and the
    /// state after it.
    fn effects(&self, local: u32, input: u32, fall: u32) -> (Vec<RawEffect>, Json);

    fn renamed_local(&self, local: u32, which: usize) -> u32;

    fn renamed_packet(&self, packet: Packet, which: usize) -> Packet;

    fn renamed_monitor(&self, monitor: u32, which: usize) -> u32;
}

/// A local step for one combination of random choices.
pub(crate) struct Step {
    pub(crate) local: u32,
    pub(crate) observation: u32,
    pub(crate) posts: Vec<Post>,
    /// The timers that the step postponed, as inputs.
    pub(crate) rearmed: Vec<u32>,
    /// The observations of [`Model::sometimes`] in the new state, one bit each.
    pub(crate) shows: u64,
}

/// A sent message. If messages carry notes, they are posted after the monitor has judged the step, because
/// the note depends on the judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    pub(crate) to: u32,
    pub(crate) packet: u32,
}

pub(crate) struct Judged {
    pub(crate) monitor: u32,
    pub(crate) breach: Option<Breach>,
    pub(crate) posts: Vec<Post>,
}

pub(crate) struct Watch {
    pub(crate) offers: Vec<Offered>,
    pub(crate) pending: u64,
    /// The observations of [`Model::sometimes`] in this state, one bit each.
    pub(crate) shows: u64,
}

/// A command that is possible now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) node: u32,
    pub(crate) input: u32,
    pub(crate) required: bool,
}

/// Inputs that the kernel does not have.
pub(crate) const CRASH: u32 = u32::MAX;
pub(crate) const RECOVER: u32 = u32::MAX - 1;

impl<M: Model> System for Registry<M> {
    fn ground(&self) -> &Ground {
        &self.ground
    }

    fn beginning(&self) -> (Vec<u32>, u32) {
        let site = |node| Local::new(NodeId(node), self.model.site(NodeId(node)));
        let locals = (0..self.ground.nodes).map(|node| self.locals.intern(site(node))).collect();
        (locals, self.monitors.intern(self.model.monitor()))
    }

    fn start(&self) -> u32 {
        self.inputs.intern(Input::Start)
    }

    fn step(&self, number: u32, input: u32) -> Result<Vec<Step>, NodeId> {
        let local = self.locals.get(number);
        let me = local.me;
        let quiet = |local, observation| Step {
            local,
            observation,
            posts: Vec::new(),
            rearmed: Vec::new(),
            shows: 0,
        };
        if input == CRASH {
            let observation = self.observation(me, Cause::Crash, Vec::new());
            return Ok(vec![quiet(self.locals.intern(local.crash()), observation)]);
        }
        if !local.up && input != RECOVER {
            // A message for a site that is down is lost.
            return Ok(vec![quiet(number, NOTHING)]);
        }
        let (local, given, cause) = self.cause(local, input);
        let stepped = local.step(self.ground.nodes, &given, self.ground.timing).ok_or(me)?;
        Ok(stepped.into_iter().map(|stepped| self.numbered(me, cause.clone(), stepped)).collect())
    }

    fn judge(&self, number: u32, observation: u32, note: u32) -> Judged {
        let mut monitor = self.monitors.get(number);
        let Observation { node, cause, effects } = self.observations.get(observation);
        let mut findings = Findings::default();
        match &cause {
            Cause::Silent => {}
            Cause::Message(from) => monitor.on_deliver(*from, node, &self.notes.get(note)),
            Cause::Command(command) => monitor.on_command(node, command, &mut findings),
            Cause::Crash => monitor.on_crash(node, &mut findings),
            Cause::Recover => monitor.on_recover(node, &mut findings),
        }
        let mut posts = Vec::new();
        for effect in &effects {
            match effect {
                Seen::Event(event) => monitor.on_event(node, event, &mut findings),
                Seen::Send(to, input) => {
                    if let Input::Message { message, .. } = self.inputs.get(*input) {
                        let note = self.notes.intern(monitor.on_send(node, *to, &message));
                        posts.push(self.post(node, *to, *input, note));
                    }
                }
            }
        }
        Judged { monitor: self.monitors.intern(monitor), breach: findings.into_breach(), posts }
    }

    fn site(&self, number: u32) -> (bool, Vec<u32>) {
        let local = self.locals.get(number);
        let firing = local.firing(self.ground.timing);
        (local.up, firing.map(|timer| self.inputs.intern(Input::Timer(timer))).collect())
    }

    fn watch(&self, number: u32) -> Watch {
        let monitor = self.monitors.get(number);
        let mut offers = Vec::new();
        monitor.offers(&mut |offer| {
            let input = self.inputs.intern(Input::Command(offer.command));
            offers.push(Offered { node: offer.node.0, input, required: offer.required });
        });
        Watch { offers, pending: monitor.pending(), shows: monitor.shows() }
    }

    fn tick(&self, number: u32) -> Option<u32> {
        self.locals.get(number).tick().map(|local| self.locals.intern(local))
    }

    fn at_rest(&self, locals: &[u32], monitor: u32) -> Option<Breach> {
        let sites: Vec<_> = locals.iter().map(|local| self.locals.get(*local).site).collect();
        let mut findings = Findings::default();
        self.model.at_rest(&sites, &self.monitors.get(monitor), &mut findings);
        findings.into_breach()
    }

    fn kind(&self, input: u32) -> Option<&'static str> {
        match self.inputs.get(input) {
            Input::Message { message, .. } => Some(self.model.kind(&message)),
            _ => None,
        }
    }

    fn liveness(&self) -> &'static str {
        self.model.liveness().name
    }

    fn stability(&self) -> Option<&'static str> {
        self.model.stability().map(|property| property.name)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        self.model.sometimes()
    }

    fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        for kind in (0..self.inputs.len() as u32).filter_map(|input| self.kind(input)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    fn bytes(&self) -> usize {
        self.locals.bytes()
            + self.inputs.bytes()
            + self.notes.bytes()
            + self.ground.packets.bytes()
            + self.ground.inboxes.bytes()
            + self.observations.bytes()
            + self.monitors.bytes()
    }

    fn about(&self) -> (String, String) {
        (self.model.name(), self.model.scenario())
    }

    fn input(&self, input: u32) -> RawInput {
        match (input, self.ground.faults.recovery) {
            (RECOVER, Some(Recovery::Amnesia)) => RawInput::Start,
            (RECOVER, _) => RawInput::Recover,
            _ => RawInput::from(&self.inputs.get(input)),
        }
    }

    fn effects(&self, local: u32, input: u32, fall: u32) -> (Vec<RawEffect>, Json) {
        let (local, given, _) = self.cause(self.locals.get(local), input);
        let outcomes = local.step(self.ground.nodes, &given, self.ground.timing);
        let outcome = outcomes.and_then(|mut outcomes| {
            (outcomes.len() > fall as usize).then(|| outcomes.swap_remove(fall as usize))
        });
        let Stepped { local, effects, .. } = outcome.expect("a step that was explored can be taken again");
        (effects.iter().map(RawEffect::from).collect(), Json::of(&local.site))
    }

    fn renamed_local(&self, number: u32, which: usize) -> u32 {
        let to = &self.ground.symmetries[which];
        let mut local = self.locals.get(number);
        local.me = to[local.me.index()];
        self.model.rename(Renamed::Site(&mut local.site), to);
        self.locals.intern(local)
    }

    fn renamed_packet(&self, packet: Packet, which: usize) -> Packet {
        let to = &self.ground.symmetries[which];
        let rename = |site: u16| to[usize::from(site)];
        let mut input = self.inputs.get(packet.input);
        if let Input::Message { from, message } = &mut input {
            *from = rename(from.0 as u16);
            self.model.rename(Renamed::Message(message), to);
        }
        let mut note = packet.note;
        if self.ground.notes {
            let mut renamed = self.notes.get(note);
            self.model.rename(Renamed::Note(&mut renamed), to);
            note = self.notes.intern(renamed);
        }
        let (NodeId(from), NodeId(end)) = (rename(packet.from), rename(packet.to));
        Packet { from: from as u16, to: end as u16, input: self.inputs.intern(input), note }
    }

    fn renamed_monitor(&self, number: u32, which: usize) -> u32 {
        let mut monitor = self.monitors.get(number);
        self.model.rename(Renamed::Monitor(&mut monitor), &self.ground.symmetries[which]);
        self.monitors.intern(monitor)
    }
}

impl<M: Model> Registry<M> {
    /// The site that handles the input, the input in the form of the kernel, and the cause that the monitor
    /// sees.
    #[expect(clippy::type_complexity, reason = "the three values belong together only here")]
    fn cause(
        &self,
        local: Local<ProtocolOf<M>>,
        input: u32,
    ) -> (Local<ProtocolOf<M>>, Input<ProtocolOf<M>>, Cause<ProtocolOf<M>>) {
        if input == RECOVER {
            return match self.ground.faults.recovery {
                Some(Recovery::Amnesia) => {
                    let fresh = self.model.site(local.me);
                    (local.revive(Some(fresh)), Input::Start, Cause::Recover)
                }
                _ => (local.revive(None), Input::Recover, Cause::Recover),
            };
        }
        let given = self.inputs.get(input);
        let cause = match &given {
            Input::Command(command) => Cause::Command(command.clone()),
            Input::Message { from, .. } if self.ground.notes => Cause::Message(*from),
            _ => Cause::Silent,
        };
        (local, given, cause)
    }

    fn numbered(&self, me: NodeId, cause: Cause<ProtocolOf<M>>, stepped: Stepped<ProtocolOf<M>>) -> Step {
        let shows = self.model.shows(&stepped.local.site);
        let mut posts = Vec::new();
        let mut seen = Vec::new();
        for effect in &stepped.effects {
            if let Effect::Emit { event } = effect {
                seen.push(Seen::Event(event.clone()));
            }
            for (to, message) in sends(me, self.ground.nodes, effect) {
                let input = self.inputs.intern(Input::Message { from: me, message: message.clone() });
                if self.ground.notes {
                    seen.push(Seen::Send(to, input));
                } else {
                    posts.push(self.post(me, to, input, NOTHING));
                }
            }
        }
        let rearmed = stepped.rearmed.iter().map(|timer| self.inputs.intern(Input::Timer(*timer)));
        Step {
            rearmed: rearmed.collect(),
            observation: self.observation(me, cause, seen),
            local: self.locals.intern(stepped.local),
            posts,
            shows,
        }
    }

    fn post(&self, from: NodeId, to: NodeId, input: u32, note: u32) -> Post {
        let packet = Packet { from: from.0 as u16, to: to.0 as u16, input, note };
        Post { to: to.0, packet: self.ground.packets.intern(packet) }
    }

    fn observation(
        &self,
        node: NodeId,
        cause: Cause<ProtocolOf<M>>,
        effects: Vec<Seen<ProtocolOf<M>>>,
    ) -> u32 {
        if effects.is_empty() && cause == Cause::Silent {
            return NOTHING;
        }
        self.observations.intern(Observation { node, cause, effects })
    }
}
