//! A POSIX shell that is fed line by line, and its output.
//!
//! The shell has a process group of its own. Its commands run in that group; they and the shell end when the [`Shell`] is
//! ended, and also when this process dies: the shell then reads the end of its input and signals its group.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Split};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// The time that commands have to end after TERM; KILL follows.
const GRACE: Duration = Duration::from_secs(5);

/// The byte that begins the line with an exit code. No command of ours prints it.
const MARK: u8 = 1;

/// The commands before the first line. Errors go where output goes. The end of the shell ends its group, also if the shell
/// ends because its output has no reader. CONT follows TERM, because a stopped process handles no TERM.
const PROLOGUE: &str = "exec 2>&1; trap exit PIPE; trap 'trap \"\" TERM; kill -TERM 0; kill -CONT 0' EXIT\n";

/// A running shell.
pub struct Shell {
    child: Child,
    input: ChildStdin,
    output: Split<BufReader<ChildStdout>>,
    ready: VecDeque<Screen>,
}

/// One thing that the shell prints.
pub enum Screen {
    /// A line of a command.
    Line(String),
    /// The exit code of the line that was entered.
    Prompt(u8),
}

impl Shell {
    /// Starts a shell in `folder`, with programs from `programs` before all others. The environment has no variable of
    /// Conclave from outside.
    pub async fn start(folder: &Path, programs: &Path) -> io::Result<Self> {
        let mut path = programs.as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new("sh");
        command.current_dir(folder).env("PATH", path).process_group(0);
        for variable in ["CONCLAVE_SERVER", "CONCLAVE_LOCKS", "CONCLAVE_FENCE"] {
            command.env_remove(variable);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = BufReader::new(output).split(b'\n');
        let mut shell = Self { child, input, output, ready: VecDeque::new() };
        shell.input.write_all(PROLOGUE.as_bytes()).await?;
        Ok(shell)
    }

    /// Enters a line. [`Screen::Prompt`] follows when the shell has run it.
    pub async fn enter(&mut self, line: &str) -> io::Result<()> {
        // Without an input of its own, a command would read the following lines.
        let text = format!("{{ {line}\n}} < /dev/null; printf '\\001%s\\n' \"$?\"\n");
        self.input.write_all(text.as_bytes()).await
    }

    /// Returns the next thing that the shell prints. The future may be dropped and created again.
    pub async fn next(&mut self) -> io::Result<Screen> {
        if let Some(screen) = self.ready.pop_front() {
            return Ok(screen);
        }
        let Some(line) = self.output.next_segment().await? else {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the shell has ended; see its last output",
            ));
        };
        self.ready.extend(parse(&line));
        self.ready.pop_front().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Ends the shell and all its commands: by TERM, and by KILL after [`GRACE`].
    pub async fn end(mut self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
        drop(self.input);
        let output = &mut self.output;
        let silence = async { while let Ok(Some(_)) = output.next_segment().await {} };
        // The output ends when its last writer has ended.
        let is_over = timeout(GRACE, silence).await.is_ok();
        if !is_over && let Some(group) = group(&self.child) {
            _ = kill_process_group(group, Signal::KILL);
        }
        _ = self.child.wait().await;
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = group(&self.child) {
            _ = kill_process_group(group, signal);
        }
    }
}

/// Returns the process group; none if the shell was reaped.
fn group(shell: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(shell.id()?).ok()?)
}

/// Splits a line of output: text, and perhaps an exit code behind [`MARK`].
fn parse(line: &[u8]) -> Vec<Screen> {
    let text = |bytes: &[u8]| Screen::Line(String::from_utf8_lossy(bytes).into_owned());
    let Some(at) = line.iter().rposition(|byte| *byte == MARK) else { return vec![text(line)] };
    let (before, code) = (&line[..at], &line[at + 1..]);
    match str::from_utf8(code).ok().and_then(|code| code.parse().ok()) {
        None => vec![text(line)],
        Some(code) if before.is_empty() => vec![Screen::Prompt(code)],
        Some(code) => vec![text(before), Screen::Prompt(code)],
    }
}
