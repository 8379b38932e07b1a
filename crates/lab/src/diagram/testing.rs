//! Logs to draw: a small one made by hand, with everything in it that can go wrong, and real runs.

use std::time::Duration;

use conclave_algorithms::mutex::{Command, Event, Group, Mutex, RicartAgrawala};
use conclave_kernel::trace::{FORMAT, Mark, What, WorldKind};
use conclave_kernel::{Header, NodeId, StepHead, Time};
use conclave_sim::{Desk, Director, Limits, Recording, Setup, World};

use crate::log::{About, Builder, Cause, Log};

/// Three sites: n0 asks, is granted and leaves; a request is lost, a reply duplicated, n2 dies and comes
/// back, n0 and n1 are cut off.
pub(crate) fn small_log() -> Log {
    let about = About { algorithm: "mutex/by-hand".into(), seed: Some(7), ..About::default() };
    let mut build = Builder::new(about, 3);
    let at = |tenths_ms: u64| Time(tenths_ms * 100_000);
    let head = |tenths, node, stamp, received, first_sent| StepHead {
        at: at(tenths),
        node: NodeId(node),
        clock: at(tenths),
        stamp,
        received,
        first_sent,
    };
    for node in 0..3 {
        build.step(head(0, node, 1, None, 0), Cause::Start, None).unwrap();
    }
    let acquire = Cause::Command(build.text("\"acquire\""));
    build.step(head(10, 0, 2, None, 0), acquire, None).unwrap();
    let request = build.text(r#"{"request":{"time":1,"site":0}}"#);
    build.broadcast(request).unwrap();
    build.step(head(20, 1, 3, Some(0), 2), Cause::Message, Some(NodeId(0))).unwrap();
    let reply = build.text("\"reply\"");
    build.send([NodeId(0)], reply).unwrap();
    build.step(head(30, 0, 4, Some(2), 3), Cause::Message, Some(NodeId(1))).unwrap();
    let granted = build.text(r#"{"granted":{"fence":3}}"#);
    build.emit(granted);
    build.step(head(40, 0, 5, Some(2), 3), Cause::Message, Some(NodeId(1))).unwrap();
    let release = Cause::Command(build.text("\"release\""));
    build.step(head(50, 0, 6, None, 3), release, None).unwrap();
    let released = build.text("\"released\"");
    build.emit(released);
    let group = vec![NodeId(0), NodeId(1)];
    let marks = [
        (10, What::Lose(1)),
        (20, What::Duplicate(2)),
        (35, What::Crash(NodeId(2))),
        (45, What::Cut(group.clone())),
        (55, What::Recover(NodeId(2))),
        (60, What::Heal(group)),
    ];
    marks.into_iter().for_each(|(tenths, what)| build.mark(Mark { at: at(tenths), what }).unwrap());
    build.finish().unwrap()
}

/// Writes a picture into the folder `CONCLAVE_PICTURES`, if it is set, so that a person can look at it.
/// Returns the picture as a tree.
pub(crate) fn parsed<'a>(name: &str, svg: &'a str) -> roxmltree::Document<'a> {
    if let Some(folder) = std::env::var_os("CONCLAVE_PICTURES") {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.svg")), svg).unwrap();
    }
    roxmltree::Document::parse(svg).unwrap_or_else(|error| panic!("{name} is not well-formed: {error}"))
}

/// The texts of the titles in all elements with this class.
pub(crate) fn titles(tree: &roxmltree::Document<'_>, class: &str) -> Vec<String> {
    let elements = tree.descendants().filter(|node| has_class(node, class));
    let title = |node: roxmltree::Node<'_, '_>| {
        node.children().find(|child| child.has_tag_name("title"))?.text().map(str::to_owned)
    };
    elements.filter_map(title).collect()
}

/// The number of elements with this class.
pub(crate) fn count(tree: &roxmltree::Document<'_>, class: &str) -> usize {
    tree.descendants().filter(|node| has_class(node, class)).count()
}

/// The visible texts.
pub(crate) fn texts(tree: &roxmltree::Document<'_>) -> Vec<String> {
    let elements = tree.descendants().filter(|node| node.has_tag_name("text"));
    elements
        .map(|node| {
            node.descendants().filter(roxmltree::Node::is_text).filter_map(|part| part.text()).collect()
        })
        .collect()
}

fn has_class(node: &roxmltree::Node<'_, '_>, class: &str) -> bool {
    node.attribute("class").is_some_and(|classes| classes.split(' ').any(|known| known == class))
}

/// Compares with a file beside the tests, or rewrites it if `CONCLAVE_REWRITE` is set.
pub(crate) fn golden(name: &str, drawn: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("CONCLAVE_REWRITE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, drawn).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = drawn.lines().zip(expected.lines()).find(|(drawn, expected)| drawn != expected);
    assert_eq!(differs, None, "{name} differs: look at it, then set CONCLAVE_REWRITE=1 to accept");
    assert_eq!(drawn.len(), expected.len(), "{name} differs in length: CONCLAVE_REWRITE=1 accepts");
}

/// A run of Ricart-Agrawala in which everybody always wants in.
pub(crate) fn ricart_agrawala(nodes: u32, entries: u32) -> Log {
    Log::from_trace(&trace(Setup { nodes, ..Setup::default() }, entries)).unwrap()
}

/// The trace of such a run in that world.
pub(crate) fn trace(setup: Setup, entries: u32) -> Recording {
    let header = Header {
        format: FORMAT,
        code: "test".into(),
        algorithm: "mutex/ricart-agrawala".into(),
        nodes: setup.nodes,
        seed: setup.seed,
        world: WorldKind::Sim,
        scenario: serde_json::to_string(&setup).unwrap(),
    };
    let nodes = setup.nodes;
    let group = Group::new(nodes);
    let make = move |me| RicartAgrawala::new(me, &group);
    let mut world = World::new(setup, Always { nodes, entries }, make).recording(header);
    world.run(Limits { events: 1_000_000, ..Limits::default() });
    world.into_parts().1.unwrap()
}

/// Everybody asks at once, and again on leaving.
struct Always {
    nodes: u32,
    entries: u32,
}

impl Director<RicartAgrawala> for Always {
    type Note = ();

    fn on_begin(&mut self, desk: &mut Desk<'_, RicartAgrawala, ()>) {
        (0..self.nodes).for_each(|node| {
            desk.command_in(Duration::from_micros(300 * u64::from(node)), NodeId(node), Command::Acquire);
        });
    }

    fn on_event(&mut self, node: NodeId, event: &Event, desk: &mut Desk<'_, RicartAgrawala, ()>) {
        match event {
            Event::Granted { .. } => desk.command_in(Duration::from_millis(1), node, Command::Release),
            Event::Released if self.entries > 1 => {
                self.entries -= 1;
                desk.command(node, Command::Acquire);
            }
            _ => desk.stop(),
        }
    }

    fn on_send(
        &mut self,
        _from: NodeId,
        _to: NodeId,
        _message: &<RicartAgrawala as conclave_kernel::Protocol>::Message,
    ) {
    }

    fn on_deliver(&mut self, _from: NodeId, _to: NodeId, (): &()) {}
}
