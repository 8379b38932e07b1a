//! The places where a test can plant a bug: see `tests/deterministic/flaw.rs`.

/// Evaluates to whether the running test has planted this bug.
#[cfg(test)]
macro_rules! has_flaw {
    ($flaw:ident) => {
        $crate::replica::tests::deterministic::seeded::has_flaw(
            $crate::replica::tests::deterministic::flaw::Flaw::$flaw,
        )
    };
}

/// Evaluates to `false`: only the unit tests of this crate contain planted bugs.
#[cfg(not(test))]
macro_rules! has_flaw {
    ($flaw:ident) => {
        false
    };
}
