//! Checks that a step allocates no memory in the steady state, by a counting allocator. It covers central,
//! both rings, Ricart-Agrawala and Maekawa, up to N = 128, and a layer that uses `Cx::drive`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use conclave_algorithms::mutex::{
    Central, Command, Event, FairRing, Group, Maekawa, Mutex, RicartAgrawala, TokenRing,
};
use conclave_algorithms::quorum::Quorum;
use conclave_kernel::{Cx, Input, NodeId, Protocol};
use conclave_sim::{Desk, Director, Limits, Setup, World};
use serde::{Deserialize, Serialize};

/// The system allocator with a counter of this thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is shutting down no longer has a counter, and no test measures it.
    _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

#[allow(unsafe_code, reason = "`GlobalAlloc` is unsafe; this allocator only counts and forwards the call")]
// SAFETY: every call is passed unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

const MS: Duration = Duration::from_millis(1);

/// Every site requests again as soon as it has left. After a warm-up, counts the allocations until the end.
struct Saturate {
    entries: u64,
    warm_up: u64,
    at_warm_up: u64,
    allocated: Option<u64>,
}

impl Saturate {
    fn new(nodes: u32) -> Self {
        Self { entries: 0, warm_up: 20 * u64::from(nodes), at_warm_up: 0, allocated: None }
    }
}

impl<P: Protocol<Command = Command, Event = Event>> Director<P> for Saturate {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, P, ()>) {
        // One request per site. `warm_up` is 20 entries per site, so it gives the number of sites.
        let nodes = self.warm_up / 20;
        (0..nodes as u32).for_each(|site| desk.command(NodeId(site), Command::Acquire));
    }

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, P, ()>) {
        match event {
            Event::Granted { .. } => desk.command_in(MS, node, Command::Release),
            Event::Released => {
                self.entries += 1;
                if self.entries == self.warm_up {
                    self.at_warm_up = allocations();
                }
                if self.entries == 2 * self.warm_up {
                    self.allocated = Some(allocations() - self.at_warm_up);
                    desk.stop();
                }
                desk.command(node, Command::Acquire);
            }
            Event::Refused(refusal) => panic!("{node} was refused: {refusal:?}"),
        }
    }

    fn on_send(&mut self, _from: NodeId, _to: NodeId, _message: &P::Message) {}

    fn on_deliver(&mut self, _from: NodeId, _to: NodeId, _note: &()) {}
}

/// Returns the number of allocations in the second half of a saturated run.
fn allocated<P>(nodes: u32, make: impl FnMut(NodeId) -> P + 'static) -> u64
where
    P: Protocol<Command = Command, Event = Event>,
{
    let setup = Setup { nodes, ..Setup::default() };
    let mut world = World::new(setup, Saturate::new(nodes), make).without_guard_checks();
    world.run(Limits::default());
    world.director().allocated.expect("the run lasts until the count is complete")
}

const SIZES: [u32; 6] = [2, 3, 7, 31, 57, 128];

fn assert_allocates_nothing<P: Mutex>() {
    for nodes in SIZES {
        let quorums = match P::USES_QUORUMS {
            true => Quorum::default_for(nodes).quorums(nodes).expect("there is a grid for every N"),
            false => Vec::new(),
        };
        let group = Group { nodes, quorums };
        let allocated = allocated::<P>(nodes, move |me| P::new(me, &group));
        assert_eq!(allocated, 0, "{} at N = {nodes}", P::CARD.name);
    }
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    let kept = std::hint::black_box(vec![1_u8]);
    assert_eq!(allocations() - before, 1);
    drop(kept);
}

#[test]
fn central_allocates_nothing_per_step() {
    assert_allocates_nothing::<Central>();
}

#[test]
fn the_rings_allocate_nothing_per_step() {
    assert_allocates_nothing::<TokenRing>();
    assert_allocates_nothing::<FairRing>();
}

#[test]
fn ricart_agrawala_allocates_nothing_per_step() {
    assert_allocates_nothing::<RicartAgrawala>();
}

#[test]
fn maekawa_allocates_nothing_per_step() {
    assert_allocates_nothing::<Maekawa>();
}

/// A protocol that runs another one inside and passes everything on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(bound = "")]
struct Around<P: Mutex>(P);

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Wrapped<M>(M);

impl<P: Mutex> Around<P> {
    fn drive(&mut self, input: Input<P>, cx: &mut Cx<'_, Self>) {
        for event in cx.drive(&mut self.0, input, Wrapped, |timer| timer) {
            cx.emit(event);
        }
    }
}

impl<P: Mutex> Protocol for Around<P> {
    type Message = Wrapped<P::Message>;
    type Timer = P::Timer;
    type Command = Command;
    type Event = Event;

    fn on_start(&mut self, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Start, cx);
    }

    fn on_message(&mut self, from: NodeId, message: Self::Message, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Message { from, message: message.0 }, cx);
    }

    fn on_timer(&mut self, timer: P::Timer, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Timer(timer), cx);
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        self.drive(Input::Command(command), cx);
    }
}

#[test]
fn a_layer_between_allocates_nothing_either() {
    for nodes in SIZES {
        let group = Group::new(nodes);
        let driven = allocated(nodes, move |me| Around(RicartAgrawala::new(me, &group)));
        assert_eq!(driven, 0, "ricart-agrawala in a layer, N = {nodes}");
        let group = Group::new(nodes);
        let driven = allocated(nodes, move |me| Around(TokenRing::new(me, &group)));
        assert_eq!(driven, 0, "token-ring in a layer, N = {nodes}");
    }
}
