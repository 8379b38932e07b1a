//! Tools for tests.

mod conversation;

pub use conversation::{Conversation, Flaw, Pending, Watching};
