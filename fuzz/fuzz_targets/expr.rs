//! Parses a lock expression. If it parses, its printed form must parse again to the same canonical form.
//! Twin in CI: `crates/core/src/expr/tests.rs`.

#![no_main]

use conclave_core::Expr;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(expr) = text.parse::<Expr>() {
        let printed = expr.to_string();
        let again: Expr = printed.parse().expect("the canonical form is an expression");
        assert_eq!(again.to_string(), printed);
    }
});
