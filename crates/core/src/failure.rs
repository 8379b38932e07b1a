//! The JSON form of an error, on HTTP and with `--json`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::Error;

/// An error: `{"error": {"code", "message", "definite", "advice", "exit"}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure<'a> {
    /// The only field, so that a reader can tell an error from a result.
    pub error: FailureBody<'a>,
}

/// The content of a [`Failure`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureBody<'a> {
    /// The stable name of the error, as [`Code::name`](crate::Code::name). Scripts match on it.
    pub code: Cow<'a, str>,
    /// The problem, with its particulars; without the advice.
    pub message: Cow<'a, str>,
    /// True if the request is known to have had no effect.
    pub definite: bool,
    /// The next step for the user.
    pub advice: Cow<'a, str>,
    /// The exit code of a command that ends with this error.
    pub exit: u8,
}

impl<'a> From<&'a Error> for Failure<'a> {
    fn from(error: &'a Error) -> Self {
        let code = error.code;
        Self {
            error: FailureBody {
                code: code.name().into(),
                message: (&error.message).into(),
                definite: code.is_definite(),
                advice: code.advice().into(),
                exit: code.exit(),
            },
        }
    }
}
