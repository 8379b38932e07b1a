//! The properties by which every snapshot algorithm is judged, and the judge.
//!
//! The judge is not part of the system. It knows the order in which each site recorded its snapshots. It
//! attaches a note to every message: how many snapshots the sender had recorded, and the content of an
//! application message. So the judge knows exactly which messages each channel must contain, and compares
//! them with the recorded ones.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use conclave_kernel::{Judgement, Kind, NodeId, NodeSet, Property, Protocol};

use super::{Application, Channel, Part, Picture, SnapshotId};

/// Every message that the picture shows as received is also shown as sent.
pub const CONSISTENT: Property = Property {
    name: "consistent",
    kind: Kind::Always,
    statement: "no site receives a message before it records if the message was sent after its sender recorded",
    source: "[CL85 §3.2]",
};
/// The recorded channels contain exactly the messages in transit.
pub const CHANNELS: Property = Property {
    name: "channels",
    kind: Kind::Always,
    statement: "a recorded channel has exactly the messages sent before its sender recorded and received after its receiver did",
    source: "[CL85 §3.2]",
};
/// A quantity that no step changes has the same value in every picture.
pub const CONSERVED: Property = Property {
    name: "conserved",
    kind: Kind::Always,
    statement: "a quantity that no step changes has the same value in the picture, such as the sum of a bank's money",
    source: "[CL85 §2]",
};
/// The picture neither invents nor misses stable properties.
pub const STABLE: Property = Property {
    name: "stable",
    kind: Kind::Always,
    statement: "a stable property that held at the start holds in the picture; one that holds in the picture holds at the end",
    source: "[CL85 §4]",
};
/// All sites have the same picture.
pub const SAME: Property = Property {
    name: "same",
    kind: Kind::Always,
    statement: "all sites have the same picture of a snapshot in the end",
    source: "[CL85 §3.4]",
};
/// Every snapshot is complete at every site in the end.
pub const COMPLETE: Property = Property {
    name: "complete",
    kind: Kind::Eventually,
    statement: "every snapshot that is started is complete at every site in the end",
    source: "[CL85 §3.4]",
};

/// All properties of the problem.
pub const PROPERTIES: [Property; 6] = [CONSISTENT, CHANNELS, CONSERVED, STABLE, SAME, COMPLETE];

/// The names of all properties.
pub(super) const ALL: &[&str] = &["consistent", "channels", "conserved", "stable", "same", "complete"];

/// A note of the judge that travels with a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Note<A: Protocol> {
    /// The number of snapshots that the sender had recorded.
    recorded: usize,
    /// The number of the message among all messages of the application, and the message itself; `None` for a
    /// message of the algorithm.
    app: Option<(u64, A::Message)>,
}

impl<A: Protocol> Default for Note<A> {
    fn default() -> Self {
        Self { recorded: 0, app: None }
    }
}

/// A violation of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The property.
    pub property: Property,
    /// A description of what happened.
    pub why: String,
}

/// The judge of a run. Call [`records`](Self::records), [`completes`](Self::completes),
/// [`sends`](Self::sends) and [`receives`](Self::receives) in the order of the events, and
/// [`step_over`](Self::step_over) before every new step. Call [`finish`](Self::finish) at the end.
#[derive(Clone, Debug)]
pub struct Judge<A: Protocol> {
    /// The snapshots that each site recorded, in the order of recording.
    recorded: Vec<Vec<SnapshotId>>,
    /// The messages that were in transit, by snapshot, sender and receiver.
    crossing: BTreeMap<(SnapshotId, NodeId, NodeId), Vec<A::Message>>,
    /// The messages of the application that are in transit now.
    under_way: BTreeMap<u64, (NodeId, NodeId, A::Message)>,
    sent: u64,
    /// The stable facts that were true when each snapshot started.
    facts_before: BTreeMap<SnapshotId, BTreeSet<u64>>,
    shots: BTreeMap<SnapshotId, Shot<A>>,
    /// The message of the present step, if its receiver must record snapshots before it handles the message.
    suspect: Option<Suspect>,
    evidence: Evidence,
}

/// Events of a run that put a property to the test.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    /// A message was received whose sender had recorded before it sent the message.
    sent_after_recording: bool,
    /// A complete picture, or the run, has a message in transit.
    in_transit: bool,
    /// A complete picture has a sum that no step changes.
    has_sum: bool,
    /// A stable property held before a snapshot, or a picture shows one.
    stable: bool,
}

#[derive(Clone, Debug)]
struct Shot<A: Protocol> {
    picture: Option<Picture<A>>,
    complete_at: NodeSet,
}

#[derive(Clone, Debug)]
struct Suspect {
    from: NodeId,
    to: NodeId,
    message: String,
    ids: Vec<SnapshotId>,
}

impl<A: Application> Judge<A> {
    /// Creates a judge for a group of `nodes` sites.
    pub fn new(nodes: u32) -> Self {
        Self {
            recorded: vec![Vec::new(); nodes as usize],
            crossing: BTreeMap::new(),
            under_way: BTreeMap::new(),
            sent: 0,
            facts_before: BTreeMap::new(),
            shots: BTreeMap::new(),
            suspect: None,
            evidence: Evidence::default(),
        }
    }

    /// Returns each property with the evidence that the run lacks. Call it after [`finish`](Self::finish).
    pub fn judgements(&self) -> [Judgement; 6] {
        let Evidence { sent_after_recording, in_transit, has_sum, stable } = self.evidence;
        let no_picture = (self.pictures().next().is_none(), "no complete picture");
        let shared = self.shots.values().any(|shot| shot.complete_at.len() > 1);
        [
            CONSISTENT.judged_unless(&[
                (self.recorded.len() < 2, "only one site"),
                (!sent_after_recording, "no message arrived that was sent after its sender recorded"),
            ]),
            CHANNELS.judged_unless(&[no_picture, (!in_transit, "no message was in transit")]),
            CONSERVED.judged_unless(&[
                no_picture,
                (!has_sum, "the application conserves no sum"),
                (self.sent == 0, "no message was sent"),
            ]),
            STABLE.judged_unless(&[no_picture, (!stable, "no stable property held")]),
            SAME.judged_unless(&[no_picture, (!shared, "only one site has a picture")]),
            COMPLETE.judged_unless(&[(self.shots.is_empty(), "no snapshot was started")]),
        ]
    }

    /// Records that a snapshot is about to start. `states` are the present states of the sites.
    pub fn starts<'s>(&mut self, id: SnapshotId, states: impl Iterator<Item = &'s A>) {
        let now = self.actual(states);
        self.facts_before.entry(id).or_insert_with(|| A::stable_facts(&now));
    }

    /// Records that a site receives the command to start a snapshot. From then on the snapshot must become
    /// complete. A site that is down receives no command.
    pub fn takes(&mut self, id: SnapshotId) {
        self.shots.entry(id).or_insert_with(|| Shot { picture: None, complete_at: NodeSet::new() });
    }

    /// Records that a site has recorded its state.
    pub fn records(&mut self, site: NodeId, id: SnapshotId) {
        self.recorded[site.index()].push(id);
        self.takes(id);
        if let Some(suspect) = &mut self.suspect
            && suspect.to == site
        {
            suspect.ids.retain(|missing| *missing != id);
        }
    }

    /// Records that a site has the complete picture.
    pub fn completes(&mut self, site: NodeId, picture: &Picture<A>, breach: impl FnMut(Breach)) {
        let mut breach = breach;
        let shot = self
            .shots
            .entry(picture.id)
            .or_insert_with(|| Shot { picture: None, complete_at: NodeSet::new() });
        shot.complete_at.insert(site);
        match &shot.picture {
            None => shot.picture = Some(picture.clone()),
            Some(first) if first == picture => {}
            Some(_) => breach(Breach {
                property: SAME,
                why: format!(
                    "{site} has another picture of snapshot {} than the first site that completed it",
                    picture.id
                ),
            }),
        }
    }

    /// Records that a message is sent. The caller attaches the returned note to the message.
    pub fn sends(&mut self, from: NodeId, to: NodeId, app: Option<&A::Message>) -> Note<A> {
        let recorded = self.recorded[from.index()].len();
        let app = app.map(|message| {
            self.sent += 1;
            self.under_way.insert(self.sent, (from, to, message.clone()));
            (self.sent, message.clone())
        });
        Note { recorded, app }
    }

    /// Records that a message is about to be delivered.
    pub fn receives(&mut self, from: NodeId, to: NodeId, note: &Note<A>) {
        let Some((number, message)) = &note.app else { return };
        self.under_way.remove(number);
        let red = &self.recorded[from.index()][..note.recorded];
        self.evidence.sent_after_recording |= !red.is_empty();
        let mine = &self.recorded[to.index()];
        let ids: Vec<_> = red.iter().filter(|id| !mine.contains(id)).copied().collect();
        if !ids.is_empty() {
            self.suspect = Some(Suspect { from, to, message: format!("{message:?}"), ids });
        }
        for id in mine.iter().filter(|id| !red.contains(id)) {
            self.crossing.entry((*id, from, to)).or_default().push(message.clone());
        }
    }

    /// Ends the last step. Its receiver must have recorded the snapshots that its message requires.
    pub fn step_over(&mut self, mut breach: impl FnMut(Breach)) {
        let Some(Suspect { from, to, message, ids }) = self.suspect.take() else { return };
        for id in ids {
            let why = format!(
                "{from} sent {message} after it recorded snapshot {id}, and {to} received it before it recorded"
            );
            breach(Breach { property: CONSISTENT, why });
        }
    }

    /// Ends the run with the sites in these states. `waited` means that no event was left when the run ended.
    pub fn finish<'s>(
        &mut self,
        states: impl Iterator<Item = &'s A> + Clone,
        conserved: Option<u64>,
        waited: bool,
        mut breach: impl FnMut(Breach),
    ) {
        self.step_over(&mut breach);
        let facts_after = A::stable_facts(&self.actual(states));
        let mut evidence = self.evidence;
        for (id, shot) in &self.shots {
            if let Some(picture) = &shot.picture {
                let (sum, facts) = (A::conserved(picture), A::stable_facts(picture));
                self.judge_channels(*id, picture, &mut breach);
                judge_sum(*id, sum, conserved, &mut breach);
                self.judge_facts(*id, &facts, &facts_after, &mut breach);
                evidence.in_transit |=
                    self.crossed(*id).next().is_some() || picture.in_transit().next().is_some();
                evidence.has_sum |= sum.is_some() && conserved.is_some();
                evidence.stable |=
                    !facts.is_empty() || self.facts_before.get(id).is_some_and(|facts| !facts.is_empty());
            }
            let missing =
                (0..self.recorded.len() as u32).map(NodeId).find(|site| !shot.complete_at.contains(*site));
            if let Some(site) = missing.filter(|_| waited) {
                let why = format!(
                    "snapshot {id} is not complete at {site}, and no event is left that could complete it"
                );
                breach(Breach { property: COMPLETE, why });
            }
        }
        self.evidence = evidence;
    }

    /// Returns the completed pictures, in order of their numbers.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture<A>> {
        self.shots.values().filter_map(|shot| shot.picture.as_ref())
    }

    /// Returns the actual global state as a picture. Only the judge can see it; no site in the system can.
    pub fn actual<'s>(&self, states: impl Iterator<Item = &'s A>) -> Picture<A> {
        let part = |(site, state): (usize, &A)| {
            let site = NodeId(site as u32);
            let mut channels: BTreeMap<NodeId, Vec<A::Message>> = BTreeMap::new();
            for (from, _, message) in self.under_way.values().filter(|(_, to, _)| *to == site) {
                channels.entry(*from).or_default().push(message.clone());
            }
            let channels = channels.into_iter().map(|(from, messages)| Channel { from, messages });
            Part {
                id: SnapshotId::default(),
                site,
                state: state.clone(),
                reminders: Vec::new(),
                channels: channels.collect(),
            }
        };
        Picture { id: SnapshotId::default(), parts: states.enumerate().map(part).collect() }
    }

    /// Returns the messages that were in transit in a snapshot, by sender and receiver.
    fn crossed(
        &self,
        id: SnapshotId,
    ) -> impl Iterator<Item = (&(SnapshotId, NodeId, NodeId), &Vec<A::Message>)> {
        self.crossing.range((id, NodeId(0), NodeId(0))..).take_while(move |crossed| crossed.0.0 == id)
    }

    fn judge_channels(&self, id: SnapshotId, picture: &Picture<A>, breach: &mut impl FnMut(Breach)) {
        let mut recorded: BTreeMap<(NodeId, NodeId), Vec<&A::Message>> = BTreeMap::new();
        for (from, to, message) in picture.in_transit() {
            recorded.entry((from, to)).or_default().push(message);
        }
        for ((_, from, to), crossed) in self.crossed(id) {
            let there = recorded.entry((*from, *to)).or_default();
            for message in crossed {
                match there.iter().position(|recorded| *recorded == message) {
                    Some(place) => _ = there.remove(place),
                    None => breach(Breach {
                        property: CHANNELS,
                        why: format!(
                            "snapshot {id}: {message:?} was in transit from {from} to {to}, but is not recorded"
                        ),
                    }),
                }
            }
        }
        for ((from, to), extra) in recorded {
            for message in extra {
                breach(Breach {
                    property: CHANNELS,
                    why: format!(
                        "snapshot {id}: {message:?} is recorded from {from} to {to}, but was not in transit"
                    ),
                });
            }
        }
    }

    fn judge_facts(
        &self,
        id: SnapshotId,
        pictured: &BTreeSet<u64>,
        after: &BTreeSet<u64>,
        breach: &mut impl FnMut(Breach),
    ) {
        let missed = self.facts_before.get(&id).into_iter().flat_map(|before| before.difference(pictured));
        let missed = missed.map(|fact| {
            format!("{} held when snapshot {id} was started, but does not hold in it", A::fact(*fact))
        });
        let invented = pictured.difference(after);
        let invented = invented
            .map(|fact| format!("snapshot {id} shows that {}, but that is false at the end", A::fact(*fact)));
        missed.chain(invented).for_each(|why| breach(Breach { property: STABLE, why }));
    }
}

fn judge_sum(id: SnapshotId, pictured: Option<u64>, actual: Option<u64>, breach: &mut impl FnMut(Breach)) {
    if let (Some(pictured), Some(actual)) = (pictured, actual)
        && pictured != actual
    {
        let why = format!("snapshot {id} has the sum {pictured} instead of {actual}");
        breach(Breach { property: CONSERVED, why });
    }
}
