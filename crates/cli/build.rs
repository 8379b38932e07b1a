//! Links the binary so that it starts fast, where that is known to work: `conclave run` takes the place of `flock` in scripts
//! (`docs/decisions/0017-a-fixed-address.md`).

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        // A position-independent binary has some 30,000 pointers to correct at every start.
        println!("cargo::rustc-link-arg-bins=-no-pie");
        // The part of libgcc that unwinds, in place of a library to be found, mapped and set up at every start.
        if has_library("libgcc_eh.a") {
            println!("cargo::rustc-link-lib=dylib:+verbatim=libgcc_eh.a");
        }
    }
}

/// Whether the linker will find it here: of a library that it does not have, the compiler knows the bare name only. What another
/// machine's linker has is not known.
fn has_library(name: &str) -> bool {
    if std::env::var("HOST") != std::env::var("TARGET") {
        return false;
    }
    let found = Command::new("cc").arg(format!("-print-file-name={name}")).output();
    found.is_ok_and(|found| Path::new(String::from_utf8_lossy(&found.stdout).trim()).is_absolute())
}
