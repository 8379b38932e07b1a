//! What travels on the wire: the messages of `proto/conclave/v1/conclave.proto`, and how they are framed.
//!
//! - [`v1`]: the generated messages; the `.proto` file explains the conversation. With the feature `grpc`, also the
//!   generated gRPC server and client.
//! - [`frame`]: the native framing: a preface of 8 bytes, then length-prefixed messages.
//! - `convert`: from the words of this crate to messages and back.

pub mod frame;

mod convert;

pub use convert::secret_from_wire;

/// The messages, version 1.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/conclave.v1.rs"));
}

/// The description of [`v1`] as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/conclave.descriptors"));
