//! Random walks: processes request and grant while links deliver in any order. Every detector must keep its
//! promises.
//!
//! The simulator's histories have one delay each and thirty requests. A walk is short, may wait at any point
//! for any time, and takes microseconds. So it also meets rare orders of few messages.

use super::spec::dead_edge;
use super::*;

/// The number of requests of each process.
const ASKS: u32 = 3;

impl<D: Detection> ByHand<D> {
    /// Walks until nothing more can happen. Returns whether a process is still waiting.
    fn walk(seed: u64) -> bool {
        let mut dice = Prng::new(seed);
        let nodes = 2 + dice.below(7) as u32;
        let mut group = Self::new(nodes, dice.below(2) == 0);
        let mut asks: Vec<u32> = (0..nodes).map(|_| ASKS).collect();
        let (haste, width) = (dice.between(1, 8), dice.between(1, 3));
        loop {
            if dice.below(haste + 1) > 0 && group.deliver_any(&mut dice) {
                continue;
            }
            let is_quiet = group.links.values().all(VecDeque::is_empty);
            if is_quiet {
                group.breaches.extend(group.judge.rests());
            }
            let can_act = |id: &u32| {
                let process = group.sites[*id as usize].process();
                process.wait().is_none() && (asks[*id as usize] > 0 || !process.pending().is_empty())
            };
            let able: Vec<u32> = (0..nodes).filter(can_act).collect();
            match able.get(dice.below(able.len().max(1) as u64) as usize) {
                Some(id) => group.act(*id, &mut asks[*id as usize], width, &mut dice),
                None if is_quiet => break,
                None => {}
            }
        }
        let processes: Vec<_> = group.sites.iter().map(Site::process).collect();
        group.breaches.extend(dead_edge(&processes));
        let broken = group.breaches.iter().find(|breach| D::CARD.promises(breach.property.name));
        assert_eq!(broken, None, "{}, seed {seed}", D::CARD.name);
        !group.judge.waiting().is_empty()
    }

    /// Lets the process grant a request, or request about `width` others.
    fn act(&mut self, id: u32, asks: &mut u32, width: u64, dice: &mut Prng) {
        let asker = self.sites[id as usize].process().pending().iter().next();
        if let Some((to, _)) = asker.filter(|_| *asks == 0 || dice.below(2) == 0) {
            return self.grant(id, to.0);
        }
        let nodes = self.sites.len() as u32;
        let mut of: Vec<u32> = (0..nodes).filter(|_| dice.below(u64::from(nodes)) < width).collect();
        let need = match D::MODEL {
            Model::And => of.len() as u32,
            Model::Single | Model::Or => 1,
            Model::POutOfQ => dice.between(1, of.len().max(1) as u64) as u32,
        };
        if D::MODEL == Model::Single {
            of.truncate(1);
        }
        if !of.is_empty() {
            *asks -= 1;
            self.ask(id, need, &of);
        }
    }
}

fn walks(seeds: u64) -> [u64; 9] {
    fn left<D: Detection>(seeds: u64) -> u64 {
        (0..seeds).filter(|seed| ByHand::<D>::walk(*seed)).count() as u64
    }
    [
        left::<Central>(seeds),
        left::<TwoReport>(seeds),
        left::<OneReport>(seeds),
        left::<MitchellMerritt>(seeds),
        left::<EdgeChasing>(seeds),
        left::<Diffusion>(seeds),
        left::<POutOfQ>(seeds),
        left::<Hierarchical>(seeds),
        left::<Stable>(seeds),
    ]
}

#[test]
fn no_walk_breaks_what_a_detector_promises() {
    let left = walks(3_000);
    assert!(
        left.iter().all(|left| *left > 1_000),
        "too few deadlocks remain to judge the detectors: {left:?}"
    );
}

/// Run with
/// `cargo test --release -p conclave-algorithms --lib -- --ignored --nocapture a_hundred_thousand_walks`.
#[test]
#[ignore = "a minute: the command is in its doc"]
fn a_hundred_thousand_walks_of_every_detector() {
    std::println!("walks that end in a deadlock, by detector: {:?}", walks(100_000));
}
