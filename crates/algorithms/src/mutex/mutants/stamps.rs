//! Mutants of Lamport, Ricart-Agrawala and Roucairol-Carvalho.

use conclave_kernel::{Buffer, Cx, Effect, Input, NodeId, NodeSet, Protocol};

use crate::clock::Stamp;
use crate::mutants::flawed::{Fallible, Memory, Step, env, forward, handle, tampered};
use crate::mutex::lamport::{self, Says};
use crate::mutex::{
    Command, Event, Fence, Lamport, LamportOmission, RicartAgrawala, RoucairolCarvalho, ricart_agrawala,
    roucairol_carvalho,
};

type Ra = RicartAgrawala;
type Rc = RoucairolCarvalho;

impl Fallible for Lamport {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("lamport-without-l1", without_l1),
        ("lamport-any-message", any_message_counts),
        ("lamport-no-tie-break", lamport_no_tie_break),
        ("lamport-reply-not-later", reply_not_later),
        ("lamport-releases-first", releases_first),
    ];
}

impl Fallible for LamportOmission {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[];
}

impl Fallible for RicartAgrawala {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("ra-no-tie-break", ra_no_tie_break),
        ("ra-deaf-clock", ra_deaf_clock),
        ("ra-counts-replies", counts_replies),
        ("ra-counts-senders", counts_senders),
        ("ra-replies-inside", replies_inside),
        ("ra-forgets-deferred", forgets_deferred),
        ("ra-silent-replies", silent_replies),
        ("ra-time-as-fence", time_as_fence),
    ];
}

impl Fallible for RoucairolCarvalho {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("rc-both-hold", both_hold),
        ("rc-keeps-at-exit", keeps_at_exit),
        ("rc-forgets-it-gave", forgets_it_gave),
        ("rc-does-not-ask-again", does_not_ask_again),
        ("rc-no-tie-break", rc_no_tie_break_plain),
        ("rc-no-tie-break-fifo", rc_no_tie_break_plain),
        ("rc-no-tie-break-copies", rc_no_tie_break),
        ("rc-gives-inside", gives_inside),
        ("rc-stamp-as-fence", stamp_as_fence),
    ];
}

/// Lamport without L1: a site enters as soon as its request is the first in its own queue.
fn without_l1(site: &mut Lamport, _: &mut Memory, input: Input<Lamport>, cx: &mut Cx<'_, Lamport>) {
    site.step(input, cx);
    if site.door.is_asking() && site.queue.front() == site.wanted.as_ref() {
        add(&mut site.later, cx.peers().iter());
        site.guards(cx);
    }
}

/// Lamport whose L1 counts any message, also one with an early stamp.
fn any_message_counts(site: &mut Lamport, _: &mut Memory, input: Input<Lamport>, cx: &mut Cx<'_, Lamport>) {
    if let Input::Message { from, .. } = &input
        && site.door.is_asking()
    {
        site.later.insert(*from);
    }
    site.step(input, cx);
}

/// Lamport that compares times without ids.
fn lamport_no_tie_break(site: &mut Lamport, _: &mut Memory, input: Input<Lamport>, cx: &mut Cx<'_, Lamport>) {
    site.step(input, cx);
    if let Some(mine) = site.wanted
        && site.door.is_asking()
        && site.later.len() == cx.peers().len()
        && site.queue.iter().all(|request| mine.time <= request.time)
    {
        site.door.enter(Fence(mine.rank(cx.members().len() as u32)), cx);
    }
}

/// Lamport whose replies are stamped with the time of the request.
fn reply_not_later(site: &mut Lamport, _: &mut Memory, input: Input<Lamport>, cx: &mut Cx<'_, Lamport>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { to, message: lamport::Message { says: Says::Reply(time), .. } } => {
            Some(Effect::Send { to, message: lamport::Message { time, says: Says::Reply(time) } })
        }
        effect => Some(effect),
    });
}

/// Lamport in which a release removes the first request of its sender, not the matching one.
fn releases_first(site: &mut Lamport, _: &mut Memory, mut input: Input<Lamport>, cx: &mut Cx<'_, Lamport>) {
    if let Input::Message { from, message: lamport::Message { says: Says::Release(time), .. } } = &mut input
        && let Some(first) = site.queue.iter().find(|request| request.site == *from)
    {
        *time = first.time;
    }
    site.step(input, cx);
}

/// Ricart-Agrawala that compares times without ids.
fn ra_no_tie_break(site: &mut Ra, _: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    match input {
        Input::Message { from, message: ricart_agrawala::Message::Request(theirs) }
            if site.wanted.is_some_and(|mine| mine.time == theirs.time) =>
        {
            cx.send(from, ricart_agrawala::Message::Reply { to: theirs, seen: site.clock.time() });
        }
        input => site.step(input, cx),
    }
}

/// Ricart-Agrawala that does not advance its clock on receipt.
fn ra_deaf_clock(site: &mut Ra, _: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    let deaf = matches!(input, Input::Message { .. }).then_some(site.clock);
    handle(site, input, cx);
    site.clock = deaf.unwrap_or(site.clock);
    site.guards(cx);
}

/// Ricart-Agrawala that counts replies.
fn counts_replies(site: &mut Ra, memory: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    let is_reply = matches!(input, Input::Message { message: ricart_agrawala::Message::Reply { .. }, .. });
    handle(site, input, cx);
    if is_reply && site.door.is_asking() {
        memory.count += 1;
        if memory.count as usize == cx.peers().len() {
            add(&mut site.replies, cx.peers().iter());
        }
    }
    site.guards(cx);
    if !site.door.is_asking() {
        memory.count = 0;
    }
}

/// Ricart-Agrawala that counts distinct senders of replies, whichever request they answer.
fn counts_senders(site: &mut Ra, _: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    if let Input::Message { from, message: ricart_agrawala::Message::Reply { .. } } = &input
        && site.door.is_asking()
    {
        site.replies.insert(*from);
    }
    site.step(input, cx);
}

/// Ricart-Agrawala that replies even inside the critical section.
fn replies_inside(site: &mut Ra, _: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    match input {
        Input::Message { from, message: ricart_agrawala::Message::Request(theirs) }
            if site.door.is_inside() =>
        {
            site.clock.merge(theirs.time);
            cx.send(from, ricart_agrawala::Message::Reply { to: theirs, seen: site.clock.time() });
        }
        input => site.step(input, cx),
    }
}

/// Ricart-Agrawala that forgets the deferred requests.
fn forgets_deferred(site: &mut Ra, _: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    if matches!(input, Input::Command(Command::Release)) {
        site.deferred.drain(|_, _| {});
    }
    site.step(input, cx);
}

/// Ricart-Agrawala whose replies carry no clock value, as in the paper.
fn silent_replies(site: &mut Ra, _: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { to, message: ricart_agrawala::Message::Reply { to: request, .. } } => {
            Some(Effect::Send { to, message: ricart_agrawala::Message::Reply { to: request, seen: 0 } })
        }
        effect => Some(effect),
    });
}

/// Ricart-Agrawala whose fence is the time without the id.
fn time_as_fence(site: &mut Ra, _: &mut Memory, input: Input<Ra>, cx: &mut Cx<'_, Ra>) {
    let nodes = cx.members().len() as u64;
    tampered(site, input, cx, |effect| match effect {
        Effect::Emit { event: Event::Granted { fence } } => {
            Some(Effect::Emit { event: Event::Granted { fence: Fence(fence.0 / nodes) } })
        }
        effect => Some(effect),
    });
}

/// Roucairol-Carvalho in which both ends hold each permission at the start.
fn both_hold(site: &mut Rc, _: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    if matches!(input, Input::Start) {
        add(&mut site.held, cx.peers().iter());
    }
    site.step(input, cx);
}

/// Roucairol-Carvalho that keeps a permission although it gives it away at exit.
fn keeps_at_exit(site: &mut Rc, _: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    let kept = site.held.clone();
    let leaves = matches!(input, Input::Command(Command::Release));
    site.step(input, cx);
    if leaves {
        add(&mut site.held, kept.iter());
    }
}

/// Roucairol-Carvalho that keeps a permission although it gives it away on a request.
fn forgets_it_gave(site: &mut Rc, _: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    let kept = site.held.clone();
    let came = matches!(input, Input::Message { .. });
    site.step(input, cx);
    if came {
        add(&mut site.held, kept.iter());
    }
}

/// Roucairol-Carvalho that does not request a permission again that it gave away while waiting.
fn does_not_ask_again(site: &mut Rc, _: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    let came = matches!(input, Input::Message { .. });
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { message: roucairol_carvalho::Message::Request(_), .. } if came => None,
        effect => Some(effect),
    });
}

/// Roucairol-Carvalho that compares times without ids, and does not detect copies, as in the paper. Two sites
/// with equal times give way to each other again and again, with the same stamp. Our code would take the
/// second request for a copy of the first.
fn rc_no_tie_break_plain(site: &mut Rc, memory: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    if let Input::Message { from, message: roucairol_carvalho::Message::Request(_) } = &input {
        site.seen[from.index()] = 0;
    }
    rc_no_tie_break(site, memory, input, cx);
}

/// Roucairol-Carvalho that compares times without ids. It takes a request for a copy if its number does not
/// grow.
fn rc_no_tie_break(site: &mut Rc, _: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    // On a tie this site must give way, whichever id is smaller. So its own request is made the younger for
    // this step.
    let Some(mine) = site.wanted else { return site.step(input, cx) };
    match input {
        Input::Message { message: roucairol_carvalho::Message::Request(theirs), .. }
            if theirs.time == mine.time && site.door.is_asking() && mine < theirs =>
        {
            site.wanted = Some(Stamp::new(mine.time, NodeId(u32::MAX)));
            tampered(site, input, cx, |effect| match effect {
                Effect::Send { to, message: roucairol_carvalho::Message::Request(_) } => {
                    Some(Effect::Send { to, message: roucairol_carvalho::Message::Request(mine) })
                }
                effect => Some(effect),
            });
            site.wanted = Some(mine);
        }
        input => site.step(input, cx),
    }
}

/// Roucairol-Carvalho that gives its permission to an older request even inside the critical section.
fn gives_inside(site: &mut Rc, _: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    match input {
        Input::Message { from, message: roucairol_carvalho::Message::Request(theirs) }
            if site.door.is_inside() && site.wanted.is_some_and(|mine| theirs < mine) =>
        {
            site.held.remove(from);
            cx.send(from, roucairol_carvalho::Message::Reply { request: theirs, fence: site.fence });
        }
        input => site.step(input, cx),
    }
}

/// Roucairol-Carvalho that uses the stamp as the fence.
fn stamp_as_fence(site: &mut Rc, _: &mut Memory, input: Input<Rc>, cx: &mut Cx<'_, Rc>) {
    let nodes = cx.members().len() as u32;
    handle(site, input, cx);
    let mut said = Buffer::default();
    site.guards(&mut Cx::new(env(cx), &mut said));
    for effect in said.effects {
        let stamped = match (effect, site.wanted) {
            (Effect::Emit { event: Event::Granted { .. } }, Some(mine)) => {
                Effect::Emit { event: Event::Granted { fence: Fence(mine.rank(nodes)) } }
            }
            (effect, _) => effect,
        };
        forward(stamped, cx);
    }
}

fn add(set: &mut NodeSet, more: impl Iterator<Item = NodeId>) {
    more.for_each(|site| _ = set.insert(site));
}
