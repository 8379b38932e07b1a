//! Links the binary to a fixed address, where that is known to work.
//!
//! A position-independent one has some 30,000 pointers to correct at every start, which is a fifth of what `conclave run`
//! takes (`docs/decisions/0017-a-fixed-address.md`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
