//! The committed log, as the judge applies it: what every reply, read and event must agree with.

use std::collections::{BTreeMap, BTreeSet};

use conclave_core::{FilePath, LockName, SessionId};
use conclave_node::codec;
use conclave_node::entry::{Batch, Service};
use conclave_node::node::Reply;
use conclave_node::state::watch::{Change, ChangedObject, WatchTarget};
use conclave_node::state::{Answer, Command, Effect, EndCause};
use conclave_node::testing::Entry;
use conclave_wire::v1;
use conclave_wire::v1::answer::Result as Wire;
use conclave_wire::v1::server_message::Message;

use crate::bug::Bug;
use crate::coverage::{Coverage, Situation};
use crate::early::EarlyGrants;
use crate::workload::{FILE, NAMES, PERMITS};

/// A request: its session and its number.
pub type RequestKey = (u64, u64);

/// The content and the version of a file.
type Contents = (Vec<u8>, u64);

/// The sessions that hold a name, with their fences.
type Holders = Vec<(u64, u64)>;

/// The committed log and its consequences. Indices are numbers of commands.
#[derive(Default)]
pub struct Reference {
    service: Service,
    /// The replies to each request, with their indices. A request that is sent again gets a reply again.
    replies: BTreeMap<RequestKey, Vec<(u64, Wire)>>,
    /// All changes, in order.
    changes: Vec<Change>,
    /// The content and the version of the file after each of its changes.
    files: Vec<(u64, Option<Contents>)>,
    /// The holders of each name, with their fences, after each of its changes.
    holders: BTreeMap<&'static str, Vec<(u64, Holders)>>,
    sessions: BTreeSet<u64>,
    ended: BTreeMap<u64, EndCause>,
    broken: BTreeSet<(RequestKey, String)>,
    /// The contents of the files that were created, each of them by one request.
    created: BTreeSet<Vec<u8>>,
    /// The latest grant of `x`: its session and its fence, and whether the session has expired since.
    latest: Option<(u64, u64, bool)>,
    has_elected: bool,
    /// The largest fence of each name.
    fences: BTreeMap<LockName, u64>,
    pub early: EarlyGrants,
}

impl Reference {
    /// Creates an empty log. A bug of the state is planted here too: the judge must find the promise that it
    /// breaks, and not only a difference between two states.
    pub fn new(bug: Option<Bug>) -> Self {
        let mut reference = Self::default();
        reference.service.plant(bug.and_then(Bug::of_node));
        reference
    }

    /// Applies an entry. Returns the requests in it.
    ///
    /// # Errors
    /// The log contradicts itself.
    pub fn apply(&mut self, entry: Entry, coverage: &mut Coverage) -> Result<Vec<RequestKey>, String> {
        let mut requests = Vec::new();
        let Entry { id, batch } = entry;
        let Some(Batch { wall_ms, commands }) = batch else { return Ok(requests) };
        for command in commands {
            if let Command::Request(request) = &command {
                let key = (request.session.0, request.id.0);
                requests.push(key);
                if self.replies.contains_key(&key) {
                    coverage.see(Situation::Retried);
                }
            }
            self.early.on_command(&command);
            let effects = self.service.apply(id, Batch { wall_ms, commands: vec![command] });
            effects.into_iter().try_for_each(|effect| self.on_effect(effect, coverage))?;
            self.remember();
        }
        Ok(requests)
    }

    /// Returns the number of commands.
    pub fn applied(&self) -> u64 {
        self.service.state().applied()
    }

    pub fn has_request(&self, key: RequestKey) -> bool {
        self.replies.contains_key(&key)
    }

    pub fn has_session(&self, session: u64) -> bool {
        self.sessions.contains(&session)
    }

    pub fn has_ended(&self, session: u64) -> bool {
        self.ended.contains_key(&session)
    }

    pub fn is_broken(&self, key: RequestKey, name: &str) -> bool {
        self.broken.contains(&(key, name.to_owned()))
    }

    /// Returns whether an operator has ended a session. Its client learns it later than others.
    pub fn was_ended_by_operator(&self, session: u64) -> bool {
        self.ended.get(&session) == Some(&EndCause::Ended)
    }

    /// Returns the index of a reply to a request, the first one at `from` or later.
    pub fn find_reply(&self, key: RequestKey, reply: &Wire, from: u64) -> Option<u64> {
        let replies = self.replies.get(&key)?.iter();
        replies.filter(|(index, known)| *index >= from && known == reply).map(|(index, _)| *index).next()
    }

    /// Returns whether a client may rely on a grant that is not held in the log: it was sent early, and the
    /// request still waits in the log, or holds the name with another fence.
    pub fn is_certain(&self, key: RequestKey, name: &str) -> bool {
        let held = self.holders(name, self.applied());
        let holds = |(_, reply): &(u64, Wire)| {
            let Wire::Granted(granted) = reply else { return false };
            granted.names.iter().any(|of| of.name == name && held.contains(&(key.0, of.fence)))
        };
        let is_held = || self.replies.get(&key).is_some_and(|replies| replies.iter().any(holds));
        self.early.is_possible(key) && (self.early.waits(key) || is_held())
    }

    /// Returns whether an acquire waits.
    pub fn is_waiting(&self, key: RequestKey) -> bool {
        let replies = self.replies.get(&key);
        replies.and_then(|replies| replies.last()).is_some_and(|(_, reply)| matches!(reply, Wire::Queued(_)))
    }

    /// Returns whether this was the content and the version of the file at an index.
    pub fn had_file(&self, index: u64, data: &[u8], version: u64) -> bool {
        let before = self.files.partition_point(|(at, _)| *at <= index);
        let known = before.checked_sub(1).and_then(|last| self.files[last].1.as_ref());
        known.is_some_and(|(known, at)| known == data && *at == version)
    }

    /// Returns whether the file was missing at some moment between two indices.
    pub fn lacked_file(&self, from: u64, to: u64) -> bool {
        let first = self.files.partition_point(|(at, _)| *at <= from);
        let relevant = first.saturating_sub(1)..self.files.partition_point(|(at, _)| *at <= to);
        first == 0 || self.files[relevant].iter().any(|(_, file)| file.is_none())
    }

    /// Returns the holders of a name at an index, with their fences.
    pub fn holders(&self, name: &str, index: u64) -> &[(u64, u64)] {
        let Some(known) = self.holders.get(name) else { return &[] };
        let before = known.partition_point(|(at, _)| *at <= index);
        before.checked_sub(1).map_or(&[], |last| &known[last].1)
    }

    /// Returns the changes of a target after an index, in order.
    pub fn changes_of(&self, target: &WatchTarget, after: u64) -> impl Iterator<Item = &Change> {
        let first = self.changes.partition_point(|change| change.index <= after);
        self.changes[first..].iter().filter(move |change| concerns(target, change))
    }

    /// Records an election.
    pub fn on_elected(&mut self) {
        self.has_elected = true;
    }

    fn on_effect(&mut self, effect: Effect, coverage: &mut Coverage) -> Result<(), String> {
        match effect {
            Effect::SessionOpened { session: SessionId(session), .. } => _ = self.sessions.insert(session),
            Effect::Reply { session, request, answer, .. } => {
                let index = self.applied();
                if let Answer::Refused(error) = &answer
                    && error.code == conclave_core::Code::VersionMismatch
                {
                    coverage.see(Situation::Conflicted);
                }
                let is_new = !self.replies.contains_key(&(session.0, request.0))
                    || self.is_waiting((session.0, request.0));
                self.early.on_reply((session.0, request.0), &answer, is_new)?;
                if let Answer::Granted(granted) = &answer {
                    if granted.names.len() > 1 {
                        coverage.see(Situation::ManyNames);
                    }
                    if is_new {
                        self.on_granted(session.0, granted, coverage)?;
                    }
                }
                let message = codec::encode(&Reply::Answered { id: request.0, answer });
                if let Some(Message::Answer(v1::Answer { id, result: Some(result) })) = message.message {
                    self.replies.entry((session.0, id)).or_default().push((index, result));
                }
            }
            Effect::Broken { session, grant, name, .. } => {
                coverage.see(Situation::Broken);
                self.broken.insert(((session.0, grant.0), name.to_string()));
            }
            Effect::SessionEnded { session, cause } => {
                self.ended.insert(session.0, cause);
                self.early.on_session_ended(session.0);
                if cause == EndCause::Ended {
                    coverage.see(Situation::EndedByOperator);
                }
                if let Some((holder, _, has_expired)) = &mut self.latest
                    && *holder == session.0
                    && cause == EndCause::Expired
                {
                    *has_expired = true;
                    if self.has_elected {
                        coverage.see(Situation::LeaderChangedWhileHeld);
                    }
                }
            }
            Effect::Changed(change) => self.on_change(change)?,
            Effect::SessionRefused { .. } | Effect::StartTimer { .. } | Effect::StopTimer { .. } => {}
        }
        Ok(())
    }

    fn on_granted(
        &mut self,
        session: u64,
        granted: &conclave_node::state::Granted,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        use conclave_core::Claim;
        coverage.see(Situation::Granted);
        for name in granted.names.iter().filter(|name| name.claim == Claim::Exclusive) {
            let last = self.fences.entry(name.name.clone()).or_default();
            if name.fence.0 <= *last {
                return Err(format!("fence {} of {} was granted after {last}", name.fence.0, name.name));
            }
            *last = name.fence.0;
        }
        if granted.names.iter().any(|name| name.name.as_str() == "x") {
            if let Some((before, _, has_expired)) = self.latest {
                if before != session {
                    coverage.see(Situation::HandedOn);
                }
                if has_expired {
                    coverage.see(Situation::RegrantedAfterExpiry);
                }
            }
            (self.latest, self.has_elected) = (Some((session, granted.fence().0, false)), false);
        }
        Ok(())
    }

    fn on_change(&mut self, change: Change) -> Result<(), String> {
        if let ChangedObject::File { path, .. } = &change.object {
            let file = self.service.state().file(path);
            if path.as_str() == FILE {
                self.files.push((change.index, file.map(|(data, stat)| (data.to_vec(), stat.version.0))));
            } else if let Some((data, _)) = file
                && path.as_str().starts_with("/q/")
                && !self.created.insert(data.to_vec())
            {
                return Err(format!("the request that created {} was applied twice", path.as_str()));
            }
        }
        self.changes.push(change);
        Ok(())
    }

    /// Remembers the holders of all names, if they have changed.
    fn remember(&mut self) {
        let index = self.applied();
        for name in NAMES {
            let holders = self.service.state().why(&LockName::new(name).expect("a name")).holders;
            let holders: Holders = holders.iter().map(|holder| (holder.session.0, holder.fence.0)).collect();
            let known = self.holders.entry(name).or_default();
            if known.last().map_or(&[][..], |(_, last)| last) != holders {
                known.push((index, holders));
            }
        }
    }
}

/// Returns whether a change is one of a target. It is written here once more, as the documents define it.
fn concerns(target: &WatchTarget, change: &Change) -> bool {
    use conclave_node::state::tree::FileChange;
    match (target, &change.object) {
        (WatchTarget::Lock(name), ChangedObject::Lock { name: changed, .. }) => name == changed,
        (WatchTarget::File(path), ChangedObject::File { path: changed, .. }) => path == changed,
        (WatchTarget::Directory(path), ChangedObject::File { path: changed, change }) => {
            let parent = changed.as_str().rsplit_once('/').map(|(parent, _)| parent);
            !matches!(change, FileChange::Written(_)) && parent == Some(path.as_str().trim_end_matches('/'))
        }
        _ => false,
    }
}

/// Returns whether these claims of one name may be held at the same time.
pub fn are_compatible(claims: &[Option<v1::claim::Claim>]) -> bool {
    use v1::claim::Claim;
    let permits: u32 =
        claims.iter().map(|claim| if let Some(Claim::Permits(n)) = claim { *n } else { 0 }).sum();
    let all_shared = claims.iter().all(|claim| matches!(claim, Some(Claim::Shared(_))));
    let all_permits = claims.iter().all(|claim| matches!(claim, Some(Claim::Permits(_))));
    claims.len() <= 1 || all_shared || (all_permits && permits <= PERMITS)
}

/// Returns the path of a query for the file.
pub fn is_of_file(path: &str) -> bool {
    FilePath::new(path).is_ok_and(|path| path.as_str() == FILE)
}
