//! The stage: a world in which nothing happens unless the script commands it.
//!
//! Messages stay in flight until one is chosen, timers are armed but do not fire, the clock stands still, and
//! random draws always give 0. Each step is written as a few stable lines, in the `Debug` form of inputs and
//! effects.

use std::fmt::{self, Write as _};
use std::time::Duration;

use conclave_kernel::{Buffer, Cx, Effect, Env, Input, NodeId, Protocol, Time};

use crate::fault::{Recovery, exact};

/// The largest number of messages in flight. A command that would leave more returns an error.
pub const MOST_IN_FLIGHT: usize = 100_000;

/// The largest number of deliveries of one [`Stage::settle`], which then returns an error. Some algorithms,
/// such as rings, send messages for ever.
pub const MOST_DELIVERIES: usize = 10_000;

/// The sites and the messages between them. Every step is a call of one of the methods.
pub struct Stage<P: Protocol> {
    sites: Vec<Site<P>>,
    /// The messages in flight, in the order in which they were sent.
    in_flight: Vec<Envelope<P>>,
    make: Box<dyn Fn(NodeId) -> P>,
    now: Time,
    written: String,
}

struct Site<P: Protocol> {
    state: P,
    up: bool,
    incarnation: u32,
    /// The amount by which the site's clock is ahead of the stage's clock.
    ahead: Duration,
    /// The armed timers, in the order of tags.
    timers: Vec<P::Timer>,
}

struct Envelope<P: Protocol> {
    from: NodeId,
    to: NodeId,
    message: P::Message,
}

impl<P: Protocol> Stage<P> {
    /// Creates a stage with `nodes` sites, all of which have started.
    pub fn new(nodes: u32, make: impl Fn(NodeId) -> P + 'static) -> Self {
        Self::with_clocks(nodes, |_| Duration::ZERO, make)
    }

    /// Creates a stage whose clocks are ahead by different amounts. All clocks run at the same speed.
    pub fn with_clocks(
        nodes: u32,
        ahead: impl Fn(NodeId) -> Duration,
        make: impl Fn(NodeId) -> P + 'static,
    ) -> Self {
        let site = |id| {
            let (state, ahead) = (make(NodeId(id)), ahead(NodeId(id)));
            Site { state, up: true, incarnation: 0, ahead, timers: Vec::new() }
        };
        let sites = (0..nodes).map(site).collect();
        let (in_flight, written) = (Vec::new(), String::new());
        let mut stage = Self { sites, in_flight, make: Box::new(make), now: Time::ZERO, written };
        for node in (0..nodes).map(NodeId) {
            let before = stage.written.len();
            stage.step(node, Input::Start);
            let did_nothing = stage.written[before..].lines().count() == 1;
            if did_nothing {
                stage.written.truncate(before);
            }
        }
        stage
    }

    /// Returns the number of sites.
    pub fn nodes(&self) -> u32 {
        self.sites.len() as u32
    }

    /// Returns the text written since the last call: one line per step, with its effects indented below.
    pub fn take_written(&mut self) -> String {
        std::mem::take(&mut self.written)
    }

    /// Sends a command to a site.
    pub fn command(&mut self, node: NodeId, command: P::Command) -> Result<(), String> {
        self.require_up(node)?;
        self.step(node, Input::Command(command));
        self.require_room()
    }

    /// Delivers one message of a link. The oldest has number 1.
    pub fn deliver(&mut self, from: NodeId, to: NodeId, number: usize) -> Result<(), String> {
        let index = self.find(from, to, number)?;
        self.deliver_index(index);
        self.require_room()
    }

    /// Delivers all messages that are in flight now, in the order sent, but not the messages that these
    /// cause.
    pub fn deliver_all(&mut self) -> Result<(), String> {
        for _ in 0..self.in_flight.len() {
            self.deliver_index(0);
        }
        self.require_room()
    }

    /// Delivers the oldest message repeatedly until no message is in flight.
    pub fn settle(&mut self) -> Result<(), String> {
        for _ in 0..MOST_DELIVERIES {
            if self.in_flight.is_empty() {
                return Ok(());
            }
            self.deliver_index(0);
            self.require_room()?;
        }
        Err(format!(
            "messages are still in flight after {MOST_DELIVERIES} deliveries; name the deliveries instead"
        ))
    }

    /// Loses one message of a link.
    pub fn lose(&mut self, from: NodeId, to: NodeId, number: usize) -> Result<(), String> {
        let lost = self.in_flight.remove(self.find(from, to, number)?);
        self.line(format_args!("lost {from}->{to} {:?}", lost.message));
        Ok(())
    }

    /// Puts a copy of one message of a link into flight, as if it had just been sent.
    pub fn duplicate(&mut self, from: NodeId, to: NodeId, number: usize) -> Result<(), String> {
        let message = self.in_flight[self.find(from, to, number)?].message.clone();
        self.line(format_args!("duplicated {from}->{to} {message:?}"));
        self.in_flight.push(Envelope { from, to, message });
        self.require_room()
    }

    /// Fires an armed timer. `timer` is the `Debug` form of the tag.
    pub fn fire(&mut self, node: NodeId, timer: &str) -> Result<(), String> {
        self.require_up(node)?;
        let timers = &mut self.sites[node.index()].timers;
        let Some(index) = timers.iter().position(|armed| format!("{armed:?}") == timer) else {
            return Err(format!("{node} has not armed {timer}; armed: {timers:?}"));
        };
        let timer = timers.remove(index);
        self.step(node, Input::Timer(timer));
        self.require_room()
    }

    /// Crashes a site. Its timers are lost, and so are messages that are delivered while it is down.
    pub fn crash(&mut self, node: NodeId) -> Result<(), String> {
        self.require_up(node)?;
        let site = &mut self.sites[node.index()];
        site.up = false;
        site.timers.clear();
        self.line(format_args!("{node} crashed"));
        Ok(())
    }

    /// Recovers a site, with its state or without.
    pub fn recover(&mut self, node: NodeId, recovery: Recovery) -> Result<(), String> {
        self.require_node(node)?;
        let site = &mut self.sites[node.index()];
        if site.up {
            return Err(format!("{node} is not down"));
        }
        site.up = true;
        site.incarnation += 1;
        match recovery {
            Recovery::Stable => self.step(node, Input::Recover),
            Recovery::Amnesia => {
                site.state = (self.make)(node);
                self.step(node, Input::Start);
            }
        }
        self.require_room()
    }

    /// Moves the clocks of all sites forward. No timer fires.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
    }

    /// Writes the messages in flight, link by link, with the numbers that [`Stage::deliver`] expects.
    pub fn write_pending(&mut self) {
        let mut links: Vec<_> = self.in_flight.iter().map(|envelope| (envelope.from, envelope.to)).collect();
        links.sort_unstable();
        links.dedup();
        let mut lines = String::new();
        for (from, to) in links {
            let of_link = self.in_flight.iter().filter(|envelope| (envelope.from, envelope.to) == (from, to));
            for (index, envelope) in of_link.enumerate() {
                _ = writeln!(lines, "{from}->{to} #{} {:?}", index + 1, envelope.message);
            }
        }
        self.written.push_str(if lines.is_empty() { "nothing in flight\n" } else { &lines });
    }

    /// Writes a site's state, one field per line, and its armed timers.
    pub fn write_state(&mut self, node: NodeId) -> Result<(), String> {
        self.require_node(node)?;
        let site = &self.sites[node.index()];
        let down = if site.up { "" } else { " (down)" };
        let mut text = format!("{node}{down}\n");
        for field in fields(&format!("{:?}", site.state)) {
            _ = writeln!(text, "  {field}");
        }
        if !site.timers.is_empty() {
            _ = writeln!(text, "  armed: {:?}", site.timers);
        }
        self.written.push_str(&text);
        Ok(())
    }

    fn deliver_index(&mut self, index: usize) {
        let Envelope { from, to, message } = self.in_flight.remove(index);
        if self.sites[to.index()].up {
            self.step(to, Input::Message { from, message });
        } else {
            self.line(format_args!("lost {from}->{to} {message:?}: {to} is down"));
        }
    }

    fn step(&mut self, node: NodeId, input: Input<P>) {
        let cause = match &input {
            Input::Start => "start".into(),
            Input::Recover => "recover".into(),
            Input::Message { from, message } => format!("{from}: {message:?}"),
            Input::Timer(timer) => format!("timer {timer:?}"),
            Input::Command(command) => format!("{command:?}"),
        };
        self.line(format_args!("{node} <- {cause}"));
        let nodes = self.nodes();
        let site = &mut self.sites[node.index()];
        let env = Env { me: node, nodes, now: self.now + site.ahead, incarnation: site.incarnation };
        let mut sink = Buffer::default();
        site.state.step(input, &mut Cx::new(env, &mut sink));
        for effect in sink.effects {
            self.apply(node, effect);
        }
    }

    fn apply(&mut self, from: NodeId, effect: Effect<P>) {
        match effect {
            Effect::Send { to, message } => {
                self.line(format_args!("  send {to}: {message:?}"));
                self.in_flight.push(Envelope { from, to, message });
            }
            Effect::SendTo { to, message } => {
                self.line(format_args!("  send {to:?}: {message:?}"));
                self.send_each(from, to.iter(), &message);
            }
            Effect::Broadcast { message } => {
                self.line(format_args!("  broadcast: {message:?}"));
                self.send_each(from, (0..self.nodes()).map(NodeId), &message);
            }
            Effect::Arm { timer, min, max } => {
                self.line(format_args!("  arm {timer:?} {}..{}", exact(min), exact(max)));
                let timers = &mut self.sites[from.index()].timers;
                if let Err(index) = timers.binary_search(&timer) {
                    timers.insert(index, timer);
                }
            }
            Effect::Disarm { timer } => {
                self.line(format_args!("  disarm {timer:?}"));
                self.sites[from.index()].timers.retain(|armed| *armed != timer);
            }
            Effect::Emit { event } => self.line(format_args!("  emit {event:?}")),
        }
    }

    fn send_each(&mut self, from: NodeId, to: impl Iterator<Item = NodeId>, message: &P::Message) {
        let envelope = |to| Envelope { from, to, message: message.clone() };
        self.in_flight.extend(to.filter(|to| *to != from).map(envelope));
    }

    fn find(&self, from: NodeId, to: NodeId, number: usize) -> Result<usize, String> {
        let of_link = |(_, envelope): &(usize, &Envelope<P>)| (envelope.from, envelope.to) == (from, to);
        let mut found = self.in_flight.iter().enumerate().filter(of_link);
        let index = number.checked_sub(1).ok_or("the messages of a link are numbered from 1")?;
        let found = found.nth(index).map(|(index, _)| index);
        found.ok_or_else(|| format!("no message #{number} from {from} to {to} is in flight"))
    }

    fn require_node(&self, node: NodeId) -> Result<(), String> {
        let known = node.0 < self.nodes();
        known
            .then_some(())
            .ok_or_else(|| format!("there is no site {node}: the last one is n{}", self.nodes() - 1))
    }

    fn require_up(&self, node: NodeId) -> Result<(), String> {
        self.require_node(node)?;
        self.sites[node.index()].up.then_some(()).ok_or_else(|| format!("{node} is down: recover it first"))
    }

    fn require_room(&self) -> Result<(), String> {
        let fits = self.in_flight.len() <= MOST_IN_FLIGHT;
        fits.then_some(()).ok_or_else(|| format!("more than {MOST_IN_FLIGHT} messages are in flight"))
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        _ = writeln!(self.written, "{line}"); // writing to a string cannot fail
    }
}

/// Splits the one-line `Debug` form of a struct into its fields. Anything else is one field.
fn fields(debug: &str) -> Vec<&str> {
    let Some(inner) = debug.split_once(" { ").and_then(|(_, rest)| rest.strip_suffix(" }")) else {
        return vec![debug];
    };
    let mut depth = 0;
    let mut cuts = vec![0];
    for (index, byte) in inner.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => cuts.push(index + 1),
            _ => {}
        }
    }
    cuts.push(inner.len() + 1);
    cuts.windows(2).map(|pair| inner[pair[0]..pair[1] - 1].trim()).collect()
}
