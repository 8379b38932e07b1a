//! Mutants of Maekawa's algorithm, as found in textbooks, encyclopedias and most programs.

use conclave_kernel::{Cx, Effect, Input, Protocol};

use crate::clock::Stamp;
use crate::mutants::flawed::{Fallible, Memory, Step, handle, tampered};
use crate::mutex::maekawa::arbiter::Waiting;
use crate::mutex::maekawa::{Message, Standing};
use crate::mutex::{Command, Event, Fence, Maekawa};

impl Fallible for Maekawa {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("maekawa-basic", basic),
        ("maekawa-failed-by-holder", failed_by_holder_only),
        ("maekawa-1985", rule_1985),
        ("maekawa-no-tie-break", no_tie_break),
        ("maekawa-forgets-inquire", forgets_inquire),
        ("maekawa-inquired-for-ever", inquired_for_ever),
        ("maekawa-not-put-back", yielded_not_put_back),
        ("maekawa-yields-inside", yields_inside),
        ("maekawa-disjoint", disjoint_quorums),
        ("maekawa-stale-yield", stale_yield),
        ("maekawa-own-fence", own_fence),
        ("maekawa-unstamped-inquire", unstamped_inquire),
        ("maekawa-own-yield", own_yield_does_not_count),
        ("maekawa-failed-and-yielded", failed_and_yielded),
        ("maekawa-first-failed-only", first_failed_only),
        ("maekawa-yields-at-once", yields_at_once),
        ("maekawa-failed-for-ever", failed_for_ever),
    ];
}

type In = Input<Maekawa>;

/// Maekawa without FAILED, INQUIRE and YIELD.
fn basic(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { message: Message::Failed(_) | Message::Inquire { .. }, .. } => None,
        effect => Some(effect),
    });
}

/// Runs the real step for a REQUEST. FAILED goes only to requests for which `failed` is true, and INQUIRE is
/// sent only if `inquires` is true.
fn on_request(
    site: &mut Maekawa,
    input: In,
    cx: &mut Cx<'_, Maekawa>,
    failed: impl Fn(Stamp) -> bool,
    inquires: bool,
) {
    let mut untold = None;
    let mut asked_nobody = false;
    tampered(site, input, cx, |effect| match effect {
        Effect::Send { message: Message::Failed(request), .. } if !failed(request) => {
            untold = Some(request);
            None
        }
        Effect::Send { message: Message::Inquire { .. }, .. } if !inquires => {
            asked_nobody = true;
            None
        }
        effect => Some(effect),
    });
    for waiting in site.arbiter.waiting.iter_mut().filter(|waiting| Some(waiting.request) == untold) {
        waiting.told = false;
    }
    if let Some(holder) = site.arbiter.holder.as_mut().filter(|_| asked_nobody) {
        holder.inquired = false;
    }
}

/// Maekawa in which the arbiter sends FAILED only if the holder is older.
fn failed_by_holder_only(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    match (&input, site.arbiter.holder) {
        (Input::Message { message: Message::Request(theirs), .. }, Some(holder)) => {
            let (theirs, older) = (*theirs, holder.request < *theirs);
            on_request(site, input, cx, |request| older && request == theirs, true);
        }
        _ => site.step(input, cx),
    }
}

/// Maekawa in which only the new request receives FAILED. A request that it overtakes in the queue receives
/// none.
fn rule_1985(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    match input {
        Input::Message { message: Message::Request(theirs), .. } => {
            on_request(site, input, cx, |request| request == theirs, true);
        }
        input => site.step(input, cx),
    }
}

/// Maekawa whose FAILED and INQUIRE rules compare times without ids.
fn no_tie_break(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    match (&input, site.arbiter.holder) {
        (Input::Message { message: Message::Request(theirs), .. }, Some(holder)) => {
            let theirs = *theirs;
            let queued = site.arbiter.waiting.iter().map(|waiting| waiting.request.time);
            let oldest = queued.fold(holder.request.time, u64::min);
            // The new request fails if any other is older. An overtaken request fails if the new one is
            // older.
            let failed = |request: Stamp| match request == theirs {
                true => oldest < theirs.time,
                false => theirs.time < request.time,
            };
            on_request(site, input, cx, failed, theirs.time < holder.request.time);
        }
        _ => site.step(input, cx),
    }
}

/// Maekawa that forgets an INQUIRE that it cannot answer yet.
fn forgets_inquire(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    site.step(input, cx);
    site.votes.iter_mut().for_each(|vote| vote.inquiry = None);
}

/// Maekawa in which "inquired" is not cleared when the grant returns.
fn inquired_for_ever(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    let inquired = site.arbiter.holder.is_some_and(|holder| holder.inquired);
    site.step(input, cx);
    if let Some(holder) = &mut site.arbiter.holder {
        holder.inquired |= inquired;
    }
}

/// Maekawa that does not put a yielded request back into the queue.
fn yielded_not_put_back(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    let yielded = match &input {
        Input::Message { message: Message::Yield { request, .. }, .. } => Some(*request),
        _ => None,
    };
    site.step(input, cx);
    site.arbiter.waiting.retain(|waiting| Some(waiting.request) != yielded);
}

/// Maekawa that sends YIELD even inside the critical section.
fn yields_inside(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    if let Input::Message { from, message: Message::Inquire { request, round, rival } } = &input
        && site.door.is_inside()
        && site.wanted == Some(*request)
    {
        cx.send(*from, Message::Yield { request: *request, round: *round, rival: *rival });
    }
    site.step(input, cx);
}

/// Maekawa in which every site requests only its own permission.
fn disjoint_quorums(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    if matches!(input, Input::Start) {
        let own = site.votes.iter().filter(|vote| vote.arbiter == cx.me());
        site.votes = own.copied().collect();
    }
    site.step(input, cx);
}

/// Maekawa that answers an INQUIRE that crossed the RELEASE with YIELD. The arbiter accepts it.
fn stale_yield(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    match input {
        Input::Message { from, message: Message::Inquire { request, round, rival } }
            if site.wanted != Some(request) =>
        {
            cx.send(from, Message::Yield { request, round, rival });
        }
        Input::Message { message: Message::Yield { request, round, rival }, .. }
            if site.arbiter.holder.is_some_and(|holder| holder.request != request) =>
        {
            site.arbiter.enqueue(Waiting { request, round: round + 1, told: true, account: rival });
            for answer in site.arbiter.grant_to_head() {
                cx.send(answer.requester(), answer);
            }
        }
        input => site.step(input, cx),
    }
}

/// Maekawa in which each site counts fences separately.
fn own_fence(site: &mut Maekawa, memory: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    tampered(site, input, cx, |effect| match effect {
        Effect::Emit { event: Event::Granted { .. } } => {
            memory.count += 1;
            Some(Effect::Emit { event: Event::Granted { fence: Fence(memory.count) } })
        }
        effect => Some(effect),
    });
}

/// Maekawa that applies every INQUIRE to its present request.
fn unstamped_inquire(site: &mut Maekawa, _: &mut Memory, mut input: In, cx: &mut Cx<'_, Maekawa>) {
    if let Input::Message { from, message: Message::Inquire { request, round, .. } } = &mut input
        && let Some(mine) = site.wanted
        && let Some(vote) = site.votes.iter().find(|vote| vote.arbiter == *from)
    {
        (*request, *round) = (mine, vote.round);
    }
    site.step(input, cx);
}

/// Runs the requester's step with another condition for sending YIELD.
fn step_if(site: &mut Maekawa, input: In, cx: &mut Cx<'_, Maekawa>, stuck: impl FnOnce(&Maekawa) -> bool) {
    handle(site, input, cx);
    if site.door.must_ask() {
        let mine = Stamp::new(site.clock.tick(), cx.me());
        site.wanted = Some(mine);
        site.votes.iter().for_each(|vote| cx.send(vote.arbiter, Message::Request(mine)));
    }
    let Some(request) = site.wanted.filter(|_| site.door.is_asking()) else { return };
    if stuck(site) {
        for vote in site.votes.iter_mut().filter(|vote| vote.standing == Standing::Granted) {
            if let Some(rival) = vote.inquiry.take() {
                cx.send(vote.arbiter, Message::Yield { request, round: vote.round, rival });
                vote.standing = Standing::Yielded;
                vote.round += 1;
            }
        }
    }
    if site.votes.iter().all(|vote| vote.standing == Standing::Granted) {
        site.votes.iter_mut().for_each(|vote| vote.inquiry = None);
        site.fence = site.fence.next();
        site.door.enter(site.fence, cx);
    }
}

/// Returns whether some arbiter has this standing towards the present request.
fn any(site: &Maekawa, standing: Standing) -> bool {
    site.votes.iter().any(|vote| vote.standing == standing)
}

/// Maekawa in which a yielded grant does not count as a missing one.
fn own_yield_does_not_count(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    step_if(site, input, cx, |site| any(site, Standing::Failed));
}

/// Maekawa that sends YIELD only if FAILED was received *and* a YIELD was sent.
fn failed_and_yielded(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    step_if(site, input, cx, |site| any(site, Standing::Failed) && any(site, Standing::Yielded));
}

/// Maekawa that sends YIELD at the first FAILED, and never afterwards.
fn first_failed_only(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    let before = any(site, Standing::Failed) || any(site, Standing::Yielded);
    step_if(site, input, cx, |site| !before && any(site, Standing::Failed));
}

/// Maekawa that answers every INQUIRE with YIELD at once.
fn yields_at_once(site: &mut Maekawa, _: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    step_if(site, input, cx, |_| true);
}

/// Maekawa in which a GRANT does not clear a FAILED.
fn failed_for_ever(site: &mut Maekawa, memory: &mut Memory, input: In, cx: &mut Cx<'_, Maekawa>) {
    match &input {
        Input::Message { from, message: Message::Failed(request) } if site.wanted == Some(*request) => {
            memory.sites.insert(*from);
        }
        Input::Command(Command::Release) => memory.sites.clear(),
        _ => {}
    }
    let marked = !memory.sites.is_empty();
    step_if(site, input, cx, |site| marked || any(site, Standing::Yielded));
}
