//! Compiles the protobuf files with a compiler written in Rust: no `protoc` is needed.

use std::path::PathBuf;

const FILE: &str = "proto/conclave/v1/conclave.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile([FILE], ["proto"])?;

    // The server gives this to whoever asks what it speaks (gRPC reflection).
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("conclave.descriptors"), prost::Message::encode_to_vec(&descriptors))?;

    tonic_prost_build::configure()
        .build_transport(false)
        // gRPC alone would bound the bytes of a frame, not what its messages take in memory.
        .codec_path("crate::proto::codec::FrameCodec")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .disable_comments(["conclave.v1.Conclave"])
        .compile_fds(descriptors)?;
    Ok(())
}
