//! Standings for tests, and a naive twin of the judge.

use conclave_algorithms::deadlock::{Claim, Demand};

use super::{Process, Standing, Target, Wish};

pub(crate) fn process_wish(standing: &mut Standing, need: u32, names: &[&str]) -> Wish {
    let claim = |name: &&str| {
        let resource = Target::Process(standing.process(name));
        Wish::Claim(Claim { resource, demand: Demand::Exclusive })
    };
    Wish::Gate { need, members: names.iter().map(claim).collect() }
}

/// The golden graph of the theory; AND, or OR with the way out closed.
pub(crate) fn catalogue(and: bool) -> Standing {
    let mut standing = Standing::new();
    let edges: [(&str, &[&str]); 6] = [
        ("P11", &["P21", "P32"]),
        ("P32", &["P33"]),
        ("P21", &["P24"]),
        ("P24", &["P54"]),
        ("P54", &["P11"]),
        ("P44", &["P24"]),
    ];
    for (waiter, targets) in edges {
        let process = standing.process(waiter);
        let need = if and { targets.len() as u32 } else { 1 };
        let wish = process_wish(&mut standing, need, targets);
        standing.wait(process, wish).unwrap();
    }
    standing
}

/// Each holds a lock of its own and waits for the next one's; the last for the first one's.
pub(crate) fn locks(names: &[String]) -> Standing {
    let mut standing = Standing::new();
    for name in names {
        let (process, resource) = (standing.process(name), standing.resource(&format!("lock of {name}")));
        standing.hold(process, Claim { resource, demand: Demand::Exclusive }, false).unwrap();
    }
    for (process, next) in (0..names.len()).zip((1..names.len()).chain([0])) {
        let claim = Claim { resource: Target::Resource(next as u32), demand: Demand::Exclusive };
        standing.wait(process as Process, Wish::Claim(claim)).unwrap();
    }
    standing
}

/// Who is stuck once these have been aborted, by definition: whoever can proceed finishes, until nobody can.
pub(crate) fn stuck_naively(standing: &Standing, aborted: &[Process]) -> Vec<Process> {
    let is_aborted = |process: Process| aborted.contains(&process);
    let mut stuck: Vec<Process> = (0..standing.processes())
        .filter(|process| standing.wish(*process).is_some() && !is_aborted(*process))
        .collect();
    loop {
        let proceeds = |process: &Process| {
            let request = standing.wish(*process).expect("it waits").request().expect("it was accepted");
            request.is_satisfied(|target, demand| match *target {
                Target::Process(target) => !stuck.contains(&target),
                Target::Resource(resource) => {
                    let held = standing
                        .holders(resource)
                        .filter(|(holder, _, perhaps)| !perhaps && stuck.contains(holder));
                    match (demand, standing.limit(resource)) {
                        (Demand::Permits(count), Some(limit)) => {
                            let permits = held.map(|(_, held, _)| match held {
                                Demand::Permits(count) => u64::from(count),
                                _ => unreachable!("a semaphore is held in permits"),
                            });
                            permits.sum::<u64>() + u64::from(count) <= u64::from(limit)
                        }
                        _ => held
                            .filter(|(holder, _, _)| holder != process)
                            .all(|(_, held, _)| (held, demand) == (Demand::Shared, Demand::Shared)),
                    }
                }
            })
        };
        let Some(at) = stuck.iter().position(proceeds) else { return stuck };
        stuck.remove(at);
    }
}
