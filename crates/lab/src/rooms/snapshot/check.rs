//! The snapshot room in the checker: every execution of a bank in which each site makes so many transfers,
//! and any site may start the snapshot at any moment.

use std::marker::PhantomData;

use conclave_algorithms::snapshot::bank::{Bank, Transfer};
use conclave_algorithms::snapshot::spec::{COMPLETE, CONSERVED, SAME};
use conclave_algorithms::snapshot::{Application, Command, Event, Snapshot, SnapshotId};
use conclave_check::{Findings, Model, Monitor, Offer};
use conclave_kernel::{Digest, NodeId, Property};

/// A bank whose sites may each make a number of transfers, to the next site, at any moment; and of which any
/// sites may start one snapshot.
///
/// The amounts are powers of two, so that no two of them make up for each other when they are counted twice
/// or lost.
pub struct Transfers<P> {
    nodes: u32,
    transfers: u8,
    tenant: PhantomData<fn() -> P>,
}

/// What every account holds at first.
const BALANCE: u64 = 1_000;

const ID: SnapshotId = SnapshotId(1);

impl<P: Snapshot<Bank>> Transfers<P> {
    /// Each of the sites makes at most so many transfers.
    pub const fn new(nodes: u32, transfers: u8) -> Self {
        Self { nodes, transfers, tenant: PhantomData }
    }
}

impl<P: Snapshot<Bank>> Model for Transfers<P> {
    type Protocol = P;
    type Monitor = Watch;

    fn name(&self) -> String {
        P::CARD.path().to_string()
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }

    fn site(&self, me: NodeId) -> P {
        P::new(me, self.nodes, Bank { balance: BALANCE })
    }

    fn monitor(&self) -> Watch {
        Watch {
            left: vec![self.transfers; self.nodes as usize],
            recorded: 0,
            complete: 0,
            dead: 0,
            picture: None,
            carried: false,
        }
    }

    fn liveness(&self) -> Property {
        COMPLETE
    }

    fn kind(&self, message: &P::Message) -> &'static str {
        P::kind(message)
    }

    fn sometimes(&self) -> &'static [&'static str] {
        &["a picture has something on its way", "two have recorded and nobody is complete"]
    }
}

/// Who may still transfer, who has recorded, who has the picture, and the picture's fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    left: Vec<u8>,
    recorded: u64,
    complete: u64,
    dead: u64,
    picture: Option<u64>,
    carried: bool,
}

impl<P: Snapshot<Bank>> Monitor<P> for Watch {
    type Note = ();

    fn offers(&self, offer: &mut dyn FnMut(Offer<Command<Bank>>)) {
        let nodes = self.left.len() as u32;
        for (site, left) in (0..nodes).zip(&self.left) {
            let node = NodeId(site);
            if (self.recorded | self.dead) & bit(node) == 0 {
                offer(Offer { node, command: Command::Take(ID), required: false });
            }
            if *left > 0 {
                let to = NodeId((site + 1) % nodes);
                // Up to nine transfers in all the powers differ; of more, two may be alike.
                let amount = 1 << ((u32::from(*left - 1) * nodes + site) % 9);
                offer(Offer { node, command: Command::App(Transfer { to, amount }), required: false });
            }
        }
    }

    fn pending(&self) -> u64 {
        if self.recorded == 0 { 0 } else { all(self.left.len()) & !self.complete & !self.dead }
    }

    fn shows(&self) -> u64 {
        u64::from(self.carried) | u64::from(self.recorded.count_ones() > 1 && self.complete == 0) << 1
    }

    fn on_command(&mut self, node: NodeId, command: &Command<Bank>, _findings: &mut Findings) {
        if let Command::App(_) = command {
            self.left[node.index()] -= 1;
        }
    }

    fn on_event(&mut self, node: NodeId, event: &Event<Bank>, findings: &mut Findings) {
        match event {
            Event::Recorded(_) => self.recorded |= bit(node),
            Event::Complete(picture) => {
                self.complete |= bit(node);
                self.carried |= picture.in_transit().next().is_some();
                let (sum, expected) = (Bank::conserved(picture), BALANCE * self.left.len() as u64);
                if sum != Some(expected) {
                    let off = i128::from(sum.unwrap_or(0)) - i128::from(expected);
                    let what = if off > 0 { "too much" } else { "missing" };
                    findings.breach(
                        &CONSERVED,
                        format!("the picture at {node} does not add up: {} {what}", off.abs()),
                    );
                }
                let mut digest = Digest::new();
                digest.absorb(picture);
                if self.picture.replace(digest.value()).is_some_and(|other| other != digest.value()) {
                    findings.breach(&SAME, format!("{node} has another picture than the one before it"));
                }
            }
            Event::Refused { .. } | Event::App(_) => {}
        }
    }

    fn on_crash(&mut self, node: NodeId, _findings: &mut Findings) {
        // Who is dead waits for nothing and starts nothing.
        self.dead |= bit(node);
        self.left[node.index()] = 0;
    }
}

const fn bit(node: NodeId) -> u64 {
    1 << node.0
}

const fn all(nodes: usize) -> u64 {
    if nodes >= 64 { u64::MAX } else { (1 << nodes) - 1 }
}
