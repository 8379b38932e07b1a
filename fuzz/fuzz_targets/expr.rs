//! A lock expression is parsed or refused, and what is parsed is printed back as something that means the same.
//! Twin in CI: `crates/api/src/expr/tests.rs`.

#![no_main]

use conclave_api::Expr;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(expr) = text.parse::<Expr>() {
        let printed = expr.to_string();
        let again: Expr = printed.parse().expect("the canonical form is an expression");
        assert_eq!(again.to_string(), printed);
    }
});
