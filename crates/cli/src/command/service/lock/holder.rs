//! The background process that holds a lock for a shell, or for a limited time.
//!
//! **Rules.** Standard input is a connection to `conclave lock`, the foreground process. The holder writes
//! one line when it has the lock. The foreground process writes one byte when it has printed this line. If
//! the connection ends earlier, the holder releases the lock. Later the holder ends for one of five reasons:
//! `unlock`, the end of the shell, the end of `--for`, a signal, or its own crash. If the lock of a shell is
//! lost, the holder continues until one of these, so that `unlock` can report the loss. If a detached lock is
//! lost, the holder ends at once and leaves the reason in the folder.
//!
//! **Trap.** A holder inherits a pipe, and its reader waits for ever for the end of the pipe. An inherited
//! `flock` stays locked. So the holder closes all descriptors except standard error, and standard error too
//! if it is a pipe.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::future::pending;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::{ExitCode, Stdio};
use std::str::FromStr;
use std::time::Duration;

use conclave_client::{Expr, Guard, LeaseState};
use conclave_wire::socket::user_folder;
use rustix::process::{Signal, setsid};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::Args;
use super::folder::{Key, Request, Socket, Status, Unlocked, line};
use super::shell::{Shell, Watch};
use crate::command::service::hold::Attempt;
use crate::command::service::signals::{STOP, Signals};
use crate::command::service::supervise::{Alarm, CLOCK_CHECK_INTERVAL, Margins, OnLost, danger, pass_lock};
use crate::command::service::{CLOSE_TIMEOUT, NOT_ACQUIRED, REFUSED, block_on, failure, label, terminal};
use crate::output::{Done, Failure};

/// The process whose end releases the lock.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    Shell(Shell),
    /// No process. The lock has a longest time instead.
    Detached,
}

impl Bound {
    pub fn shell(self) -> Option<Shell> {
        match self {
            Self::Shell(shell) => Some(shell),
            Self::Detached => None,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(shell) => shell.fmt(f),
            Self::Detached => f.write_str("detached"),
        }
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "detached" { Ok(Self::Detached) } else { text.parse().map(Self::Shell) }
    }
}

/// Acquires the lock, reports it to the foreground process, and holds it.
pub fn run(args: &Args, expr: &Expr, bound: Bound) -> Done {
    let foreground = foreground().map_err(|error| {
        Failure::usage(format!("--holder is for `conclave lock` itself: {error}; leave this flag out"))
    })?;
    block_on(async {
        let mut signals = Signals::new(STOP)?;
        let shell = bound.shell().map(|shell| shell.watch()).transpose()?;
        let foreground = UnixStream::from_std(foreground).map_err(|error| cannot_hold(&error))?;
        let mut callers = Callers { foreground, shell };
        let requested = args.requested(expr, bound);
        let attempt = Attempt::start(&args.hold, &requested);
        let label = label(&match bound {
            Bound::Shell(shell) => format!("lock for process {}", shell.number()),
            Bound::Detached => "lock".to_owned(),
        });
        let client = callers.or_give_up(async { signals.or_stop(attempt.connect(&label)).await }).await?;
        let request = attempt.request(&client, &label)?;
        let done = match callers.or_give_up(attempt.acquire(&client, request, &mut signals)).await {
            Ok(guard) => hold(args, expr, bound, guard, &mut callers, &mut signals).await,
            Err(failure) => Err(failure),
        };
        attempt.close(&client).await;
        done
    })
}

/// Makes this process independent of its terminal, and returns the connection to the foreground process.
fn foreground() -> io::Result<StdStream> {
    let stream = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // This fails if standard input is not a socket.
    stream.set_nonblocking(true)?;
    stream.peer_addr()?;
    close_inherited(stream.as_raw_fd());
    // This fails if the process leads a session already. That is sufficient.
    _ = setsid();
    Ok(stream)
}

/// The processes that the holder depends on until the lock is reported.
struct Callers {
    foreground: UnixStream,
    /// `None` for a detached lock.
    shell: Option<Watch>,
}

impl Callers {
    /// Returns the result of `future`, or a failure if the shell or the foreground process ends first.
    async fn or_give_up<T>(&self, future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = future => done,
            () = self.foreground_ended() => Err(given_up()),
            () = ended(self.shell.as_ref()) => Err(given_up()),
        }
    }

    /// Returns when the connection to the foreground process has ended. That process writes nothing before it
    /// has read the report.
    async fn foreground_ended(&self) {
        loop {
            // A socket may be reported as readable without data.
            let readable = self.foreground.readable().await;
            let read = readable.and_then(|()| self.foreground.try_read(&mut [0]));
            if !read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
        }
    }

    /// Reports the lock and returns whether the foreground process has confirmed it.
    async fn confirm(&mut self, report: &[u8]) -> bool {
        let mut confirmation = [0];
        let exchange = async {
            self.foreground.write_all(report).await?;
            self.foreground.read(&mut confirmation).await
        };
        tokio::select! {
            read = exchange => matches!(read, Ok(1)),
            () = ended(self.shell.as_ref()) => false,
        }
    }
}

/// Returns the failure of a holder whose callers have ended. Its message is never printed.
fn given_up() -> Failure {
    Failure::new(NOT_ACQUIRED, "cancelled", "")
}

async fn ended(shell: Option<&Watch>) {
    match shell {
        Some(shell) => shell.ended().await,
        None => pending().await,
    }
}

/// Reports the lock, and holds it until one of the reasons to end.
async fn hold(
    args: &Args,
    expr: &Expr,
    bound: Bound,
    guard: Guard,
    callers: &mut Callers,
    signals: &mut Signals,
) -> Done {
    let server = args.hold.server.addresses()?;
    let text = expr.to_string();
    let key = Key { shell: bound.shell(), server: &server, expr: &text };
    let (listener, socket) = Socket::bind(&key).map_err(|error| cannot_hold(&error))?;
    let status = Status {
        server: server.clone(),
        expr: text.clone(),
        fence: guard.fence().0,
        names: guard.names().iter().map(|held| (held.name.clone(), held.fence.0)).collect(),
    };
    if !callers.confirm(&report(args.json, &status)).await {
        socket.remove();
        return Err(given_up());
    }
    detach().map_err(|error| cannot_hold(&error))?;
    let (requests, received) = mpsc::channel(1);
    let answering = tokio::spawn(answer(listener, requests));
    let mut holding = Holding {
        guard: &guard,
        on_lost: &args.hold.on_lost,
        shell: callers.shell.as_ref(),
        margins: Margins::of(args.hold.ttl),
        alarm: Alarm::default(),
    };
    match holding.run(args.hold_for, &status, received, signals).await {
        End::Unlocked(reply) => {
            socket.remove();
            // The client may have ended, but the lock is released anyway.
            drop(reply.send(line(&release(guard).await)));
            drop(timeout(CLOSE_TIMEOUT, answering).await);
        }
        End::Shell => socket.remove(),
        End::Time => socket.leave("the time of --for was over"),
        End::Lost => socket.leave(&guard.loss().map_or_else(String::new, |loss| loss.to_string())),
        // The socket stays as a trace, so that a later `unlock` reports the earlier end of the lock.
        End::Signal => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The reason for the end of a holder.
enum End {
    /// `unlock`, which waits for this reply.
    Unlocked(oneshot::Sender<Vec<u8>>),
    /// The shell has ended.
    Shell,
    /// The time of `--for` is over.
    Time,
    /// A detached lock is lost.
    Lost,
    Signal,
}

/// A request to the holder, and the sender for its reply.
type SocketRequest = (Request, oneshot::Sender<Vec<u8>>);

/// The check of the deadline while the lock is held.
struct Holding<'a> {
    guard: &'a Guard,
    on_lost: &'a OnLost,
    shell: Option<&'a Watch>,
    margins: Margins,
    alarm: Alarm,
}

impl Holding<'_> {
    async fn run(
        &mut self,
        limit: Option<Duration>,
        status: &Status,
        mut received: mpsc::Receiver<SocketRequest>,
        signals: &mut Signals,
    ) -> End {
        let mut over = std::pin::pin!(sleep(limit.unwrap_or(Duration::MAX)));
        loop {
            let state = self.guard.state();
            self.check();
            if state == LeaseState::Lost && self.shell.is_none() {
                return End::Lost;
            }
            tokio::select! {
                biased;
                () = ended(self.shell) => return End::Shell,
                Some((request, reply)) = received.recv() => match request {
                    Request::Status => drop(reply.send(line(status))),
                    Request::Unlock => return End::Unlocked(reply),
                },
                _ = signals.next() => {
                    self.act("the process that holds the lock was stopped by a signal");
                    return End::Signal;
                }
                () = over.as_mut() => return End::Time,
                _ = self.guard.changed(state), if state != LeaseState::Lost => {}
                () = sleep(self.next_check()), if state != LeaseState::Lost => {}
            }
        }
    }

    /// Acts once if the lock is in danger, and once if it is lost.
    fn check(&mut self) {
        let left = self.guard.remaining();
        let is_lost = self.guard.loss().is_some();
        if self.alarm.check(left <= self.margins.term, is_lost, self.on_lost) {
            self.act(&danger(self.guard, left));
        }
    }

    fn next_check(&self) -> Duration {
        let left = self.guard.remaining().saturating_sub(self.margins.term);
        if left.is_zero() { CLOCK_CHECK_INTERVAL } else { left.min(CLOCK_CHECK_INTERVAL) }
    }

    /// Performs the action of `--on-lost`, then prints a message.
    fn act(&self, why: &str) {
        let action = match (self.on_lost, self.shell) {
            (OnLost::Term, Some(shell)) => {
                shell.send(Signal::TERM);
                "sent TERM to the shell"
            }
            (OnLost::Kill, Some(shell)) => {
                shell.send(Signal::KILL);
                "sent KILL to the shell"
            }
            (OnLost::Command(text), _) => self.start_hook(text),
            (OnLost::Warn, _) | (_, None) => "nothing was stopped",
        };
        terminal::print(format!("{why}; {action}"));
    }

    fn start_hook(&self, text: &str) -> &'static str {
        let mut hook = Command::new("sh");
        hook.arg("-c").arg(text).stdin(Stdio::null());
        if let Some(shell) = self.shell {
            hook.env("CONCLAVE_SHELL", shell.number().to_string());
        }
        pass_lock(self.guard, &mut hook);
        match (hook.spawn(), self.shell) {
            (Ok(_), _) => "the --on-lost command runs",
            (Err(_), Some(shell)) => {
                shell.send(Signal::TERM);
                "the --on-lost command cannot be started, so TERM was sent to the shell"
            }
            (Err(_), None) => "the --on-lost command cannot be started",
        }
    }
}

/// Releases the lock and waits for the server's reply. Without a server, this takes until the lease expires.
async fn release(guard: Guard) -> Unlocked {
    match guard.release().await {
        Ok(()) => Unlocked { exit: 0, message: String::new() },
        Err(error) => {
            let Failure { code, message, .. } = failure(error);
            Unlocked { exit: code, message }
        }
    }
}

/// The most bytes of a request. Further bytes are not read.
const MAX_REQUEST_BYTES: u64 = 1024;
/// The longest wait for a request to arrive, and for its reply to be read. A slower client gets no reply.
const EXCHANGE_WITHIN: Duration = Duration::from_secs(1);

/// Reads requests from the socket, one client at a time, until the lock is released. The kernel queues
/// further clients.
async fn answer(listener: UnixListener, requests: mpsc::Sender<SocketRequest>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The process has no free descriptor. Retry later.
            sleep(EXCHANGE_WITHIN).await;
            continue;
        };
        let mut stream = BufReader::new(stream.take(MAX_REQUEST_BYTES));
        let mut text = String::new();
        let read = timeout(EXCHANGE_WITHIN, stream.read_line(&mut text)).await;
        let (Ok(Ok(_)), Ok(request)) = (read, serde_json::from_str(&text)) else { continue };
        let is_last = request == Request::Unlock;
        let (reply, answer) = oneshot::channel();
        if requests.send((request, reply)).await.is_err() {
            return;
        }
        let Ok(answer) = answer.await else { return };
        // The client may have ended.
        drop(timeout(EXCHANGE_WITHIN, stream.get_mut().get_mut().write_all(&answer)).await);
        if is_last {
            return;
        }
    }
}

/// Returns the line that `conclave lock` prints.
fn report(is_json: bool, status: &Status) -> Vec<u8> {
    if !is_json {
        return format!("{}\n", status.fence).into_bytes();
    }
    let names: Vec<&str> = status.names.iter().map(|(name, _)| name.as_str()).collect();
    let fences: BTreeMap<&str, u64> =
        status.names.iter().map(|(name, fence)| (name.as_str(), *fence)).collect();
    line(&json!({ "names": names, "fences": fences, "fence": status.fence, "holder": std::process::id() }))
}

/// Closes all descriptors above standard error except `keep`.
#[allow(unsafe_code, reason = "a descriptor that no Rust value owns can only be closed by its number")]
fn close_inherited(keep: RawFd) {
    let open = fs::read_dir("/dev/fd").into_iter().flatten().flatten();
    let numbers: Vec<RawFd> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2 && *number != keep) {
        // SAFETY: this process has one thread, and has opened only `keep` so far. So no value owns one of the
        // others. The descriptor of the listing is closed already, and closing it again is an error without
        // an effect.
        unsafe {
            libc::close(number);
        }
    }
}

/// Replaces standard error by `/dev/null`, unless it is a terminal or a file: the reader of a pipe would wait
/// for its end.
fn detach() -> io::Result<()> {
    let errors = io::stderr();
    let is_file = File::from(errors.as_fd().try_clone_to_owned()?).metadata()?.is_file();
    if !is_file && !errors.is_terminal() {
        rustix::stdio::dup2_stderr(File::options().write(true).open("/dev/null")?)?;
    }
    Ok(())
}

fn cannot_hold(error: &io::Error) -> Failure {
    let folder = user_folder();
    let message = format!(
        "the lock cannot be held in the background: {error}; only you may be able to write to the folder {}",
        folder.display()
    );
    Failure::new(REFUSED, "cannot-hold", message)
}
