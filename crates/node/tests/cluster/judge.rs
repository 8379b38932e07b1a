//! The judge: it runs a seed, applies the committed log, and compares everything that clients see with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conclave_kernel::{NodeId, Prng, Time};
use conclave_node::testing::SimLog;
use conclave_sim::{Clocks, Desk, Director, Limits, Setup, World};
use conclave_wire::v1;

use crate::bug::Bug;
use crate::client::Client;
use crate::consensus::Order;
use crate::coverage::{Coverage, Situation};
use crate::disk::Disk;
use crate::plan::Plan;
use crate::reference::{Reference, are_compatible};
use crate::scenario::{self, Config, Scenario};
use crate::server::Server;
use crate::site::{Clock, Message, Note, Noted, Opaque, Script, Site};
use crate::watches::Watches;
use crate::wires::Wires;
use crate::workload::Belief;

/// The result of a run.
pub struct Verdict {
    pub wrong: Option<String>,
    pub coverage: Coverage,
    pub digest: u64,
}

/// Runs a seed.
pub fn run(scenario: Scenario, seed: u64, bug: Option<Bug>) -> Verdict {
    let mut dice = Prng::stream(seed, 0x1ea5e, 0);
    let clocks: Vec<Clock> = (0..scenario.sites()).map(|_| scenario::clock(&mut dice)).collect();
    let servers: BTreeMap<NodeId, NodeId> =
        scenario.clients().map(|client| (client, scenario.server(scenario::below(3, &mut dice)))).collect();
    let config = Config::draw(scenario, bug, &mut dice);
    let Plan { faults, commands, .. } = Plan::draw(&config, &mut dice);
    let setup = Setup {
        nodes: scenario.sites(),
        seed,
        delay: "uniform:100us..8ms".parse().expect("well formed"),
        clocks: Clocks::default(),
        faults,
        ..Setup::default()
    };
    setup.validate().expect("the plan is valid");
    let log = Arc::new(Mutex::new(SimLog::default()));
    let mut world = World::new(setup, Judge::new(scenario, bug, commands), move |site| {
        let clock = clocks[site.index()];
        match servers.get(&site) {
            Some(server) => Site::Client(Opaque::new(Client::new(site, clock, *server, config))),
            None if site == crate::site::CONSENSUS => Site::Order(Opaque::new(Order::new(config))),
            None => {
                let disk = Disk::new(log.clone(), config.sync_us);
                Site::Server(Opaque::new(Server::new(site, clock, config, disk)))
            }
        }
    })
    .without_guard_checks();
    let outcome = world.run(Limits { time: scenario.length(), ..Limits::default() });
    let nodes = world.nodes().to_vec();
    let (mut judge, _) = world.into_parts();
    if judge.wrong.is_none() && scenario.healed_at() < scenario.length() {
        judge.wrong = judge.check_end(&nodes).err();
    }
    Verdict { wrong: judge.wrong, coverage: judge.coverage, digest: outcome.digest }
}

/// Gives the commands of the plan, and checks the notes of the sites.
struct Judge {
    scenario: Scenario,
    commands: Vec<(Duration, NodeId, Script)>,
    log: Reference,
    wires: Wires,
    watches: Watches,
    /// The exclusive fences that clients have relied upon: the largest one of each name, with its session and
    /// request.
    fences: BTreeMap<String, (u64, u64, u64)>,
    wrong: Option<String>,
    coverage: Coverage,
}

impl Judge {
    fn new(scenario: Scenario, bug: Option<Bug>, commands: Vec<(Duration, NodeId, Script)>) -> Self {
        Self {
            scenario,
            commands,
            log: Reference::new(bug),
            wires: Wires::new(scenario),
            watches: Watches::default(),
            fences: BTreeMap::new(),
            wrong: None,
            coverage: Coverage::default(),
        }
    }

    fn on_note(&mut self, site: NodeId, note: Note) -> Result<(), String> {
        let (log, coverage) = (&mut self.log, &mut self.coverage);
        match note {
            Note::Committed(entry) => {
                let requests = log.apply(entry, coverage)?;
                requests.into_iter().try_for_each(|key| self.wires.on_committed(key))
            }
            Note::Elected => {
                log.on_elected();
                Ok(())
            }
            Note::Seen(situation) => {
                coverage.see(situation);
                Ok(())
            }
            Note::Wrong(wrong) => Err(wrong),
            Note::Connected(connection) => {
                self.wires.on_connected(connection);
                Ok(())
            }
            Note::Sent { connection, message } => {
                self.wires.on_sent(site, connection, message, log);
                Ok(())
            }
            Note::Received { connection, message } => {
                self.wires.on_received(site, connection, message, log, coverage)
            }
            Note::Watching { watch, target, index } => {
                self.watches.on_begun(site, watch, target, index);
                Ok(())
            }
            Note::Noticed { watch, event } => self.watches.on_event(site, watch, &event, log),
            Note::Unwatched { watch } => {
                self.watches.on_ended(site, watch);
                Ok(())
            }
        }
    }

    /// Checks everything that clients believe to hold, each by its own clock.
    fn check_beliefs(&mut self, now: Time, nodes: impl Fn(NodeId) -> Vec<Belief>) -> Result<(), String> {
        let mut held: BTreeMap<String, Vec<(NodeId, Option<v1::claim::Claim>)>> = BTreeMap::new();
        for site in self.scenario.clients() {
            for belief in nodes(site) {
                self.check_belief(site, now, &belief)?;
                for name in &belief.names {
                    if !self.is_taken_away(&belief, &name.name) {
                        let claim = name.claim.and_then(|claim| claim.claim);
                        let one = || (name.name == "pool").then_some(v1::claim::Claim::Permits(1));
                        let claim = claim.or_else(one);
                        held.entry(name.name.clone()).or_default().push((site, claim));
                    }
                }
            }
        }
        for (name, holds) in &held {
            let claims: Vec<_> = holds.iter().map(|(_, claim)| *claim).collect();
            if !are_compatible(&claims) {
                return Err(format!("{name} is held by {holds:?} at {now:?}"));
            }
            if claims.len() > 1 && name == "pool" {
                self.coverage.see(Situation::PermitsShared);
            }
        }
        Ok(())
    }

    /// Returns whether an operator took a name away from a grant. The client learns it later.
    fn is_taken_away(&self, belief: &Belief, name: &str) -> bool {
        let Belief { session, request, .. } = *belief;
        self.log.is_broken((session, request), name) || self.log.was_ended_by_operator(session)
    }

    fn check_belief(&mut self, site: NodeId, now: Time, belief: &Belief) -> Result<(), String> {
        let Belief { session, request, .. } = *belief;
        for name in &belief.names {
            if self.is_taken_away(belief, &name.name) {
                continue;
            }
            let held = self.log.holders(&name.name, self.log.applied());
            let may_be_early =
                self.scenario == Scenario::Single && self.log.is_certain((session, request), &name.name);
            if may_be_early && self.log.early.is_lost((session, request)) {
                self.coverage.see(Situation::EarlyGrantLost);
            }
            if !held.contains(&(session, name.fence)) && !may_be_early {
                return Err(format!(
                    "{site} believes in fence {} of {} at {now:?}, and {held:?} holds it",
                    name.fence, name.name
                ));
            }
            if name.claim.is_some() || name.name == "pool" {
                continue;
            }
            let known = self.fences.entry(name.name.clone()).or_default();
            if (known.1, known.2) != (session, request) {
                if name.fence <= known.0 {
                    return Err(format!(
                        "{site} has fence {} of {} after {}",
                        name.fence, name.name, known.0
                    ));
                }
                *known = (name.fence, session, request);
            }
        }
        Ok(())
    }

    /// Checks at the end that everything that was open is done, and that every client was served after the
    /// faults.
    fn check_end(&self, nodes: &[Site]) -> Result<(), String> {
        let healed = self.scenario.healed_at();
        let is_late = |at: Option<Time>| at.is_none_or(|at| Duration::from_nanos(at.0) < healed);
        for site in self.scenario.clients() {
            let Site::Client(client) = &nodes[site.index()] else { continue };
            let client = client.lock();
            let served = client.served();
            if is_late(served.lock) || is_late(served.write) || is_late(served.read) {
                let open = client.open();
                return Err(format!("{site} was not served after the faults: {served:?}, open: {open:?}"));
            }
            if let Some(open) = client.open() {
                return Err(format!("{site} waits at the end: {open}"));
            }
        }
        self.watches.missing(&self.log).map_or(Ok(()), Err)
    }
}

impl Director<Site> for Judge {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, Site, ()>) {
        for (at, to, script) in self.commands.drain(..) {
            desk.command_in(at, to, script);
        }
    }

    fn on_event(&mut self, site: NodeId, Noted: &Noted, desk: &mut Desk<'_, Site, ()>) {
        let mut result = Ok(());
        for note in desk.node(site).take_notes() {
            result = result.and_then(|()| self.on_note(site, note));
        }
        let now = desk.now();
        let believed = |site: NodeId| match desk.node(site) {
            Site::Client(client) => client.lock().beliefs(now),
            _ => Vec::new(),
        };
        result = result.and_then(|()| self.check_beliefs(now, believed));
        if let Err(wrong) = result {
            self.wrong.get_or_insert(wrong);
            desk.stop();
        }
    }

    fn on_send(&mut self, _: NodeId, _: NodeId, _: &Message) {}

    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}
