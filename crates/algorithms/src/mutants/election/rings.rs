//! Chang-Roberts and Hirschberg-Sinclair, nearly.

use conclave_kernel::{Cx, Input, Protocol};

use crate::election::chang_roberts::{self, Body};
use crate::election::hirschberg_sinclair::{self as two_way, Body as TwoWayBody};
use crate::election::{Candidate, ChangRoberts, Command, HirschbergSinclair};
use crate::mutants::flawed::{Fallible, Memory, Step};

type Cr = ChangRoberts;
type Hs = HirschbergSinclair;

impl Fallible for ChangRoberts {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("cr-forwards-participating", forwards_participating),
        ("cr-no-flag", no_flag),
        ("cr-swallows-lower", swallows_lower),
        ("cr-flag-for-ever", flag_for_ever),
        ("cr-forwards-unmarked", forwards_unmarked),
        ("cr-keeps-elected", keeps_elected),
        ("cr-dead-maximum", dead_maximum),
    ];
}

impl Fallible for HirschbergSinclair {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("hs-first-probe-back", first_probe_back),
        ("hs-swallows-lower", probe_swallowed),
        ("hs-goes-on", goes_on),
    ];
}

/// The candidate of an ELECTION that is of this view.
fn candidate(site: &Cr, input: &Input<Cr>) -> Option<Candidate> {
    match input {
        Input::Message { message: chang_roberts::Message { view, body: Body::Election(theirs) }, .. } => {
            (*view == site.view).then_some(*theirs)
        }
        _ => None,
    }
}

/// Chang-Roberts in which a participant forwards what it should swallow.
fn forwards_participating(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match candidate(site, &input) {
        Some(theirs) if site.participant && theirs < site.me => site.pass(Body::Election(theirs), cx),
        _ => site.step(input, cx),
    }
}

/// Chang-Roberts without the flag: every lower candidate is replaced, and whoever comes home has won.
fn no_flag(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match candidate(site, &input) {
        Some(theirs) if theirs < site.me => site.begin(cx),
        Some(theirs) if theirs == site.me => {
            site.participant = true;
            site.step(input, cx);
        }
        _ => site.step(input, cx),
    }
}

/// Chang-Roberts that swallows a lower candidate, and does not stand itself.
fn swallows_lower(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match candidate(site, &input) {
        Some(theirs) if theirs < site.me => {}
        _ => site.step(input, cx),
    }
}

/// Chang-Roberts whose ELECTED does not end participation.
fn flag_for_ever(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    let before = site.participant;
    site.step(input, cx);
    site.participant |= before;
}

/// Chang-Roberts that does not mark itself when it forwards.
fn forwards_unmarked(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match candidate(site, &input) {
        Some(theirs) if theirs > site.me => site.pass(Body::Election(theirs), cx),
        _ => site.step(input, cx),
    }
}

/// Chang-Roberts that hears who was elected, and does not pass it on.
fn keeps_elected(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match input {
        Input::Message { message: chang_roberts::Message { view, body: Body::Elected(leader) }, .. }
            if view == site.view && leader > site.me =>
        {
            site.settle(leader, cx);
        }
        input => site.step(input, cx),
    }
}

/// Chang-Roberts as it is printed: the ring closes over the dead, and nobody asks whose message it was.
fn dead_maximum(site: &mut Cr, _: &mut Memory, mut input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match &mut input {
        Input::Message { message, .. } => message.view = site.view.clone(),
        Input::Command(Command::Suspect(dead)) => {
            site.view.suspect(*dead);
            return;
        }
        _ => {}
    }
    site.step(input, cx);
}

/// Hirschberg-Sinclair that has won when the first of its probes is back; and whoever the second one passes takes part
/// in an election that is over. Either alone is made up for by the other.
fn first_probe_back(site: &mut Hs, _: &mut Memory, input: Input<Hs>, cx: &mut Cx<'_, Hs>) {
    match probe(site, &input) {
        Some((candidate, phase)) if candidate == site.me && phase == site.phase => site.back = [true; 2],
        Some((candidate, _)) if candidate > site.me => site.winner = None,
        _ => {}
    }
    site.step(input, cx);
}

/// Hirschberg-Sinclair that swallows a lower probe, and does not stand itself.
fn probe_swallowed(site: &mut Hs, _: &mut Memory, input: Input<Hs>, cx: &mut Cx<'_, Hs>) {
    match probe(site, &input) {
        Some((candidate, _)) if candidate < site.me => {}
        _ => site.step(input, cx),
    }
}

/// Hirschberg-Sinclair whose candidates go on although they have seen somebody higher.
fn goes_on(site: &mut Hs, _: &mut Memory, input: Input<Hs>, cx: &mut Cx<'_, Hs>) {
    let stood = site.standing && probe(site, &input).is_some_and(|(candidate, _)| candidate > site.me);
    site.step(input, cx);
    site.standing |= stood;
}

/// The candidate and the phase of a PROBE that is of this view.
fn probe(site: &Hs, input: &Input<Hs>) -> Option<(Candidate, u32)> {
    match input {
        Input::Message {
            message: two_way::Message { view, body: TwoWayBody::Probe { candidate, phase, .. }, .. },
            ..
        } => (*view == site.view).then_some((*candidate, *phase)),
        _ => None,
    }
}
