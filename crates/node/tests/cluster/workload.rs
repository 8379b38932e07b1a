//! The workload of a client: a few independent parts, each of which does one thing after another.

use std::time::Duration;

use conclave_client::lease::LeaseState;
use conclave_client::testing::{Conversation, Pending, Watching};
use conclave_core::{Code, Error, FilePath, LockName, Wait};
use conclave_kernel::{Cx, NodeId, Time};
use conclave_node::state::watch::WatchTarget;
use conclave_wire::v1;
use conclave_wire::v1::answer::Result as Answer;
use conclave_wire::v1::file_op::Op;

use crate::client::pause;
use crate::coverage::Situation;
use crate::scenario::{Config, Scenario};
use crate::site::{Note, Notes, Site, Timer};

/// The names that clients lock. The last two are an election and a semaphore.
pub const NAMES: [&str; 5] = ["x", "y", "z", "lead", "pool"];
/// The file that clients write.
pub const FILE: &str = "/f";
/// The number of permits of the semaphore.
pub const PERMITS: u32 = 3;
/// The queries of one burst: more than may wait on a connection before the server stops reading.
const BURST: usize = 600;

/// A grant on which a client relies.
#[derive(Debug)]
pub struct Belief {
    pub session: u64,
    pub request: u64,
    pub names: Vec<v1::GrantedName>,
}

/// The times at which a client was served last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    pub lock: Option<Time>,
    pub write: Option<Time>,
    pub read: Option<Time>,
}

/// One step of a client.
pub struct Moment<'a, 'c> {
    pub now: Duration,
    pub conversation: &'a mut Conversation,
    pub notes: &'a mut Notes,
    pub cx: &'a mut Cx<'c, Site>,
}

/// The workload of a client.
pub struct Workload {
    config: Config,
    me: NodeId,
    parts: Vec<Part>,
    watches: Vec<Watched>,
    /// The last deadline of the lease, to notice an extension.
    deadline: Option<Duration>,
    /// The number of the last file that this client has created.
    last_file: u32,
    pub served: Served,
}

/// The state of one part.
enum Part {
    Idle,
    Waiting { id: u64, granted: Pending<v1::Granted>, is_owed: bool },
    Holding { id: u64, session: u64, names: Vec<v1::GrantedName>, state: LeaseState, is_campaign: bool },
    Requested { answer: Pending<Answer>, then: Then },
    Burst(Vec<Pending<Answer>>),
}

/// The use of an answer.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    /// It is the result of a read.
    Read,
    /// Write the file, if it still has the version that was read.
    Write,
    /// End one of the sessions that were listed.
    EndSession,
}

struct Watched {
    watching: Watching,
    target: WatchTarget,
    has_begun: bool,
}

impl Workload {
    pub fn new(me: NodeId, config: Config) -> Self {
        let parts = if config.scenario == Scenario::Leases { 1 } else { 3 };
        Self {
            config,
            me,
            parts: (0..parts).map(|_| Part::Idle).collect(),
            watches: Vec::new(),
            deadline: None,
            last_file: 0,
            served: Served::default(),
        }
    }

    /// Returns the grants on which the client relies.
    pub fn beliefs(&self, now: Duration, conversation: &Conversation) -> Vec<Belief> {
        let mut beliefs = Vec::new();
        for part in &self.parts {
            if let Part::Holding { id, session, names, .. } = part
                && conversation.standing(now, *id) != LeaseState::Lost
            {
                beliefs.push(Belief { session: *session, request: *id, names: names.clone() });
            }
        }
        beliefs
    }

    /// Describes the reply that the client waits for, if it does.
    pub fn open(&self) -> Option<String> {
        self.parts.iter().find_map(|part| match part {
            Part::Idle => None,
            Part::Waiting { id, .. } => Some(format!("acquire {id}")),
            Part::Holding { id, .. } => Some(format!("holds {id}")),
            Part::Requested { .. } => Some("a request".to_owned()),
            Part::Burst(answers) => Some(format!("{} reads", answers.len())),
        })
    }

    pub fn begin(&mut self, at: &mut Moment<'_, '_>) {
        if self.config.scenario == Scenario::Leases {
            return self.acquire(0, at);
        }
        let limit = v1::request::Op::Limit(v1::Limit { name: "pool".to_owned(), permits: PERMITS });
        drop(at.conversation.request(at.now, limit));
        create_files(at);
        for slot in 0..self.parts.len() {
            self.pause(slot, at);
        }
        for _ in 0..2 {
            self.watch(at);
        }
    }

    /// Continues one part.
    pub fn work(&mut self, slot: u8, at: &mut Moment<'_, '_>) {
        let slot = usize::from(slot);
        match std::mem::replace(&mut self.parts[slot], Part::Idle) {
            Part::Idle if self.config.scenario.is_quiet(at.cx.now()) => {}
            Part::Idle => self.want(slot, at),
            Part::Holding { id, is_campaign, mut names, session, state } => {
                if is_campaign && at.cx.choose(2) == 0 {
                    let proclaim = v1::Proclaim { grant: id, value: vec![1] };
                    drop(at.conversation.request(at.now, v1::request::Op::Proclaim(proclaim)));
                } else if self.is_mixed() && at.cx.choose(8) == 0 {
                    let downgrade = v1::Downgrade { grant: id };
                    drop(at.conversation.request(at.now, v1::request::Op::Downgrade(downgrade)));
                    // From now on, others may hold the names too.
                    for name in names.iter_mut().filter(|name| name.claim.is_none()) {
                        name.claim = Some(conclave_core::Claim::Shared.into());
                    }
                } else if self.is_mixed() && at.cx.choose(6) == 0 {
                    at.conversation.abandon(at.now, id);
                    return self.pause(slot, at);
                } else {
                    // The result is an error if the grant was lost.
                    drop(at.conversation.release(at.now, id));
                    return match self.is_mixed() {
                        true => self.pause(slot, at),
                        false => self.acquire(slot, at),
                    };
                }
                self.parts[slot] = Part::Holding { id, is_campaign: false, names, session, state };
                self.pause(slot, at);
            }
            Part::Waiting { id, is_owed, .. } if self.gives_up(slot, is_owed, at) => {
                at.conversation.abandon(at.now, id);
                self.pause(slot, at);
            }
            other => {
                self.parts[slot] = other;
                if self.is_mixed() {
                    self.pause(slot, at);
                }
            }
        }
    }

    /// Returns whether a part cancels its request for a lock. It does so by chance, before the end of the
    /// run, or to request the lock that it must get after the faults. That request has the highest priority,
    /// because others could starve it.
    fn gives_up(&self, slot: usize, is_owed: bool, at: &mut Moment<'_, '_>) -> bool {
        let must_end = self.config.scenario.is_quiet(at.cx.now()) || self.is_owed(slot, at);
        let one_in = if self.config.is_busy { 40 } else { 5 };
        self.is_mixed() && !is_owed && (must_end || at.cx.choose(one_in) == 0)
    }

    /// Returns whether this part has not been served since the faults ended. The first part wants a lock
    /// then, the second one writes, and the third one reads.
    fn is_owed(&self, slot: usize, at: &Moment<'_, '_>) -> bool {
        let served = [self.served.lock, self.served.write, self.served.read][slot];
        let scenario = self.config.scenario;
        scenario.is_healed(at.cx.now()) && !served.is_some_and(|served| scenario.is_healed(served))
    }

    fn is_mixed(&self) -> bool {
        self.config.scenario != Scenario::Leases
    }

    fn pause(&self, slot: usize, at: &mut Moment<'_, '_>) {
        let most_ms = match self.config.scenario {
            Scenario::Leases => 200,
            _ if self.config.is_busy => 50,
            _ => 400,
        };
        pause(Timer::Work(u8::try_from(slot).expect("few parts")), most_ms, at.cx);
    }

    /// Begins something new.
    fn want(&mut self, slot: usize, at: &mut Moment<'_, '_>) {
        use v1::query::Kind;
        let read = || Kind::File(v1::ReadFile { path: FILE.to_owned() });
        let draw = match slot {
            0 if self.is_owed(0, at) => 0,
            1 if self.is_owed(1, at) => 16,
            2 if self.is_owed(2, at) => 24,
            _ => at.cx.choose(32),
        };
        match draw {
            0..=15 => self.acquire(slot, at),
            16..=19 => {
                let op = self.file_op(at);
                self.request(slot, op, at);
            }
            20..=23 => self.query(slot, read(), Then::Write, at),
            24 | 25 => self.query(slot, read(), Then::Read, at),
            26 | 27 => {
                let name = NAMES[at.cx.choose(5) as usize].to_owned();
                self.query(slot, Kind::Why(v1::Why { name }), Then::Read, at);
            }
            28 => {
                let name = NAMES[at.cx.choose(5) as usize].to_owned();
                let op = v1::request::Op::Break(v1::Break { name, reason: "a test".to_owned() });
                self.request(slot, op, at);
            }
            29 if at.cx.choose(3) == 0 => {
                let query = Kind::Sessions(v1::ReadSessions { after: 0 });
                self.query(slot, query, Then::EndSession, at);
            }
            29 | 30 if !self.watches.is_empty() => {
                let watched = self.watches.swap_remove(0);
                let watch = watched.watching.id;
                at.conversation.unwatch(watch);
                at.notes.add(Note::Unwatched { watch });
                self.watch(at);
                self.pause(slot, at);
            }
            _ if self.config.has_bursts => {
                let reads = (0..BURST).filter_map(|_| at.conversation.query(at.now, read()).ok());
                self.parts[slot] = Part::Burst(reads.collect());
            }
            _ => self.pause(slot, at),
        }
    }

    fn acquire(&mut self, slot: usize, at: &mut Moment<'_, '_>) {
        let is_owed = self.is_owed(slot, at);
        let mut acquire = v1::Acquire::of(if is_owed { "y" } else { self.expression(at) });
        let most_ms = if self.is_mixed() { 800 } else { 2_500 };
        match at.cx.choose(8) {
            _ if is_owed => acquire.priority = 9,
            0 | 1 => acquire.set_wait(Wait::AtMost(u64::from(at.cx.choose(most_ms)))),
            2 if self.is_mixed() => acquire.set_wait(Wait::Try),
            3 | 4 if self.is_mixed() => acquire.priority = 5,
            5 | 6 if self.config.is_abrupt => acquire.priority = 7,
            _ => {}
        }
        if acquire.expr == "lead" {
            acquire.value = Some(vec![0]);
        }
        match at.conversation.acquire(at.now, acquire) {
            Ok((id, granted)) => self.parts[slot] = Part::Waiting { id, granted, is_owed },
            Err(_) => self.pause(slot, at),
        }
        if self.is_mixed() {
            self.pause(slot, at);
        }
    }

    fn expression(&self, at: &mut Moment<'_, '_>) -> &'static str {
        const MIXED: [&str; 10] =
            ["x", "x", "y", "x:shared", "x & y", "x | y", "2 of (x, y, z)", "lead", "pool*2", "pool"];
        match self.config.scenario {
            Scenario::Leases => "x",
            Scenario::Cluster => MIXED[at.cx.choose(10) as usize],
            // Early grants need a queue of plain requests.
            Scenario::Single if at.cx.choose(4) < if self.is_eager() { 3 } else { 2 } => "x",
            Scenario::Single => MIXED[at.cx.choose(10) as usize],
        }
    }

    fn is_eager(&self) -> bool {
        self.config.is_busy || self.config.is_abrupt
    }

    /// A change of files. Each file of `/q` is created once: two of the same content show a request that was
    /// applied twice.
    fn file_op(&mut self, at: &mut Moment<'_, '_>) -> v1::request::Op {
        let op = match at.cx.choose(4) {
            0 => {
                let path = format!("/e{}", self.me.0);
                match at.cx.choose(2) {
                    0 => Op::Create(v1::file_op::Create { path, ephemeral: true, ..Default::default() }),
                    _ => Op::Delete(v1::file_op::Delete { path, expected: None }),
                }
            }
            _ => {
                self.last_file += 1;
                let data = format!("{}-{}", self.me.0, self.last_file).into_bytes();
                let path = "/q/f".to_owned();
                Op::Create(v1::file_op::Create { path, data, ephemeral: false, sequential: true })
            }
        };
        files(op)
    }

    fn request(&mut self, slot: usize, op: v1::request::Op, at: &mut Moment<'_, '_>) {
        match at.conversation.request(at.now, op) {
            Ok(answer) => self.parts[slot] = Part::Requested { answer, then: Then::Nothing },
            Err(_) => self.pause(slot, at),
        }
    }

    fn query(&mut self, slot: usize, query: v1::query::Kind, then: Then, at: &mut Moment<'_, '_>) {
        match at.conversation.query(at.now, query) {
            Ok(answer) => self.parts[slot] = Part::Requested { answer, then },
            Err(_) => self.pause(slot, at),
        }
    }

    fn watch(&mut self, at: &mut Moment<'_, '_>) {
        use v1::watch::Target;
        let path = |path: &str| FilePath::new(path).expect("a path");
        let lock = |name: &str| WatchTarget::Lock(LockName::new(name).expect("a name"));
        let (target, wanted) = match at.cx.choose(4) {
            0 => (WatchTarget::Directory(path("/q")), Target::Children("/q".to_owned())),
            1 => (lock("x"), Target::Lock("x".to_owned())),
            2 => (lock("lead"), Target::Lock("lead".to_owned())),
            _ => (WatchTarget::File(path(FILE)), Target::File(FILE.to_owned())),
        };
        if let Ok(watching) = at.conversation.watch(at.now, wanted) {
            self.watches.push(Watched { watching, target, has_begun: false });
        }
    }

    /// Handles everything that has arrived.
    pub fn poll(&mut self, at: &mut Moment<'_, '_>) {
        let deadline = at.conversation.deadline();
        if std::mem::replace(&mut self.deadline, deadline) != deadline {
            // The judge checks all beliefs.
            at.notes.see(Situation::LeaseExtended);
        }
        for slot in 0..self.parts.len() {
            self.poll_part(slot, at);
        }
        self.poll_watches(at);
    }

    fn poll_part(&mut self, slot: usize, at: &mut Moment<'_, '_>) {
        match &mut self.parts[slot] {
            Part::Idle => {}
            Part::Waiting { id, granted, .. } => match granted.poll() {
                None => {}
                Some(Ok(granted)) => {
                    let is_campaign = granted.names.iter().any(|name| name.name == "lead");
                    at.notes.see(if is_campaign { Situation::Campaigned } else { Situation::Held });
                    let session = at.conversation.session().unwrap_or_default();
                    let (id, names, state) = (*id, granted.names, LeaseState::Valid);
                    self.parts[slot] = Part::Holding { id, session, names, state, is_campaign };
                    self.served.lock = Some(at.cx.now());
                    let most_ms = match self.config.scenario {
                        Scenario::Leases => 2_500,
                        scenario if self.config.is_busy || scenario.is_quiet(at.cx.now()) => 30,
                        _ => 500,
                    };
                    pause(Timer::Work(u8::try_from(slot).expect("few parts")), most_ms, at.cx);
                }
                Some(Err(_)) => self.end_part(slot, at),
            },
            Part::Holding { id, state, .. } => {
                let before = std::mem::replace(state, at.conversation.standing(at.now, *id));
                if *state == LeaseState::Lost {
                    at.conversation.abandon(at.now, *id);
                    at.notes.see(Situation::Lost);
                    return self.end_part(slot, at);
                }
                if *state == LeaseState::Jeopardy && before == LeaseState::Valid {
                    at.notes.see(Situation::Jeopardy);
                }
            }
            Part::Requested { answer, then } => {
                if let Some(result) = answer.poll() {
                    let then = *then;
                    self.end_part(slot, at);
                    self.on_answer(slot, result, then, at);
                }
            }
            Part::Burst(answers) => {
                answers.retain_mut(|answer| answer.poll().is_none());
                if answers.is_empty() {
                    self.end_part(slot, at);
                }
            }
        }
    }

    fn end_part(&mut self, slot: usize, at: &mut Moment<'_, '_>) {
        self.parts[slot] = Part::Idle;
        self.pause(slot, at);
    }

    fn on_answer(&mut self, slot: usize, result: Result<Answer, Error>, then: Then, at: &mut Moment<'_, '_>) {
        match &result {
            Ok(Answer::File(_) | Answer::Report(_)) => self.served.read = Some(at.cx.now()),
            Ok(Answer::Files(_)) => self.served.write = Some(at.cx.now()),
            // A conflict and a missing file are answers too.
            Err(error) if error.code == Code::VersionMismatch => self.served.write = Some(at.cx.now()),
            Err(error) if error.code == Code::NoSuchFile && !matches!(then, Then::Nothing) => {
                self.served.read = Some(at.cx.now());
            }
            _ => {}
        }
        match (then, result) {
            (Then::Write, Ok(Answer::File(file))) => {
                let version = file.stat.map(|stat| stat.version);
                let data = format!("{}", self.me.0).into_bytes();
                let write = v1::file_op::Write { path: FILE.to_owned(), data, expected: version };
                let op = files(Op::Write(write));
                self.request(slot, op, at);
            }
            (Then::EndSession, Ok(Answer::Sessions(list))) if !list.sessions.is_empty() => {
                let number = at.cx.choose(u32::try_from(list.sessions.len()).expect("few sessions"));
                let session = list.sessions[number as usize].session;
                let op = v1::request::Op::EndSession(v1::EndSession { session });
                self.request(slot, op, at);
            }
            // The faults may have removed the requests of `begin` of all clients. Without the files no write
            // would ever succeed.
            (Then::Nothing, Err(error)) if error.code == Code::NoSuchFile && self.is_owed(1, at) => {
                create_files(at);
            }
            _ => {}
        }
    }

    fn poll_watches(&mut self, at: &mut Moment<'_, '_>) {
        for number in (0..self.watches.len()).rev() {
            let Watched { watching, target, has_begun } = &mut self.watches[number];
            let watch = watching.id;
            let mut is_over = false;
            if !*has_begun {
                match watching.begun.poll() {
                    None => continue,
                    Some(Ok(index)) => {
                        *has_begun = true;
                        at.notes.add(Note::Watching { watch, target: target.clone(), index });
                    }
                    Some(Err(_)) => is_over = true,
                }
            }
            while let Some(next) = watching.poll() {
                match next {
                    Ok(event) => at.notes.add(Note::Noticed { watch, event }),
                    Err(_) => {
                        is_over = true;
                        break;
                    }
                }
            }
            if is_over {
                at.notes.add(Note::Unwatched { watch });
                self.watches.swap_remove(number);
                self.watch(at);
            }
        }
    }
}

/// Creates the files that all clients share.
fn create_files(at: &mut Moment<'_, '_>) {
    for path in [FILE, "/q"] {
        let create = v1::file_op::Create { path: path.to_owned(), ..Default::default() };
        // The result is an error if another client has done the same.
        drop(at.conversation.request(at.now, files(Op::Create(create))));
    }
}

/// A request for one change of a file.
fn files(op: Op) -> v1::request::Op {
    v1::request::Op::Files(v1::Files { ops: vec![v1::FileOp { op: Some(op) }] })
}
