//! The mutex room in the checker: every execution in which each site enters so many times.

use std::marker::PhantomData;

use conclave_algorithms::mutex::spec::{FENCES, ME1, ME2};
use conclave_algorithms::mutex::{Command, Event, Fence, Group, Mutex};
use conclave_check::{Findings, Model, Monitor, Offer};
use conclave_kernel::{NodeId, Property};

/// A group in which every site may ask a number of times, at any moment.
pub struct Entries<P> {
    group: Group,
    entries: u8,
    judges_fences: bool,
    tenant: PhantomData<fn() -> P>,
}

impl<P: Mutex> Entries<P> {
    /// Each site of the group asks at most so many times.
    pub fn new(group: Group, entries: u8) -> Self {
        Self { group, entries, judges_fences: P::CARD.promises(FENCES.name), tenant: PhantomData }
    }
}

impl<P: Mutex> Model for Entries<P> {
    type Protocol = P;
    type Monitor = Watch;

    fn name(&self) -> String {
        P::CARD.path().to_string()
    }

    fn nodes(&self) -> u32 {
        self.group.nodes
    }

    fn site(&self, me: NodeId) -> P {
        P::new(me, &self.group)
    }

    fn monitor(&self) -> Watch {
        Watch {
            left: vec![self.entries; self.group.nodes as usize],
            asking: 0,
            inside: None,
            last_fence: self.judges_fences.then_some(Fence(0)),
        }
    }

    fn liveness(&self) -> Property {
        ME2
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        // The kind of a message does not depend on who sends it to whom.
        P::bill(message, NodeId(0), NodeId(0)).kind
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["somebody waits while another is inside", "two ask at the same time"]
    }
}

/// Who may still ask, who asks, who is inside, and the last fence: what the judge must remember.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    left: Vec<u8>,
    asking: u64,
    inside: Option<NodeId>,
    last_fence: Option<Fence>,
}

impl<P: Mutex> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command>)) {
        for (site, left) in self.left.iter().enumerate() {
            let node = NodeId(site as u32);
            if self.inside == Some(node) {
                offer(Offer { node, command: Command::Release, required: true });
            } else if *left > 0 && self.asking & bit(node) == 0 {
                offer(Offer { node, command: Command::Acquire, required: false });
            }
        }
    }

    fn pending(&self) -> u64 {
        self.asking
    }

    fn shows(&self) -> u64 {
        let waits = self.asking != 0 && self.inside.is_some();
        let contends = self.asking.count_ones() > 1;
        u64::from(waits) | u64::from(contends) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _findings: &mut Findings) {
        if *command == Command::Acquire {
            self.left[node.index()] -= 1;
            self.asking |= bit(node);
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        match event {
            Event::Granted { fence } => {
                if let Some(other) = self.inside.replace(node) {
                    findings.breach(&ME1, format!("{node} entered while {other} was inside"));
                }
                if let Some(last) = &mut self.last_fence {
                    let last = std::mem::replace(last, *fence);
                    if last != Fence(0) && *fence <= last {
                        findings.breach(
                            &FENCES,
                            format!("{node} was granted with fence {fence} after fence {last}"),
                        );
                    }
                }
                self.asking &= !bit(node);
            }
            Event::Released => self.inside = None,
            Event::Refused(_) => {}
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        // Who is dead neither waits nor is inside, and asks no more.
        self.asking &= !bit(node);
        self.left[node.index()] = 0;
        if self.inside == Some(node) {
            self.inside = None;
        }
    }
}

const fn bit(node: NodeId) -> u64 {
    1 << node.0
}
