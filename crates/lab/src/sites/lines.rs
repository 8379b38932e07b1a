//! The lines of the protocol: requests of the tool, and replies of the child.
//!
//! The words are those of a trace file (`kernel::trace::RawInput` and `RawEffect`). `docs/sites.md` describes
//! each line.
//!
//! **Bounds.** A reply has at most [`MOST_EFFECTS`] effects, a message at most [`MESSAGE_BYTES`], a state at
//! most [`STATE_BYTES`]. Its JSON is nested at most [`MOST_DEPTH`] levels. Any other reply is rejected.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conclave_kernel::{Env, NodeId, NodeSet};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The version of the protocol. A child that speaks another version is rejected.
pub const PROTOCOL: u32 = 1;
/// The most effects of one step.
pub const MOST_EFFECTS: usize = 10_000;
/// The longest message, in bytes without white space.
pub const MESSAGE_BYTES: usize = 1 << 16;
/// The longest state of a site, in bytes without white space.
pub const STATE_BYTES: usize = 1 << 18;
/// The most levels of nesting in a reply.
pub const MOST_DEPTH: usize = 32;
/// The latest moment for a timer, from now.
pub const LONGEST_TIMER: Duration = Duration::from_secs(365 * 24 * 3_600);
/// The most names of timers and kinds of messages in one process. They stay allocated until its end.
pub const MOST_NAMES: usize = 1_000;
/// The longest name of a timer or of a kind of messages, in bytes.
pub const NAME_BYTES: usize = 64;

/// Returns the line that requests the description of a new child.
pub(super) fn hello(problem: &str) -> String {
    format!("{{\"hello\":{{\"protocol\":{PROTOCOL},\"problem\":\"{problem}\"}}}}\n")
}

/// The line before each run. The child forgets its sites.
pub(super) const RESET: &str = "{\"reset\":true}\n";

/// Returns the line with the result of a random choice.
pub(super) fn chosen(number: u32) -> String {
    format!("{{\"chosen\":{number}}}\n")
}

/// Returns the line of a step. `load` is the state before the step, if the child does not
/// keep the site. `group` is the knowledge of the sites about each other, for a site that starts.
pub(super) fn step(env: Env, input: &str, group: Option<&Text>, load: Option<&Text>, save: bool) -> String {
    let Env { me, nodes, now, incarnation } = env;
    let mut line = format!(
        "{{\"site\":{},\"nodes\":{nodes},\"now\":{},\"life\":{incarnation},\"input\":{input}",
        me.0, now.0
    );
    for (field, value) in [("group", group), ("load", load)] {
        if let Some(value) = value {
            line += &format!(",\"{field}\":{}", value.as_str());
        }
    }
    line.push_str(if save { ",\"save\":true}\n" } else { "}\n" });
    line
}

/// Returns the input of a message.
pub(super) fn message(from: NodeId, message: &Text) -> String {
    format!("{{\"message\":{{\"from\":{},\"message\":{}}}}}", from.0, message.as_str())
}

/// Returns the input of a timer.
pub(super) fn timer(name: Name) -> String {
    format!("{{\"timer\":{}}}", serde_json::Value::from(name.0))
}

/// The description that a program gives of itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    pub(super) protocol: u32,
    /// The problem that the program solves; `None` for any.
    #[serde(default)]
    pub(super) problem: Option<String>,
    /// The name of the algorithm, for people.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// The names of the promised properties; `None` for the default of the problem.
    #[serde(default)]
    pub(super) promises: Option<Vec<String>>,
    #[serde(default)]
    pub(super) needs: HelloNeeds,
    /// Whether the program offers `load` and `save`.
    #[serde(default)]
    pub(super) saves: bool,
    /// Whether its sites send messages even without any command.
    #[serde(default)]
    pub(super) idle_traffic: bool,
    /// Whether its sites read the clock.
    #[serde(default)]
    pub(super) reads_clock: bool,
}

/// The assumptions of a program. The default is reliable links in any order, and no crash.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HelloNeeds {
    pub(super) fifo: bool,
    pub(super) no_loss: bool,
    pub(super) no_duplication: bool,
    pub(super) no_crash: bool,
    pub(super) synchrony: bool,
}

impl Default for HelloNeeds {
    fn default() -> Self {
        Self { fifo: false, no_loss: true, no_duplication: true, no_crash: true, synchrony: false }
    }
}

/// Reads the reply to `hello`.
pub(super) fn read_hello(line: &str) -> Result<Hello, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        hello: Hello,
    }
    compact(line)?;
    serde_json::from_str::<Line>(line).map(|line| line.hello).map_err(|error| error.to_string())
}

/// A reply of a child.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The child needs a random number below this one before it can finish the step.
    Choose(u32),
    /// The step is complete.
    Done {
        actions: Vec<Action>,
        /// The state after the step, if it was requested.
        saved: Option<Text>,
        /// The logical clock of the site, for messages of the application; 0 if it has none.
        clock: u64,
    },
}

/// An effect of a step, with the values of the program as JSON.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Send(NodeId, Text),
    SendTo(NodeSet, Text),
    Broadcast(Text),
    Arm(Name, Duration, Duration),
    Disarm(Name),
    Emit(Text),
}

/// An effect as the line has it. The words are those of `RawEffect`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum EffectLine<'a> {
    Send {
        to: u32,
        #[serde(borrow)]
        message: &'a RawValue,
    },
    SendTo {
        to: Vec<u32>,
        #[serde(borrow)]
        message: &'a RawValue,
    },
    Broadcast {
        #[serde(borrow)]
        message: &'a RawValue,
    },
    Arm {
        timer: String,
        min: Duration,
        max: Duration,
    },
    Disarm {
        timer: String,
    },
    Emit {
        #[serde(borrow)]
        event: &'a RawValue,
    },
}

/// Reads a reply to a step or to `reset`, for a group of `nodes` sites.
pub(super) fn read_reply(line: &str, nodes: u32) -> Result<Reply, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line<'a> {
        #[serde(borrow, default)]
        effects: Option<Vec<EffectLine<'a>>>,
        #[serde(borrow, default)]
        saved: Option<&'a RawValue>,
        #[serde(default)]
        clock: u64,
        #[serde(default)]
        choose: Option<u32>,
    }
    let text = compact(line)?;
    let line: Line<'_> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match line {
        Line { effects: None, saved: None, choose: Some(0), .. } => {
            Err("a choice needs at least one alternative".into())
        }
        Line { effects: None, saved: None, choose: Some(below), .. } => Ok(Reply::Choose(below)),
        Line { effects: Some(effects), .. } if effects.len() > MOST_EFFECTS => {
            Err(format!("the step has {} effects; at most {MOST_EFFECTS} are allowed", effects.len()))
        }
        Line { effects: Some(effects), saved, clock, choose: None } => {
            let actions =
                effects.into_iter().map(|effect| action(effect, nodes)).collect::<Result<_, _>>()?;
            let saved =
                saved.map(|state| Text::bounded(state.get(), STATE_BYTES, "the state")).transpose()?;
            Ok(Reply::Done { actions, saved, clock })
        }
        _ => Err("a reply has either \"effects\" or \"choose\"".into()),
    }
}

fn action(effect: EffectLine<'_>, nodes: u32) -> Result<Action, String> {
    let site = |id: u32| match id < nodes {
        true => Ok(NodeId(id)),
        false => Err(format!("there is no site {id}: the sites are 0 to {}", nodes - 1)),
    };
    let content = |message: &RawValue| Text::bounded(message.get(), MESSAGE_BYTES, "the message");
    Ok(match effect {
        EffectLine::Send { to, message } => Action::Send(site(to)?, content(message)?),
        EffectLine::SendTo { to, message } => {
            let to = to.into_iter().map(site).collect::<Result<NodeSet, _>>()?;
            Action::SendTo(to, content(message)?)
        }
        EffectLine::Broadcast { message } => Action::Broadcast(content(message)?),
        EffectLine::Arm { timer, min, max } if min <= max && max <= LONGEST_TIMER => {
            Action::Arm(Name::new(&timer)?, min, max)
        }
        EffectLine::Arm { timer, .. } => {
            return Err(format!("the timer {timer} needs min <= max <= a year"));
        }
        EffectLine::Disarm { timer } => Action::Disarm(Name::new(&timer)?),
        EffectLine::Emit { event } => Action::Emit(content(event)?),
    })
}

/// A JSON value of a program, without white space: a message, an event or the state of a site. Equal texts
/// are equal values.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// Takes over JSON without white space.
    fn bounded(text: &str, most: usize, what: &str) -> Result<Self, String> {
        match text.len() > most {
            true => Err(format!("{what} has {} bytes; at most {most} are allowed", text.len())),
            false => Ok(Self(text.into())),
        }
    }

    /// Returns a value of the tool as JSON.
    pub(super) fn of<T: Serialize>(value: &T) -> Result<Self, String> {
        serde_json::to_string(value).map(|text| Self(text.into())).map_err(|error| error.to_string())
    }

    /// Returns the JSON.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the kind of a message: the string itself, or the first key of an object.
    pub(super) fn kind(&self) -> &'static str {
        const PLAIN: &str = "message";
        let quoted = self.0.strip_prefix('{').unwrap_or(&self.0).strip_prefix('"');
        let name = quoted.and_then(|rest| rest.split('"').next());
        let name = name.filter(|name| !name.is_empty() && !name.contains('\\'));
        name.and_then(|name| Name::new(name).ok()).map_or(PLAIN, |name| name.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Text {
    /// Writes JSON as it is, and a string into formats that are not made for people.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return self.0.serialize(serializer);
        }
        serde_json::from_str::<&RawValue>(&self.0).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return String::deserialize(deserializer).map(|text| Self(text.into()));
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        compact(text.get()).map(|text| Self(text.into())).map_err(serde::de::Error::custom)
    }
}

/// Returns JSON without the white space between its parts. Fails if it is nested too deeply.
fn compact(json: &str) -> Result<String, String> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if in_string {
            in_string = escaped || letter != '"';
            escaped = !escaped && letter == '\\';
        } else {
            match letter {
                '"' => in_string = true,
                '{' | '[' => depth += 1,
                '}' | ']' => depth = depth.saturating_sub(1),
                ' ' | '\t' | '\r' | '\n' => continue,
                _ => {}
            }
            if depth > MOST_DEPTH {
                return Err(format!("the JSON is nested more than {MOST_DEPTH} levels deep"));
            }
        }
        text.push(letter);
    }
    Ok(text)
}

/// The name of a timer. Each text is stored once in a process, so that a name can be copied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(&'static str);

static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl Name {
    fn new(text: &str) -> Result<Self, String> {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(text) {
            return Ok(Self(known));
        }
        if text.len() > NAME_BYTES || names.len() >= MOST_NAMES {
            return Err(format!(
                "a name has at most {NAME_BYTES} bytes, and a program at most {MOST_NAMES} names of timers"
            ));
        }
        let name: &'static str = text.to_owned().leak();
        names.insert(name);
        Ok(Self(name))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
