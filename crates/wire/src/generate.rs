//! Checks that `generated/` is the output of the compiler for `proto/conclave/v1/conclave.proto`.
//!
//! The generated code is part of the repository, so a build of Conclave needs no protobuf compiler. After a
//! change of the `.proto` file, generate the code again: `CONCLAVE_REWRITE=1 cargo test -p conclave-wire
//! generated`.

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

const SOURCE: &str = "conclave/v1/conclave.proto";

#[test]
fn the_generated_code_is_that_of_the_proto_file() -> Result<(), Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = package.join("src/generated");
    let fresh = Folder::new()?;
    generate(&package.join("proto"), &fresh.0)?;
    let names = names(&fresh.0)?;
    if std::env::var_os("CONCLAVE_REWRITE").is_some() {
        for name in &names {
            fs::copy(fresh.0.join(name), committed.join(name))?;
        }
    }
    assert_eq!(names, self::names(&committed)?, "the files in {}", committed.display());
    for name in &names {
        let is_same = fs::read(fresh.0.join(name))? == fs::read(committed.join(name))?;
        assert!(
            is_same,
            "{name:?} is not what the .proto file compiles to: run this test with CONCLAVE_REWRITE=1"
        );
    }
    Ok(())
}

/// Returns the names of the files in a folder, sorted.
fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Compiles the `.proto` file under `source` into `folder`. The compiler is written in Rust, so `protoc` is
/// not needed.
fn generate(source: &Path, folder: &Path) -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile([SOURCE], [source])?;
    fs::write(folder.join("conclave.descriptors"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure()
        .out_dir(folder)
        .emit_rerun_if_changed(false)
        .build_transport(false)
        // The usual codec limits only the bytes of a frame, not the memory of its decoded messages.
        .codec_path("crate::codec::FrameCodec")
        .server_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .disable_comments(["conclave.v1.Conclave"])
        .compile_fds(descriptors)?;
    Ok(())
}

/// An empty folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("conclave-generated-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}
