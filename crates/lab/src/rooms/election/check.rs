//! The election room in the checker: every execution in which each site may call a number of elections, and
//! some crash.
//!
//! Crashes are told by a perfect oracle, to everybody, at any moment after. Whoever knew no leader then, or
//! the dead one, must call for an election.

use std::marker::PhantomData;

use conclave_algorithms::detector::{self, Class, Oracle};
use conclave_algorithms::election::spec::{E1, E2, Judge};
use conclave_algorithms::election::{Command, Election, Event, Group};
use conclave_check::{Findings, Model, Monitor, Offer};
use conclave_kernel::{NodeId, Property};

/// A group in which every site may call for an election a number of times, at any moment.
pub struct Elections<P> {
    group: Group,
    calls: u8,
    class: Class,
    tenant: PhantomData<fn() -> P>,
}

impl<P: Election> Elections<P> {
    /// Each site of the group may call at most so many times, without need.
    pub fn new(group: Group, calls: u8) -> Self {
        Self { group, calls, class: Class::Perfect, tenant: PhantomData }
    }

    /// The same, told of crashes by a detector of some class.
    #[must_use]
    pub fn told_by(self, class: Class) -> Self {
        Self { class, ..self }
    }
}

impl<P: Election> Model for Elections<P> {
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
            judge: Judge::new(self.group.candidates()),
            oracle: Oracle::new(self.group.nodes, self.class),
            left: vec![self.calls; self.group.nodes as usize],
            must_call: 0,
            begun: false,
        }
    }

    fn liveness(&self) -> Property {
        E2
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["one has decided while another has not", "everybody has decided"]
    }
}

/// Who may still call, who must, and what the judge and the oracle remember.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    judge: Judge,
    oracle: Oracle,
    left: Vec<u8>,
    /// A bit a site: it noticed a crash, and knows no leader that is up.
    must_call: u64,
    begun: bool,
}

impl<P: Election> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command>)) {
        for saying in self.oracle.sayings() {
            let command = match saying.event {
                detector::Event::Suspected(site) => Command::Suspect(site),
                detector::Event::Trusted(site) => Command::Trust(site),
            };
            offer(Offer { node: saying.site, command, required: saying.required });
        }
        for node in self.judge.sites() {
            let must = self.must_call & bit(node) != 0;
            if must || self.left[node.index()] > 0 {
                offer(Offer { node, command: Command::Elect, required: must });
            }
        }
    }

    fn pending(&self) -> u64 {
        if self.begun { self.judge.undecided().fold(0, |bits, site| bits | bit(site)) } else { 0 }
    }

    fn shows(&self) -> u64 {
        let undecided = self.judge.undecided().count();
        let up = self.judge.sites().filter(|site| self.judge.is_up(*site)).count();
        u64::from(undecided > 0 && undecided < up) | u64::from(up > 0 && undecided == 0) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command, _findings: &mut Findings) {
        match *command {
            Command::Elect => {
                self.begun = true;
                if self.must_call & bit(node) != 0 {
                    self.must_call &= !bit(node);
                } else {
                    self.left[node.index()] -= 1;
                }
            }
            Command::Resign => self.judge.resigns(node),
            Command::Suspect(site) => self.oracle.told(node, detector::Event::Suspected(site)),
            Command::Trust(site) => self.oracle.told(node, detector::Event::Trusted(site)),
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event, findings: &mut Findings) {
        if let Some(why) = self.judge.tells(node, event) {
            findings.breach(&E1, why);
        }
        match event {
            // It was elected, rightly, and is dead by now.
            Event::Elected { leader } if !self.judge.is_up(*leader) => self.must_call |= bit(node),
            Event::Elected { .. } => self.must_call &= !bit(node),
            Event::Vacant => {}
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        self.judge.crashes(node);
        self.oracle.crashes(node);
        self.left[node.index()] = 0;
        self.must_call &= !bit(node);
        if self.begun {
            for site in self.judge.undecided() {
                self.must_call |= bit(site);
            }
        }
    }

    fn on_recover(&mut self, node: NodeId, _findings: &mut Findings) {
        self.judge.recovers(node);
        self.oracle.recovers(node);
        self.begun = true; // whoever comes back begins an election
    }
}

const fn bit(node: NodeId) -> u64 {
    1 << node.0
}
