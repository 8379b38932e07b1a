//! One site in the checker: the state of the algorithm, whether the site is up, and its pending timers.

use std::time::Duration;

use conclave_kernel::{Cx, Effect, Env, Input, NodeId, Protocol, Sink, time};

use crate::options::Timing;

/// The part of a state that belongs to one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local<P: Protocol> {
    pub(crate) me: NodeId,
    pub(crate) site: P,
    pub(crate) up: bool,
    pub(crate) incarnation: u32,
    /// The pending timers in order of tags, so that equal sets are equal.
    timers: Vec<Armed<P::Timer>>,
}

/// A pending timer.
///
/// The order in which timers were armed is not stored. It matters only if one timer must fire before another;
/// `behind` stores that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Armed<T> {
    timer: T,
    /// The bounds in ticks in the synchronous mode, else in nanoseconds.
    min: u64,
    max: u64,
    /// The ticks since the timer was armed; 0 in the asynchronous mode.
    age: u64,
    /// The timers that must fire before this one.
    behind: Vec<T>,
}

/// The result of a step for one sequence of random choices.
pub(crate) struct Stepped<P: Protocol> {
    pub(crate) local: Local<P>,
    pub(crate) effects: Vec<Effect<P>>,
    /// The timers that were pending before and were armed again. They may be postponed for ever.
    pub(crate) rearmed: Vec<P::Timer>,
}

/// The most combinations of random choices of one handler. A handler with more is rejected.
pub(crate) const MOST_OUTCOMES: usize = 4096;

impl<P: Protocol> Local<P> {
    pub(crate) fn new(me: NodeId, site: P) -> Self {
        Self { me, site, up: true, incarnation: 0, timers: Vec::new() }
    }

    /// Returns the timers that can fire now.
    pub(crate) fn firing(&self, timing: Timing) -> impl Iterator<Item = P::Timer> + '_ {
        let may = move |armed: &&Armed<P::Timer>| match timing {
            Timing::Async => armed.behind.is_empty(),
            Timing::Sync { .. } => armed.age >= armed.min,
        };
        self.timers.iter().filter(may).map(|armed| armed.timer)
    }

    /// Runs a step once for each combination of random choices; `None` if there are too many.
    pub(crate) fn step(&self, nodes: u32, input: &Input<P>, timing: Timing) -> Option<Vec<Stepped<P>>> {
        let env = Env { incarnation: self.incarnation, ..Env::new(self.me, nodes) };
        let mut all = Vec::new();
        let mut dice = Dice { effects: Vec::new(), thrown: Vec::new(), next: 0 };
        loop {
            let mut local = self.clone();
            if let Input::Timer(timer) = input {
                local.disarm(*timer);
            }
            local.site.step(input.clone(), &mut Cx::new(env, &mut dice));
            if cfg!(debug_assertions) {
                assert_guards_settled(&local.site, env);
            }
            let effects = std::mem::take(&mut dice.effects);
            let rearmed = local.set_timers(&effects, timing);
            all.push(Stepped { local, effects, rearmed });
            if !dice.turn() {
                return Some(all);
            }
            if all.len() == MOST_OUTCOMES {
                return None;
            }
        }
    }

    /// Returns the site after a crash. Its timers are lost.
    pub(crate) fn crash(&self) -> Self {
        Self { up: false, timers: Vec::new(), ..self.clone() }
    }

    /// Returns the site after a restart, before it handles the recovery.
    pub(crate) fn revive(&self, fresh: Option<P>) -> Self {
        let site = fresh.unwrap_or_else(|| self.site.clone());
        Self { me: self.me, site, up: true, incarnation: self.incarnation + 1, timers: Vec::new() }
    }

    /// Returns the site one tick later; `None` if a timer must fire first.
    pub(crate) fn tick(&self) -> Option<Self> {
        let mut later = self.clone();
        for armed in &mut later.timers {
            armed.age += 1;
            if armed.age > armed.max {
                return None;
            }
        }
        Some(later)
    }

    fn set_timers(&mut self, effects: &[Effect<P>], timing: Timing) -> Vec<P::Timer> {
        let mut rearmed = Vec::new();
        for effect in effects {
            match effect {
                Effect::Arm { timer, min, max } => {
                    if self.disarm(*timer) {
                        rearmed.push(*timer);
                    }
                    self.arm(*timer, *min, *max, timing);
                }
                Effect::Disarm { timer } => _ = self.disarm(*timer),
                _ => {}
            }
        }
        rearmed
    }

    fn arm(&mut self, timer: P::Timer, min: Duration, max: Duration, timing: Timing) {
        let (min, max) = match timing {
            Timing::Async => (time::nanos(min), time::nanos(max)),
            Timing::Sync { tick, .. } => in_ticks(min, max, tick),
        };
        let behind = match timing {
            Timing::Async => {
                self.timers.iter().filter(|earlier| earlier.max <= min).map(|a| a.timer).collect()
            }
            Timing::Sync { .. } => Vec::new(),
        };
        let place = self.timers.partition_point(|armed| armed.timer < timer);
        self.timers.insert(place, Armed { timer, min, max, age: 0, behind });
    }

    /// Removes a timer. Returns whether it was armed.
    fn disarm(&mut self, timer: P::Timer) -> bool {
        let before = self.timers.len();
        self.timers.retain(|armed| armed.timer != timer);
        for armed in &mut self.timers {
            armed.behind.retain(|earlier| *earlier != timer);
        }
        self.timers.len() < before
    }
}

/// Converts a range of times to whole ticks: at least the earliest, and at most the latest unless no tick is
/// in the range.
fn in_ticks(min: Duration, max: Duration, tick: Duration) -> (u64, u64) {
    let tick = time::nanos(tick).max(1);
    let earliest = time::nanos(min).div_ceil(tick);
    (earliest, (time::nanos(max) / tick).max(earliest))
}

/// A sink that takes every random choice. Each run repeats the earlier choices and advances the last one.
struct Dice<P: Protocol> {
    effects: Vec<Effect<P>>,
    /// The choices made, each with the number of its alternatives.
    thrown: Vec<(u32, u32)>,
    next: usize,
}

impl<P: Protocol> Dice<P> {
    /// Advances the last choice that has another alternative. Returns whether there is one.
    fn turn(&mut self) -> bool {
        self.next = 0;
        while let Some((shown, faces)) = self.thrown.pop() {
            if shown + 1 < faces {
                self.thrown.push((shown + 1, faces));
                return true;
            }
        }
        false
    }
}

impl<P: Protocol> Sink<P> for Dice<P> {
    fn push(&mut self, effect: Effect<P>) {
        self.effects.push(effect);
    }

    fn choose(&mut self, n: u32) -> u32 {
        if self.next == self.thrown.len() {
            self.thrown.push((0, n));
        }
        self.next += 1;
        self.thrown[self.next - 1].0
    }
}

/// Checks that the guards are done: run again on a copy, they must do nothing.
fn assert_guards_settled<P: Protocol>(site: &P, env: Env) {
    let mut again = site.clone();
    let mut dice = Dice { effects: Vec::new(), thrown: Vec::new(), next: 0 };
    again.guards(&mut Cx::new(env, &mut dice));
    assert!(dice.effects.is_empty(), "guards left something enabled at {}: {:?}", env.me, dice.effects);
    assert!(again == *site, "guards changed the state of {} when run again", env.me);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    /// Arms the timers of its commands, and makes two random choices per message.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    struct Clockwork;

    impl Protocol for Clockwork {
        type Message = ();
        type Timer = u8;
        type Command = (u8, u64, u64);
        type Event = (u32, u32);

        fn on_message(&mut self, _: NodeId, (): (), cx: &mut Cx<'_, Self>) {
            let first = cx.choose(3);
            let second = if first == 1 { cx.choose(2) } else { 0 };
            cx.emit((first, second));
        }

        fn on_command(&mut self, (timer, min, max): (u8, u64, u64), cx: &mut Cx<'_, Self>) {
            cx.arm(timer, Duration::from_millis(min)..=Duration::from_millis(max));
        }
    }

    const SYNC: Timing = Timing::Sync { delay: 1, tick: Duration::from_millis(1) };

    fn step(local: &Local<Clockwork>, input: &Input<Clockwork>, timing: Timing) -> Vec<Stepped<Clockwork>> {
        local.step(1, input, timing).unwrap()
    }

    fn arm(local: &Local<Clockwork>, timer: u8, min: u64, max: u64, timing: Timing) -> Local<Clockwork> {
        step(local, &Input::Command((timer, min, max)), timing).remove(0).local
    }

    #[test]
    fn dice_fall_in_every_way_once() {
        let input = Input::Message { from: NodeId(0), message: () };
        let all = step(&Local::new(NodeId(0), Clockwork), &input, Timing::Async);
        let events: Vec<_> = all.iter().map(|stepped| stepped.effects.clone()).collect();
        let expected = [(0, 0), (1, 0), (1, 1), (2, 0)].map(|event| vec![Effect::Emit { event }]);
        assert_eq!(events, expected);
    }

    #[test]
    fn of_two_timers_the_one_armed_earlier_goes_first_if_it_must() {
        let first = arm(&Local::new(NodeId(0), Clockwork), 1, 5, 10, Timing::Async);
        let both = arm(&first, 0, 10, 20, Timing::Async);
        assert_eq!(both.firing(Timing::Async).collect::<Vec<_>>(), [1]);
        let fired = step(&both, &Input::Timer(1), Timing::Async).remove(0).local;
        assert_eq!(fired.firing(Timing::Async).collect::<Vec<_>>(), [0]);
        let overlapping = arm(&first, 0, 9, 20, Timing::Async);
        assert_eq!(overlapping.firing(Timing::Async).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn the_order_of_arming_is_forgotten_where_it_does_not_matter() {
        let fresh = Local::new(NodeId(0), Clockwork);
        let one_way = arm(&arm(&fresh, 1, 5, 10, Timing::Async), 0, 5, 10, Timing::Async);
        let other_way = arm(&arm(&fresh, 0, 5, 10, Timing::Async), 1, 5, 10, Timing::Async);
        assert_eq!(one_way, other_way);
    }

    #[test]
    fn in_ticks_a_timer_fires_within_its_range() {
        let mut local = arm(&Local::new(NodeId(0), Clockwork), 0, 2, 3, SYNC);
        assert_eq!(local.firing(SYNC).count(), 0);
        for _ in 0..2 {
            local = local.tick().unwrap();
        }
        assert_eq!(local.firing(SYNC).count(), 1);
        local = local.tick().unwrap();
        assert!(local.tick().is_none(), "the timer must fire before the next tick");
        assert!(local.crash().tick().is_some());
    }

    #[test]
    fn a_timer_that_is_armed_again_says_so() {
        let armed = arm(&Local::new(NodeId(0), Clockwork), 0, 2, 3, Timing::Async);
        let again = step(&armed, &Input::Command((0, 2, 3)), Timing::Async).remove(0);
        assert_eq!((again.rearmed, again.local), (vec![0], armed));
    }
}
