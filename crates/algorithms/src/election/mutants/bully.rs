//! Mutants of bully, and of the election over a detector.
//!
//! One known flaw is to believe an announcement from a lower site. It needs announcements to all sites. Our
//! bully announces itself only to lower sites, so no higher site receives one while the order of the ids
//! holds. Therefore the mutant with this flaw also sends its announcements to all sites.

use conclave_kernel::{Cx, Effect, Input, Protocol};

use crate::detector::{Heartbeat, Mute};
use crate::election::bully::{Body, Message, Stage, Timer};
use crate::election::{Bully, Command, DetectorBased};
use crate::mutants::flawed::{Fallible, Memory, Step, tampered};

impl Fallible for Bully {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("bully-short-timeout", short_timeout),
        ("bully-short-second-timeout", short_second_timeout),
        ("bully-never-disarms", never_disarms),
        ("bully-no-second-timeout", no_second_timeout),
        ("bully-follows-lower", follows_lower),
        ("bully-announces-to-all", announces_to_all),
        ("bully-silent-return", silent_return),
        ("bully-only-answers", only_answers),
        ("bully-no-answer", no_answer),
        ("bully-begins-each-time", begins_each_time),
    ];
}

impl Fallible for DetectorBased<Mute> {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("detector-never-trusts", never_trusts),
        // The mistake is that of the oracle, which replaces the detector of this type.
        ("detector-errs-once", |site, _, input, cx| site.step(input, cx)),
    ];
}

impl Fallible for DetectorBased<Heartbeat> {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[];
}

/// Bully whose first timeout covers one message, not one in each direction: T = T_trans.
fn short_timeout(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    if matches!(input, Input::Start) {
        site.answer_timeout /= 2;
    }
    site.step(input, cx);
}

/// Bully whose second timeout is as long as the first.
fn short_second_timeout(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    site.coordinator_timeout = site.answer_timeout;
    site.step(input, cx);
}

/// Bully that waits for ever for the announcement of a site that has answered.
fn no_second_timeout(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Arm { timer: Timer::Coordinator, .. } => None,
        effect => Some(effect),
    });
}

/// Bully whose timer T' stays armed when COORDINATOR arrives.
fn never_disarms(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Disarm { timer: Timer::Coordinator } => None,
        effect => Some(effect),
    });
}

/// Returns whether the input is a message with this body from a lower site.
fn is_from_lower(site: &Bully, input: &Input<Bully>, body: Body, cx: &Cx<'_, Bully>) -> bool {
    match input {
        Input::Message { from, message: Message { body: said, .. } } => {
            *said == body && site.candidate(*from) < site.candidate(cx.me())
        }
        _ => false,
    }
}

/// Bully that announces itself to all sites, not only to the lower ones.
fn announces_to_all(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    let led_before = site.leads(cx.me());
    let mut announced = false;
    tampered(site, input, cx, |effect| match effect {
        Effect::SendTo { message: Message { body: Body::Coordinator, .. }, .. } => {
            announced = true;
            None
        }
        effect => Some(effect),
    });
    // The lowest site sends no announcement in the real algorithm.
    if announced || site.leads(cx.me()) && !led_before {
        cx.broadcast(site.say(Body::Coordinator, cx.me()));
    }
}

/// Like `announces_to_all`, and each receiver follows the announcing site, even if it is lower.
fn follows_lower(site: &mut Bully, memory: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    match input {
        Input::Message { from, message: Message { body: Body::Coordinator, .. } } => site.follow(from, cx),
        input => announces_to_all(site, memory, input, cx),
    }
}

/// Bully that does not start an election when it recovers.
fn silent_return(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    match input {
        Input::Start | Input::Recover if cx.incarnation() > 0 => site.stage = Stage::Idle,
        input => site.step(input, cx),
    }
}

/// Bully that answers ELECTION and does not start an election itself.
fn only_answers(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    match input {
        Input::Message { from, .. } if is_from_lower(site, &input, Body::Election, cx) => {
            cx.send(from, site.say(Body::Ok, cx.me()));
        }
        input => site.step(input, cx),
    }
}

/// Bully that starts an election on ELECTION and does not answer.
fn no_answer(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { message: Message { body: Body::Ok, .. }, .. } => None,
        effect => Some(effect),
    });
}

/// Bully that starts again on every ELECTION, even during its own election.
fn begins_each_time(site: &mut Bully, _: &mut Memory, input: Input<Bully>, cx: &mut Cx<'_, Bully>) {
    let asked = is_from_lower(site, &input, Body::Election, cx) && site.stage != Stage::Idle;
    site.step(input, cx);
    if asked {
        site.begin(cx);
    }
}

/// An election over a detector that ignores corrected suspicions.
fn never_trusts(
    site: &mut DetectorBased<Mute>,
    _: &mut Memory,
    input: Input<DetectorBased<Mute>>,
    cx: &mut Cx<'_, DetectorBased<Mute>>,
) {
    if !matches!(input, Input::Command(Command::Trust(_))) {
        site.step(input, cx);
    }
}
