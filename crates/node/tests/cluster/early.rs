//! Early grants: the grants that a client may read although the committed log does not contain them there.
//!
//! **Rule** (`docs/decisions/0021-early-grants.md`). Only a single node sends early grants, and only to a
//! *plain* request: for one name, exclusive, without a limit to the wait, with an owner of its own, and no
//! campaign. The committed log contains its reply `queued`. Of such a request, the judge accepts a grant with
//! fence `f` in three cases.
//! - The log contains this grant. It may have overtaken the replies of earlier commands.
//! - The request waits in the log, and `f` is above all fences of the name in the log: the entry of the grant
//!   is not durable yet.
//! - The request waited at a restart, which lost the entry of the grant. Then `f` is above all fences of the
//!   name before the restart, and below all of them after it.
//!
//! A client may rely on such a grant while its request waits in the log, or holds the name there with another
//! fence. So after a restart the judge demands of the log:
//! - While a request waits whose lost grant a client has read, the name is granted only to such requests.
//!   Their clients have given the name up, or hold it.
//! - Fences are above all fences of the name that clients have read.

use std::collections::{BTreeMap, BTreeSet};

use conclave_core::expr::Claim;
use conclave_core::{Owner, Wait};
use conclave_node::state::{Acquire, Answer, Command, Op, Request};
use conclave_wire::v1;

use crate::reference::RequestKey;
use crate::workload::NAMES;

/// The fences of names.
type Fences = BTreeMap<String, u64>;

/// The plain requests of the committed log, and the early grants that clients have read.
#[derive(Default)]
pub struct EarlyGrants {
    /// The plain requests, with their names.
    plain: BTreeMap<RequestKey, String>,
    /// The plain requests with the reply `queued`.
    queued: BTreeSet<RequestKey>,
    /// Those of them that wait now.
    waiting: BTreeSet<RequestKey>,
    /// The largest fence of each name in the log.
    largest: Fences,
    /// The largest fence of each name that a client has read.
    read: Fences,
    /// The requests that wait in the log although their client has read a grant.
    granted: BTreeSet<RequestKey>,
    restarts: Vec<Restart>,
}

/// A restart of the single node.
struct Restart {
    waiting: BTreeSet<RequestKey>,
    /// The largest fence of each name before the restart.
    before: Fences,
    /// The largest fence of each name that a client had read before the restart.
    read: Fences,
    /// The smallest fence of each name after the restart.
    after: Fences,
}

impl EarlyGrants {
    /// A command is about to be applied.
    pub fn on_command(&mut self, command: &Command) {
        match command {
            Command::Request(Request { session, id, op: Op::Acquire(acquire), .. }) => {
                if let Some(name) = plain_name(acquire) {
                    self.plain.insert((session.0, id.0), name.to_owned());
                }
            }
            Command::SingleNodeRestarted { .. } => self.restarts.push(Restart {
                waiting: self.waiting.clone(),
                before: self.largest.clone(),
                read: self.read.clone(),
                after: Fences::new(),
            }),
            _ => {}
        }
    }

    /// The log contains a reply. `is_new` is whether the reply does not repeat an earlier one.
    ///
    /// # Errors
    /// It grants a name that an early grant has given to another client.
    pub fn on_reply(&mut self, key: RequestKey, answer: &Answer, is_new: bool) -> Result<(), String> {
        if let Answer::Queued(_) = answer {
            if self.plain.contains_key(&key) {
                self.queued.insert(key);
                self.waiting.insert(key);
            }
            return Ok(());
        }
        let may_be_granted = self.granted.remove(&key);
        self.waiting.remove(&key);
        if let Answer::Granted(granted) = answer
            && is_new
        {
            for name in granted.names.iter().filter(|name| name.claim == Claim::Exclusive) {
                self.on_granted(key, name.name.as_str(), name.fence.0, may_be_granted)?;
            }
        }
        Ok(())
    }

    fn on_granted(
        &mut self,
        key: RequestKey,
        name: &str,
        fence: u64,
        may_be_granted: bool,
    ) -> Result<(), String> {
        self.largest.insert(name.to_owned(), fence);
        let Some(last) = self.restarts.last() else { return Ok(()) };
        if last.read.get(name).is_some_and(|read| fence <= *read) {
            let read = last.read[name];
            return Err(format!("fence {fence} of {name} is granted after a client has read {read}"));
        }
        let is_lost = |other: &&RequestKey| last.waiting.contains(other) && self.plain[*other] == name;
        if !may_be_granted && let Some(other) = self.granted.iter().find(is_lost) {
            return Err(format!(
                "{name} is granted to {key:?}, and the client of {other:?} has an early grant"
            ));
        }
        // Fences only grow, so the first one is the smallest.
        for restart in &mut self.restarts {
            restart.after.entry(name.to_owned()).or_insert(fence);
        }
        Ok(())
    }

    pub fn on_session_ended(&mut self, session: u64) {
        self.waiting.retain(|(of, _)| *of != session);
        self.granted.retain(|(of, _)| *of != session);
    }

    /// A client has read a grant that may be early.
    pub fn on_read(&mut self, key: RequestKey, granted: &v1::Granted) {
        for name in &granted.names {
            let read = self.read.entry(name.name.clone()).or_default();
            *read = name.fence.max(*read);
        }
        if self.waits(key) {
            self.granted.insert(key);
        }
    }

    /// Returns whether a grant to this request may be early.
    pub fn is_possible(&self, key: RequestKey) -> bool {
        self.queued.contains(&key)
    }

    /// Returns whether this request may get an early grant, and waits.
    pub fn waits(&self, key: RequestKey) -> bool {
        self.waiting.contains(&key)
    }

    /// Returns whether this request waits although its client had read a grant before the last restart.
    pub fn is_lost(&self, key: RequestKey) -> bool {
        self.granted.contains(&key) && self.restarts.last().is_some_and(|last| last.waiting.contains(&key))
    }

    /// Returns whether a grant that the log does not contain is one whose entry is not durable yet, or was
    /// lost.
    pub fn is_unsynced_or_lost(&self, key: RequestKey, granted: &v1::Granted) -> bool {
        let [v1::GrantedName { name, fence, claim: None, .. }] = &granted.names[..] else { return false };
        let is_above = |before: &Fences| before.get(name).is_none_or(|before| before < fence);
        let is_below = |after: &Fences| after.get(name).is_none_or(|after| fence < after);
        let is_unsynced = self.waits(key) && is_above(&self.largest);
        let is_lost = |restart: &Restart| {
            restart.waiting.contains(&key) && is_above(&restart.before) && is_below(&restart.after)
        };
        is_unsynced || self.restarts.iter().any(is_lost)
    }
}

/// Returns the name of a plain request.
fn plain_name(acquire: &Acquire) -> Option<&str> {
    let leaf = acquire.expr.as_single().filter(|leaf| leaf.claim == Claim::Exclusive)?;
    let has_own_owner = acquire.owner == Owner::Request;
    let is_plain = has_own_owner && acquire.wait == Wait::Forever && acquire.value.is_none();
    // The last name is a semaphore.
    let is_lock = NAMES[..4].contains(&leaf.name.as_str());
    (is_plain && is_lock).then_some(leaf.name.as_str())
}
