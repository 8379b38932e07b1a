//! Every error of the system: whose fault it is, whether the outcome is definite, and what to do.
//!
//! **Intuition.** After an error a program must know two things: may what it asked for have happened, and
//! should it try again, change its request, or call somebody? A [`Code`] answers both; the message says it in
//! words for people.
//!
//! **Rules.** A code is *definite* if what was asked for is known not to be in effect. Everything the
//! replicated state answers is definite; only a lost connection, a timeout or a forgotten answer is not.
//! Numbers and names of codes never change their meaning and are never reused: they travel, and scripts match
//! on them.
//!
//! The table below is the only place where codes are described; docs and the command line read it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::request::Deadlock;
use crate::{ExprError, NameError};

/// Whose fault an error is, which is who can do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The request: it must be changed, or its refusal is an ordinary outcome.
    Caller,
    /// The service: an operator may have to look.
    Server,
    /// What lies between: try again.
    Network,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $code:ident = $number:literal, $name:literal, $fault:ident,
        $definite:literal, $advice:literal;)*) => {
        /// What went wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $doc])+ $code,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$code),*];

            /// The number that travels; stable.
            pub const fn number(self) -> u16 {
                match self { $(Self::$code => $number),* }
            }

            /// The name that scripts match on; stable.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$code => $name),* }
            }

            /// Whose fault it is.
            pub const fn fault(self) -> Fault {
                match self { $(Self::$code => Fault::$fault),* }
            }

            /// Whether what was asked for is known not to be in effect.
            pub const fn is_definite(self) -> bool {
                match self { $(Self::$code => $definite),* }
            }

            /// What to do about it.
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
    /// A lock expression that cannot be read.
    InvalidExpression = 1, "invalid-expression", Caller, true, "correct the expression at the place shown";
    /// A name or path that is none.
    InvalidName = 2, "invalid-name", Caller, true, "correct the name";
    /// Another argument out of its range.
    InvalidArgument = 3, "invalid-argument", Caller, true, "correct the request";
    /// Permits asked of a name that has no limit.
    NotASemaphore = 4, "not-a-semaphore", Caller, true,
        "set a limit first (conclave limit NAME N), or ask for the lock";
    /// A shared lock, or a limit, asked of a name that is used the other way.
    WrongKind = 5, "wrong-kind", Caller, true,
        "a name is a lock or a semaphore for its life: use another name";
    /// More permits than the limit: no release can ever satisfy the request.
    Impossible = 6, "impossible", Caller, true, "ask for less, or raise the limit";
    /// Something of which there may be no more: names, sessions, files, watches.
    LimitReached = 7, "limit-reached", Caller, true, "give something back first";
    /// More bytes than allowed.
    TooLarge = 8, "too-large", Caller, true, "send less";

    /// A try that found the lock taken or claimed.
    WouldWait = 20, "would-wait", Caller, true, "try later, or wait";
    /// The time to wait is over.
    TimedOut = 21, "timed-out", Caller, true, "try later, or wait longer";
    /// The wait was cancelled.
    Cancelled = 22, "cancelled", Caller, true, "nothing to do: it was asked for";
    /// The request was refused to end a deadlock.
    Deadlock = 23, "deadlock", Caller, true,
        "release what is held, then ask again, for everything at once if possible";
    /// The owner waits already.
    OwnerBusy = 24, "owner-busy", Caller, true,
        "one owner waits for one request at a time: use another owner or one expression";
    /// Nothing is held under that request.
    NotHeld = 25, "not-held", Caller, true, "do not use what the lock protects";

    /// The session is unknown or has ended: nothing of it is held any more.
    SessionEnded = 40, "session-ended", Caller, true, "open a new session and acquire again";
    /// The secret is not that of the session.
    WrongSecret = 41, "wrong-secret", Caller, true, "resume with the secret that the session was opened with";
    /// Too many requests without an acknowledged answer.
    TooManyUnanswered = 42, "too-many-unanswered", Caller, true, "wait for answers before asking more";
    /// The answer to this request id was acknowledged, and forgotten.
    Forgotten = 43, "forgotten", Caller, false, "number requests upwards; ask what is held";

    /// No such file.
    NoSuchFile = 60, "no-such-file", Caller, true, "create it, or check the path";
    /// The file exists already.
    FileExists = 61, "file-exists", Caller, true, "write it instead, or use another name";
    /// The file has another version than expected.
    VersionMismatch = 62, "version-mismatch", Caller, true, "read again, then decide";
    /// The directory has children.
    NotEmpty = 63, "not-empty", Caller, true, "delete the children first";
    /// An ephemeral file cannot have children.
    EphemeralParent = 64, "ephemeral-parent", Caller, true, "use a parent that outlives the session";
    /// Another operation of the same multi failed, so this one was not done.
    MultiAborted = 65, "multi-aborted", Caller, true, "correct the operation that failed";

    /// A request of a later version, or garbage.
    Unsupported = 80, "unsupported", Caller, true, "use a client of the server's version";
    /// This node does not lead; the request was not taken.
    NotLeader = 81, "not-leader", Server, true, "ask the leader, or any node again";
    /// No majority can be reached; the request was not taken.
    NoQuorum = 82, "no-quorum", Server, true, "wait until a majority of the nodes is up, then retry";
    /// Too much to do; the request was not taken.
    Overloaded = 83, "overloaded", Server, true, "retry later, with fewer requests in flight";
    /// The node stops; the request was not taken.
    ShuttingDown = 84, "shutting-down", Server, true, "ask another node";
    /// A defect, or a disk that failed.
    Internal = 85, "internal", Server, false, "look into the server's log";

    /// No answer in time: it may have happened.
    NoAnswer = 100, "no-answer", Network, false, "retry with the same request id: it takes effect once";
    /// The connection broke: it may have happened.
    Disconnected = 101, "disconnected", Network, false, "reconnect and retry with the same request id";
    /// No server could be reached: nothing was sent.
    Unreachable = 102, "unreachable", Network, true,
        "check the address, and that a server runs (conclave serve)";
}

impl Code {
    /// The exit code of a command of the command line that fails with this error.
    pub const fn exit(self) -> u8 {
        match self {
            Self::InvalidExpression | Self::InvalidName | Self::InvalidArgument | Self::Impossible => 2,
            Self::NotASemaphore | Self::WrongKind | Self::TooLarge | Self::Unsupported => 2,
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
    /// What went wrong.
    pub code: Code,
    /// What went wrong, with the particulars.
    pub message: String,
    /// Who waits for whom, if the code is [`Code::Deadlock`].
    pub deadlock: Option<Box<Deadlock>>,
}

impl Error {
    /// An error with its particulars.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), deadlock: None }
    }

    /// The refusal that ends a deadlock.
    pub fn deadlock(deadlock: Deadlock) -> Self {
        let message = format!("refused to end a deadlock: {deadlock}");
        Self { code: Code::Deadlock, message, deadlock: Some(Box::new(deadlock)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

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

/// As its number.
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
    fn only_what_may_have_happened_is_indefinite() {
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
