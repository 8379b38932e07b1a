//! The data that a client, the service and the command line of Conclave share.
//!
//! - [`Expr`]: lock expressions such as `plan & (eu | us):shared & pool*3`, parsed, checked and printed.
//! - [`Error`]: every error of the system, with its cause, whether it is definite, and what to do.
//! - [`name`], [`path`] and [`request`]: types that all three share, such as [`LockName`], [`FilePath`] and
//!   [`Fence`].
//! - [`report`]: what the service reports about locks, sessions, files and nodes.
//! - [`failure`]: the JSON form of an error.
//! - [`servers`]: addresses of servers as users write them.
//!
//! This crate does no I/O and knows no wire format. It depends on no other crate of the project.

pub mod error;
pub mod expr;
pub mod failure;
pub mod name;
pub mod path;
pub mod report;
pub mod request;
pub mod servers;

pub use error::{Code, Error, Fault};
pub use expr::{Claim, Expr, ExprError};
pub use name::{LockName, NameError};
pub use path::FilePath;
pub use request::{
    Deadlock, Fence, Owner, OwnerLabel, Priority, RequestId, SessionId, Version, VictimPolicy, Wait, WaitsFor,
};
pub use servers::{DEFAULT_PORT, parse_servers};
