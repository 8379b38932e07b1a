//! What travels between a client, the service and the command line.
//!
//! - [`Expr`]: lock expressions, `plan & (eu | us):shared & pool*3`: parsed, checked, printed.
//! - [`Error`]: every error of the system: whose fault, definite or not, what to do.
//! - [`name`] and [`request`]: the words all three share: [`LockName`], [`Fence`], [`SessionId`], [`Wait`],
//!   ...
//! - [`json`]: what is read over HTTP and from the command line.
//! - `socket`: the way from a client to a server, with the feature of that name.
//! - [`proto`]: the messages on the wire, for clients in Rust and in other languages.
//!
//! This crate depends on no other crate of the project.

pub mod error;
pub mod expr;
pub mod json;
pub mod name;
pub mod proto;
pub mod request;
#[cfg(feature = "socket")]
pub mod socket;

pub use error::{Code, Error, Fault};
pub use expr::{Claim, Expr, ExprError};
pub use name::{LockName, NameError};
pub use request::{
    Deadlock, Fence, Owner, OwnerLabel, Priority, RequestId, SessionId, Version, VictimPolicy, Wait, WaitsFor,
};
