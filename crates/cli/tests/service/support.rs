//! A server process for each test, and commands that use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server and its folder. Dropping it ends the server and removes the folder.
pub struct Server {
    child: Child,
    pub address: String,
    pub data: PathBuf,
}

/// Returns a command of the program under test.
pub fn conclave() -> Command {
    with_signals(env!("CARGO_BIN_EXE_conclave"))
}

/// Returns a command that ignores no signals. Tests that run in the background may ignore some, and child
/// processes inherit that.
pub fn with_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM", program]);
    command
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a node that joins the cluster of `member`.
    pub fn start_joining(member: &Self) -> Self {
        Self::start_with(&["--join", &member.address])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", flags)
    }

    /// Starts a node in a new folder, at this address.
    pub fn start_at(listen: &str, flags: &[&str]) -> Self {
        let data = new_path();
        let (child, address) = serve(&data, listen, flags);
        Self { child, address, data }
    }

    /// Kills the server, so that it sends no last message to its clients.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the server ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Starts the server again, with the same folder and address.
    pub fn start_again(&mut self) {
        let (child, address) = serve(&self.data, &self.address, &[]);
        assert_eq!(address, self.address);
        self.child = child;
    }

    /// Starts the server again, with the same folder, another address, and a hint to a member.
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

    /// Runs a command to its end and returns its output.
    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Returns the exit code of a command.
    pub fn code(&self, args: &[&str]) -> i32 {
        self.output(args).status.code().unwrap()
    }

    /// Returns the output of a command that must succeed.
    pub fn text(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(args)).unwrap()
    }

    /// Returns the status and the JSON of a path over HTTP.
    pub fn http(&self, path: &str) -> (u16, Value) {
        let (status, text) = self.http_text(path);
        (status, serde_json::from_str(&text).unwrap())
    }

    /// Returns the status and the body of a path over HTTP.
    pub fn http_text(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let status = response.split(' ').nth(1).unwrap().parse().unwrap();
        (status, response.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Starts a command. Its output can be read line by line.
    pub fn spawn(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args))
    }

    /// Starts a command that holds a lock until [`Running::finish`].
    pub fn hold(&self, args: &[&str]) -> Running {
        let command = ["--", "sh", "-c", "echo held $CONCLAVE_FENCE; read line"];
        let mut running = self.spawn(&[&["run"], args, &command].concat());
        let first = running.line();
        assert!(first.starts_with("held "), "{first:?}");
        running
    }

    /// Waits until `count` requests wait for a name, and returns the report of `why`.
    pub fn until_waiting(&self, name: &str, count: u64) -> Value {
        until("they wait", || {
            let why = self.json(&["why", name, "--json"]);
            (why["waiters_total"] == count).then_some(why)
        })
    }

    /// Returns when there are `count` sessions.
    pub fn until_sessions(&self, count: usize) {
        until("there are as many sessions", || {
            let sessions = self.json(&["sessions", "--json"]);
            (sessions.as_array().unwrap().len() == count).then_some(())
        });
    }
}

/// Calls `ask` until it returns a value. Panics after [`PATIENCE`].
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "in vain waited until {what}");
    }
}

/// The longest wait of a test for any event. Then the test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

impl Drop for Server {
    fn drop(&mut self) {
        // Clean up even if the test has failed.
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.data));
    }
}

/// A running command.
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

    /// Writes to the standard input of the command.
    pub fn write(&mut self, text: &str) {
        self.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Sends a line to the command, waits for its end, and returns its exit code.
    pub fn finish(mut self) -> i32 {
        self.write("\n");
        self.end().0
    }

    /// Waits for the end of the command. Returns the exit code, the remaining output, and the errors.
    pub fn end(mut self) -> (i32, String, String) {
        let (mut rest, mut errors) = (String::new(), String::new());
        self.lines.read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code().unwrap(), rest, errors)
    }
}

/// Returns a path that does not exist.
pub fn new_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("conclave-cli-{}-{number}", std::process::id()))
}

/// Returns an address at which no process listens.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Returns a listener that accepts connections and sends nothing, and its address.
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
