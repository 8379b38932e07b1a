//! The judge: it runs a seed and checks that no client believes in a lock that another client has.

use std::collections::BTreeSet;

use conclave_kernel::{NodeId, Prng};
use conclave_sim::{Clocks, Desk, Director, Limits, Setup, World};

use crate::bug::Bug;
use crate::client::Client;
use crate::consensus::Order;
use crate::plan::{self, LENGTH, Plan, SITES};
use crate::server::Server;
use crate::site::{Clock, Event, Message, Opaque, SERVERS, Site};

/// The result of a run.
pub struct Verdict {
    pub wrong: Option<String>,
    pub sometimes: Sometimes,
    pub digest: u64,
}

macro_rules! sometimes {
    ($($field:ident)*) => {
        /// Counts of the situations that a set of runs must contain.
        #[derive(Clone, Debug, Default)]
        pub struct Sometimes {
            $(pub $field: u64,)*
        }

        impl Sometimes {
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

sometimes! { granted handed_on jeopardy lost regranted_after_expiry leader_changed_while_held forwarded }

/// Runs a seed.
pub fn run(seed: u64, bug: Option<Bug>) -> Verdict {
    let mut dice = Prng::stream(seed, 0x1ea5e, 0);
    let clocks: Vec<Clock> = (0..SITES).map(|_| plan::clock(&mut dice)).collect();
    let servers: Vec<NodeId> = plan::clients().map(|_| plan::server(&mut dice)).collect();
    let multi_core = dice.below(2) == 0;
    let Plan { faults, commands } = Plan::draw(&mut dice);
    let setup = Setup {
        nodes: SITES,
        seed,
        delay: "uniform:100us..8ms".parse().expect("well formed"),
        clocks: Clocks::default(),
        faults,
        ..Setup::default()
    };
    setup.validate().expect("the plan is valid");
    let judge = Judge { commands, ..Judge::default() };
    let mut world = World::new(setup, judge, move |site| {
        let clock = clocks[site.index()];
        match site.0 {
            0 => Site::Order(Opaque::new(Order::new(bug))),
            1..=SERVERS => Site::Server(Opaque::new(Server::new(site, clock, multi_core, bug))),
            number => {
                let server = servers[(number - 1 - SERVERS) as usize];
                Site::Client(Opaque::new(Client::new(site, clock, server, bug)))
            }
        }
    })
    .without_guard_checks();
    let outcome = world.run(Limits { time: LENGTH, ..Limits::default() });
    let judge = world.director();
    Verdict { wrong: judge.wrong.clone(), sometimes: judge.sometimes.clone(), digest: outcome.digest }
}

/// Gives the commands of the plan, and checks the events.
#[derive(Default)]
struct Judge {
    commands: Vec<(std::time::Duration, NodeId, crate::site::Script)>,
    /// All grants, as pairs of session and fence.
    granted: BTreeSet<(u64, u64)>,
    /// The latest grant.
    latest: Option<(u64, u64)>,
    /// The session of the latest grant has expired.
    expired: bool,
    /// Another leader was elected since the latest grant.
    elected: bool,
    wrong: Option<String>,
    sometimes: Sometimes,
}

impl Judge {
    /// Checks that no client believes in another fence than the latest.
    fn check_beliefs(&mut self, desk: &Desk<'_, Site, ()>) {
        let latest = self.latest.map_or(0, |(_, fence)| fence);
        for site in plan::clients() {
            let Site::Client(client) = desk.node(site) else { continue };
            if let Some(fence) = client.lock().believes(desk.now()).filter(|fence| *fence != latest) {
                let at = desk.now();
                self.fail(format!("{site} believes in fence {fence} at {at:?}, and {latest} was granted"));
            }
        }
    }

    fn fail(&mut self, text: String) {
        self.wrong.get_or_insert(text);
    }

    fn on_granted(&mut self, session: u64, fence: u64) {
        // The answer to a retry is the same grant.
        if !self.granted.insert((session, fence)) {
            return;
        }
        self.sometimes.granted += 1;
        if let Some((before, last)) = self.latest {
            if fence <= last {
                self.fail(format!("fence {fence} was granted after {last}"));
            }
            self.sometimes.handed_on += u64::from(before != session);
            self.sometimes.regranted_after_expiry += u64::from(self.expired);
        }
        (self.latest, self.expired, self.elected) = (Some((session, fence)), false, false);
    }
}

impl Director<Site> for Judge {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, Site, ()>) {
        for (at, to, script) in self.commands.drain(..) {
            desk.command_in(at, to, script);
        }
    }

    fn on_event(&mut self, _: NodeId, event: &Event, desk: &mut Desk<'_, Site, ()>) {
        match *event {
            Event::Granted { session, fence } => self.on_granted(session, fence),
            Event::Expired { session } => {
                if self.latest.is_some_and(|(latest, _)| latest == session) {
                    self.expired = true;
                    self.sometimes.leader_changed_while_held += u64::from(self.elected);
                }
            }
            Event::Elected => self.elected = true,
            Event::Jeopardy => self.sometimes.jeopardy += 1,
            Event::Lost => self.sometimes.lost += 1,
            Event::Forwarded => self.sometimes.forwarded += 1,
            Event::Believes { .. } | Event::Released => {}
        }
        self.check_beliefs(desk);
        if self.wrong.is_some() {
            desk.stop();
        }
    }

    fn on_send(&mut self, _: NodeId, _: NodeId, _: &Message) {}

    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}
