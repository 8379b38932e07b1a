//! The output of results and errors, for people and scripts.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;

use conclave_core::failure::FailureBody;
#[cfg(feature = "lab")]
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Bad usage.
pub const USAGE: u8 = 2;
/// A promised property was violated.
pub const VIOLATED: u8 = 1;
/// The runs ended before they proved anything, or tested nothing.
#[cfg(feature = "lab")]
pub const BOUNDED: u8 = 3;
/// Standard output could not be written (EX_IOERR).
pub const NOT_WRITTEN: u8 = 74;

/// The error of a command that ended without its result.
#[derive(Debug)]
pub struct Failure {
    /// The problem. Empty if the user knows it already: then nothing is printed.
    pub message: String,
    /// The next step for the user; empty if the message contains it.
    pub advice: Cow<'static, str>,
    /// The exit code.
    pub code: u8,
    /// The stable name of the error, for scripts.
    pub kind: &'static str,
    /// Whether the command is known to have had no effect.
    pub is_definite: bool,
}

impl Failure {
    /// A failure with a definite outcome, whose message contains the advice.
    pub fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), advice: "".into(), code, kind, is_definite: true }
    }

    /// A command line, or a file that it names, that must be corrected.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", message)
    }

    /// Returns the same failure with an advice.
    pub fn advise(self, advice: impl Into<Cow<'static, str>>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    /// Returns the same failure, of a command that may have had an effect.
    pub fn indefinite(self) -> Self {
        Self { is_definite: false, ..self }
    }

    /// The message and the advice in one text.
    pub fn text(&self) -> String {
        match &*self.advice {
            "" => self.message.clone(),
            advice => format!("{}; {advice}", self.message),
        }
    }

    /// The failure in the JSON form of all errors of the service.
    pub fn to_json(&self) -> conclave_core::failure::Failure<'_> {
        let advice = match &*self.advice {
            "" if self.code == USAGE => "correct the command line; `conclave COMMAND --help` describes it",
            "" => "remove the cause that the message names, then try again",
            advice => advice,
        };
        let Self { message, code, kind, is_definite, .. } = self;
        let (code, exit) = ((*kind).into(), *code);
        let error = FailureBody {
            code,
            message: message.into(),
            definite: *is_definite,
            advice: advice.into(),
            exit,
        };
        conclave_core::failure::Failure { error }
    }

    /// A file could not be read or written.
    pub fn file(path: &std::path::Path, error: &io::Error) -> Self {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "check the path, and that its folder exists",
            io::ErrorKind::PermissionDenied => "check the permissions, or use another path",
            _ => "use another path",
        };
        Self::usage(format!("{}: {error}", path.display())).advise(advice)
    }

    /// Puts the flag that gave the file or folder before the message, which begins with its path.
    pub fn of_flag(self, flag: &str) -> Self {
        Self { message: format!("{flag} {}", self.message), ..self }
    }
}

/// The failure of a TOML file, with the line of the mistake.
pub fn in_toml(path: &std::path::Path, text: &str, error: &toml::de::Error) -> Failure {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    Failure::usage(format!("{}, line {line}: {}", path.display(), error.message()))
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::usage(message)
    }
}

/// The result of a command: its exit code, or its failure.
pub type Done = Result<ExitCode, Failure>;

/// Prints to standard output. If the reader has gone (`| head`), the program ends without a message. Any
/// other error of the output is a failure.
pub fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// Prints bytes, which may be no text, like [`print()`].
pub fn print_bytes(bytes: &[u8]) {
    if let Err(error) = try_print(bytes) {
        let failure = unwritten(&error);
        let code = failure.as_ref().map_or(0, |failure| failure.code);
        failure.iter().for_each(crate::report);
        std::process::exit(code.into());
    }
}

/// Prints and flushes. Returns the failure to a caller that must act on it.
pub fn try_print(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// The failure to write to standard output; `None` if only its reader has gone.
pub fn unwritten(error: &io::Error) -> Option<Failure> {
    let failed = || {
        Failure::new(NOT_WRITTEN, "not-written", format!("standard output: {error}"))
            .advise("the command may have had its effect; check the target of the output, then look at the result")
            .indefinite()
    };
    (error.kind() != io::ErrorKind::BrokenPipe).then(failed)
}

/// Prints an error on its own line on standard error. A failure of standard error is ignored.
pub fn complain(message: &str) {
    let lines: Vec<String> = message.lines().map(shown).collect();
    note(&format!("conclave: {}", lines.join("\n")));
}

/// Prints a line on standard error unchanged.
pub fn note(line: &str) {
    // A single write keeps the line together: other processes may write to the same place.
    _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Makes text of other programs safe for a terminal: control characters are escaped.
pub fn shown(text: &str) -> String {
    let show = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(show).collect()
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::usage(error.to_string()))?;
    print(&text);
    print("\n");
    Ok(())
}

/// Writes a file: first to a temporary file beside it, then by a rename. So readers never see half of it.
#[cfg(feature = "lab")]
pub fn write_file(path: &std::path::Path, contents: &[u8]) -> Result<(), Failure> {
    // A pipe or a device is written directly. A rename would replace it with a file.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return std::fs::write(path, contents).map_err(|error| Failure::file(path, &error));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = std::path::PathBuf::from(beside);
    std::fs::write(&beside, contents).map_err(|error| Failure::file(path, &error))?;
    std::fs::rename(&beside, path).map_err(|error| Failure::file(path, &error))
}

/// Colours, if standard output is a terminal that accepts them.
#[derive(Clone, Copy)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// For standard output.
    pub fn stdout() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() && !is_dumb }
    }

    /// A heading.
    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Less important text.
    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// A good result.
    pub fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// A bad result.
    pub fn bad(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// Paints a verdict in the colour of its first word. Other text stays as it is.
    pub fn verdict(self, text: &str) -> String {
        match text.split([' ', ',', ':']).next() {
            Some("holds" | "yes" | "harmless") => self.good(text),
            Some("violated" | "stuck" | "no" | "NO" | "NOT") => self.bad(text),
            Some("bounded") => self.bold(text),
            _ => text.to_owned(),
        }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A progress bar on standard error; invisible if standard error is no terminal.
#[cfg(feature = "lab")]
pub fn progress(total: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {per_sec} {eta}");
    ProgressBar::new(total)
        .with_message(what.to_owned())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A table with aligned columns; the first is aligned left, the others right.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these headings.
    pub fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns the table as text, with bold headings. Cells under a heading of [`VERDICTS`] are painted as
    /// verdicts.
    pub fn render(&self, paint: Paint) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell)).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let is_verdict =
            |column: usize| self.rows[0].get(column).is_some_and(|title| VERDICTS.contains(&title.as_str()));
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                let blank = " ".repeat(width - width_of(cell));
                let cell = if index > 0 && is_verdict(column) { paint.verdict(cell) } else { cell.clone() };
                _ = match column {
                    0 => write!(line, "{gap}{cell}{blank}"),
                    _ => write!(line, "{gap}{blank}{cell}"),
                };
            }
            let line = line.trim_end();
            text.push_str(&if index == 0 { paint.bold(line) } else { line.to_owned() });
            text.push('\n');
        }
        text
    }
}

/// The headings of columns that contain verdicts.
const VERDICTS: [&str; 3] = ["verdict", "caught", "complete"];

/// The number of columns that a text takes on a terminal: escape sequences of colours take none.
fn width_of(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let first = parts.next().map_or(0, |plain| plain.chars().count());
    let shown = |part: &str| part.split_once('m').map_or(0, |(_, plain)| plain.chars().count());
    first + parts.map(shown).sum::<usize>()
}

/// A number as text: whole if it is whole, else with at most two decimals.
pub fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.strip_suffix(".00").map_or(text.clone(), ToOwned::to_owned)
}

/// A count with its noun: `1 step`, `2 steps`, `1 entry`, `2 entries`.
pub fn counted(count: impl Into<u64>, what: &str) -> String {
    match count.into() {
        1 => format!("1 {what}"),
        count => format!("{count} {}", plural(what)),
    }
}

/// The plural of a noun: `steps`, `entries`.
pub fn plural(what: &str) -> String {
    what.strip_suffix('y').map_or_else(|| format!("{what}s"), |stem| format!("{stem}ies"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!([0_u32, 1, 2].map(|count| counted(count, "step")), ["0 steps", "1 step", "2 steps"]);
        assert_eq!([1_u32, 2].map(|count| counted(count, "entry")), ["1 entry", "2 entries"]);
    }

    #[test]
    fn a_painted_cell_is_as_wide_as_it_looks() {
        let mut table = Table::new(&["algorithm", "verdict", "after"]);
        table.row(vec!["a".into(), "holds".into(), Paint { on: true }.bold("1")]);
        table.row(vec!["b".into(), "violated".into(), "12".into()]);
        let painted = table.render(Paint { on: true });
        let plain = "algorithm   verdict  after\na             holds      1\nb          violated     12\n";
        let strip = |text: &str| {
            let mut parts = text.split('\x1b');
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |all, part| all + part.split_once('m').map_or("", |(_, rest)| rest))
        };
        assert_eq!(strip(&painted), plain);
        assert!(painted.contains("\x1b[32mholds\x1b[0m") && painted.contains("\x1b[1;31mviolated\x1b[0m"));
        assert_eq!(strip(&table.render(Paint { on: false })), plain);
        assert!(!table.rows[1][1].contains('\x1b'));
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(shown("a\x1b[2Jb\r\u{9b}ü"), "a\\u{1b}[2Jb\\r\\u{9b}ü");
    }

    #[test]
    fn only_a_reader_that_went_away_is_no_failure() {
        assert!(unwritten(&io::ErrorKind::BrokenPipe.into()).is_none());
        let full = unwritten(&io::ErrorKind::StorageFull.into());
        assert_eq!(full.map(|failure| failure.code), Some(NOT_WRITTEN));
    }

    #[cfg(feature = "lab")]
    #[test]
    fn a_pipe_is_written_to_and_stays_a_pipe() {
        use std::io::Read as _;
        use std::os::unix::fs::FileTypeExt as _;

        let pipe = std::env::temp_dir().join(format!("conclave-pipe-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo is there").success());
        // Open for reading and writing, so that neither side blocks.
        let mut reader = std::fs::File::options().read(true).write(true).open(&pipe).expect("just made");
        write_file(&pipe, b"through").expect("the pipe has a reader");
        let is_pipe = std::fs::metadata(&pipe).is_ok_and(|found| found.file_type().is_fifo());
        std::fs::remove_file(&pipe).expect("only this test removes it");
        assert!(is_pipe, "a file replaced the pipe");
        let mut got = [0; 7];
        reader.read_exact(&mut got).expect("it was written");
        assert_eq!(&got, b"through");
    }
}
