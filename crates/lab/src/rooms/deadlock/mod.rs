//! The deadlock room: who waits for whom, who waits for ever, and what it costs to know.
//!
//! | file | what it holds |
//! |---|---|
//! | [`standing`] | [`Standing`]: a wait-for graph at one moment, judged: who is stuck, why, whom to abort |

pub mod standing;

pub use standing::{Policy, Standing};
