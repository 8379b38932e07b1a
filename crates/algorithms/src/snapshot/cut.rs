//! Any cut of any recorded run: whether it is consistent, transitless or strongly consistent, and why not.
//!
//! A cut consists of the first few events of every site. It is *consistent* if every message that is received
//! in it is also sent in it. This is C1 of the lectures. Their C2 says that every message sent is received or
//! in transit; it holds by the definition of the channels. A cut is *transitless* if no message is in
//! transit, and *strongly consistent* if it is both. \[M89 §4\]
//!
//! A cut that is not consistent has orphans: messages that are received in it but not sent. Undoing their
//! receipts leads to the largest consistent cut inside. If a site can return only to states that it saved,
//! more events are undone, and this may create new orphans. The *recovery line* of uncoordinated checkpoints
//! may lead back to the start, as dominoes fall. \[R75\]
//!
//! **Trap**: a consistent cut need not be transitless, and a transitless cut need not be consistent.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use conclave_kernel::NodeId;

/// The facts of a run by which a cut is judged: the number of events of each site, and the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The number of events of each site.
    pub events: Vec<u32>,
    /// The messages, in any order.
    pub messages: Vec<Message>,
}

/// A message of a run. The events of a site have the numbers 1, 2, 3, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub from: NodeId,
    /// The event of the sender at which it was sent.
    pub sent: u32,
    /// The receiver.
    pub to: NodeId,
    /// The event of the receiver at which it was received; `None` if it was never received.
    pub received: Option<u32>,
}

/// A cut: for each site, how many of its first events are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut(pub Vec<u32>);

impl Cut {
    /// Returns whether the cut contains this event of the site, counted from 1.
    pub fn contains(&self, site: NodeId, event: u32) -> bool {
        event <= self.0[site.index()]
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{{{}}}", counts.join(","))
    }
}

/// The result of judging a cut. Messages are indices into [`Run::messages`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The messages that are received in the cut but not sent in it.
    pub orphans: Vec<usize>,
    /// The messages that are sent in the cut but not received in it.
    pub in_transit: Vec<usize>,
}

impl Judgement {
    /// Returns whether every message received in the cut is sent in it.
    pub fn is_consistent(&self) -> bool {
        self.orphans.is_empty()
    }

    /// Returns whether no message is in transit.
    pub fn is_transitless(&self) -> bool {
        self.in_transit.is_empty()
    }

    /// Returns whether the cut is consistent and transitless.
    pub fn is_strongly_consistent(&self) -> bool {
        self.is_consistent() && self.is_transitless()
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_consistent(), self.is_transitless()) {
            (true, true) => "strongly consistent",
            (true, false) => "consistent",
            (false, true) => "inconsistent, transitless",
            (false, false) => "inconsistent",
        })
    }
}

/// Judges a cut. Returns an error if the cut does not fit the run.
pub fn judge(run: &Run, cut: &Cut) -> Result<Judgement, String> {
    check(run, cut)?;
    let indices = |wanted: fn(&Cut, &Message) -> bool| {
        let messages = run.messages.iter().enumerate();
        messages.filter(|(_, message)| wanted(cut, message)).map(|(index, _)| index).collect()
    };
    Ok(Judgement { orphans: indices(is_orphan), in_transit: indices(is_in_transit) })
}

/// Returns the largest consistent cut inside a cut. It undoes the receipts of orphans until there are none.
pub fn largest_inside(run: &Run, cut: &Cut) -> Result<Cut, String> {
    check(run, cut)?;
    Ok(fall(run, cut.clone(), |_, most| most))
}

/// Returns the latest consistent cut that consists of checkpoints. Each site's list names, in ascending
/// order, the events after which the site saved its state. The start is a checkpoint of every site.
pub fn recovery_line(run: &Run, checkpoints: &[Vec<u32>]) -> Result<Cut, String> {
    let last = Cut(checkpoints.iter().map(|saved| saved.last().copied().unwrap_or(0)).collect());
    check(run, &last)?;
    Ok(fall(run, last, |site, most| {
        let saved = &checkpoints[site.index()];
        saved[..saved.partition_point(|checkpoint| *checkpoint <= most)].last().copied().unwrap_or(0)
    }))
}

/// Undoes receipts of orphans until there are none. `stop` returns the event to which a site goes back if it
/// must keep at most the given number of events. Each round of undoing takes one pass over the messages.
fn fall(run: &Run, mut cut: Cut, stop: impl Fn(NodeId, u32) -> u32) -> Cut {
    loop {
        let mut fell = false;
        for message in &run.messages {
            if is_orphan(&cut, message)
                && let Some(received) = message.received
            {
                cut.0[message.to.index()] = stop(message.to, received - 1);
                fell = true;
            }
        }
        if !fell {
            return cut;
        }
    }
}

fn is_orphan(cut: &Cut, message: &Message) -> bool {
    let received = message.received.is_some_and(|event| cut.contains(message.to, event));
    received && !cut.contains(message.from, message.sent)
}

fn is_in_transit(cut: &Cut, message: &Message) -> bool {
    let received = message.received.is_some_and(|event| cut.contains(message.to, event));
    !received && cut.contains(message.from, message.sent)
}

fn check(run: &Run, cut: &Cut) -> Result<(), String> {
    if cut.0.len() != run.events.len() {
        return Err(format!(
            "a cut of this run needs {} numbers, one per site, not {}",
            run.events.len(),
            cut.0.len()
        ));
    }
    let mut sites = cut.0.iter().zip(&run.events).enumerate();
    match sites.find(|(_, (taken, there))| taken > there) {
        Some((site, (taken, there))) => {
            Err(format!("{} has {there} events, not {taken}", NodeId(site as u32)))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn message(from: u32, sent: u32, to: u32, received: Option<u32>) -> Message {
        Message { from: NodeId(from), sent, to: NodeId(to), received }
    }

    /// The four processes of the lectures. P1 sends m12 at its 2nd event, and P2 receives it at its 3rd. P2
    /// sends m21 at its 4th event, and P1 receives it after its 2nd.
    fn four_processes() -> Run {
        Run { events: vec![4, 5, 5, 3], messages: vec![message(0, 2, 1, Some(3)), message(1, 4, 0, Some(3))] }
    }

    fn judged(cut: [u32; 4]) -> Judgement {
        judge(&four_processes(), &Cut(cut.to_vec())).unwrap()
    }

    #[test]
    fn a_cut_in_which_a_message_is_received_and_not_sent_is_inconsistent() {
        let judgement = judged([1, 3, 3, 2]);
        assert_eq!((judgement.orphans.as_slice(), judgement.is_consistent()), (&[0][..], false));
        assert_eq!(judgement.to_string(), "inconsistent, transitless");
    }

    #[test]
    fn a_consistent_cut_may_have_a_message_in_transit() {
        let judgement = judged([2, 4, 4, 2]);
        assert!(judgement.is_consistent() && !judgement.is_transitless());
        assert_eq!(judgement.in_transit, [1]);
    }

    #[test]
    fn a_cut_with_nothing_in_transit_is_strongly_consistent() {
        assert_eq!(judged([2, 3, 4, 2]), Judgement { orphans: vec![], in_transit: vec![] });
        assert!(judged([2, 3, 4, 2]).is_strongly_consistent());
    }

    #[test]
    fn a_cut_that_does_not_fit_is_refused() {
        let refused = |cut: &[u32]| judge(&four_processes(), &Cut(cut.to_vec())).unwrap_err();
        assert_eq!(refused(&[1, 1]), "a cut of this run needs 4 numbers, one per site, not 2");
        assert_eq!(refused(&[1, 6, 0, 0]), "n1 has 5 events, not 6");
    }

    /// \[R75\]: each checkpoint lies after a receipt and before the next sending, so that none can be used.
    #[test]
    fn dominoes_fall_to_the_start() {
        let messages = vec![
            message(0, 1, 1, Some(1)),
            message(1, 2, 0, Some(2)),
            message(0, 3, 1, Some(3)),
            message(1, 4, 0, Some(4)),
        ];
        let run = Run { events: vec![5, 5], messages };
        assert_eq!(recovery_line(&run, &[vec![2, 4], vec![1, 3]]), Ok(Cut(vec![0, 0])));
        // A single checkpoint at the right place stops the dominoes.
        assert_eq!(recovery_line(&run, &[vec![2, 3, 4], vec![1, 3]]), Ok(Cut(vec![3, 3])));
    }

    proptest! {
        /// The result is consistent and inside the cut, and no other such cut is larger. The test tries all
        /// cuts.
        #[test]
        fn the_largest_consistent_cut_inside_contains_all_others(
            messages in prop::collection::vec((0_u32..3, 1_u32..4, 0_u32..3, prop::option::of(1_u32..4)), 0..6),
            cut in prop::array::uniform3(0_u32..4),
        ) {
            let messages = messages.into_iter().map(|(from, sent, to, at)| message(from, sent, to, at));
            let run = Run { events: vec![3, 3, 3], messages: messages.collect() };
            let line = largest_inside(&run, &Cut(cut.to_vec())).unwrap();
            prop_assert!(judge(&run, &line).unwrap().is_consistent());
            for a in 0..=cut[0] {
                for b in 0..=cut[1] {
                    for c in 0..=cut[2] {
                        let other = Cut(vec![a, b, c]);
                        if judge(&run, &other).unwrap().is_consistent() {
                            prop_assert!(other.0.iter().zip(&line.0).all(|(other, line)| other <= line));
                        }
                    }
                }
            }
        }
    }
}
