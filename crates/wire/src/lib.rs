//! The data that a client, the service and the command line exchange.
//!
//! - [`Expr`]: lock expressions such as `plan & (eu | us):shared & pool*3`, parsed, checked and printed.
//! - [`Error`]: every error of the system, with its cause, whether it is definite, and what to do.
//! - [`name`] and [`request`]: types that all three share, such as [`LockName`] and [`Fence`].
//! - [`json`]: the JSON of HTTP and of `--json`.
//! - [`servers`]: addresses of servers as users write them.
//! - `socket`: the connection from a client to a server, with the feature of that name.
//! - [`proto`]: the messages on the wire, for clients in Rust and in other languages.
//!
//! This crate depends on no other crate of the project.

pub mod error;
pub mod expr;
pub mod json;
pub mod name;
pub mod proto;
pub mod request;
pub mod servers;
#[cfg(feature = "socket")]
pub mod socket;

pub use error::{Code, Error, Fault};
pub use expr::{Claim, Expr, ExprError};
pub use name::{LockName, NameError};
pub use request::{
    Deadlock, Fence, Owner, OwnerLabel, Priority, RequestId, SessionId, Version, VictimPolicy, Wait, WaitsFor,
};
pub use servers::{DEFAULT_PORT, parse_servers};
