//! Runs every command of `README.md`, in order, in one shell and one folder, as a reader would type them.
//!
//! The differences from a reader: `cargo run --` becomes the binary under test. Lines that begin with `cargo
//! build` or `cargo test` are omitted. Ports are free ones. Each server ends with its block. The block of the
//! tour is compared with `conclave tour --list` and not run again, because `conclave tour` runs it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tokio::time::timeout;

use crate::service::support::{PATIENCE, conclave, free_address, new_path};
use shell::{Screen, Shell};

#[path = "../src/command/tour/shell.rs"]
mod shell;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
/// The line before the block of the tour.
const TOUR: &str = "<!-- The output of `conclave tour --list`.";
const FENCE: &str = "```";

#[test]
fn every_command_of_the_readme_does_what_the_readme_says() {
    let readme = fs::read_to_string(README).expect("the README is there");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let folder = Folder::new();
        let mut reader = Reader::start(&folder).await;
        let mut typed = 0;
        for block in blocks(&readme).iter().filter(|block| !block.is_tour) {
            for command in &block.commands {
                typed += usize::from(reader.type_in(command).await);
            }
            reader.stop_servers().await;
        }
        reader.shell.end().await;
        assert!(typed > 20, "only {typed} commands were found");
    });
}

#[test]
fn the_readme_lists_the_commands_of_the_tour() {
    let listed = conclave().args(["tour", "--list"]).output().expect("the binary runs").stdout;
    let listed = String::from_utf8(listed).expect("the list is text");
    let readme = fs::read_to_string(README).expect("the README is there");
    let (before, rest) = readme.split_once(TOUR).expect("the README has the block of the tour");
    let (remark, rest) = rest.split_once("```console\n").expect("the block follows the remark");
    let (block, after) = rest.split_once(FENCE).expect("the block ends");
    if std::env::var_os("CONCLAVE_REWRITE").is_some() {
        let text = format!("{before}{TOUR}{remark}```console\n{listed}{FENCE}{after}");
        fs::write(README, text).expect("the README can be written");
        return;
    }
    let rewrite = "CONCLAVE_REWRITE=1 cargo test -p conclave --test all the_readme_lists";
    assert_eq!(block, listed, "the README is behind `conclave tour --list`; rewrite it: {rewrite}");
}

/// A block of commands.
struct Block {
    is_tour: bool,
    commands: Vec<Command>,
}

/// A command, and the output that the README shows below it.
struct Command {
    /// The line number in the README.
    number: usize,
    line: String,
    shown: Vec<String>,
}

impl Command {
    /// Returns the exit code that the comment of the line states: `# exit 1: there is a deadlock`.
    fn exit_code(&self) -> u8 {
        let stated = self.line.split_once("# exit ").map(|(_, stated)| stated);
        let code = stated.map(|stated| stated.split(':').next().unwrap_or_default().parse());
        code.transpose()
            .unwrap_or_else(|_| panic!("line {}: write `# exit CODE: REASON`", self.number))
            .unwrap_or(0)
    }

    /// Returns the line without its comment, with the binary under test in place of cargo's.
    fn text(&self) -> String {
        let text = self.line.split_once("  #").map_or(self.line.as_str(), |(text, _)| text);
        let text = text.trim_end();
        ["cargo run --release -- ", "cargo run -- "]
            .iter()
            .find_map(|cargo| text.strip_prefix(cargo))
            .map_or_else(|| text.to_owned(), |rest| format!("conclave {rest}"))
    }
}

fn blocks(readme: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_inside, mut before) = (false, "");
    for (number, line) in readme.lines().enumerate() {
        if line.starts_with(FENCE) {
            is_inside = line == "```console";
            if is_inside {
                blocks.push(Block { is_tour: before.starts_with(TOUR), commands: Vec::new() });
            }
        } else if is_inside && let Some(block) = blocks.last_mut() {
            let commands = &mut block.commands;
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(line), _) => {
                    commands.push(Command { number: number + 1, line: line.to_owned(), shown: Vec::new() });
                }
                (None, Some(command)) => command.shown.push(line.to_owned()),
                (None, None) => {
                    assert!(line.starts_with('#'), "line {}: output without a command", number + 1);
                }
            }
        }
        before = line;
    }
    blocks
}

/// The working folder of the test. It is removed at the end, even if the test fails.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = Self(new_path());
        for part in ["work", "bin", "tmp", "state"] {
            fs::create_dir_all(folder.path(part)).expect("a new folder");
        }
        symlink(env!("CARGO_BIN_EXE_conclave"), folder.path("bin/conclave")).expect("a new folder");
        folder
    }

    fn path(&self, part: impl AsRef<Path>) -> PathBuf {
        self.0.join(part)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The terminals of a reader: one for commands, and one for each server.
struct Reader<'a> {
    folder: &'a Folder,
    /// The free address that replaces each port of the README.
    addresses: BTreeMap<u16, String>,
    shell: Shell,
    servers: Vec<Shell>,
}

impl<'a> Reader<'a> {
    async fn start(folder: &'a Folder) -> Self {
        let addresses: BTreeMap<_, _> = (7411..=7414).map(|port| (port, free_address())).collect();
        let shell = open_terminal(folder, &addresses[&7411]).await;
        Self { folder, addresses, shell, servers: Vec::new() }
    }

    /// Runs a command and compares its exit code and its output. Returns whether it was run.
    async fn type_in(&mut self, command: &Command) -> bool {
        let Command { number, line, shown } = command;
        if line.starts_with("cargo build") || line.starts_with("cargo test") {
            return false;
        }
        let text = self.on_free_ports(&command.text());
        if text.starts_with("conclave serve") {
            self.serve(text.trim_end_matches(" &")).await;
            return true;
        }
        let (code, output) = self.enter(&text).await;
        let seen = output.join("\n");
        assert_eq!(code, command.exit_code(), "README, line {number}: `{line}` printed:\n{seen}");
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        let is_as_shown = shown.is_empty() || matches(&shown, &output);
        assert!(
            is_as_shown,
            "README, line {number}: `{line}` printed:\n{seen}\nin place of:\n{}",
            shown.join("\n")
        );
        true
    }

    fn on_free_ports(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (port, address) in &self.addresses {
            text = text.replace(&format!("127.0.0.1:{port}"), address);
        }
        if text.starts_with("conclave serve") && !text.contains("--listen") {
            text = text.replacen("serve", &format!("serve --listen {}", self.addresses[&7411]), 1);
        }
        text
    }

    /// Starts a server in its own terminal, and returns when it serves.
    async fn serve(&mut self, text: &str) {
        let mut terminal = open_terminal(self.folder, &self.addresses[&7411]).await;
        terminal.enter(text).await.expect("the shell runs");
        let mut output = Vec::new();
        let is_serving = async {
            loop {
                match terminal.next().await.expect("the shell runs") {
                    Screen::Line(line) if line.starts_with("serving on ") => return true,
                    Screen::Line(line) => output.push(line),
                    Screen::Prompt(_) => return false,
                }
            }
        };
        let is_serving = timeout(PATIENCE, is_serving).await;
        assert_eq!(is_serving, Ok(true), "`{text}` does not serve: {}", output.join("\n"));
        self.servers.push(terminal);
    }

    /// Ends the servers of a block, as Ctrl-C does in their terminals.
    async fn stop_servers(&mut self) {
        for server in self.servers.drain(..) {
            server.end().await;
        }
    }

    async fn enter(&mut self, text: &str) -> (u8, Vec<String>) {
        enter(&mut self.shell, text).await
    }
}

/// Opens a terminal in the working folder, with a server, a state folder and a local node for this test only.
async fn open_terminal(folder: &Folder, server: &str) -> Shell {
    let mut shell = Shell::start(&folder.path("work"), &folder.path("bin")).await.expect("sh starts");
    let (state, tmp) = (folder.path("state"), folder.path("tmp"));
    let variables = [
        ("CONCLAVE_SERVER", server.to_owned()),
        ("XDG_STATE_HOME", state.display().to_string()),
        ("TMPDIR", tmp.display().to_string()),
        ("CONCLAVE_LOCAL_DIR", state.join("local").display().to_string()),
        // The node of `--local` ends soon after the test.
        ("CONCLAVE_LOCAL_IDLE", "1s".to_owned()),
    ];
    for (name, value) in variables {
        enter(&mut shell, &format!("export {name}='{value}'")).await;
    }
    shell
}

/// Types a line and returns its exit code and its output.
async fn enter(shell: &mut Shell, text: &str) -> (u8, Vec<String>) {
    shell.enter(text).await.expect("the shell runs");
    let mut output = Vec::new();
    let end = async {
        loop {
            match shell.next().await.expect("the shell runs") {
                Screen::Line(line) => output.push(line.trim_end().to_owned()),
                Screen::Prompt(code) => return code,
            }
        }
    };
    let code = timeout(PATIENCE, end).await;
    (code.unwrap_or_else(|_| panic!("`{text}` does not end: {}", output.join("\n"))), output)
}

/// Returns whether the output is as shown. A line `...` stands for any lines, and `...` in a line for any
/// text.
fn matches(shown: &[&str], output: &[String]) -> bool {
    match (shown, output) {
        ([], rest) => rest.is_empty(),
        (["...", shown @ ..], _) => (0..=output.len()).any(|from| matches(shown, &output[from..])),
        (_, []) => false,
        ([line, shown @ ..], [first, output @ ..]) => line_matches(line, first) && matches(shown, output),
    }
}

fn line_matches(shown: &str, line: &str) -> bool {
    match shown.split_once("...") {
        None => shown == line,
        Some((begin, rest)) => line.strip_prefix(begin).is_some_and(|line| {
            line.char_indices()
                .map(|(at, _)| at)
                .chain([line.len()])
                .any(|at| line_matches(rest, &line[at..]))
        }),
    }
}

#[test]
fn dots_stand_for_lines_and_for_text() {
    let output = ["deadlock: 2 of 2".to_owned(), "cycle".to_owned(), "stuck".to_owned()];
    assert!(matches(&["deadlock: ... of 2", "..."], &output));
    assert!(matches(&["...", "cycle", "..."], &output));
    assert!(matches(&["...", "stuck"], &output));
    assert!(!matches(&["deadlock: ... of 3", "..."], &output));
    assert!(!matches(&["...", "cycle"], &output));
    assert!(!matches(&["cycle", "..."], &output));
}
