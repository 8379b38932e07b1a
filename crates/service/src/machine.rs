//! The service as the replica runs it: the pure state, fed with handfuls of commands.
//!
//! **An entry is a handful.** Whatever clients asked while the last entry was being synced is one entry: what an entry costs
//! (its way through consensus, its record, its callbacks) is paid once for all of them. The state knows nothing of that. It
//! counts *commands*, and everything it derives from a place in the log (fences, session numbers, what a watch resumes
//! by) comes from that count, so two commands of one entry are as far apart as two entries were
//! (`docs/decisions/0011-an-entry-is-a-handful.md`).
//!
//! **Wall time.** The state compares no clocks, but people want to see since when a lock is held. So whoever proposes an
//! entry writes its wall time into it, where it is the same for every node; it is shown, never compared.

use serde::{Deserialize, Serialize};

use crate::replica::Machine;
use crate::replica::log::LogId;
use crate::state::tree::FileOp;
use crate::state::{At, Command, Effect, Op, Request, State};

/// The most commands in an entry.
const MAX_COMMANDS: usize = 512;
/// An entry is closed before it has more than this, unless one command alone has.
const MAX_BYTES: usize = 256 * 1024;

/// Commands on their way into the log as one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// The wall time of the node that proposed them, in milliseconds since 1970.
    pub wall_ms: u64,
    /// What is to be done, in this order.
    pub commands: Vec<Command>,
}

impl Stamped {
    /// As few entries as the bounds allow, in order. Each comes with the tags of its commands.
    pub(crate) fn gather<T>(
        wall_ms: u64,
        commands: impl IntoIterator<Item = (T, Command)>,
    ) -> (Vec<Vec<T>>, Vec<Self>) {
        let (mut tags, mut entries): (Vec<Vec<T>>, Vec<Self>) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for (tag, command) in commands {
            let more = weight(&command);
            match (tags.last_mut(), entries.last_mut()) {
                (Some(tags), Some(entry)) if tags.len() < MAX_COMMANDS && bytes + more <= MAX_BYTES => {
                    tags.push(tag);
                    entry.commands.push(command);
                    bytes += more;
                }
                _ => {
                    tags.push(vec![tag]);
                    entries.push(Self { wall_ms, commands: vec![command] });
                    bytes = more;
                }
            }
        }
        (tags, entries)
    }
}

/// About how many bytes a command has: exact enough for what can be large.
fn weight(command: &Command) -> usize {
    let content = match command {
        Command::Request(Request { op: Op::Files(ops), .. }) => ops.iter().map(file_weight).sum(),
        Command::Request(Request { op: Op::Acquire(acquire), .. }) => {
            acquire.value.as_ref().map_or(0, Vec::len)
        }
        Command::Request(Request { op: Op::Proclaim { value, .. }, .. }) => value.len(),
        Command::Request(Request { op: Op::Break { reason, .. }, .. }) => reason.len(),
        Command::OpenSession(open) => open.label.len(),
        _ => 0,
    };
    content + 128
}

fn file_weight(op: &FileOp) -> usize {
    let content = match op {
        FileOp::Create { data, .. } | FileOp::Write { data, .. } => data.len(),
        FileOp::Delete { .. } | FileOp::Check { .. } => 0,
    };
    content + 256
}

/// The replicated state of the lock service.
#[derive(Clone, Debug, Default)]
pub struct Service(State);

impl Service {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The state, to be read.
    pub fn state(&self) -> &State {
        &self.0
    }
}

impl Machine for Service {
    type Command = Stamped;
    type Effect = Effect;

    fn apply(&mut self, id: LogId, entry: Stamped) -> Vec<Effect> {
        let mut effects = Vec::with_capacity(entry.commands.len() * 2);
        for command in entry.commands {
            // Consensus applies each entry once, so the count is the same on every node.
            let at = At { index: self.0.applied() + 1, term: id.term, wall_ms: entry.wall_ms };
            self.0.apply_into(at, command, &mut effects);
        }
        effects
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_snapshot()
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        State::from_snapshot(bytes).map(Self).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use conclave_api::{Fence, Owner, Priority, RequestId, SessionId, VictimPolicy, Wait};

    use super::*;
    use crate::state::{Acquire, Answer, FilePath, OpenSession};

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
        request(
            id,
            Op::Acquire(Acquire {
                expr: "x".parse().unwrap(),
                owner: Owner::Request,
                wait: Wait::Forever,
                priority: Priority(0),
                policy: VictimPolicy::Requester,
                value: None,
            }),
        )
    }

    fn write(bytes: usize) -> Command {
        let path = FilePath::new("/f").unwrap();
        request(1, Op::Files(vec![FileOp::Write { path, data: vec![0; bytes], expected: None }]))
    }

    fn sizes(commands: Vec<Command>) -> Vec<usize> {
        let (tags, entries) = Stamped::gather(1, commands.into_iter().enumerate());
        let order: Vec<usize> = tags.iter().flatten().copied().collect();
        assert!(order.is_sorted());
        assert_eq!(
            tags.iter().map(Vec::len).collect::<Vec<_>>(),
            entries.iter().map(|entry| entry.commands.len()).collect::<Vec<_>>()
        );
        tags.iter().map(Vec::len).collect()
    }

    #[test]
    fn two_grants_of_a_name_in_one_entry_have_different_fences() {
        let release = request(3, Op::Release { grant: RequestId(2) });
        let commands = vec![open(), acquire(2), release, acquire(4)];
        let mut service = Service::new();
        let effects = service.apply(LogId { term: 1, index: 1 }, Stamped { wall_ms: 0, commands });
        let fences: Vec<Fence> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Reply { answer: Answer::Granted(granted), .. } => Some(granted.names[0].fence),
                _ => None,
            })
            .collect();
        assert_eq!(fences.len(), 2);
        assert!(fences[0] < fences[1]);
        // A later entry goes on counting where this one ended, whatever its index.
        let effects =
            service.apply(LogId { term: 1, index: 2 }, Stamped { wall_ms: 0, commands: vec![open()] });
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
}
