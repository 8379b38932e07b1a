//! The script of a seed, and the judge.

use std::collections::BTreeSet;
use std::time::Duration;

use conclave_kernel::{NodeId, Prng};
use conclave_sim::{Clocks, CutLoss, Desk, Director, Fault, FaultKind, Limits, Setup, World};

use crate::holder::Holder;
use crate::order::Order;
use crate::server::Server;
use crate::site::{CLIENTS, Clock, DRIFT_PPM, Event, Message, Mutant, ORDER, Opaque, SERVERS, Script, Site};

/// How long a run is, in the world's time: ten leases.
const LENGTH: Duration = Duration::from_secs(20);
const SITES: u32 = 1 + SERVERS + CLIENTS;

/// What a run came to.
pub struct Verdict {
    pub wrong: Option<String>,
    pub sometimes: Sometimes,
    pub digest: u64,
}

/// How often something happened that must happen sometimes.
#[derive(Clone, Debug, Default)]
pub struct Sometimes {
    pub granted: u64,
    pub handed_on: u64,
    pub jeopardy: u64,
    pub lost: u64,
    pub regranted_after_expiry: u64,
    pub leader_changed_while_held: u64,
    pub forwarded: u64,
}

impl Sometimes {
    pub fn add(&mut self, other: &Self) {
        self.granted += other.granted;
        self.handed_on += other.handed_on;
        self.jeopardy += other.jeopardy;
        self.lost += other.lost;
        self.regranted_after_expiry += other.regranted_after_expiry;
        self.leader_changed_while_held += other.leader_changed_while_held;
        self.forwarded += other.forwarded;
    }
}

/// One run.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Verdict {
    let mut dice = Prng::stream(seed, 0x1ea5e, 0);
    let most = u64::from(DRIFT_PPM);
    let clocks: Vec<Clock> = (0..SITES)
        .map(|_| Clock {
            zero: Duration::from_millis(dice.below(1_000_000)),
            // Extremes as often as anything: bugs of drift are bugs of its extremes.
            ppm: match dice.below(4) {
                0 => -i64::from(DRIFT_PPM),
                1 => i64::from(DRIFT_PPM),
                _ => dice.below(2 * most).cast_signed() - most.cast_signed(),
            },
        })
        .collect();
    let servers: Vec<NodeId> = (0..CLIENTS).map(|_| server(&mut dice)).collect();
    let setup = Setup {
        nodes: SITES,
        seed,
        delay: "uniform:100us..8ms".parse().expect("well formed"),
        clocks: Clocks::default(),
        faults: faults(&mut dice),
        ..Setup::default()
    };
    setup.validate().expect("the script makes sense");
    let judge = Judge {
        dice,
        granted: BTreeSet::new(),
        latest: None,
        expired: false,
        elected: false,
        wrong: None,
        sometimes: Sometimes::default(),
    };
    let mut world = World::new(setup, judge, move |site| match site.0 {
        0 => Site::Order(Opaque(Box::new(Order::new(mutant)))),
        number @ 1..=SERVERS => Site::Server(Opaque(Box::new(Server::new(clocks[number as usize], mutant)))),
        number => {
            let server = servers[(number - 1 - SERVERS) as usize];
            Site::Client(Opaque(Holder::new(clocks[number as usize], server, mutant)))
        }
    })
    .without_guard_checks();
    let outcome = world.run(Limits { time: LENGTH, ..Limits::default() });
    let judge = world.director();
    Verdict { wrong: judge.wrong.clone(), sometimes: judge.sometimes.clone(), digest: outcome.digest }
}

fn server(dice: &mut Prng) -> NodeId {
    NodeId(1 + u32::try_from(dice.below(u64::from(SERVERS))).expect("few"))
}

/// A few sites pause, a few groups are cut off for long; what was sent meanwhile arrives afterwards.
fn faults(dice: &mut Prng) -> Vec<Fault> {
    let mut faults = Vec::new();
    for _ in 0..dice.below(4) {
        let node = NodeId(1 + u32::try_from(dice.below(u64::from(SITES - 1))).expect("few"));
        faults.push(fault(FaultKind::Pause { node }, 3_000, dice));
    }
    for _ in 0..dice.between(1, 5) {
        let mut group: Vec<NodeId> = (1..SITES).map(NodeId).filter(|_| dice.below(3) == 0).collect();
        if group.is_empty() {
            group.push(server(dice));
        }
        let kind = FaultKind::Partition { group: group.into_iter().collect(), loss: CutLoss::Hold };
        faults.push(fault(kind, 6_000, dice));
    }
    faults
}

fn fault(kind: FaultKind, most_ms: u64, dice: &mut Prng) -> Fault {
    let at = Duration::from_millis(dice.between(1_000, 18_000));
    Fault { kind, at, until: Some(at + Duration::from_millis(dice.between(1, most_ms))), demanded: false }
}

/// Writes the script, and judges.
struct Judge {
    dice: Prng,
    /// All grants: whose, and by which fence.
    granted: BTreeSet<(u64, u64)>,
    /// The latest grant: whose, and by which fence.
    latest: Option<(u64, u64)>,
    /// Its session has expired.
    expired: bool,
    /// Another leader was elected since.
    elected: bool,
    wrong: Option<String>,
    sometimes: Sometimes,
}

impl Judge {
    /// Nobody may believe by another fence than the latest.
    fn look(&mut self, desk: &Desk<'_, Site, ()>) {
        let latest = self.latest.map_or(0, |(_, fence)| fence);
        for site in (0..SITES).map(NodeId) {
            let believed = desk.node(site).client().and_then(|client| client.believes(desk.now()));
            if let Some(fence) = believed.filter(|fence| *fence != latest) {
                let text =
                    format!("{site} believes in fence {fence} at {:?}, {latest} was granted", desk.now());
                self.wrong.get_or_insert(text);
            }
        }
    }
}

impl Director<Site> for Judge {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, Site, ()>) {
        let mut at = Duration::ZERO;
        while at < LENGTH {
            desk.command_in(at, ORDER, Script::Elect(server(&mut self.dice)));
            at += Duration::from_millis(self.dice.between(200, 8_000));
        }
        for client in (1 + SERVERS..SITES).map(NodeId) {
            let mut at = Duration::from_millis(self.dice.between(500, 6_000));
            while at < LENGTH {
                desk.command_in(at, client, Script::Move(server(&mut self.dice)));
                at += Duration::from_millis(self.dice.between(100, 8_000));
            }
        }
    }

    fn on_event(&mut self, _: NodeId, event: &Event, desk: &mut Desk<'_, Site, ()>) {
        match *event {
            Event::Granted { session, fence } => {
                // An acquire that is asked again, or was held back on the way, is told of the same grant.
                if !self.granted.insert((session, fence)) {
                    return;
                }
                self.sometimes.granted += 1;
                if let Some((before, last)) = self.latest {
                    if fence <= last {
                        self.wrong.get_or_insert(format!("fence {fence} was granted after {last}"));
                    }
                    self.sometimes.handed_on += u64::from(before != session);
                    self.sometimes.regranted_after_expiry += u64::from(self.expired);
                }
                (self.latest, self.expired, self.elected) = (Some((session, fence)), false, false);
            }
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
        self.look(desk);
        if self.wrong.is_some() {
            desk.stop();
        }
    }

    fn on_send(&mut self, _: NodeId, _: NodeId, _: &Message) {}

    fn on_deliver(&mut self, _: NodeId, _: NodeId, (): &()) {}
}
