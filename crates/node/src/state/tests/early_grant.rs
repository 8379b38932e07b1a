//! Early grants: each rule of [`super::super::early_grant`] alone, and then the guarantee behind the rules.
//! No other client gets the name, for any loss at the end of the log and any later history.

use std::collections::BTreeSet;

use super::super::early_grant::FENCE_GAP;
use super::model::Dice;
use super::*;

impl World {
    /// Returns the number of the command that must be durable for the early grant in the last entry. Returns
    /// `None` if the last entry contains no early grant for the request.
    fn early_grant(&self, client: Client, id: RequestId) -> Option<u64> {
        let after = self.effects.iter().find_map(|effect| match effect {
            Effect::Reply { session, request, answer: Answer::Granted(_), after }
                if *session == client.0 && *request == id =>
            {
                Some(*after)
            }
            _ => None,
        });
        after.filter(|after| *after < self.index)
    }

    fn restart(&mut self) {
        self.apply(Command::SingleNodeRestarted { fences: FENCE_GAP });
    }
}

/// Lets `b` wait for x by `op` behind `a`, then runs `between`, then lets `a` release x. Returns whether `b`
/// gets an early grant that depends on nothing after its own acquire.
fn is_early(held: Op, op: Op, between: impl FnOnce(&mut World, Client, Client)) -> bool {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let x = w.hold(a, held);
    let waits = w.wait(b, op);
    let since = w.index;
    between(&mut w, a, b);
    w.release(a, x);
    assert!(w.granted(b, waits).is_some());
    w.early_grant(b, waits) == Some(since)
}

fn nothing(_: &mut World, _: Client, _: Client) {}

#[test]
fn a_release_gives_the_next_waiter_an_early_grant_since_its_request() {
    assert!(is_early(acquire("x"), acquire("x"), nothing));
    assert!(is_early(acquire("x"), urgent(acquire("x"), 3), nothing));
}

#[test]
fn it_stays_so_whoever_else_comes_and_through_whole_chains() {
    let mut w = World::new();
    let clients = [w.client(), w.client(), w.client()];
    let mut line = vec![(clients[0], w.hold(clients[0], acquire("x")), 0)];
    for client in &clients[1..] {
        let id = w.wait(*client, acquire("x"));
        line.push((*client, id, w.index));
    }
    for turn in 0..10 {
        let (client, id, _) = line.remove(0);
        w.release(client, id);
        let (next, waits, since) = line[0];
        assert_eq!(w.early_grant(next, waits), Some(since), "turn {turn}");
        let again = w.wait(client, acquire("x"));
        line.push((client, again, w.index));
    }
}

#[test]
fn only_plain_ones_inherit_ahead_of_the_disk() {
    for op in [
        by("label", "x"),
        acquire("x:shared"),
        acquire("x & z"),
        acquire("x | y"),
        at_most(acquire("x"), 1000),
        with(acquire("x"), |acquire| acquire.value = Some(vec![1])),
    ] {
        let mut w = World::new();
        let (a, b, c) = (w.client(), w.client(), w.client());
        let x = w.hold(a, acquire("x"));
        w.hold(c, acquire("y"));
        let waits = w.wait(b, op.clone());
        w.release(a, x);
        assert!(w.granted(b, waits).is_some());
        assert_eq!(w.early_grant(b, waits), None, "{op:?}");
    }
}

#[test]
fn only_plain_ones_hand_over_ahead_of_the_disk() {
    for held in [by("label", "x"), acquire("x:shared"), acquire("x & y")] {
        assert!(!is_early(held.clone(), acquire("x"), nothing), "{held:?}");
    }
    let campaign = with(acquire("x"), |acquire| acquire.value = Some(vec![1]));
    assert!(!is_early(campaign, acquire("x"), nothing));
}

#[test]
fn an_owner_with_more_than_the_released_name_causes_no_early_grant() {
    for (more, is_granted) in [("y", true), ("z", false), ("x & z", false)] {
        let mut w = World::new();
        let (a, b, c) = (w.client(), w.client(), w.client());
        w.hold(c, acquire("z"));
        let x = w.hold(a, acquire("x"));
        let waits = w.wait(b, acquire("x"));
        let (_, answer) = w.request(a, with(acquire(more), |acquire| acquire.owner = Owner::OfGrant(x)));
        assert_eq!(matches!(answer, Answer::Granted(_)), is_granted);
        w.release(a, x);
        assert!(w.granted(b, waits).is_some());
        assert_eq!(w.early_grant(b, waits), None, "{more}");
    }
}

#[test]
fn a_waiter_that_leaves_irregularly_breaks_the_order() {
    type Leaves = fn(&mut World, Client, RequestId);
    let leaves: [(Op, Leaves); 4] = [
        (acquire("x"), |w, c, id| _ = w.request(c, Op::Cancel { request: id })),
        (acquire("x"), |w, c, _| _ = w.expire_session(c)),
        (acquire("x"), |w, c, _| _ = w.request(c, Op::Close)),
        (at_most(acquire("x"), 5), |w, c, id| {
            let timer = w.state.timers().into_iter().find(|(timer, _)| matches!(timer, TimerId::Wait { .. }));
            w.expire(timer.unwrap().0);
            assert_eq!(w.refusal(c, id), Some(Code::TimedOut));
        }),
    ];
    for (op, leave) in leaves {
        let mut w = World::new();
        let (a, b, c) = (w.client(), w.client(), w.client());
        let x = w.hold(a, acquire("x"));
        let first = w.wait(b, op);
        let second = w.wait(c, acquire("x"));
        leave(&mut w, b, first);
        let left = w.index;
        w.release(a, x);
        assert_eq!(w.early_grant(c, second), Some(left));
    }
}

#[test]
fn a_waiter_that_got_an_alternative_breaks_the_order() {
    let mut w = World::new();
    let (a, b, c, d) = (w.client(), w.client(), w.client(), w.client());
    let (x, y) = (w.hold(a, acquire("x")), w.hold(d, acquire("y")));
    let either = w.wait(b, acquire("x | y"));
    let waits = w.wait(c, acquire("x"));
    w.release(d, y);
    assert_eq!(w.granted(b, either).unwrap(), "y");
    let left = w.index;
    w.release(a, x);
    assert_eq!(w.early_grant(c, waits), Some(left));
}

#[test]
fn a_name_that_its_client_has_not_released_causes_no_early_grant() {
    let ends: [fn(&mut World, Client, RequestId); 5] = [
        |w, a, id| _ = w.request(a, Op::Cancel { request: id }),
        |w, a, _| _ = w.request(a, Op::Close),
        |w, a, _| _ = w.expire_session(a),
        |w, a, _| _ = w.request(a, Op::Break { name: name("x"), reason: "r".into() }),
        |w, _, _| {
            let operator = w.client();
            let holder = w.state.sessions(None, 1).items[0].session;
            w.request(operator, Op::EndSession { session: holder });
        },
    ];
    for end in ends {
        let mut w = World::new();
        let (a, b) = (w.client(), w.client());
        let x = w.hold(a, acquire("x"));
        let waits = w.wait(b, acquire("x"));
        end(&mut w, a, x);
        assert_eq!(w.granted(b, waits).unwrap(), "x");
        assert_eq!(w.early_grant(b, waits), None);
    }
}

#[test]
fn after_a_restart_old_waiters_go_before_new_requests() {
    let mut w = World::new();
    let (a, b, c) = (w.client(), w.client(), w.client());
    let x = w.hold(a, acquire("x"));
    let low = w.wait(b, urgent(acquire("x"), i32::MIN));
    w.restart();
    let high = w.wait(c, urgent(acquire("x"), i32::MAX));
    w.restart();
    let highest = w.wait(c, urgent(acquire("x"), i32::MAX));
    let priorities = |w: &World| -> Vec<i32> {
        w.state.why(&name("x")).waiters.iter().map(|waiter| waiter.priority.0).collect()
    };
    assert_eq!(priorities(&w), [i32::MIN, i32::MAX, i32::MAX]);
    w.release(a, x);
    assert_eq!(w.granted(b, low).unwrap(), "x");
    w.release(b, low);
    assert_eq!(w.granted(c, high).unwrap(), "x");
    w.release(c, high);
    assert_eq!(w.granted(c, highest).unwrap(), "x");
}

#[test]
fn a_release_after_a_restart_ends_the_wait_with_an_early_grant() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let x = w.hold(a, acquire("x"));
    let early_granted = w.wait(b, acquire("x"));
    w.restart();
    w.release(b, early_granted);
    w.release(a, x);
    assert_eq!(w.state.totals().grants, 0);
    assert_eq!(w.waiting(), 0);
}

/// A request: its session and its number.
type Who = (SessionId, RequestId);

/// Returns a random command of a client, an operator or a timer. No command uses a request in `gone` as one
/// that holds or waits. The session `spared` does not end.
fn step(
    dice: &mut Dice,
    state: &State,
    gone: &BTreeSet<Who>,
    spared: Option<SessionId>,
    next: u64,
) -> Command {
    let sessions: Vec<SessionId> = state.sessions(None, 100).items.iter().map(|info| info.session).collect();
    if sessions.len() < 4 {
        let open = OpenSession { secret: 1, ttl_ms: 1000, lock_delay_ms: 100, label: String::new() };
        return Command::OpenSession(open);
    }
    let session = dice.pick(&sessions);
    let submit =
        |session, op| Command::Request(Request { session, id: RequestId(next), lowest: RequestId(0), op });
    let live = |waiting: bool| -> Vec<Who> {
        let live =
            state.sessions.iter().flat_map(|(id, session)| session.live.iter().map(move |live| (*id, live)));
        let live = live.filter(|(_, (_, ticket))| state.locks.waiters.contains_key(ticket) == waiting);
        live.map(|(id, (request, _))| (id, *request)).filter(|who| !gone.contains(who)).collect()
    };
    let may_end = spared != Some(session);
    match dice.roll(28) {
        // Keeps the queue of `a` filled.
        20.. if dice.roll(2) == 0 => submit(session, acquire("a")),
        0..=6 => {
            let expr =
                dice.pick(&["a", "a", "a", "a", "b", "a:shared", "a & b", "a | b", "b | a", "b:shared"]);
            let held = live(false).into_iter().find(|(holder, _)| *holder == session);
            let op = with(acquire(expr), |acquire| {
                acquire.owner = match (dice.roll(8), held) {
                    (0, _) => label("o"),
                    (1, Some((_, grant))) => Owner::OfGrant(grant),
                    _ => Owner::Request,
                };
                acquire.wait =
                    dice.pick(&[Wait::Forever, Wait::Forever, Wait::Forever, Wait::AtMost(5), Wait::Try]);
                acquire.priority = Priority(dice.pick(&[0, 0, 0, 1, i32::MAX, i32::MIN]));
                acquire.policy =
                    dice.pick(&[VictimPolicy::Requester, VictimPolicy::Youngest, VictimPolicy::None]);
                acquire.value = (expr == "a" && dice.roll(10) == 0).then(|| vec![1]);
            });
            submit(session, op)
        }
        7..=14 | 20.. => match live(false)[..] {
            [] => submit(session, acquire("a")),
            ref held => {
                let (session, grant) = dice.pick(held);
                submit(session, Op::Release { grant })
            }
        },
        15 => match live(true)[..] {
            [] => submit(session, acquire("b")),
            ref waiting => {
                let (session, request) = dice.pick(waiting);
                submit(session, Op::Cancel { request })
            }
        },
        16 => match live(false)[..] {
            [] => submit(session, acquire("a:shared")),
            ref held => {
                let (session, grant) = dice.pick(held);
                submit(session, Op::Downgrade { grant })
            }
        },
        17 if may_end => submit(session, Op::Close),
        18 => {
            let timers = state.timers();
            let ends = |timer: &TimerId| !matches!(timer, TimerId::Lease { session, .. } if spared == Some(*session));
            let timers: Vec<TimerId> = timers.iter().map(|(timer, _)| *timer).filter(ends).collect();
            match timers[..] {
                [] => submit(session, acquire("a")),
                ref timers => Command::Expire { timer: dice.pick(timers), term: 1 },
            }
        }
        _ => submit(session, Op::Break { name: name(dice.pick(&["a", "b"])), reason: "r".into() }),
    }
}

/// Returns the request that a command releases or cancels.
fn given_up(command: &Command) -> Option<Who> {
    match command {
        Command::Request(Request { session, op: Op::Release { grant }, .. }) => Some((*session, *grant)),
        Command::Request(Request { session, op: Op::Cancel { request }, .. }) => Some((*session, *request)),
        _ => None,
    }
}

/// The receiver of an early grant.
struct NextWaiter {
    who: Who,
    name: LockName,
    fence: Fence,
    /// All requests that were released or cancelled before.
    gone: BTreeSet<Who>,
}

/// Continues at random from a recovered state. Asserts that no other client is granted the name while the
/// receiver may trust its early grant. Returns whether the receiver is granted the name again.
fn goes_on(seed: u64, mut state: State, next_waiter: &NextWaiter) -> bool {
    let (mut dice, (session, request)) = (Dice(seed), next_waiter.who);
    let at = |state: &State| Position { index: state.applied() + 1, term: 1, wall_ms: 0 };
    state.apply(at(&state), Command::SingleNodeRestarted { fences: FENCE_GAP });
    let mut unsaid: Vec<Who> = next_waiter.gone.iter().copied().collect();
    let mut gone = next_waiter.gone.clone();
    gone.insert(next_waiter.who);
    for turn in 0..30 {
        // The earlier releases are sent again at random times. The receiver sends nothing.
        let command = if !unsaid.is_empty() && dice.roll(4) == 0 {
            let (session, grant) = unsaid.swap_remove(dice.roll(unsaid.len() as u64) as usize);
            let (id, op) = (RequestId(20_000 + grant.0), Op::Release { grant });
            Command::Request(Request { session, id, lowest: RequestId(0), op })
        } else {
            step(&mut dice, &state, &gone, Some(session), 10_000 + turn)
        };
        for effect in state.apply(at(&state), command.clone()) {
            let Effect::Reply { session: to, request: id, answer: Answer::Granted(granted), .. } = effect
            else {
                continue;
            };
            let Some(taken) = granted.names.iter().find(|taken| taken.name == next_waiter.name) else {
                continue;
            };
            assert!(gone.contains(&(to, id)), "seed {seed}: {command:?} gives {taken:?} to {to}/{id}");
            assert!(
                taken.fence > next_waiter.fence
                    || matches!(command, Command::Request(Request { op: Op::Downgrade { .. }, .. }))
            );
            if (to, id) == next_waiter.who {
                return true;
            }
        }
        let live = state.sessions[&session].live.get(&request);
        assert!(live.is_some(), "seed {seed}: {command:?} ends the wait of the next_waiter");
    }
    false
}

/// Tests many short logs, every state that may be recovered from each, and many continuations.
#[test]
fn after_any_loss_no_other_client_gets_an_early_granted_name() {
    let (mut heirs, mut recovered, mut granted_again) = (0, 0, 0);
    for seed in 0..150 {
        let mut dice = Dice(seed);
        let mut states = vec![State::new()];
        let mut gone = BTreeSet::new();
        for index in 1..=60 {
            let mut state = states[states.len() - 1].clone();
            let command = step(&mut dice, &state, &gone, None, index);
            gone.extend(given_up(&command));
            for effect in state.apply(Position { index, term: 1, wall_ms: 0 }, command) {
                let Effect::Reply { session, request, answer: Answer::Granted(granted), after } = effect
                else {
                    continue;
                };
                if after == index {
                    continue;
                }
                heirs += 1;
                let taken = &granted.names[0];
                let (who, gone) = ((session, request), gone.clone());
                let next_waiter = NextWaiter { who, name: taken.name.clone(), fence: taken.fence, gone };
                for (lost, state) in states[after as usize..].iter().rev().enumerate() {
                    recovered += 1;
                    for more in 0..4 {
                        let seed = seed << 32 | index << 16 | (lost as u64) << 8 | more;
                        granted_again += u32::from(goes_on(seed, state.clone(), &next_waiter));
                    }
                }
            }
            states.push(state);
        }
    }
    assert!(heirs > 300, "{heirs}");
    assert!(recovered > 2 * heirs, "{recovered}");
    assert!(granted_again > recovered, "{granted_again} of {recovered}");
}
