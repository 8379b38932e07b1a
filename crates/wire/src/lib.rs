//! The wire protocol of Conclave: messages, their framing, and the sockets that carry them.
//!
//! This crate is internal: its interface may change in every release. Programs use `conclave-client`.
//!
//! - [`v1`]: the generated messages; `proto/conclave/v1/conclave.proto` explains the protocol. With the
//!   feature `grpc`, also the generated gRPC server and client. The generated code is part of the repository,
//!   and a test compares it with the `.proto` file.
//! - [`frame`]: the native framing: a preface of 8 bytes, then messages with a length before each.
//! - `codec`: the same limits for gRPC, which has its own framing.
//! - `convert`: conversions between the types of `conclave-core` and the messages.
//! - `socket`: the connection from a client to a server, with the feature of that name. The feature `memory`
//!   adds connections inside one process, for tests.

#[cfg(feature = "grpc")]
pub mod codec;
mod convert;
pub mod frame;
#[cfg(feature = "socket")]
pub mod socket;

#[cfg(test)]
mod generate;

pub use convert::report::{claim_to_wire, event_to_wire};
pub use convert::{claim_from_wire, secret_from_wire};

/// The messages of version 1.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
pub mod v1 {
    include!("generated/conclave.v1.rs");
}

/// The description of [`v1`] as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/conclave.descriptors");

#[cfg(test)]
mod tests {
    use conclave_core::Code;

    /// An author of a client may have only the `.proto` file, so it must contain the advice for every code.
    #[test]
    fn all_errors_are_described_where_the_messages_are() {
        let text = include_str!("../proto/conclave/v1/conclave.proto");
        for code in Code::ALL {
            let mark = if code.is_definite() { "" } else { " (not definite)" };
            let entry = format!("//   {:>3} {code}{mark}: ", code.number());
            let described = text.lines().zip(text.lines().skip(1)).find(|(line, _)| line.starts_with(&entry));
            let (_, advice) = described.unwrap_or_else(|| panic!("no line begins with {entry:?}"));
            assert_eq!(advice.trim_start_matches(['/', ' ']), code.advice(), "{code}");
        }
    }
}
