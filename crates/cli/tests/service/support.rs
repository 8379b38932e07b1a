//! A server process of its own for every test, and commands against it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server and its folder; both are gone when the test is over.
pub struct Server {
    child: Child,
    pub address: String,
    pub data: PathBuf,
}

/// The program under test.
pub fn conclave() -> Command {
    with_signals(env!("CARGO_BIN_EXE_conclave"))
}

/// A program that ignores no signals: whoever runs the tests in the background may, and what is ignored from the start stays so.
pub fn with_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", program]);
    command
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A node of the cluster that another one belongs to.
    pub fn start_joining(member: &Self) -> Self {
        Self::start_with(&["--join", &member.address])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", flags)
    }

    /// In a new folder, at an address.
    pub fn start_at(listen: &str, flags: &[&str]) -> Self {
        let data = new_path();
        let (child, address) = serve(&data, listen, flags);
        Self { child, address, data }
    }

    /// Without a goodbye.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// For its end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// On the same folder and address.
    pub fn start_again(&mut self) {
        let (child, address) = serve(&self.data, &self.address, &[]);
        assert_eq!(address, self.address);
        self.child = child;
    }

    /// On the same folder, at another address, with a hint where others are.
    pub fn move_elsewhere(&mut self, hint: &str) {
        let (child, address) = serve(&self.data, "127.0.0.1:0", &["--join", hint]);
        assert_ne!(address, self.address);
        (self.child, self.address) = (child, address);
    }

    pub fn signal(&self, signal: Signal) {
        send(&self.child, signal);
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = conclave();
        command.args(args).env("CONCLAVE_SERVER", &self.address).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The exit code of a command.
    pub fn code(&self, args: &[&str]) -> i32 {
        self.output(args).status.code().unwrap()
    }

    /// What a command prints that succeeds.
    pub fn text(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(args)).unwrap()
    }

    /// The status and the JSON of a path over HTTP.
    pub fn http(&self, path: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap())
    }

    /// Starts a command; what it prints can be read line by line.
    pub fn spawn(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args))
    }

    /// Holds a lock until [`Running::finish`].
    pub fn hold(&self, args: &[&str]) -> Running {
        let command = ["--", "sh", "-c", "echo held $CONCLAVE_FENCE; read line"];
        let mut running = self.spawn(&[&["run"], args, &command].concat());
        let first = running.line();
        assert!(first.starts_with("held "), "{first:?}");
        running
    }

    /// Returns when this many wait for a name.
    pub fn until_waiting(&self, name: &str, count: u64) -> Value {
        until("they wait", || {
            let why = self.json(&["why", name, "--json"]);
            (why["waiters_total"] == count).then_some(why)
        })
    }

    /// Returns when there are this many sessions.
    pub fn until_sessions(&self, count: usize) {
        until("there are as many sessions", || {
            let sessions = self.json(&["sessions", "--json"]);
            (sessions.as_array().unwrap().len() == count).then_some(())
        });
    }
}

/// Asks until there is an answer; what takes minutes will never be.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "in vain waited until {what}");
    }
}

/// How long anything may take that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(120);

impl Drop for Server {
    fn drop(&mut self) {
        // Also if a test has failed: nothing is left behind.
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.data));
    }
}

/// A command that runs.
pub struct Running {
    pub child: Child,
    stdin: Option<ChildStdin>,
    pub lines: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { stdin: child.stdin.take(), lines, child }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    pub fn signal(&self, signal: Signal) {
        send(&self.child, signal);
    }

    /// Writes to its standard input.
    pub fn write(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Lets it read a line, and gives its exit code.
    pub fn finish(mut self) -> i32 {
        self.write("\n");
        self.end().0
    }

    /// Waits for its end: the exit code, what else it printed, and its errors.
    pub fn end(mut self) -> (i32, String, String) {
        let (mut rest, mut errors) = (String::new(), String::new());
        self.lines.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code().unwrap(), rest, errors)
    }
}

/// A path under which there is nothing yet.
pub fn new_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("conclave-cli-{}-{number}", std::process::id()))
}

/// A port that nobody listens on.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Where connections are taken, and nothing is ever said.
pub fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

pub fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

fn serve(data: &std::path::Path, listen: &str, flags: &[&str]) -> (Child, String) {
    let mut command = conclave();
    command.args(["serve", "--listen", listen, "--data"]).arg(data).args(flags);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("serving on ").and_then(|rest| rest.split(',').next());
    (child, address.unwrap_or_else(|| panic!("no server: {line:?}")).to_owned())
}
