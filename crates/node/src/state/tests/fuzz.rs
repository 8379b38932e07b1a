//! Determinism and invalid input: the same log gives the same bytes, also through a snapshot, and no input
//! causes a panic.

use proptest::prelude::*;

use super::super::tree::FileOp;
use super::model::Dice;
use super::*;

/// Returns a random command, which may be invalid. Its numbers are small, so that it is often valid.
fn garbage(dice: &mut Dice, sessions: &[SessionId]) -> Command {
    let small = |dice: &mut Dice| RequestId(dice.roll(40));
    let session = match dice.roll(12) {
        0 => SessionId(dice.roll(1000)),
        _ => sessions.get(dice.roll(sessions.len().max(1) as u64) as usize).copied().unwrap_or(SessionId(0)),
    };
    if dice.roll(12) == 0 {
        return timer(dice, session);
    }
    match dice.roll(40) {
        0 => Command::SingleNodeRestarted { fences: dice.roll(100) },
        1 | 2 => Command::OpenSession(OpenSession {
            secret: dice.roll(9).into(),
            ttl_ms: 50 + dice.roll(1000),
            lock_delay_ms: dice.roll(2) * 100,
            label: "g".into(),
        }),
        _ => {
            let (id, lowest) = (small(dice), RequestId(dice.roll(20)));
            Command::Request(Request { session, id, lowest, op: operation(dice, session) })
        }
    }
}

fn timer(dice: &mut Dice, session: SessionId) -> Command {
    let timer = match dice.roll(3) {
        0 => TimerId::Lease { session, generation: dice.roll(3) },
        1 => TimerId::Wait { session, request: RequestId(dice.roll(40)), ticket: Ticket(dice.roll(400)) },
        _ => TimerId::LockDelay { session, generation: dice.roll(400) },
    };
    Command::Expire { timer, term: 1 + dice.roll(2) }
}

fn operation(dice: &mut Dice, session: SessionId) -> Op {
    let target = RequestId(dice.roll(40));
    match dice.roll(16) {
        0..=6 => {
            let text = dice.expr();
            with(acquire(&text), |acquire| {
                acquire.owner = match dice.roll(4) {
                    0 => Owner::Request,
                    1 => Owner::OfGrant(RequestId(dice.roll(40))),
                    _ => label(["o", "p"][dice.roll(2) as usize]),
                };
                acquire.wait =
                    [Wait::Forever, Wait::Forever, Wait::AtMost(5), Wait::Try][dice.roll(4) as usize];
                acquire.priority = Priority([0, 0, 1, i32::MAX, i32::MIN][dice.roll(5) as usize]);
                acquire.policy = [
                    VictimPolicy::Requester,
                    VictimPolicy::Youngest,
                    VictimPolicy::LowestPriority,
                    VictimPolicy::FewestLocks,
                    VictimPolicy::None,
                ][dice.roll(5) as usize];
                acquire.value = (dice.roll(8) == 0).then(|| vec![1]);
            })
        }
        7..=9 => Op::Release { grant: target },
        10 => Op::Cancel { request: target },
        11 => Op::Downgrade { grant: target },
        12 => match dice.roll(6) {
            0 => Op::Close,
            1 => Op::EndSession { session: SessionId(session.0 + 1) },
            2 => Op::SetTtl { ttl_ms: dice.roll(300) },
            _ => Op::Proclaim { grant: target, value: vec![2] },
        },
        13 => Op::Limit { name: name(["s", "t", "a"][dice.roll(3) as usize]), permits: dice.roll(5) as u32 },
        14 => Op::Break { name: name(["a", "b", "s"][dice.roll(3) as usize]), reason: "r".into() },
        _ => Op::Files((0..dice.roll(4)).map(|_| file(dice)).collect()),
    }
}

fn file(dice: &mut Dice) -> FileOp {
    let path =
        conclave_core::FilePath::new(["/", "/a", "/a/b", "/a/b/c", "/d"][dice.roll(5) as usize]).unwrap();
    let expected = (dice.roll(3) == 0).then(|| conclave_core::Version(dice.roll(3)));
    match dice.roll(4) {
        0 => FileOp::Delete { path, expected },
        1 => FileOp::Write { path, data: vec![7; dice.roll(9) as usize], expected },
        2 => FileOp::Check { path, expected: conclave_core::Version(1) },
        _ => FileOp::Create {
            path,
            data: vec![1],
            ephemeral: dice.roll(3) == 0,
            sequential: dice.roll(3) == 0,
        },
    }
}

/// Returns a log of random commands. Each one is applied to a state, so that later ones can name its
/// sessions.
pub(super) fn log(seed: u64, length: u64) -> Vec<(Position, Command)> {
    let mut dice = Dice(seed);
    let mut state = State::new();
    let mut log = Vec::new();
    for index in 1..=length {
        let sessions: Vec<SessionId> =
            state.sessions(None, 10).items.iter().map(|info| info.session).collect();
        let command = garbage(&mut dice, &sessions);
        let at = Position { index, term: 1 + index / 200, wall_ms: index };
        state.apply(at, command.clone());
        if index % 7 == 0 {
            state.audit().unwrap_or_else(|what| panic!("seed {seed}, entry {index}: {what}"));
        }
        log.push((at, command));
    }
    log
}

#[test]
fn two_states_fed_the_same_log_have_the_same_bytes_and_effects() {
    for seed in 0..60 {
        let (mut one, mut two) = (State::new(), State::new());
        for (at, command) in log(seed, 400) {
            assert_eq!(one.apply(at, command.clone()), two.apply(at, command), "seed {seed}");
        }
        assert_eq!(one.to_snapshot(), two.to_snapshot(), "seed {seed}");
    }
}

#[test]
fn a_state_that_went_through_a_snapshot_goes_on_the_same() {
    for seed in 100..140 {
        let log = log(seed, 400);
        let mut straight = State::new();
        let mut restored = State::new();
        for (number, (at, command)) in log.into_iter().enumerate() {
            let effects = straight.apply(at, command.clone());
            assert_eq!(restored.apply(at, command), effects, "seed {seed}, entry {}", at.index);
            if number % 50 == 49 {
                restored = State::from_snapshot(&restored.to_snapshot()).unwrap();
            }
        }
        assert_eq!(straight.to_snapshot(), restored.to_snapshot(), "seed {seed}");
    }
}

#[test]
fn with_any_policy_but_none_no_deadlock_is_left() {
    for seed in 200..280 {
        let mut state = State::new();
        for (at, mut command) in log(seed, 300) {
            if let Command::Request(Request { op: Op::Acquire(acquire), .. }) = &mut command
                && acquire.policy == VictimPolicy::None
            {
                acquire.policy = VictimPolicy::Youngest;
            }
            state.apply(at, command);
            assert_eq!(state.stuck(), 0, "seed {seed}, entry {}", at.index);
        }
    }
}

#[test]
fn of_two_conflicting_grants_of_a_name_the_later_has_the_larger_fence() {
    for seed in 300..340 {
        let mut state = State::new();
        let mut last: BTreeMap<LockName, Fence> = BTreeMap::new();
        for (at, command) in log(seed, 300) {
            for effect in state.apply(at, command) {
                let Effect::Reply { session, request, answer: Answer::Granted(granted), .. } = effect else {
                    continue;
                };
                // Retries and downgrades repeat earlier fences, so these are skipped.
                for granted in
                    granted.names.iter().filter(|granted| granted.fence.0 == at.index + state.fence_base())
                {
                    if granted.claim == Claim::Exclusive {
                        let before = last.insert(granted.name.clone(), granted.fence);
                        assert!(before < Some(granted.fence), "seed {seed}: {session} {request} {granted:?}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_command_of_random_bytes_is_refused_or_applied(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut w = World::new();
        let a = w.client();
        w.hold(a, acquire("x"));
        if let Ok(command) = postcard::from_bytes::<Command>(&bytes) {
            w.apply(command);
        }
    }

    #[test]
    fn a_command_survives_the_log(seed in any::<u64>()) {
        for (_, command) in log(seed, 20) {
            let bytes = postcard::to_allocvec(&command).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Command>(&bytes).unwrap(), command);
        }
    }
}
