//! Every error of the system: its cause, whether the outcome is definite, and what to do.
//!
//! **Intuition.** After an error, a program must know whether its request may have had its effect. It must
//! also know whether to try again, to change the request, or to call an operator. A [`Code`] answers both;
//! the message is for people.
//!
//! **Rules.** A code is *definite* if the request is known to have had no effect. All errors of the
//! replicated state are definite. A lost connection, a missing reply and a forgotten answer are not. Numbers
//! and names of codes never change their meaning and are never reused, because clients and scripts match on
//! them.
//!
//! The table below is the only description of the codes. The command line prints it, and a test compares the
//! `.proto` file with it.

use std::convert::Infallible;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::request::Deadlock;
use crate::{ExprError, NameError};

/// The part of the system that causes an error, and can remove the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The request: the client must change it, or the rejection is an ordinary outcome.
    Caller,
    /// The service: an operator may have to repair it.
    Server,
    /// The network between client and service: the client tries again.
    Network,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $code:ident = $number:literal, $name:literal, $fault:ident,
        $definite:literal, $advice:literal;)*) => {
        /// The kind of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $doc])+ $code,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$code),*];

            /// The number on the wire; stable.
            pub const fn number(self) -> u16 {
                match self { $(Self::$code => $number),* }
            }

            /// The name that scripts match on; stable.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$code => $name),* }
            }

            /// The part of the system that causes the error.
            pub const fn fault(self) -> Fault {
                match self { $(Self::$code => Fault::$fault),* }
            }

            /// Returns whether the request is known to have had no effect.
            pub const fn is_definite(self) -> bool {
                match self { $(Self::$code => $definite),* }
            }

            /// The next step, as an advice.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$code => $advice),* }
            }

            /// The code with this number, if there is one.
            pub const fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$code),)* _ => None }
            }
        }
    };
}

codes! {
    /// A text that is not a lock expression.
    InvalidExpression = 1, "invalid-expression", Caller, true, "correct the expression at the marked place";
    /// A text that is not a name or a path.
    InvalidName = 2, "invalid-name", Caller, true, "correct the name";
    /// Another argument that is wrong or out of its range.
    InvalidArgument = 3, "invalid-argument", Caller, true, "correct the request";
    /// A request for permits of a name that has no limit.
    NotASemaphore = 4, "not-a-semaphore", Caller, true,
        "set a limit with `conclave limit NAME N`, or request the name without a number";
    /// A request for a semaphore as a lock, or for a lock in use as a semaphore.
    WrongKind = 5, "wrong-kind", Caller, true,
        "use another name, or try again when nobody holds or waits for this one";
    /// A request for more permits than the limit, which no release can ever satisfy.
    Impossible = 6, "impossible", Caller, true, "request fewer permits, or raise the limit";
    /// A request for one more name, session, file or watch than allowed.
    LimitReached = 7, "limit-reached", Caller, true, "release or remove something first";
    /// More bytes than allowed.
    TooLarge = 8, "too-large", Caller, true, "send less";

    /// A try for a lock that another owner holds or claims.
    WouldWait = 20, "would-wait", Caller, true, "try later, or wait for the lock";
    /// A wait that was not granted within its limit.
    TimedOut = 21, "timed-out", Caller, true, "try later, or wait longer";
    /// A wait that the client has cancelled.
    Cancelled = 22, "cancelled", Caller, true, "nothing to do";
    /// A request that was rejected to end a deadlock.
    Deadlock = 23, "deadlock", Caller, true,
        "release the locks that you hold, then request all locks at once";
    /// A second waiting request of one owner.
    OwnerBusy = 24, "owner-busy", Caller, true,
        "wait for the first request, or use another owner or one expression";
    /// A release, or another use, of a lock that is not held.
    NotHeld = 25, "not-held", Caller, true, "do not use the resource that the lock protects";

    /// A request of a session that is unknown or has ended; it holds nothing.
    SessionEnded = 40, "session-ended", Caller, true, "open a new session and acquire the locks again";
    /// A session that is resumed with a wrong secret.
    WrongSecret = 41, "wrong-secret", Caller, true, "resume the session with the secret of its opening";
    /// A request beyond the bound of unacknowledged answers.
    TooManyUnanswered = 42, "too-many-unanswered", Caller, true,
        "acknowledge answers before you send more requests";
    /// A request whose answer was acknowledged and forgotten.
    Forgotten = 43, "forgotten", Caller, false,
        "give each request a larger number than the one before; then read the state";

    /// A file that does not exist.
    NoSuchFile = 60, "no-such-file", Caller, true, "create it, or check the path";
    /// A file that exists already.
    FileExists = 61, "file-exists", Caller, true, "write the existing file, or use another name";
    /// A file that has another version than expected.
    VersionMismatch = 62, "version-mismatch", Caller, true, "read the file again, then decide";
    /// A directory that has children.
    NotEmpty = 63, "not-empty", Caller, true, "delete the children first";
    /// A child of an ephemeral file, which cannot have any.
    EphemeralParent = 64, "ephemeral-parent", Caller, true, "use a parent that is not ephemeral";
    /// An operation that was not done because another one of the same request failed.
    MultiAborted = 65, "multi-aborted", Caller, true, "correct the operation that failed";

    /// A request that this version does not know.
    Unsupported = 80, "unsupported", Caller, true, "use a client of the server's version";
    /// A request to a node that does not lead; it was not accepted.
    NotLeader = 81, "not-leader", Server, true, "send the request to the leader, or to any node again";
    /// A request without a reachable majority; it was not accepted.
    NoQuorum = 82, "no-quorum", Server, true, "wait until a majority of the nodes runs, then try again";
    /// A request to a node that has too many; it was not accepted.
    Overloaded = 83, "overloaded", Server, true, "retry later, with fewer requests in flight";
    /// A request to a node that stops; it was not accepted.
    ShuttingDown = 84, "shutting-down", Server, true, "send the request to another node";
    /// A defect of the program, or a failed disk.
    Internal = 85, "internal", Server, false, "read the log of the server";

    /// No reply in time; the request may have had its effect.
    NoAnswer = 100, "no-answer", Network, false,
        "send the request again with the same number: it takes effect once";
    /// A broken connection; the request may have had its effect.
    Disconnected = 101, "disconnected", Network, false,
        "connect again and repeat the request with the same number";
    /// No server could be reached; nothing was sent.
    Unreachable = 102, "unreachable", Network, true,
        "check the address, and that a server runs (conclave serve)";
}

impl Code {
    /// The exit code of a command of the command line that fails with this error.
    pub const fn exit(self) -> u8 {
        match self {
            Self::InvalidExpression | Self::InvalidName | Self::InvalidArgument | Self::Impossible => 2,
            Self::NotASemaphore | Self::TooLarge | Self::Unsupported => 2,
            Self::WouldWait | Self::TimedOut | Self::Cancelled => 75,
            Self::SessionEnded | Self::NotHeld => 76,
            Self::Deadlock => 77,
            _ if !matches!(self.fault(), Fault::Caller) => 69,
            _ => 1,
        }
    }
}

/// An error: the code for programs, the message for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The kind of the error.
    pub code: Code,
    /// The problem, with its particulars. It does not repeat the advice of the code.
    pub message: String,
    /// The owners that wait for each other, if the code is [`Code::Deadlock`].
    pub deadlock: Option<Box<Deadlock>>,
}

impl Error {
    /// An error with a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), deadlock: None }
    }

    /// The rejection that ends a deadlock.
    pub fn deadlock(deadlock: Deadlock) -> Self {
        let message = format!("rejected to end a deadlock: {deadlock}");
        Self { code: Code::Deadlock, message, deadlock: Some(Box::new(deadlock)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// For a parameter that accepts a ready value or a text: the conversion of a ready value cannot fail.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl From<ExprError> for Error {
    fn from(error: ExprError) -> Self {
        Self::new(Code::InvalidExpression, error.to_string())
    }
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        Self::new(Code::InvalidName, error.to_string())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "caller",
            Self::Server => "server",
            Self::Network => "network",
        })
    }
}

/// Serializes the number of the code.
impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.number())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u16::deserialize(deserializer)?;
        Self::from_number(number).ok_or_else(|| de::Error::custom("unknown error code"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_read_back() {
        let numbers: BTreeSet<u16> = Code::ALL.iter().map(|code| code.number()).collect();
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(numbers.len(), Code::ALL.len());
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), Some(*code));
        }
        assert_eq!(Code::from_number(9999), None);
    }

    #[test]
    fn an_error_is_indefinite_only_if_the_request_may_have_been_applied() {
        let open: Vec<Code> = Code::ALL.iter().copied().filter(|code| !code.is_definite()).collect();
        assert_eq!(open, [Code::Forgotten, Code::Internal, Code::NoAnswer, Code::Disconnected]);
    }

    #[test]
    fn a_code_travels_as_its_number() {
        let bytes = postcard::to_allocvec(&Code::Deadlock).unwrap();
        assert_eq!(bytes, [23]);
        assert_eq!(postcard::from_bytes::<Code>(&bytes).unwrap(), Code::Deadlock);
        assert!(postcard::from_bytes::<Code>(&[19]).is_err());
    }
}
