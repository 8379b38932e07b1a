//! Acquiring a lock for a command, and releasing it afterwards: the common part of `run`, `elect` and `lock`.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use conclave_client::{Client, Code, Error, Expr, Guard, LockRequest, PendingLock, VictimPolicy};
use conclave_core::Wait;
use tokio::time::{sleep, timeout};

use super::lock::Shell;
use super::signals::{PASSED_ON, Signals, killed_by};
use super::supervise::{self, OnLost};
use super::{CLOSE_TIMEOUT, LOST, NO_SERVER, NOT_ACQUIRED, REFUSED, ServerArgs};
use super::{block_on, close_within, failure, label, nested, poll_before_sleeping, waiting};
use crate::output::Failure;

/// Options for waiting for a lock and for keeping it.
#[derive(clap::Args)]
pub struct HoldArgs {
    /// Do not wait. Exit with 75 at once if it is held, and with 69 within 3 s if there is no majority
    #[arg(long = "try", conflicts_with = "wait")]
    pub try_once: bool,
    /// Wait at most this long: 500ms, 30s, 5m. Exit with 75 then, and with 69 within 3 s more if no majority answers
    #[arg(long, visible_alias = "timeout", value_name = "D", value_parser = super::duration, allow_hyphen_values = true)]
    pub wait: Option<Duration>,
    /// Print nothing on standard error while waiting
    #[arg(long, short)]
    pub quiet: bool,
    /// Requests with a larger priority are granted first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// The lease: the time after which a client that is cut off loses the lock [default: 10s]
    #[arg(long, value_name = "D", value_parser = super::duration, allow_hyphen_values = true)]
    pub ttl: Option<Duration>,
    /// The time for which the names stay locked after the client has died [default: 1s]
    #[arg(long, value_name = "D", value_parser = super::duration, allow_hyphen_values = true)]
    pub lock_delay: Option<Duration>,
    /// The action before the lock is lost: term (then kill), kill, warn (only print a message), or a shell
    /// command to run instead of sending TERM
    #[arg(long, value_name = "term|kill|warn|COMMAND", default_value = "term", value_parser = supervise::on_lost)]
    pub on_lost: OnLost,
    /// The request that is rejected if this one completes a deadlock
    #[arg(long, value_name = "POLICY", default_value = "requester")]
    pub on_deadlock: Policy,
    /// The addresses of the servers.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The choice of the request that is rejected to end a deadlock.
#[derive(Clone, Copy, ValueEnum)]
pub enum Policy {
    /// The request that completes the deadlock
    Requester,
    /// The request of the owner that came last
    Youngest,
    /// The request with the lowest priority
    LowestPriority,
    /// The request of the owner that holds the fewest names
    FewestLocks,
    /// No request: the deadlock stays, and `why` shows it
    None,
}

/// The lock that a command requests.
pub struct RequestedLock<'a> {
    pub expr: &'a Expr,
    /// The expression as the user typed it, for messages.
    pub text: &'a str,
    /// `true` if every name of the expression is requested shared.
    pub shared: bool,
    /// `true` if messages while waiting are suppressed.
    pub quiet: bool,
    /// The shell whose locks (`conclave lock`) stay held while this request waits.
    pub shell: Option<Shell>,
}

/// A granted lock.
pub struct Grant<'a> {
    pub guard: &'a Guard,
    /// The time between the request and the grant.
    pub waited: Duration,
}

/// Acquires a lock, calls `act` with it, and releases everything, also if `act` fails.
pub fn hold<T>(
    args: &HoldArgs,
    requested: &RequestedLock<'_>,
    program: &str,
    adjust: impl FnOnce(LockRequest) -> LockRequest,
    act: impl AsyncFnOnce(Grant<'_>, &mut Signals) -> Result<T, Failure>,
) -> Result<T, Failure> {
    block_on(async {
        let attempt = Attempt::start(args, requested);
        let mut signals = Signals::new(PASSED_ON)?;
        let label = label(program);
        let client = signals.or_stop(attempt.connect(&label)).await?;
        let request = adjust(attempt.request(&client, &label)?);
        let began = Instant::now();
        let (guard, done) = match attempt.acquire(&client, request, &mut signals).await {
            Ok(guard) => {
                let done = act(Grant { guard: &guard, waited: began.elapsed() }, &mut signals).await;
                (Some(guard), done)
            }
            Err(failure) => (None, Err(failure)),
        };
        // The end of the session releases the lock. The guard is dropped later, because its drop would send
        // another release.
        attempt.close(&client).await;
        drop(guard);
        done
    })
}

/// An attempt to acquire a lock. Its time runs from [`Attempt::start`].
pub struct Attempt<'a> {
    args: &'a HoldArgs,
    requested: &'a RequestedLock<'a>,
    wait: Wait,
    limits: Limits,
    began: Instant,
}

impl<'a> Attempt<'a> {
    /// Starts an attempt and its time.
    pub fn start(args: &'a HoldArgs, requested: &'a RequestedLock<'a>) -> Self {
        let wait = wait(args);
        Self { args, requested, wait, limits: Limits::of(wait), began: Instant::now() }
    }

    /// Connects to a server.
    pub async fn connect(&self, label: &str) -> Result<Client, Failure> {
        let mut options = Client::builder();
        if let Some(ttl) = self.args.ttl {
            options = options.ttl(ttl);
        }
        if let Some(delay) = self.args.lock_delay {
            options = options.lock_delay(delay);
        }
        if let Some(retry_timeout) = self.limits.retry_timeout() {
            options = options.retry_timeout(retry_timeout);
        }
        let connected = timeout(self.left(), self.args.server.open(options.label(label))).await;
        connected.map_err(|_| self.no_answer())?
    }

    /// Builds the request with the options of the command line.
    pub fn request(&self, client: &Client, label: &str) -> Result<LockRequest, Failure> {
        let request = client.owner(label).map_err(failure)?.lock(self.requested.expr.clone());
        let request = if self.requested.shared { request.shared() } else { request };
        let args = self.args;
        let request = match self.wait {
            Wait::Try => request.timeout(Duration::ZERO),
            Wait::AtMost(limit_ms) => request.timeout(Duration::from_millis(limit_ms)),
            Wait::Forever => request,
        };
        Ok(request.priority(args.priority).on_deadlock(args.on_deadlock.into()))
    }

    /// Waits for the grant, and reports the wait on standard error. A signal cancels the request.
    pub async fn acquire(
        &self,
        client: &Client,
        request: LockRequest,
        signals: &mut Signals,
    ) -> Result<Guard, Failure> {
        let checked = timeout(self.left(), nested::check(client, self.requested, self.wait));
        signals.or_stop(async { checked.await.map_err(|_| self.no_answer())? }).await?;
        let mut pending = request.start().map_err(not_acquired)?;
        let signal = tokio::select! {
            biased;
            granted = poll_before_sleeping(self.granted(client, &mut pending)) => return granted.map_err(not_acquired),
            signal = signals.next() => Some(signal),
            () = sleep(self.left()) => None,
        };
        // Only the reply to the cancel proves that this session holds nothing. A second signal ends the wait
        // for this reply. Without a session, the client has cancelled the request alone.
        let is_cancelled = tokio::select! {
            cancelled = timeout(self.limits.cancel_timeout, pending.cancel()) => {
                matches!(cancelled, Ok(Ok(()))) && client.session().is_some()
            }
            _ = signals.next() => false,
        };
        Err(signal.map_or_else(|| self.no_grant(is_cancelled), killed_by))
    }

    /// Ends the session, and waits for the reply for as long as this attempt allows.
    pub async fn close(&self, client: &Client) {
        close_within(client, self.limits.close_timeout).await;
    }

    async fn granted(&self, client: &Client, pending: &mut PendingLock) -> conclave_client::Result<Guard> {
        if !self.requested.quiet
            && let Some(place) = pending.queued().await
        {
            return tokio::select! {
                biased;
                granted = pending.granted() => granted,
                never = waiting::report(client, self.requested, &place) => match never {},
            };
        }
        pending.granted().await
    }

    fn left(&self) -> Duration {
        self.limits.answer.saturating_sub(self.began.elapsed())
    }

    /// The failure of an attempt whose time is over. A server that has confirmed the cancel answers, but has not
    /// ended the wait itself: a new leader starts the time of a wait again.
    fn no_grant(&self, is_cancelled: bool) -> Failure {
        match self.wait {
            Wait::AtMost(limit_ms) if is_cancelled => {
                let limit = Duration::from_millis(limit_ms);
                not_acquired(Error::new(
                    Code::TimedOut,
                    format!("the request was not granted within {limit:?}"),
                ))
            }
            _ => self.no_answer(),
        }
    }

    /// The failure of an attempt without an answer. The request may have been queued, so the outcome is indefinite.
    fn no_answer(&self) -> Failure {
        let message = match self.wait {
            Wait::AtMost(_) => {
                "the wait is over, and the server does not answer, or it has no majority".to_owned()
            }
            _ => {
                let seconds = self.limits.answer.as_secs();
                format!("the server does not answer within {seconds} s, or it has no majority")
            }
        };
        let advice = "run `conclave cluster status`, then try again";
        Failure::new(NO_SERVER, Code::NoAnswer.name(), message).advise(advice).indefinite()
    }
}

/// The time after the end of a limited wait in which the server's own reply may arrive. Then the command cancels
/// the request.
const REPLY_GRACE: Duration = Duration::from_secs(1);
/// The longest time of `--try` from its start to the reply. It is longer than the election of a new leader
/// (1.4 s). Then the command exits with 69.
const TRY_ANSWER: Duration = Duration::from_secs(2);
/// The longest wait for the reply to the cancel after a limited wait. It is longer than the election of a new
/// leader.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(1_500);
/// The longest wait for the reply to the end of the session, and with `--try` for the reply to the cancel.
const SHORT_CLOSE: Duration = Duration::from_millis(250);
/// The bounds of the time for which the client sends a rejected request again. The upper one is the default of
/// the client.
const RETRY_TIMEOUT: (Duration, Duration) = (Duration::from_millis(1_500), Duration::from_secs(10));

/// The longest times that an attempt waits for a server that does not reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    /// The time from the start to the reply. [`Duration::MAX`] means no limit.
    answer: Duration,
    /// The time for the reply to a cancel.
    cancel_timeout: Duration,
    /// The time for the reply to the end of the session.
    close_timeout: Duration,
}

impl Limits {
    /// Returns the limits for a wait. The server itself ends a limited wait; these limits are for a server
    /// that does not reply.
    fn of(wait: Wait) -> Self {
        match wait {
            Wait::Try => Self { answer: TRY_ANSWER, cancel_timeout: SHORT_CLOSE, close_timeout: SHORT_CLOSE },
            Wait::AtMost(limit_ms) => {
                let answer = Duration::from_millis(limit_ms).saturating_add(REPLY_GRACE);
                Self { answer, cancel_timeout: CANCEL_TIMEOUT, close_timeout: SHORT_CLOSE }
            }
            Wait::Forever => {
                Self { answer: Duration::MAX, cancel_timeout: CLOSE_TIMEOUT, close_timeout: CLOSE_TIMEOUT }
            }
        }
    }

    /// Returns the time for which the client sends a rejected request again; `None` for its default. It ends
    /// before the time for the reply, if possible: the error of the client contains the server's reason.
    fn retry_timeout(self) -> Option<Duration> {
        let is_limited = self.answer < Duration::MAX;
        is_limited.then(|| (self.answer / 4).saturating_mul(3).clamp(RETRY_TIMEOUT.0, RETRY_TIMEOUT.1))
    }
}

/// Converts the error of a request that was not granted. The exit codes 76 (lost) and 1 become 75, because
/// this lock was never granted.
fn not_acquired(error: Error) -> Failure {
    let failure = failure(error);
    let code = if matches!(failure.code, LOST | REFUSED) { NOT_ACQUIRED } else { failure.code };
    Failure { code, ..failure }
}

fn wait(args: &HoldArgs) -> Wait {
    match args.wait {
        _ if args.try_once => Wait::Try,
        Some(limit) if limit.is_zero() => Wait::Try,
        Some(limit) => Wait::AtMost(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1)),
        None => Wait::Forever,
    }
}

impl From<Policy> for VictimPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Requester => Self::Requester,
            Policy::Youngest => Self::Youngest,
            Policy::LowestPriority => Self::LowestPriority,
            Policy::FewestLocks => Self::FewestLocks,
            Policy::None => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// The options of a command line.
    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        hold: HoldArgs,
    }

    #[test]
    fn errors_before_the_first_grant_exit_with_not_acquired() {
        let code = |code| not_acquired(Error::new(code, "x")).code;
        for refused in [Code::SessionEnded, Code::NotHeld, Code::LimitReached, Code::TimedOut] {
            assert_eq!(code(refused), 75, "{refused:?}");
        }
        assert_eq!(code(Code::Deadlock), 77);
        assert_eq!(code(Code::NoQuorum), 69);
        assert_eq!(code(Code::InvalidExpression), 2);
    }

    #[test]
    fn a_wait_limit_bounds_the_wait_for_a_silent_server() {
        let answer = |wait| Limits::of(wait).answer;
        assert_eq!(answer(Wait::AtMost(5_000)), Duration::from_secs(6));
        assert_eq!(answer(Wait::AtMost(u64::MAX)), Duration::from_millis(u64::MAX) + REPLY_GRACE);
        assert_eq!(answer(Wait::Forever), Duration::MAX);
    }

    #[test]
    fn a_limited_wait_ends_within_three_seconds_after_its_limit_on_any_server() {
        for limit_ms in [1, 2_000, 3_600_000] {
            let Limits { answer, cancel_timeout, close_timeout } = Limits::of(Wait::AtMost(limit_ms));
            let after = answer + cancel_timeout + close_timeout - Duration::from_millis(limit_ms);
            assert!(after < Duration::from_secs(3), "{limit_ms} ms: {after:?}");
            // Without a session there is nothing to cancel, but the resolution of a name may block a thread.
            assert!(answer + CLOSE_TIMEOUT <= Duration::from_millis(limit_ms) + Duration::from_secs(3));
        }
    }

    #[test]
    fn a_client_with_a_limit_retries_for_a_shorter_time_than_its_default() {
        let retries = |wait| Limits::of(wait).retry_timeout();
        assert_eq!(retries(Wait::Forever), None);
        assert_eq!(retries(Wait::Try), Some(Duration::from_millis(1_500)));
        assert_eq!(retries(Wait::AtMost(1)), Some(Duration::from_millis(1_500)));
        assert_eq!(retries(Wait::AtMost(3_000)), Some(Duration::from_secs(3)));
        assert_eq!(retries(Wait::AtMost(u64::MAX)), Some(Duration::from_secs(10)));
    }

    #[test]
    fn an_attempt_whose_cancel_is_confirmed_has_timed_out_and_otherwise_its_outcome_is_unknown() {
        let args = CommandLine::parse_from(["run", "--wait", "2s"]).hold;
        let expr = "x".parse::<Expr>().expect("a name");
        let requested = RequestedLock { expr: &expr, text: "x", shared: false, quiet: true, shell: None };
        let attempt = Attempt::start(&args, &requested);
        let (confirmed, unconfirmed) = (attempt.no_grant(true), attempt.no_grant(false));
        assert_eq!((confirmed.code, confirmed.is_definite), (75, true), "{}", confirmed.message);
        assert!(confirmed.message.contains("2s"), "{}", confirmed.message);
        assert_eq!((unconfirmed.code, unconfirmed.is_definite), (69, false), "{}", unconfirmed.message);
    }

    #[test]
    fn a_try_ends_within_three_seconds_on_any_server() {
        let Limits { answer, cancel_timeout, close_timeout } = Limits::of(Wait::Try);
        assert!(answer + cancel_timeout + close_timeout < Duration::from_secs(3));
        // Resolving a name blocks a thread, and the end of the runtime waits for that thread. There is no
        // session then.
        assert!(answer + CLOSE_TIMEOUT <= Duration::from_secs(3));
    }
}
