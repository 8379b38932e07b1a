//! The places where a test can plant a bug: see `testing::Flaw`.

/// Evaluates to whether a test has planted this bug in a value with a field `flaw`.
#[cfg(feature = "testing")]
macro_rules! has_flaw {
    ($owner:expr, $flaw:ident) => {
        $owner.flaw == Some($crate::testing::Flaw::$flaw)
    };
}

/// Evaluates to `false`: a build without the feature `testing` contains no planted bug.
#[cfg(not(feature = "testing"))]
macro_rules! has_flaw {
    ($owner:expr, $flaw:ident) => {
        false
    };
}
