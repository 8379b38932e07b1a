//! The state machine of the replica: the pure state, and batches of commands as log entries.
//!
//! **Batches.** The commands that arrive during the sync of an entry become the next entry. So the costs of
//! an entry (consensus, its record, its callbacks) are paid once for all of them. The state does not know
//! about batches. It counts *commands*. Fences, numbers of sessions and indices of watches come from this
//! count, so each command of an entry has its own (`docs/decisions/0011-an-entry-is-a-batch.md`).
//!
//! **Wall time.** The state compares no clocks, but reports show since when a lock is held. So the node that
//! proposes an entry writes its wall time into the entry. The time is the same on every node, and it is only
//! displayed.

use serde::{Deserialize, Serialize};

use crate::cluster::LogId;
use crate::node::budget::command_size;
use crate::state::early_grant::FENCE_GAP;
use crate::state::{Answer, Command, Effect, Position, State};

/// The largest number of commands in an entry. Further commands go into the next entry.
const MAX_COMMANDS: usize = 512;
/// The largest size of an entry, in bytes. Further commands go into the next entry. A single larger command
/// gets an entry of its own.
const MAX_BYTES: usize = 256 * 1024;

/// The commands of one log entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The wall time of the proposing node, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The commands, in the order in which they are applied.
    pub commands: Vec<Command>,
}

/// The tags and the commands, grouped by entry.
type Packed<T> = (Vec<Vec<T>>, Vec<Vec<Command>>);

impl Batch {
    /// Packs commands into as few entries as the bounds allow, in order. Each command comes with a tag for
    /// its result.
    pub fn pack<T>(commands: impl IntoIterator<Item = (T, Command)>) -> Packed<T> {
        let (mut tags, mut entries): Packed<T> = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for (tag, command) in commands {
            let more = command_size(&command);
            match (tags.last_mut(), entries.last_mut()) {
                (Some(tags), Some(entry)) if tags.len() < MAX_COMMANDS && bytes + more <= MAX_BYTES => {
                    tags.push(tag);
                    entry.push(command);
                    bytes += more;
                }
                _ => {
                    tags.push(vec![tag]);
                    entries.push(vec![command]);
                    bytes = more;
                }
            }
        }
        (tags, entries)
    }
}

/// The replicated state of the lock service.
#[derive(Clone, Debug, Default)]
pub struct Service {
    state: State,
    /// The number of commands in the snapshot that the state was read from. They are not applied again at the
    /// next start.
    restored: u64,
    /// The bug that a test has planted.
    #[cfg(feature = "testing")]
    flaw: Option<crate::testing::Flaw>,
}

impl Service {
    /// Creates the empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Plants a bug.
    #[cfg(feature = "testing")]
    pub fn plant(&mut self, flaw: Option<crate::testing::Flaw>) {
        self.flaw = flaw;
        self.state.plant(flaw);
    }

    /// Returns the state for queries.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the number of commands in the snapshot that the state was read from.
    pub fn restored(&self) -> u64 {
        self.restored
    }

    /// Applies an entry and returns the effects, in the order of its commands.
    pub fn apply(&mut self, id: LogId, entry: Batch) -> Vec<Effect> {
        let mut effects = Vec::with_capacity(entry.commands.len() * 2);
        for command in entry.commands {
            // Consensus applies each entry once, so the count is the same on every node.
            let at = Position { index: self.state.applied() + 1, term: id.term, wall_ms: entry.wall_ms };
            self.state.apply_into(at, command, &mut effects);
        }
        effects
    }

    /// Removes from `effects` the replies that may be sent early, and returns them. They need only the first
    /// `durable` commands.
    pub fn early(&self, durable: u64, effects: &mut Vec<Effect>) -> Vec<Effect> {
        // Beyond this distance, a restart could grant a fence a second time.
        if self.state.applied().saturating_sub(durable) > FENCE_GAP {
            return Vec::new();
        }
        let is_early = |effect: &mut Effect| match effect {
            Effect::Reply { answer: Answer::Granted(_), .. } if has_flaw!(self, SendsAnyGrantEarly) => true,
            Effect::Reply { after, .. } => *after <= durable,
            _ => false,
        };
        effects.extract_if(.., is_early).collect()
    }

    /// Returns the whole state as bytes.
    pub fn to_snapshot(&self) -> Vec<u8> {
        self.state.to_snapshot()
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// The reason why these bytes are not a snapshot.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, String> {
        let state = State::from_snapshot(bytes).map_err(|error| error.to_string())?;
        Ok(Self {
            restored: state.applied(),
            state,
            #[cfg(feature = "testing")]
            flaw: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use conclave_core::{
        Fence, FilePath, LockName, Owner, OwnerLabel, Priority, RequestId, SessionId, Version, VictimPolicy,
        Wait,
    };

    use super::*;
    use crate::state::tree::FileOp;
    use crate::state::{Acquire, Answer, Op, OpenSession, Request};

    fn open() -> Command {
        Command::OpenSession(OpenSession {
            secret: 7,
            ttl_ms: 10_000,
            lock_delay_ms: 0,
            label: String::new(),
        })
    }

    fn request(id: u64, op: Op) -> Command {
        Command::Request(Request { session: SessionId(1), id: RequestId(id), lowest: RequestId(1), op })
    }

    fn acquire(id: u64) -> Command {
        request(id, Op::Acquire(expr("x")))
    }

    fn expr(expr: &str) -> Acquire {
        Acquire {
            expr: expr.parse().unwrap(),
            owner: Owner::Request,
            wait: Wait::Forever,
            priority: Priority(0),
            policy: VictimPolicy::Requester,
            value: None,
        }
    }

    fn write(bytes: usize) -> Command {
        let path = FilePath::new("/f").unwrap();
        request(1, Op::Files(vec![FileOp::Write { path, data: vec![0; bytes], expected: None }]))
    }

    fn sizes(commands: Vec<Command>) -> Vec<usize> {
        let (tags, entries) = Batch::pack(commands.into_iter().enumerate());
        let order: Vec<usize> = tags.iter().flatten().copied().collect();
        assert!(order.is_sorted());
        assert_eq!(
            tags.iter().map(Vec::len).collect::<Vec<_>>(),
            entries.iter().map(Vec::len).collect::<Vec<_>>()
        );
        tags.iter().map(Vec::len).collect()
    }

    #[test]
    fn two_grants_of_a_name_in_one_entry_have_different_fences() {
        let release = request(3, Op::Release { grant: RequestId(2) });
        let commands = vec![open(), acquire(2), release, acquire(4)];
        let mut service = Service::new();
        let effects = service.apply(LogId { term: 1, index: 1 }, Batch { wall_ms: 0, commands });
        let fences: Vec<Fence> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Reply { answer: Answer::Granted(granted), .. } => Some(granted.names[0].fence),
                _ => None,
            })
            .collect();
        assert_eq!(fences.len(), 2);
        assert!(fences[0] < fences[1]);
        // A later entry continues the count, whatever its own index.
        let effects =
            service.apply(LogId { term: 1, index: 2 }, Batch { wall_ms: 0, commands: vec![open()] });
        assert!(matches!(effects[0], Effect::SessionOpened { session: SessionId(5), .. }));
    }

    #[test]
    fn small_commands_share_an_entry_up_to_its_bound() {
        assert_eq!(sizes(Vec::new()), Vec::<usize>::new());
        assert_eq!(sizes(vec![open(); MAX_COMMANDS + 1]), [MAX_COMMANDS, 1]);
    }

    #[test]
    fn a_large_command_is_alone_in_its_entry() {
        assert_eq!(sizes(vec![open(), write(MAX_BYTES), open(), open()]), [1, 1, 2]);
    }

    /// The bounds of the buffers rely on this: a command never has more bytes than its computed size.
    #[test]
    fn nothing_weighs_less_than_it_takes_in_the_log() {
        let long = "x".repeat(500);
        let path = || FilePath::new(&format!("/{long}")).unwrap();
        let name = || LockName::new(&long).unwrap();
        let grant = RequestId(u64::MAX);
        let ops = [
            Op::Acquire(expr(&vec![long.clone(); 8].join(" & "))),
            Op::Acquire(expr(&format!("\"{}\"", r#"\""#.repeat(500)))),
            Op::Acquire(expr(&format!("2 of ({})", ["a*2"; 64].join(", ")))),
            Op::Acquire(Acquire {
                owner: Owner::Label(OwnerLabel::new("x".repeat(128)).unwrap()),
                ..expr("x")
            }),
            Op::Acquire(Acquire { value: Some(vec![0; 1000]), ..expr("x") }),
            Op::Proclaim { grant, value: vec![0; 1000] },
            Op::Limit { name: name(), permits: 3 },
            Op::Break { name: name(), reason: long.clone() },
            Op::Files(vec![FileOp::Delete { path: path(), expected: Some(Version(u64::MAX)) }; 128]),
            Op::Files(vec![FileOp::Check { path: path(), expected: Version(u64::MAX) }; 128]),
            Op::Files(vec![FileOp::Write { path: path(), data: vec![0; 1000], expected: None }]),
            Op::Release { grant },
            Op::SetTtl { ttl_ms: u64::MAX },
        ];
        for op in ops {
            let command = request(u64::MAX, op);
            let (weight, bytes) = (command_size(&command), postcard::to_allocvec(&command).unwrap().len());
            assert!(weight >= bytes, "{weight} < {bytes}: {command:?}");
        }
    }
}
