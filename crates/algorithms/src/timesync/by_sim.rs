//! Runs of a group in the simulator, for tests: every site is asked for the time at regular intervals.

use alloc::vec::Vec;
use core::time::Duration;

use conclave_kernel::{NodeId, Time};
use conclave_sim::{Desk, Director, Limits, Setup, World};

use super::spec::{Breach, Judge};
use super::{Command, Event, Group, Reading, TimeSync};

/// The readings of all sites at one moment.
pub(crate) struct Moment {
    pub(crate) truth: Time,
    pub(crate) readings: Vec<Reading>,
}

/// Asks all sites `count` times. Returns the moments at which all of them replied.
pub(crate) fn run<P: TimeSync>(group: &Group, setup: &Setup, every: Duration, count: u32) -> Vec<Moment> {
    let moments = play::<P>(group, setup, every, count).into_parts().0.moments;
    // A site that is down does not reply.
    let full = |moment: &Moment| moment.readings.len() == group.nodes as usize;
    moments.into_iter().filter(full).collect()
}

/// Returns the states of all sites after three times `after`.
pub(crate) fn last<P: TimeSync>(group: &Group, setup: &Setup, after: Duration) -> Vec<P> {
    play::<P>(group, setup, after, 2).nodes().to_vec()
}

/// Returns the violations that the judge finds in a run.
pub(crate) fn judged<P: TimeSync>(group: &Group, setup: &Setup, every: Duration, count: u32) -> Vec<Breach> {
    let together = Time::ZERO + every * (count / 4);
    let mut judge = Judge::new(group.nodes, group.servers, group.drift_ppm, together);
    let mut breaches = Vec::new();
    for moment in play::<P>(group, setup, every, count).into_parts().0.moments {
        for (site, reading) in moment.readings.iter().enumerate() {
            judge.told(NodeId(site as u32), moment.truth, reading, |breach| breaches.push(breach));
        }
    }
    breaches
}

fn play<P: TimeSync>(group: &Group, setup: &Setup, every: Duration, count: u32) -> World<P, Sampler> {
    let sites = group.clone();
    let sampler = Sampler { nodes: group.nodes, every, left: count, moments: Vec::new() };
    let mut world = World::new(setup.clone(), sampler, move |me| P::new(me, &sites));
    world.run(Limits::default());
    world
}

struct Sampler {
    nodes: u32,
    every: Duration,
    left: u32,
    moments: Vec<Moment>,
}

impl<P: TimeSync> Director<P> for Sampler {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, P, ()>) {
        desk.wake_in(self.every, 0);
    }

    fn on_wake(&mut self, _key: u64, desk: &mut Desk<'_, P, ()>) {
        if self.left == 0 {
            return desk.stop();
        }
        self.left -= 1;
        self.moments.push(Moment { truth: desk.now(), readings: Vec::new() });
        (0..self.nodes).for_each(|site| desk.command(NodeId(site), Command::Ask));
        desk.wake_in(self.every, 0);
    }

    fn on_event(&mut self, _node: NodeId, event: &Event, _desk: &mut Desk<'_, P, ()>) {
        if let (Event::Told(reading), Some(moment)) = (event, self.moments.last_mut()) {
            moment.readings.push(*reading);
        }
    }

    fn on_send(&mut self, _from: NodeId, _to: NodeId, _message: &P::Message) {}

    fn on_deliver(&mut self, _from: NodeId, _to: NodeId, _note: &()) {}
}
