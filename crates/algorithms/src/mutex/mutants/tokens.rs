//! Mutants of the rings, Suzuki-Kasami, Raymond, Naimi-Trehel and the central coordinator.

use conclave_kernel::{Cx, Effect, Input, NodeId, Protocol};

use crate::mutants::flawed::{Fallible, Memory, Step, handle, tampered};
use crate::mutex::central::{self, Body, Ticket};
use crate::mutex::door::Place;
use crate::mutex::raymond::Holder;
use crate::mutex::suzuki_kasami;
use crate::mutex::token_ring::Token;
use crate::mutex::{
    Central, Command, FairRing, NaimiTrehel, Raymond, SuzukiKasami, TokenRing, naimi_trehel, raymond,
};

impl Fallible for TokenRing {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("ring-several-entries", without_fences::<true>),
        ("ring-one-entry", without_fences::<false>),
        ("ring-wrong-suspicion", wrong_suspicion),
    ];
}

impl Fallible for FairRing {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("fair-ring-deaf", deaf_to_token),
        ("fair-ring-not-wiped", stamp_not_wiped),
        ("fair-ring-at-sight", goes_in_at_sight),
    ];
}

impl Fallible for SuzukiKasami {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("sk-without-max", without_max),
        ("sk-idle-silent", idle_holder_silent),
        ("sk-deaf-inside", deaf_inside),
        ("sk-not-served", not_served),
        ("sk-any-token", takes_any_token),
        ("sk-answers-outdated", answers_outdated),
        ("sk-outdated-handed-on", answers_outdated_and_hands_on),
    ];
}

impl Fallible for Raymond {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("raymond-asked-for-ever", asked_for_ever),
        ("raymond-does-not-ask-back", does_not_ask_back),
        ("raymond-gives-inside", raymond_gives_inside),
    ];
}

impl Fallible for NaimiTrehel {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("naimi-forwards-only", forwards_only),
        ("naimi-stays-root", stays_root),
        ("naimi-gives-inside", naimi_gives_inside),
    ];
}

impl Fallible for Central {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("central-forgets-holder", forgets_holder),
        ("central-believes-release", believes_release),
        ("central-queues-copies", queues_copies),
    ];
}

/// A ring in which a waiting site once takes the token for lost and makes a new one.
fn wrong_suspicion(
    site: &mut TokenRing,
    memory: &mut Memory,
    input: Input<TokenRing>,
    cx: &mut Cx<'_, TokenRing>,
) {
    site.step(input, cx);
    if site.door.is_asking() && memory.count == 0 {
        memory.count = 1;
        site.on_token_lost(cx);
    }
}

/// A ring without fences, so that endless runs are cycles of states. If `AGAIN` is true, a site that leaves
/// passes the token to itself first. If it has requested again, it enters again, and so on.
fn without_fences<const AGAIN: bool>(
    site: &mut TokenRing,
    _: &mut Memory,
    input: Input<TokenRing>,
    cx: &mut Cx<'_, TokenRing>,
) {
    let leaves = matches!(input, Input::Command(Command::Release));
    let me = cx.me();
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { to, .. } => {
            let to = if AGAIN && leaves { me } else { to };
            Some(Effect::Send { to, message: Token::of_generation(0) })
        }
        effect => Some(effect),
    });
    site.token = site.token.map(|_| Token::of_generation(0));
}

/// A fair ring in which the arrival of the token does not advance the clock.
fn deaf_to_token(site: &mut FairRing, _: &mut Memory, input: Input<FairRing>, cx: &mut Cx<'_, FairRing>) {
    let clock = site.clock;
    let came = matches!(input, Input::Message { .. });
    handle(site, input, cx);
    if came {
        site.clock = clock;
    }
    site.guards(cx);
}

/// A fair ring that does not clear the stamp on exit.
fn stamp_not_wiped(site: &mut FairRing, _: &mut Memory, input: Input<FairRing>, cx: &mut Cx<'_, FairRing>) {
    let stamp = site.token.and_then(|token| token.oldest);
    let leaves = matches!(input, Input::Command(Command::Release));
    handle(site, input, cx);
    if let Some(token) = site.token.as_mut().filter(|_| leaves) {
        token.oldest = stamp;
    }
    site.guards(cx);
}

/// A fair ring in which a waiting site enters whenever the token arrives.
fn goes_in_at_sight(site: &mut FairRing, _: &mut Memory, input: Input<FairRing>, cx: &mut Cx<'_, FairRing>) {
    handle(site, input, cx);
    if let Some(token) = site.token.as_mut().filter(|_| site.wanted.is_some()) {
        token.oldest = site.wanted;
    }
    site.guards(cx);
}

type Sk = SuzukiKasami;

/// Suzuki-Kasami with RN[j] := n, without the max.
fn without_max(site: &mut Sk, _: &mut Memory, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    if let Input::Message { from, message: suzuki_kasami::Message::Request(number) } = &input {
        site.heard[from.index()] = *number;
    }
    site.step(input, cx);
}

/// Suzuki-Kasami whose idle holder does not answer requests.
fn idle_holder_silent(site: &mut Sk, _: &mut Memory, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    match input {
        Input::Message { from, message: suzuki_kasami::Message::Request(number) } => {
            let heard = &mut site.heard[from.index()];
            *heard = number.max(*heard);
        }
        input => site.step(input, cx),
    }
}

/// Suzuki-Kasami that ignores messages while inside the critical section.
fn deaf_inside(site: &mut Sk, _: &mut Memory, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    if !(site.door.is_inside() && matches!(input, Input::Message { .. })) {
        site.step(input, cx);
    }
}

/// Suzuki-Kasami that does not record in the token that its request was served.
fn not_served(site: &mut Sk, _: &mut Memory, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    let me = cx.me().index();
    let before = site.token.as_ref().map(|token| token.served[me]);
    tampered(site, input, cx, |effect| match (effect, before) {
        (Effect::Send { to, message: suzuki_kasami::Message::Privilege(mut token) }, Some(before)) => {
            token.served[me] = before;
            Some(Effect::Send { to, message: suzuki_kasami::Message::Privilege(token) })
        }
        (effect, _) => Some(effect),
    });
    if let (Some(token), Some(before)) = (&mut site.token, before) {
        token.served[me] = before;
    }
}

/// Suzuki-Kasami that accepts any token that arrives.
fn takes_any_token(site: &mut Sk, _: &mut Memory, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    if let Input::Message { message: suzuki_kasami::Message::Privilege(token), .. } = input {
        site.token = Some(token);
        site.guards(cx);
    } else {
        site.step(input, cx);
    }
}

/// Runs the real step. But an idle holder answers every request, also an outdated one.
fn answer_anything(site: &mut Sk, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    let asker = match &input {
        Input::Message { from, message: suzuki_kasami::Message::Request(_) } => Some(*from),
        _ => None,
    };
    site.step(input, cx);
    if let Some(asker) = asker
        && site.door.place() == Place::Outside
        && let Some(token) = site.token.take()
    {
        cx.send(asker, suzuki_kasami::Message::Privilege(token));
    }
}

/// Suzuki-Kasami that answers outdated requests. The receiver takes this token for a late copy.
fn answers_outdated(site: &mut Sk, _: &mut Memory, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    answer_anything(site, input, cx);
}

/// Suzuki-Kasami that answers outdated requests. A site that receives the token without need passes it on.
fn answers_outdated_and_hands_on(site: &mut Sk, _: &mut Memory, input: Input<Sk>, cx: &mut Cx<'_, Sk>) {
    match input {
        Input::Message { message: suzuki_kasami::Message::Privilege(mut token), .. }
            if !site.door.is_asking() =>
        {
            for other in cx.peers().iter() {
                token.enqueue(other, &site.heard);
            }
            site.token = Some(token);
            site.pass(cx);
        }
        input => answer_anything(site, input, cx),
    }
}

/// Raymond without the rule ASKED := false.
fn asked_for_ever(site: &mut Raymond, _: &mut Memory, input: Input<Raymond>, cx: &mut Cx<'_, Raymond>) {
    let asked = site.asked;
    site.step(input, cx);
    site.asked |= asked;
}

/// Raymond that does not request the token back when it passes it on.
fn does_not_ask_back(site: &mut Raymond, _: &mut Memory, input: Input<Raymond>, cx: &mut Cx<'_, Raymond>) {
    let mut given = false;
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { message: raymond::Message::Request, .. } if given => None,
        effect => {
            given |= matches!(effect, Effect::Send { message: raymond::Message::Privilege(_), .. });
            Some(effect)
        }
    });
}

/// Raymond that passes the token on while inside the critical section.
fn raymond_gives_inside(site: &mut Raymond, _: &mut Memory, input: Input<Raymond>, cx: &mut Cx<'_, Raymond>) {
    match (input, site.holder) {
        (Input::Message { from, message: raymond::Message::Request }, Holder::Me(fence))
            if site.door.is_inside() =>
        {
            site.holder = Holder::Towards(from);
            cx.send(from, raymond::Message::Privilege(fence));
        }
        (input, _) => site.step(input, cx),
    }
}

type Nt = NaimiTrehel;

/// Naimi-Trehel in which only the root makes the requester its father.
fn forwards_only(site: &mut Nt, _: &mut Memory, input: Input<Nt>, cx: &mut Cx<'_, Nt>) {
    let father = site.father.filter(|_| matches!(input, Input::Message { .. }));
    site.step(input, cx);
    site.father = father.or(site.father);
}

/// Naimi-Trehel in which the root does not make the requester its father.
fn stays_root(site: &mut Nt, _: &mut Memory, input: Input<Nt>, cx: &mut Cx<'_, Nt>) {
    let is_root = site.father.is_none() && matches!(input, Input::Message { .. });
    site.step(input, cx);
    site.father = site.father.filter(|_| !is_root);
}

/// Naimi-Trehel that gives the token away while inside the critical section.
fn naimi_gives_inside(site: &mut Nt, _: &mut Memory, input: Input<Nt>, cx: &mut Cx<'_, Nt>) {
    match input {
        Input::Message { message: naimi_trehel::Message::Request { origin, number }, .. }
            if site.father.is_none() && site.door.is_inside() =>
        {
            site.father = Some(origin);
            site.give(origin, number, cx);
        }
        input => site.step(input, cx),
    }
}

/// A coordinator that forgets the holder when another request arrives.
fn forgets_holder(site: &mut Central, _: &mut Memory, input: Input<Central>, cx: &mut Cx<'_, Central>) {
    if let (Some((_, Body::Request { .. })), Some(desk)) = (said(&input), &mut site.desk) {
        desk.holder = None;
    }
    site.step(input, cx);
}

/// A coordinator that accepts every RELEASE.
fn believes_release(site: &mut Central, _: &mut Memory, input: Input<Central>, cx: &mut Cx<'_, Central>) {
    if let (Some((_, Body::Release { .. })), Some(desk)) = (said(&input), &mut site.desk) {
        desk.holder = None;
    }
    site.step(input, cx);
}

/// A coordinator that puts a copy of a request into the queue again.
fn queues_copies(site: &mut Central, _: &mut Memory, input: Input<Central>, cx: &mut Cx<'_, Central>) {
    let request = said(&input);
    let waiting = |site: &Central| site.desk.as_ref().map(|desk| desk.queue.len());
    let before = waiting(site);
    handle(site, input, cx);
    if let (Some((from, Body::Request { number })), true) = (request, waiting(site) == before)
        && let Some(desk) = &mut site.desk
    {
        desk.queue.push_back(Ticket { site: from, number });
    }
    site.guards(cx);
}

/// Returns the sender and the body of the received message.
fn said(input: &Input<Central>) -> Option<(NodeId, Body)> {
    match input {
        Input::Message { from, message: central::Message { body, .. } } => Some((*from, *body)),
        _ => None,
    }
}
