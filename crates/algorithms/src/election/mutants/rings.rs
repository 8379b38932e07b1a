//! Mutants of Chang-Roberts and Hirschberg-Sinclair.

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

/// Returns the candidate of an ELECTION message of the present view.
fn candidate(site: &Cr, input: &Input<Cr>) -> Option<Candidate> {
    match input {
        Input::Message { message: chang_roberts::Message { view, body: Body::Election(theirs) }, .. } => {
            (*view == site.view).then_some(*theirs)
        }
        _ => None,
    }
}

/// Chang-Roberts in which a participant forwards lower candidates instead of discarding them.
fn forwards_participating(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match candidate(site, &input) {
        Some(theirs) if site.participant && theirs < site.me => site.pass(Body::Election(theirs), cx),
        _ => site.step(input, cx),
    }
}

/// Chang-Roberts without the participant flag. A site replaces every lower candidate, and wins when its own
/// candidate returns.
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

/// Chang-Roberts that discards a lower candidate and does not become a candidate itself.
fn swallows_lower(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match candidate(site, &input) {
        Some(theirs) if theirs < site.me => {}
        _ => site.step(input, cx),
    }
}

/// Chang-Roberts in which ELECTED does not clear the participant flag.
fn flag_for_ever(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    let before = site.participant;
    site.step(input, cx);
    site.participant |= before;
}

/// Chang-Roberts that does not set its participant flag when it forwards.
fn forwards_unmarked(site: &mut Cr, _: &mut Memory, input: Input<Cr>, cx: &mut Cx<'_, Cr>) {
    match candidate(site, &input) {
        Some(theirs) if theirs > site.me => site.pass(Body::Election(theirs), cx),
        _ => site.step(input, cx),
    }
}

/// Chang-Roberts that accepts ELECTED and does not forward it.
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

/// Chang-Roberts as printed. The ring closes over crashed sites, and messages do not carry the view in which
/// they were sent.
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

/// Hirschberg-Sinclair with two changes. A candidate wins when the first of its two probes returns. And a
/// site that the second probe passes takes part in an election that is over. Each change alone does no harm.
fn first_probe_back(site: &mut Hs, _: &mut Memory, input: Input<Hs>, cx: &mut Cx<'_, Hs>) {
    match probe(site, &input) {
        Some((candidate, phase)) if candidate == site.me && phase == site.phase => site.back = [true; 2],
        Some((candidate, _)) if candidate > site.me => site.winner = None,
        _ => {}
    }
    site.step(input, cx);
}

/// Hirschberg-Sinclair that discards a lower probe and does not become a candidate itself.
fn probe_swallowed(site: &mut Hs, _: &mut Memory, input: Input<Hs>, cx: &mut Cx<'_, Hs>) {
    match probe(site, &input) {
        Some((candidate, _)) if candidate < site.me => {}
        _ => site.step(input, cx),
    }
}

/// Hirschberg-Sinclair whose candidates continue after they have seen a higher one.
fn goes_on(site: &mut Hs, _: &mut Memory, input: Input<Hs>, cx: &mut Cx<'_, Hs>) {
    let stood = site.standing && probe(site, &input).is_some_and(|(candidate, _)| candidate > site.me);
    site.step(input, cx);
    site.standing |= stood;
}

/// Returns the candidate and the phase of a PROBE message of the present view.
fn probe(site: &Hs, input: &Input<Hs>) -> Option<(Candidate, u32)> {
    match input {
        Input::Message {
            message: two_way::Message { view, body: TwoWayBody::Probe { candidate, phase, .. }, .. },
            ..
        } => (*view == site.view).then_some((*candidate, *phase)),
        _ => None,
    }
}
