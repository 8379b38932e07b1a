mod histories;
mod naive;

use std::vec;
use std::vec::Vec;

use super::*;

pub(super) type Graph = WaitGraph<u32, u32>;

pub(super) fn turn(entry: u64) -> Turn {
    Turn { class: 0, entry }
}

fn claim(resource: u32, demand: Demand) -> Claim<u32> {
    Claim { resource, demand }
}

/// Returns a graph in which process `p` holds resource `p`. A request for `q` is then the edge "p waits for
/// q" of the theory.
fn processes(names: impl IntoIterator<Item = u32>) -> Graph {
    let mut graph = Graph::new();
    for name in names {
        graph.hold(name, claim(name, Demand::Exclusive)).unwrap();
    }
    graph
}

/// Adds a wait. Returns the reason if it closes a deadlock.
fn wait(graph: &mut Graph, process: u32, request: Request<u32>) -> Option<Why<u32, u32>> {
    graph.enqueue(process, turn(u64::from(process)), request).unwrap();
    graph.resolution(process).find()
}

/// Like [`wait`] for a wait that was added, and also returns the number of steps of work.
fn find_counting(graph: &Graph, process: u32) -> (Option<Why<u32, u32>>, u64) {
    let mut resolution = graph.resolution(process);
    let why = resolution.find();
    (why, resolution.reduction.steps)
}

fn all(names: &[u32]) -> Request<u32> {
    Request::all(names.iter().map(|name| Request::exclusive(*name))).unwrap()
}

fn any(names: &[u32]) -> Request<u32> {
    Request::any(names.iter().map(|name| Request::exclusive(*name))).unwrap()
}

fn cycle(why: &Why<u32, u32>) -> Vec<u32> {
    assert!(matches!(why, Why::Cycle(_)), "{why:?}");
    why.candidates()
}

/// Returns the owners that are stuck even if `owner` finishes.
fn stuck_anyway(graph: &Graph, owner: u32, others: std::ops::Range<u32>) -> Vec<u32> {
    let resolution = graph.resolution(owner);
    others.filter(|other| resolution.is_stuck_anyway(*other)).collect()
}

const GOLDEN: [u32; 8] = [11, 21, 24, 32, 33, 44, 54, 0];

/// Returns the golden graph without the edge P54->P11, which closes the cycle.
fn golden(model: fn(&[u32]) -> Request<u32>) -> Graph {
    let mut graph = processes(GOLDEN);
    for (process, targets) in [(11, &[21, 32][..]), (32, &[33]), (21, &[24]), (24, &[54]), (44, &[24])] {
        assert_eq!(wait(&mut graph, process, model(targets)), None);
    }
    graph
}

#[test]
fn golden_and_a_cycle_with_one_stuck_outside_it() {
    let mut graph = golden(all);
    let why = wait(&mut graph, 54, all(&[11])).unwrap();
    assert_eq!(cycle(&why), [54, 11, 21, 24]);
    assert_eq!(graph.stuck(), [11, 21, 24, 44, 54]);
    assert_eq!(graph.deadlocks(), [vec![11, 21, 24, 54]]);
}

#[test]
fn golden_or_a_cycle_is_no_deadlock_while_there_is_a_way_out() {
    let mut graph = golden(any);
    assert_eq!(wait(&mut graph, 54, any(&[11])), None);
    assert_eq!(graph.stuck(), [0; 0]);
    // Now the way out is closed: a knot of six processes, with P44 stuck outside it.
    let why = wait(&mut graph, 33, any(&[24])).unwrap();
    assert_eq!(why, Why::Knot(vec![11, 21, 24, 32, 33, 54]));
    assert_eq!(graph.stuck(), [11, 21, 24, 32, 33, 44, 54]);
}

#[test]
fn converging_paths_are_no_cycle() {
    // matrixone#26302: 1 -> 2 -> 4 and 1 -> 3 -> 4, and the same again from 4 on.
    let mut graph = processes(0..100);
    for diamond in (0..96).step_by(3) {
        assert_eq!(wait(&mut graph, diamond, all(&[diamond + 1, diamond + 2])), None);
        assert_eq!(wait(&mut graph, diamond + 1, all(&[diamond + 3])), None);
        assert_eq!(wait(&mut graph, diamond + 2, all(&[diamond + 3])), None);
    }
    assert_eq!(graph.stuck(), [0; 0]);
    // There are 2^32 paths, but the work depends only on the number of edges.
    graph.hold(200, claim(200, Demand::Exclusive)).unwrap();
    graph.enqueue(200, turn(200), all(&[0])).unwrap();
    graph.enqueue(300, turn(300), all(&[200])).unwrap();
    let (why, steps) = find_counting(&graph, 200);
    assert_eq!(why, None);
    assert!(steps < 1_000, "{steps}");
}

#[test]
fn owners_of_one_node_are_not_merged() {
    // citus#1803: transactions 1 and 2 belong to node A, 3 and 4 to node B. 1 -> 3 and 4 -> 2 are not a
    // cycle.
    let mut graph: WaitGraph<u32, (char, u32)> = WaitGraph::new();
    let owners = [('A', 1), ('A', 2), ('B', 3), ('B', 4)];
    for owner in owners {
        graph.hold(owner, claim(owner.1, Demand::Exclusive)).unwrap();
    }
    for (waiter, entry, resource) in [(owners[0], 1, 3), (owners[3], 2, 2)] {
        graph.enqueue(waiter, turn(entry), Request::exclusive(resource)).unwrap();
        assert_eq!(graph.resolution(waiter).find(), None);
    }
    assert_eq!(graph.stuck(), []);
}

#[test]
fn waiting_for_permits_one_holds_oneself_is_a_deadlock() {
    // citus#1572: a wait for oneself is a cycle.
    let mut graph = Graph::new();
    graph.set_limit(9, Some(3)).unwrap();
    graph.hold(1, claim(9, Demand::Permits(2))).unwrap();
    let why = wait(&mut graph, 1, Request::permits(9, 2).unwrap()).unwrap();
    assert_eq!(why, Why::Cycle(vec![Link { waiter: 1, resource: 9, holder: 1 }]));
    assert_eq!(graph.stuck(), [1]);
}

#[test]
fn a_lock_is_re_entrant_and_waits_for_nobody() {
    let mut graph = processes([1]);
    assert_eq!(wait(&mut graph, 1, all(&[1])), None);
    assert_eq!(graph.stuck(), [0; 0]);
}

#[test]
fn an_earlier_waiter_is_perhaps_next_but_holds_nothing() {
    // matrixone#26922: 2 waits behind 1 for lock 5, and 1 waits for a resource of 2. But 1 does not hold 5.
    // So the claim of 1 does not bind 2.
    let mut graph = processes([2]);
    graph.hold(9, claim(5, Demand::Exclusive)).unwrap();
    assert_eq!(wait(&mut graph, 1, all(&[5, 2])), None);
    assert_eq!(wait(&mut graph, 2, all(&[5])), None);
    assert_eq!(graph.held_up_without([1], &[2]), [1]);
}

#[test]
fn a_claim_binds_those_behind_it_unless_they_are_in_its_way() {
    let mut graph = processes([7]);
    wait(&mut graph, 1, all(&[5, 7]));
    wait(&mut graph, 2, all(&[5]));
    assert_eq!(graph.held_up_without([1], &[2]), [0; 0], "1 claims 5 and waits only for 7, which runs");
}

#[test]
fn a_cycle_through_two_soft_edges_is_broken_by_overtaking() {
    // 1 -> (hard) 3 -> (behind) 2 -> (hard) 4 -> (behind) 1. A hard edge leads to a holder.
    let mut graph = processes([3, 4]);
    wait(&mut graph, 1, all(&[3, 50]));
    wait(&mut graph, 2, all(&[4, 60]));
    wait(&mut graph, 3, all(&[60]));
    wait(&mut graph, 4, all(&[50]));
    assert_eq!(graph.stuck(), [0; 0]);
    assert_eq!(graph.held_up_without([1, 2], &[3]), [1, 2], "3 overtakes 2");
    assert_eq!(graph.held_up_without([1, 2], &[4]), [1, 2], "4 overtakes 1");
}

#[test]
fn sharers_do_not_block_sharers() {
    let mut graph = processes([1, 2]);
    for owner in [1, 2] {
        graph.hold(owner, claim(5, Demand::Shared)).unwrap();
    }
    assert_eq!(wait(&mut graph, 1, all(&[2])), None);
    assert_eq!(wait(&mut graph, 2, Request::shared(5)), None);
    assert_eq!(graph.hold(3, claim(5, Demand::Exclusive)), Err(GraphError::Conflict));
    assert_eq!(graph.hold(1, claim(6, Demand::Shared)), Err(GraphError::AlreadyWaiting));
}

#[test]
fn one_upgrader_waits_for_the_other_sharers_and_two_deadlock() {
    let mut graph = Graph::new();
    for owner in [1, 2] {
        graph.hold(owner, claim(5, Demand::Shared)).unwrap();
    }
    assert_eq!(wait(&mut graph, 1, all(&[5])), None);
    let why = wait(&mut graph, 2, all(&[5])).unwrap();
    assert_eq!(cycle(&why), [2, 1]);
    let mut resolution = graph.resolution(2);
    resolution.cancel(2);
    assert_eq!(resolution.find(), None);
}

#[test]
fn an_upgrader_goes_before_all_waiters_of_that_name() {
    let mut graph = Graph::new();
    for owner in [1, 2] {
        graph.hold(owner, claim(5, Demand::Shared)).unwrap();
    }
    wait(&mut graph, 0, all(&[5]));
    wait(&mut graph, 2, all(&[5]));
    let line = &graph.resources[graph.resources.slot(&5).unwrap()].line;
    let owners: Vec<u32> = line.keys().map(|place| *graph.owners.name(place.owner)).collect();
    assert_eq!(owners, [2, 0]);
    wait(&mut graph, 3, Request::shared(5));
    assert_eq!(
        graph.held_up_without([3], &[1]),
        [3],
        "3 is behind the upgrader, although sharers hold the lock"
    );
}

#[test]
fn a_semaphore_proceeds_when_free_permits_and_those_of_finishers_suffice() {
    let mut graph = processes([1, 2]);
    graph.set_limit(9, Some(5)).unwrap();
    for (owner, count) in [(1, 2), (2, 2), (3, 1)] {
        graph.hold(owner, claim(9, Demand::Permits(count))).unwrap();
    }
    // 1 waits for 2, and 2 requests two permits. 3 releases one permit, but 1 never releases its permits.
    assert_eq!(wait(&mut graph, 1, all(&[2])), None);
    let mut fewer = graph.clone();
    let why = wait(&mut graph, 2, Request::permits(9, 2).unwrap()).unwrap();
    assert_eq!(graph.stuck(), [1, 2]);
    assert!(matches!(why, Why::Unsatisfiable { waiter: 2, .. }), "{why:?}");
    assert_eq!(wait(&mut fewer, 2, Request::permits(9, 1).unwrap()), None);
}

#[test]
fn the_smallest_part_that_fails_is_named() {
    // 1 requests (3 | 4) & 5, and 3 and 4 wait for 1.
    let mut graph = processes([1, 3, 4]);
    wait(&mut graph, 3, all(&[1]));
    wait(&mut graph, 4, all(&[1]));
    let request = Request::all([any(&[3, 4]), all(&[5])]).unwrap();
    let why = wait(&mut graph, 1, request).unwrap();
    let Why::Unsatisfiable { waiter: 1, part, holders, core } = why else { panic!("{why:?}") };
    assert_eq!((part, holders, core), (any(&[3, 4]), vec![3, 4], vec![1, 3, 4]));
}

#[test]
fn victims_are_chosen_until_nothing_is_left_and_their_holds_stay() {
    let mut graph = processes(0..5);
    for process in 1..5 {
        wait(&mut graph, process, all(&[0]));
    }
    graph.enqueue(0, turn(0), all(&[1, 2, 3, 4])).unwrap();
    let mut resolution = graph.resolution(0);
    let mut victims = Vec::new();
    while let Some(why) = resolution.find() {
        victims.extend(why.candidates().into_iter().max());
        resolution.cancel(victims[victims.len() - 1]);
    }
    assert_eq!(victims, [1, 2, 3, 4]);
    // The holds of a victim stay: it must finish before another owner gets them.
    let slot = graph.owners.slot(&4).unwrap();
    assert_eq!(graph.owners[slot].holds.len(), 1);
}

#[test]
fn a_resolution_says_what_one_search_after_another_would() {
    let with = |waiting: &[u32]| {
        let mut graph = processes(0..5);
        for process in waiting {
            wait(&mut graph, *process, all(&[0]));
        }
        graph.enqueue(0, turn(0), all(&[1, 2, 3, 4])).unwrap();
        graph
    };
    let graph = with(&[1, 2, 3, 4]);
    let mut resolution = graph.resolution(0);
    for victim in 1..5 {
        let left: Vec<u32> = (victim..5).collect();
        let other = with(&left);
        assert_eq!(resolution.find(), other.resolution(0).find());
        assert!(resolution.find().is_some());
        resolution.cancel(victim);
    }
    assert_eq!((resolution.find(), with(&[]).resolution(0).find()), (None, None));
}

#[test]
fn deadlocks_are_those_who_wait_for_themselves() {
    // 1 and 2 are an unresolved deadlock, and 3 waits for them. 4 runs, so 5 proceeds. 6 waits for permits
    // that it holds itself. 7 and 8 share a lock: 7 upgrades it, and 8 waits for the deadlock.
    let mut graph = processes([1, 2, 3, 4]);
    wait(&mut graph, 1, all(&[2]));
    wait(&mut graph, 2, all(&[1]));
    wait(&mut graph, 3, all(&[1, 2]));
    wait(&mut graph, 5, all(&[4]));
    graph.set_limit(9, Some(3)).unwrap();
    graph.hold(6, claim(9, Demand::Permits(2))).unwrap();
    wait(&mut graph, 6, Request::permits(9, 2).unwrap());
    for sharer in [7, 8] {
        graph.hold(sharer, claim(10, Demand::Shared)).unwrap();
    }
    wait(&mut graph, 7, all(&[10]));
    wait(&mut graph, 8, all(&[1]));
    assert_eq!(graph.deadlocks(), [vec![1, 2], vec![6]]);
    assert_eq!(graph.stuck(), [1, 2, 3, 6, 7, 8]);
}

#[test]
fn joining_a_deadlock_left_standing_closes_none() {
    let mut graph = processes([1, 2, 3]);
    wait(&mut graph, 1, all(&[2]));
    assert!(wait(&mut graph, 2, all(&[1])).is_some());
    wait(&mut graph, 4, all(&[3]));
    assert_eq!(wait(&mut graph, 3, all(&[1])), None);
    assert_eq!(graph.stuck(), [1, 2, 3, 4]);
    assert_eq!(graph.deadlocks(), [vec![1, 2]]);
}

#[test]
fn who_holds_what_one_can_do_without_is_in_nobodys_way() {
    // 1 requests 2 & (3 | 5). 5 is available, so it does not matter that 3 waits for 1.
    let mut graph = processes([1, 2, 3]);
    wait(&mut graph, 2, all(&[1]));
    wait(&mut graph, 3, all(&[1]));
    let request = Request::all([all(&[2]), any(&[3, 5])]).unwrap();
    let why = wait(&mut graph, 1, request).unwrap();
    assert_eq!(why.candidates(), [1, 2]);
    assert_eq!(graph.stuck(), [1, 2, 3], "3 waits for 1 in any case");
    assert_eq!(stuck_anyway(&graph, 1, 1..4), [0; 0]);
}

#[test]
fn beside_a_deadlock_left_standing_only_what_is_closed_is_told() {
    let standing = || {
        let mut graph = processes([1, 2, 3, 4]);
        wait(&mut graph, 1, all(&[2]));
        assert!(wait(&mut graph, 2, all(&[1])).is_some());
        wait(&mut graph, 4, all(&[3]));
        graph
    };
    // 4 waits for 3, but 3 does not need the resource of 4. It waits only for the deadlock.
    let request = Request::all([all(&[1]), any(&[4, 5])]).unwrap();
    assert_eq!(wait(&mut standing(), 3, request), None);
    // Here 3 needs the resource of 4. It also reaches the other deadlock, but it does not close that one.
    for request in [any(&[1, 4]), all(&[1, 4])] {
        let mut graph = standing();
        let why = wait(&mut graph, 3, request).unwrap();
        assert_eq!(why.candidates(), [3, 4]);
        assert_eq!(stuck_anyway(&graph, 3, 1..5), [1, 2]);
    }
}

#[test]
fn permits_named_twice_are_lacking_together() {
    // 1 requests 9*2 & (9*2 | 3), and 2 holds one of four permits. Each part alone is available, but not
    // both.
    let mut graph = processes([1, 3]);
    graph.set_limit(9, Some(4)).unwrap();
    graph.hold(2, claim(9, Demand::Permits(1))).unwrap();
    wait(&mut graph, 2, all(&[1]));
    wait(&mut graph, 3, all(&[1]));
    let two = || Request::permits(9, 2).unwrap();
    let request = Request::all([two(), Request::any([two(), all(&[3])]).unwrap()]).unwrap();
    assert_eq!(wait(&mut graph, 1, request).unwrap().candidates(), [1, 2, 3]);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut graph = Graph::new();
    graph.set_limit(9, Some(2)).unwrap();
    let ask = |count| Request::permits(9, count).unwrap();
    assert_eq!(graph.enqueue(1, turn(1), ask(3)), Err(GraphError::Impossible));
    assert_eq!(graph.enqueue(1, turn(1), Request::shared(9)), Err(GraphError::NotALock));
    assert_eq!(graph.enqueue(1, turn(1), Request::permits(8, 1).unwrap()), Err(GraphError::NotASemaphore));
    graph.hold(2, claim(9, Demand::Permits(2))).unwrap();
    graph.enqueue(1, turn(1), ask(2)).unwrap();
    assert_eq!(graph.enqueue(1, turn(2), ask(1)), Err(GraphError::AlreadyWaiting));
    assert_eq!(graph.set_limit(9, None), Err(GraphError::NotALock));
}

#[test]
fn who_holds_nothing_costs_no_search() {
    let mut graph = processes(0..10);
    for process in 0..9 {
        wait(&mut graph, process, all(&[process + 1]));
    }
    graph.enqueue(77, turn(77), all(&[0])).unwrap();
    assert_eq!(find_counting(&graph, 77), (None, 0));
}

#[test]
fn a_hundred_thousand_waiters_on_one_resource_stay_linear() {
    const CROWD: u32 = 100_000;
    let mut graph = processes([0]);
    let mut steps = 0;
    for process in 1..=CROWD {
        graph.hold(process, claim(process, Demand::Exclusive)).unwrap();
        graph.enqueue(process, turn(u64::from(process)), all(&[0])).unwrap();
        // Another owner waits for the resource of each process, so that every wait needs a search.
        graph.enqueue(CROWD + process, turn(u64::from(CROWD + process)), all(&[process])).unwrap();
        let (why, work) = find_counting(&graph, process);
        assert_eq!(why, None);
        steps += work;
    }
    assert!(steps <= 10 * u64::from(CROWD), "{steps}");
    // The holder closes a deadlock with the last waiter. All owners are stuck, and the work is still linear.
    graph.enqueue(0, turn(0), all(&[CROWD])).unwrap();
    let (why, work) = find_counting(&graph, 0);
    assert!(why.is_some());
    assert_eq!(graph.stuck().len(), 2 * CROWD as usize + 1);
    assert!(work <= 10 * u64::from(CROWD), "{work}");
}

#[test]
fn a_crowd_that_needs_one_owner_is_found_by_one_reduction() {
    const CROWD: u32 = 20_000;
    let mut graph = processes([0]);
    let crowd = || 1..=CROWD;
    for process in crowd() {
        graph.enqueue(process, turn(u64::from(process)), all(&[0, CROWD + 1])).unwrap();
    }
    graph.enqueue(CROWD + 2, turn(0), all(&[CROWD + 3])).unwrap();
    assert_eq!(
        graph.held_up_without(crowd().chain([CROWD + 2, CROWD + 4]), &[0]),
        crowd().collect::<Vec<_>>()
    );
}

#[test]
fn a_crowd_in_line_for_permits_is_counted_once() {
    const CROWD: u32 = 20_000;
    let (pool, hot) = (CROWD + 1, CROWD + 2);
    // There are permits for all of them. But each also waits for a lock of owner 0, in the order of the
    // queue.
    let mut graph = processes([0]);
    graph.hold(0, claim(hot, Demand::Exclusive)).unwrap();
    graph.set_limit(pool, Some(CROWD)).unwrap();
    for process in 1..=CROWD {
        let both = Request::all([Request::permits(pool, 1).unwrap(), Request::exclusive(hot)]).unwrap();
        graph.enqueue(process, turn(u64::from(process)), both).unwrap();
    }
    let steps = |never: Vec<Slot>| {
        let mut reduction = Reduction::new(&graph, Order::Kept, never);
        reduction.reduce_all((1..=CROWD).map(|process| graph.owners.slot(&process).unwrap()));
        (reduction.stuck().count(), reduction.steps)
    };
    let (stuck, all_finish) = steps(Vec::new());
    assert_eq!(stuck, 0);
    assert!(all_finish <= 20 * u64::from(CROWD), "{all_finish}");
    let (stuck, nobody_does) = steps(vec![graph.owners.slot(&0).unwrap()]);
    assert_eq!(stuck, CROWD as usize + 1);
    assert!(nobody_does <= 20 * u64::from(CROWD), "{nobody_does}");
}

#[test]
fn a_chain_of_a_quarter_million_overflows_no_stack() {
    // A stack frame of 16 bytes per link would exceed the two megabytes of a test's stack. (The batch test
    // has a million links.)
    const LENGTH: u32 = 250_000;
    let mut graph = processes(0..LENGTH);
    for process in 1..LENGTH {
        graph.enqueue(process, turn(u64::from(process)), all(&[process - 1])).unwrap();
    }
    assert_eq!(graph.resolution(LENGTH - 1).find(), None);
    let why = wait(&mut graph, 0, any(&[LENGTH - 1])).unwrap();
    assert_eq!(graph.stuck().len(), LENGTH as usize);
    assert_eq!(why.candidates().len(), LENGTH as usize);
}
