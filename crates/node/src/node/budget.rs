//! The budget: the only rule that admits or rejects work, and the only definition of a command's size.
//!
//! **Intuition.** Commands wait in memory until the log has them, and so do requests that wait for a session
//! or for a slow reader. The budget counts all of them, so that memory stays bounded whatever clients send.
//!
//! **Rules.**
//! - A command is admitted if, with it, at most [`MAX_IN_FLIGHT`] commands and at most [`MAX_BYTES`] bytes
//!   are in flight. Requests that wait on a connection count only by their bytes.
//! - A request that only releases resources is never rejected for bytes. Otherwise a full node could not
//!   become empty again.
//! - A command of the leader's timers is never rejected.
//! - Reads that wait for a round have a table of their own: [`MAX_WAITING`] per node, [`MAX_WAITING_EACH`]
//!   per connection.
//!
//! **Bounds.** Over a limit the reply is `overloaded`, which is definite: nothing was done.

use conclave_core::expr::Node as ExprNode;
use conclave_core::{Code, Error, FilePath, LockName, Owner};

use super::ClientRequest;
use crate::state::tree::FileOp;
use crate::state::{Acquire, Command, Op, Request};

/// The most commands in flight. Beyond it, requests are rejected.
pub const MAX_IN_FLIGHT: usize = 16 * 1024;
/// The most bytes of commands in flight and of requests that wait on all connections. Beyond it, only
/// releases and expiries are admitted. All of it may be in one batch, which goes to the leader in one piece.
pub const MAX_BYTES: usize = 32 * 1024 * 1024;
/// The most reads and watches that wait for a round.
pub const MAX_WAITING: usize = 64 * 1024;
/// The most reads and watches of one connection that wait for a round. It suffices for all watches and
/// queries of a client that resumes.
pub const MAX_WAITING_EACH: usize = 8 * 1024;

/// The size of a message without its variable parts, in bytes. An estimate from above.
const FIXED_BYTES: usize = 128;

/// The kind of work, for the rule that applies to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Work that may make the state larger.
    Request,
    /// A request that only releases resources. It is never rejected for bytes.
    Release,
    /// A command of the leader's timers. It is never rejected.
    Expiry,
}

impl Class {
    /// Returns the class of a client's request.
    pub(super) fn of(op: &Op) -> Self {
        if op.only_releases() { Self::Release } else { Self::Request }
    }
}

/// The work that is in memory, by number and by bytes.
#[derive(Debug, Default)]
pub(super) struct Budget {
    commands: usize,
    bytes: usize,
    waiting: usize,
    /// The bound that a test has set instead of [`MAX_IN_FLIGHT`].
    #[cfg(feature = "testing")]
    pub(super) most_commands: Option<usize>,
}

impl Budget {
    /// Admits one command, or returns the error for the client.
    pub(super) fn admit_command(&mut self, bytes: usize, class: Class) -> Result<(), Error> {
        let has_place = self.commands < self.most_commands() || class == Class::Expiry;
        if !has_place || !self.has_bytes(bytes, class) {
            return Err(overloaded());
        }
        self.commands += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// Admits a request that waits on its connection, or returns the error for the client.
    pub(super) fn admit_queued(&mut self, bytes: usize, class: Class) -> Result<(), Error> {
        if !self.has_bytes(bytes, class) {
            return Err(overloaded());
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Admits a read that waits for a round. `share` is the number of such reads of its connection, if it has
    /// one.
    pub(super) fn admit_waiting(&mut self, share: Option<usize>) -> Result<(), Error> {
        if self.waiting >= MAX_WAITING || share.is_some_and(|share| share >= MAX_WAITING_EACH) {
            return Err(overloaded());
        }
        self.waiting += 1;
        Ok(())
    }

    /// Takes back the places and bytes of commands that are no longer in flight.
    pub(super) fn give_back(&mut self, commands: usize, bytes: usize) {
        self.commands -= commands;
        self.bytes -= bytes;
    }

    /// Takes back the bytes of requests that no longer wait on a connection.
    pub(super) fn give_back_queued(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// Takes back the places of reads that no longer wait for a round.
    pub(super) fn give_back_waiting(&mut self, count: usize) {
        self.waiting -= count;
    }

    /// Returns the number of commands that are gathered or in flight.
    pub(super) fn commands(&self) -> usize {
        self.commands
    }

    fn most_commands(&self) -> usize {
        #[cfg(feature = "testing")]
        if let Some(most) = self.most_commands {
            return most;
        }
        MAX_IN_FLIGHT
    }

    fn has_bytes(&self, bytes: usize, class: Class) -> bool {
        class != Class::Request || self.bytes + bytes <= MAX_BYTES
    }
}

/// The error for work that is over a limit.
pub(super) fn overloaded() -> Error {
    Error::new(Code::Overloaded, "this node has the most requests in flight that it allows")
}

/// Returns the approximate size of a command in memory and in the log, in bytes: never less than its size in
/// the log.
pub fn command_size(command: &Command) -> usize {
    match command {
        Command::Request(Request { op, .. }) => op_size(op),
        Command::OpenSession(open) => FIXED_BYTES + open.label.len(),
        Command::Expire { .. } | Command::SingleNodeRestarted { .. } => FIXED_BYTES,
    }
}

/// Returns the approximate size of a request's command, in bytes.
pub fn op_size(op: &Op) -> usize {
    let content = match op {
        Op::Files(ops) => ops.iter().map(file_size).sum(),
        Op::Acquire(Acquire { expr, owner, value, .. }) => {
            let label = if let Owner::Label(label) = owner { label.as_str().len() } else { 0 };
            expr_size(expr.node()) + label + value.as_ref().map_or(0, Vec::len)
        }
        Op::Proclaim { value, .. } => value.len(),
        Op::Break { name, reason } => name.as_str().len() + reason.len(),
        Op::Limit { name, .. } => name.as_str().len(),
        Op::Release { .. }
        | Op::Cancel { .. }
        | Op::Downgrade { .. }
        | Op::EndSession { .. }
        | Op::Close
        | Op::SetTtl { .. } => 0,
    };
    content + FIXED_BYTES
}

/// Returns the approximate size of a message that waits on its connection, in bytes.
pub(super) fn request_size(request: &ClientRequest) -> usize {
    match request {
        ClientRequest::Request { op, .. } => op_size(op),
        ClientRequest::Open { label, .. } => FIXED_BYTES + label.len(),
        ClientRequest::Invalid { error, .. } | ClientRequest::Malformed(error) => {
            FIXED_BYTES + error.message.len()
        }
        // A path and a name, at most.
        ClientRequest::Query { .. } | ClientRequest::Watch { .. } => {
            FIXED_BYTES + FilePath::MAX_BYTES + LockName::MAX_BYTES
        }
        ClientRequest::KeepAlive { .. } | ClientRequest::Resume { .. } | ClientRequest::Unwatch { .. } => {
            FIXED_BYTES
        }
    }
}

/// Returns the size and the class of a message that is to wait on its connection.
pub(super) fn request_cost(request: &ClientRequest) -> (usize, Class) {
    let class = match request {
        ClientRequest::Request { op, .. } => Class::of(op),
        _ => Class::Request,
    };
    (request_size(request), class)
}

fn expr_size(node: &ExprNode) -> usize {
    match node {
        // A quoted name may be twice as long as the name.
        ExprNode::Name(leaf) => 2 * leaf.name.as_str().len() + 64,
        ExprNode::All(members) | ExprNode::Any(members) | ExprNode::AtLeast(_, members) => {
            members.iter().map(expr_size).sum()
        }
    }
}

fn file_size(op: &FileOp) -> usize {
    let (path, content) = match op {
        FileOp::Create { path, data, .. } | FileOp::Write { path, data, .. } => (path, data.len()),
        FileOp::Delete { path, .. } | FileOp::Check { path, .. } => (path, 0),
    };
    path.as_str().len() + content + FIXED_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_admitted_when_the_bytes_are_used_up_and_a_request_is_not() {
        let mut budget = Budget::default();
        budget.admit_command(MAX_BYTES, Class::Request).expect("all of it may be one command");
        assert_eq!(budget.admit_command(1, Class::Request), Err(overloaded()));
        assert_eq!(budget.admit_queued(1, Class::Request), Err(overloaded()));
        assert_eq!(budget.admit_command(1, Class::Release), Ok(()));
        assert_eq!(budget.admit_queued(1, Class::Release), Ok(()));
        assert_eq!(budget.admit_command(1, Class::Expiry), Ok(()));
        budget.give_back(3, MAX_BYTES + 2);
        budget.give_back_queued(1);
        assert_eq!((budget.commands, budget.bytes), (0, 0));
    }

    #[test]
    fn only_an_expiry_is_admitted_when_the_places_are_used_up() {
        let mut budget = Budget::default();
        (0..MAX_IN_FLIGHT).for_each(|_| budget.admit_command(0, Class::Request).expect("there is a place"));
        assert_eq!(budget.admit_command(0, Class::Request), Err(overloaded()));
        assert_eq!(budget.admit_command(0, Class::Release), Err(overloaded()));
        assert_eq!(budget.admit_command(0, Class::Expiry), Ok(()));
    }

    #[test]
    fn a_connection_has_a_share_of_the_reads_that_wait() {
        let mut budget = Budget::default();
        assert_eq!(budget.admit_waiting(Some(MAX_WAITING_EACH - 1)), Ok(()));
        assert_eq!(budget.admit_waiting(Some(MAX_WAITING_EACH)), Err(overloaded()));
        assert_eq!(budget.admit_waiting(None), Ok(()));
        (2..MAX_WAITING).for_each(|_| budget.admit_waiting(None).expect("there is a place"));
        assert_eq!(budget.admit_waiting(Some(0)), Err(overloaded()));
        budget.give_back_waiting(1);
        assert_eq!(budget.admit_waiting(Some(0)), Ok(()));
    }
}
