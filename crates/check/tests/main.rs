//! The integration tests of this crate, in one binary: each further binary would link everything once more.

mod toys;
