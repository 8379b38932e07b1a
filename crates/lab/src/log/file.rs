//! Trace files: a header on the first line, then one [`RawRecord`] per line, all JSON.
//!
//! ```text
//! {"format":2,"code":"0.1.0","algorithm":"mutex/ricart-agrawala","nodes":3,"seed":1,"world":"sim","scenario":"{}"}
//! {"step":{"at":0,"node":0,"clock":0,"stamp":1,"first_sent":0,"input":"start","effects":[]}}
//! {"mark":{"at":5000000,"what":{"crash":2}}}
//! ```
//!
//! Format 1, of version 0.1.0, has no `world` and another form of `scenario`; [`file::upgraded`] converts it.
//!
//! Neither reader knows the algorithm: messages, timers, commands and events stay JSON. [`read_log`] reads
//! a run for diagrams and analysis, [`read_trace`] for the checker, which repeats it. Both reject a line
//! that they cannot read, with its number, and lines longer than 16 MiB.

use std::fmt;
use std::io::{self, BufRead, Read as _, Write};

use conclave_kernel::node::MOST_NODES;
use conclave_kernel::trace::{FORMAT, Header, RawEffect, RawInput, RawRecord, RawStep};
use conclave_kernel::{NodeId, Recording};
use serde::Deserialize;

use super::{Builder, Log};
use crate::experiment::file;

/// Why a file cannot be read: one line that names the file and the line in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The name of the file, as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The mistake.
    pub what: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for Error {}

/// Writes a trace file.
pub fn write_trace(trace: &Recording, mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut out, &trace.header)?;
    out.write_all(b"\n")?;
    for record in trace.records() {
        serde_json::to_writer(&mut out, &record)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Reads the records of a trace file. `name` is the name of the file in errors.
pub fn read_trace(name: &str, reader: impl BufRead) -> Result<Recording, Error> {
    let (mut marks, mut steps) = (Vec::new(), Vec::new());
    let mut lines = Lines::new(name, reader);
    let header = lines.header()?;
    lines.records(|record| {
        match record {
            RawRecord::Step(step) => steps.push(checked(step, header.nodes)?),
            RawRecord::Mark(mark) => marks.push(mark),
        }
        Ok(())
    })?;
    Ok(Recording { header, marks, steps: Box::new(steps) })
}

/// Reads a trace file as a log. `name` is the name of the file in errors.
pub fn read_log(name: &str, reader: impl BufRead) -> Result<Log, Error> {
    let mut lines = Lines::new(name, reader);
    let mut build = Builder::of(&lines.header()?);
    lines.records(|record| build.record(record))?;
    build.finish().map_err(|what| lines.error(what))
}

/// Fails if a step names a site that does not exist.
fn checked(step: RawStep, nodes: u32) -> Result<RawStep, String> {
    let check = |site: NodeId| {
        let what = || format!("there is no site {}: the header says {nodes} nodes", site.0);
        if site.0 < nodes { Ok(()) } else { Err(what()) }
    };
    check(step.head.node)?;
    if let RawInput::Message { from, .. } = &step.input {
        check(*from)?;
    }
    step.effects.iter().try_for_each(|effect| match effect {
        RawEffect::Send { to, .. } => check(*to),
        RawEffect::SendTo { to, .. } => to.iter().try_for_each(check),
        _ => Ok(()),
    })?;
    Ok(step)
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

    /// Passes each record after the header to `take`. Its error gets the number of the line.
    fn records(&mut self, mut take: impl FnMut(RawRecord) -> Result<(), String>) -> Result<(), Error> {
        while let Some(line) = self.next()? {
            let record = serde_json::from_str(line).map_err(|error| json_error(&error));
            record.and_then(&mut take).map_err(|what| self.error(what))?;
        }
        Ok(())
    }

    fn header(&mut self) -> Result<Header, Error> {
        const EXPECTED: &str = "not a trace: expected a header such as {\"format\":2,...}";
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Some(line) = self.next()? else { return Err(self.error("empty: not a trace")) };
        // The version first: another one may have another header.
        let version =
            Some(line).filter(|line| line.starts_with('{')).and_then(|line| serde_json::from_str(line).ok());
        let Some(Version { format }) = version else { return Err(self.error(EXPECTED)) };
        if !(1..=FORMAT).contains(&format) {
            let error = format!("format {format} is not known: this version reads formats 1 to {FORMAT}");
            return Err(self.error(error));
        }
        let mut header: Header = match serde_json::from_str(line) {
            Ok(header) => header,
            Err(error) => return Err(self.error(json_error(&error))),
        };
        if header.nodes == 0 || header.nodes > MOST_NODES {
            return Err(self.error(format!("{} nodes: expected 1 to {MOST_NODES}", header.nodes)));
        }
        if format == 1 {
            upgrade(&mut header);
        }
        Ok(header)
    }
}

/// Gives a header of format 1 the present form. A scenario that is no JSON object stays: only a repetition of
/// the run needs it.
fn upgrade(header: &mut Header) {
    let scenario = serde_json::from_str(&header.scenario).unwrap_or_default();
    if let (Some(world), scenario) = file::upgraded(scenario) {
        header.world = world;
        header.scenario = scenario.to_string();
    }
}

/// The message of the parser, with the column. The line that it counts is always 1.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    format!("column {}: {what}", error.column())
}
