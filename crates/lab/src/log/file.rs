//! Trace files: a header on the first line, then one [`Record`] a line, all JSON.
//!
//! ```text
//! {"format":1,"code":"0.1.0","algorithm":"mutex/ricart-agrawala","nodes":3,"seed":1,"scenario":"{}"}
//! {"step":{"at":0,"node":0,"clock":0,"stamp":1,"first_sent":0,"input":"start","effects":[]}}
//! {"mark":{"at":5000000,"what":{"crash":2}}}
//! ```
//!
//! [`read_log`] needs no types: what messages, commands and events say is kept as it stands. [`read_trace`]
//! needs them, to run the algorithm again. Both refuse what they do not understand, with file and line; neither
//! reads a line longer than 16 MiB.

use std::fmt;
use std::io::{self, BufRead, Read as _, Write};

use conclave_kernel::node::MOST_NODES;
use conclave_kernel::trace::{FORMAT, Header, Mark, Record};
use conclave_kernel::{Effect, Input, NodeId, NodeSet, Protocol, StepHead, Time, Trace};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{About, Builder, Cause, Log, Timescale};

/// Why a file cannot be read: one line that names the file and the line in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The name of the file, as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for Error {}

/// Writes a trace file.
pub fn write_trace<P: Protocol>(trace: &Trace<P>, mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut out, &trace.header)?;
    out.write_all(b"\n")?;
    for record in trace.records() {
        serde_json::to_writer(&mut out, &record)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Reads a trace file of an algorithm that is known. `name` is what errors call the file.
pub fn read_trace<P: Protocol>(name: &str, reader: impl BufRead) -> Result<Trace<P>, Error> {
    let mut lines = Lines::new(name, reader);
    let header = lines.header()?;
    let nodes = header.nodes;
    let mut trace = Trace::new(header);
    while let Some(line) = lines.next()? {
        let record = serde_json::from_str::<Record<'_, P>>(line).map_err(|error| json_error(&error));
        let outcome = record.and_then(|record| match record {
            Record::Step { at, node, clock, stamp, received, first_sent, input, effects } => {
                check_sites(nodes, node, &input, &effects)?;
                let head = StepHead { at, node, clock, stamp, received, first_sent };
                trace.push(head, &input, &effects);
                Ok(())
            }
            Record::Mark(mark) => {
                let Mark { at, what } = mark.into_owned();
                trace.mark(at, what);
                Ok(())
            }
        });
        outcome.map_err(|what| lines.error(what))?;
    }
    Ok(trace)
}

/// Reads a trace file of whatever algorithm. `name` is what errors call the file.
pub fn read_log(name: &str, reader: impl BufRead) -> Result<Log, Error> {
    let mut lines = Lines::new(name, reader);
    let header = lines.header()?;
    let about = About {
        algorithm: header.algorithm,
        seed: Some(header.seed),
        scenario: header.scenario,
        timescale: Timescale::World,
    };
    let mut build = Builder::new(about, header.nodes);
    while let Some(line) = lines.next()? {
        let record = serde_json::from_str::<RawRecord<'_>>(line).map_err(|error| json_error(&error));
        let outcome = record.and_then(|record| match record {
            RawRecord::Step(step) => step.build(&mut build),
            RawRecord::Mark(mark) => build.mark(mark),
        });
        outcome.map_err(|what| lines.error(what))?;
    }
    build.finish().map_err(|what| lines.error(what))
}

/// A [`Record`] of an algorithm that is not known.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawRecord<'a> {
    #[serde(borrow)]
    Step(RawStep<'a>),
    Mark(Mark),
}

#[derive(Deserialize)]
struct RawStep<'a> {
    at: Time,
    node: NodeId,
    clock: Time,
    stamp: u64,
    #[serde(default)]
    received: Option<u64>,
    first_sent: u64,
    #[serde(borrow)]
    input: RawInput<'a>,
    #[serde(borrow)]
    effects: Vec<RawEffect<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawInput<'a> {
    Start,
    Recover,
    /// What it said stands where it was sent.
    Message {
        from: NodeId,
        #[serde(rename = "message")]
        _message: IgnoredAny,
    },
    #[serde(borrow)]
    Timer(&'a RawValue),
    #[serde(borrow)]
    Command(&'a RawValue),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawEffect<'a> {
    Send {
        to: NodeId,
        #[serde(borrow)]
        message: &'a RawValue,
    },
    SendTo {
        to: NodeSet,
        #[serde(borrow)]
        message: &'a RawValue,
    },
    Broadcast {
        #[serde(borrow)]
        message: &'a RawValue,
    },
    Arm(IgnoredAny),
    Disarm(IgnoredAny),
    Emit {
        #[serde(borrow)]
        event: &'a RawValue,
    },
}

impl RawStep<'_> {
    fn build(self, build: &mut Builder) -> Result<(), String> {
        let (cause, from) = match self.input {
            RawInput::Start => (Cause::Start, None),
            RawInput::Recover => (Cause::Recover, None),
            RawInput::Message { from, .. } => (Cause::Message, Some(from)),
            RawInput::Timer(timer) => (Cause::Timer(build.text(timer.get())), None),
            RawInput::Command(command) => (Cause::Command(build.text(command.get())), None),
        };
        let Self { at, node, clock, stamp, received, first_sent, .. } = self;
        build.step(StepHead { at, node, clock, stamp, received, first_sent }, cause, from)?;
        for effect in self.effects {
            match effect {
                RawEffect::Send { to, message } => {
                    let text = build.text(message.get());
                    build.send([to], text)?;
                }
                RawEffect::SendTo { to, message } => {
                    let text = build.text(message.get());
                    build.send(to.iter().filter(|to| *to != node), text)?;
                }
                RawEffect::Broadcast { message } => {
                    let text = build.text(message.get());
                    build.broadcast(text)?;
                }
                RawEffect::Emit { event } => {
                    let text = build.text(event.get());
                    build.emit(text);
                }
                RawEffect::Arm(_) | RawEffect::Disarm(_) => {}
            }
        }
        Ok(())
    }
}

fn check_sites<P: Protocol>(
    nodes: u32,
    node: NodeId,
    input: &Input<P>,
    effects: &[Effect<P>],
) -> Result<(), String> {
    let check = |site: NodeId| {
        let what = || format!("there is no site {}: the header says {nodes} nodes", site.0);
        if site.0 < nodes { Ok(()) } else { Err(what()) }
    };
    check(node)?;
    if let Input::Message { from, .. } = input {
        check(*from)?;
    }
    effects.iter().try_for_each(|effect| match effect {
        Effect::Send { to, .. } => check(*to),
        Effect::SendTo { to, .. } => to.iter().try_for_each(check),
        _ => Ok(()),
    })
}

/// The most bytes of a line.
const MOST_LINE: usize = 16 << 20;

/// The lines of a file, counted and bounded.
pub(crate) struct Lines<'n, R> {
    name: &'n str,
    reader: R,
    line: u64,
    buffer: Vec<u8>,
}

impl<'n, R: BufRead> Lines<'n, R> {
    pub(crate) fn new(name: &'n str, reader: R) -> Self {
        Self { name, reader, line: 0, buffer: Vec::new() }
    }

    /// The next line that is not blank.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, Error> {
        loop {
            if !self.advance()? {
                return Ok(None);
            }
            if !self.buffer.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        self.text().map(Some)
    }

    /// The next line, blank or not.
    pub(crate) fn next_or_blank(&mut self) -> Result<Option<&str>, Error> {
        if self.advance()? { self.text().map(Some) } else { Ok(None) }
    }

    /// An error on the line that was read last.
    pub(crate) fn error(&self, what: impl Into<String>) -> Error {
        Error { file: self.name.to_owned(), line: self.line.max(1), what: what.into() }
    }

    /// The number of the line that was read last.
    pub(crate) fn number(&self) -> u64 {
        self.line
    }

    fn advance(&mut self) -> Result<bool, Error> {
        self.buffer.clear();
        let mut bounded = (&mut self.reader).take(MOST_LINE as u64 + 1);
        let read = bounded.read_until(b'\n', &mut self.buffer);
        self.line += 1;
        match read {
            Err(error) => Err(self.error(error.to_string())),
            Ok(_) if self.buffer.len() > MOST_LINE => {
                Err(self.error(format!("longer than {MOST_LINE} bytes")))
            }
            Ok(read) => Ok(read > 0),
        }
    }

    fn text(&self) -> Result<&str, Error> {
        let text = std::str::from_utf8(&self.buffer).map_err(|_| self.error("not UTF-8 text"))?;
        Ok(text.trim_end_matches(['\n', '\r']))
    }

    fn header(&mut self) -> Result<Header, Error> {
        const EXPECTED: &str = "not a trace: expected a header such as {\"format\":1,...}";
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Some(line) = self.next()? else { return Err(self.error("empty: not a trace")) };
        // The version first: another one may have another header.
        let version =
            Some(line).filter(|line| line.starts_with('{')).and_then(|line| serde_json::from_str(line).ok());
        let Some(Version { format }) = version else { return Err(self.error(EXPECTED)) };
        if format != FORMAT {
            return Err(
                self.error(format!("format {format} is not known: this version reads format {FORMAT}"))
            );
        }
        let header: Header = match serde_json::from_str(line) {
            Ok(header) => header,
            Err(error) => return Err(self.error(json_error(&error))),
        };
        if header.nodes == 0 || header.nodes > MOST_NODES {
            return Err(self.error(format!("{} nodes: expected 1 to {MOST_NODES}", header.nodes)));
        }
        Ok(header)
    }
}

/// What the parser says, with the column: the line it counts is always 1.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    format!("column {}: {what}", error.column())
}
