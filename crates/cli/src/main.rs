//! `conclave`: the only binary.

fn main() -> std::process::ExitCode {
    conclave::main()
}
