use std::time::Duration;

use conclave_kernel::{Cx, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::*;

/// Broadcasts a numbered ping on command, and answers each ping with a pong. Gives up when its timer fires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Pinger {
    heard: Vec<u8>,
    waiting: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Message {
    Ping(u8),
    Pong(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Timer {
    GiveUp,
}

impl Protocol for Pinger {
    type Message = Message;
    type Timer = Timer;
    type Command = u8;
    type Event = String;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Ping(number) => {
                self.heard.push(number);
                cx.send(from, Message::Pong(number));
            }
            Message::Pong(number) => {
                self.waiting = false;
                cx.disarm(Timer::GiveUp);
                cx.emit(format!("{number} back at {}", cx.now()));
            }
        }
    }
    fn on_timer(&mut self, _: Timer, cx: &mut Cx<'_, Self>) {
        cx.emit("gave up".into());
    }
    fn on_command(&mut self, number: u8, cx: &mut Cx<'_, Self>) {
        self.waiting = true;
        cx.broadcast(Message::Ping(number));
        cx.arm(Timer::GiveUp, Duration::from_millis(5)..=Duration::from_millis(9));
    }
}

fn play(text: &str) -> Result<Played, ScriptError> {
    let script = Script::parse("test.txt", text)?;
    let mut stage = Stage::new(script.nodes()?, |_| Pinger::default());
    script.play(&mut stage, |verb, arguments| match (verb, arguments) {
        ("ping", [number]) => number.parse().map_err(|_| format!("`{number}` is not a number")),
        _ => Err(format!("unknown command `{verb}`; the problem has: ping NODE NUMBER")),
    })
}

fn said(commands: &str) -> String {
    let text = format!("nodes 2\n\n{commands}\n----\n");
    let played = play(&text).unwrap();
    played.text[text.len()..].to_owned()
}

const PINGPONG: &str = "# head
algorithm test/pinger
nodes 2

# n0 asks
ping 0 7
deliver 0->1
----
n0 <- 7
  broadcast: Ping(7)
  arm GiveUp 5ms..9ms
n1 <- n0: Ping(7)
  send n0: Pong(7)

advance 3ms
settle
----
n0 <- n1: Pong(7)
  disarm GiveUp
  emit \"7 back at 3ms\"
";

#[test]
fn a_script_that_came_true_is_left_as_it_is() {
    let played = play(PINGPONG).unwrap();
    assert_eq!(played.verdict, Ok(()));
    assert_eq!(played.text, PINGPONG);
}

#[test]
fn a_difference_names_the_file_and_the_line_and_the_text_is_put_right() {
    let wrong = PINGPONG.replace("  send n0: Pong(7)", "  send n0: Pong(8)\n  something else");
    let played = play(&wrong).unwrap();
    let error = played.verdict.unwrap_err();
    assert!(error.to_string().starts_with("test.txt:8: expected\n"), "{error}");
    assert!(error.what.contains("but got\nn0 <- 7\n"), "{error}");
    assert_eq!(played.text, PINGPONG);
}

#[test]
fn messages_are_picked_out_of_order_dropped_and_doubled() {
    let commands =
        "ping 0 1\nping 0 2\nping 0 3\ndeliver 0->1 #2\ndrop 0->1\nduplicate 0->1\npending\nstate 1";
    let said = said(commands);
    let tail = said.split_once("arm GiveUp 5ms..9ms\nn1").unwrap().1;
    assert_eq!(
        tail,
        " <- n0: Ping(2)
  send n0: Pong(2)
lost n0->n1 Ping(1)
duplicated n0->n1 Ping(3)
n0->n1 #1 Ping(3)
n0->n1 #2 Ping(3)
n1->n0 #1 Pong(2)
n1
  heard: [2]
  waiting: false
"
    );
}

#[test]
fn a_crash_loses_reminders_and_input_and_amnesia_the_state() {
    let commands =
        "ping 1 9\nping 0 1\ncrash 1\ndeliver 0->1\nrecover 1\nstate 1\ncrash n1\nrecover 1 amnesia\nstate 1";
    let said = said(commands);
    let tail = said.split_once("n1 crashed\n").unwrap().1;
    assert_eq!(
        tail,
        "lost n0->n1 Ping(1): n1 is down
n1 <- recover
n1
  heard: []
  waiting: true
n1 crashed
n1 <- start
n1
  heard: []
  waiting: false
"
    );
}

#[test]
fn a_reminder_fires_once_and_only_if_armed() {
    assert!(said("ping 0 1\nfire 0 GiveUp").ends_with("n0 <- timer GiveUp\n  emit \"gave up\"\n"));
    let twice = play("nodes 2\n\nping 0 1\nfire 0 GiveUp\nfire 0 GiveUp\n----\n").unwrap_err();
    assert_eq!(twice.to_string(), "test.txt:5: n0 has not armed GiveUp; armed: []");
}

#[test]
fn deliver_all_leaves_what_it_caused() {
    assert!(said("ping 0 1\ndeliver all\npending").ends_with("n1->n0 #1 Pong(1)\n"));
    assert!(said("ping 0 1\nsettle\npending").ends_with("nothing in flight\n"));
}

#[test]
fn what_cannot_be_obeyed_is_refused_with_its_line() {
    for (commands, complaint) in [
        ("deliver 0->1", "no message #1 from n0 to n1 is in flight"),
        ("deliver 0->9", "no message #1 from n0 to n9 is in flight"),
        ("deliver 0->1 #0", "the messages of a link are numbered from 1"),
        ("deliver 0->1 2", "expected the number of a message on this link, such as #2"),
        ("deliver 01", "expected a link, such as 0->1"),
        ("ping 5 1", "there is no site n5: the last one is n1"),
        ("ping x 1", "`x` is not a site: expected a number, such as 2"),
        ("ping 0 x", "`x` is not a number"),
        ("pong 0", "unknown command `pong`; the problem has: ping NODE NUMBER"),
        ("pong", "unknown command `pong`"),
        ("recover 0", "n0 is not down"),
        (
            "advance 3",
            "expected a duration with a unit (ns, us, ms, s, m or min, h, d), such as 250us, 1.5ms or 2h",
        ),
    ] {
        let error = play(&format!("nodes 2\n\n{commands}\n----\n")).unwrap_err();
        assert_eq!(error.to_string(), format!("test.txt:3: {complaint}"));
    }
}

#[test]
fn a_script_that_is_none_is_refused() {
    for (text, complaint) in [
        ("", "test.txt: the script has no commands"),
        ("nodes 2\n", "test.txt:1: the script has no commands"),
        ("nodes 2\n\nping 0 1\n", "test.txt:3: expected `----` and the effects of the commands above"),
        (
            "nodes 2\n\nping 0 1\n\n----\n",
            "test.txt:4: expected `----` and the effects of the commands above",
        ),
        ("----\n", "test.txt:1: expected the head first: `algorithm NAME` and `nodes N`"),
        ("nodes 0\n\nping 0 1\n----\n", "test.txt:1: the head needs a line `nodes N`, with N from 1 to 1000"),
    ] {
        assert_eq!(play(text).unwrap_err().to_string(), complaint);
    }
}

#[test]
fn a_misspelt_setting_is_refused() {
    let script = Script::parse("test.txt", "# head\nnodes 2\nquorom 0\n\nping 0 1\n----\n").unwrap();
    let error = script.allow(&["nodes", "quorum"]).unwrap_err();
    assert_eq!(error.to_string(), "test.txt:3: unknown setting `quorom`; known settings: nodes, quorum");
    assert_eq!(script.allow(&["nodes", "quorom"]), Ok(()));
}

#[test]
fn a_file_is_compared_and_a_missing_one_is_named() {
    let missing = golden(Path::new("no/such/script.txt"), |_| unreachable!("there is nothing to play"));
    assert!(missing.unwrap_err().to_string().starts_with("no/such/script.txt: "));
}
