//! The rooms as the command line knows them: which flags each has, and the way from a name to a room.

use std::time::Duration;

use conclave_algorithms::catalog;
use conclave_algorithms::deadlock::Model;
use conclave_algorithms::quorum::Quorum;
use conclave_lab::rooms::deadlock;
use conclave_lab::rooms::mutex::{self, Work};
use conclave_lab::{room, suggest};

use super::world::{duration, replace};
use crate::output::Failure;

/// A room of the laboratory that `sim` and `replay` can run.
pub trait Room: room::Scenario {
    /// The flags of [`RoomArgs`] that mean something to it.
    const FLAGS: &'static [&'static str];

    /// Takes its own flags.
    fn read(&mut self, flags: &RoomArgs) -> Result<(), Failure>;
}

/// Something to be done with a room whose name is known only at run time.
pub trait Visit {
    /// What comes of it.
    type Out;

    /// Does it.
    fn visit<S: Room>(self) -> Self::Out;
}

/// Does something with the room of that name; `None` if it cannot be run in the simulator.
pub fn visit<V: Visit>(room: &str, visitor: V) -> Option<V::Out> {
    match room {
        "mutex" => Some(visitor.visit::<mutex::Scenario>()),
        "deadlock" => Some(visitor.visit::<deadlock::Scenario>()),
        _ => None,
    }
}

/// The room and the tenant's name in `ROOM/ALGORITHM`.
pub fn find(path: &str) -> Result<(&str, &str), Failure> {
    let Some((room, name)) = path.split_once('/') else {
        let paths: Vec<_> = catalog::cards().map(|card| card.path().to_string()).collect();
        let named = catalog::cards().find(|card| card.name == path);
        return Err(Failure::usage(match named {
            Some(card) => format!("'{path}' needs its room; did you mean {}?", card.path()),
            None => suggest::unknown("algorithm", path, paths.iter().map(String::as_str)),
        }));
    };
    if !catalog::rooms().any(|known| known == room) {
        return Err(suggest::unknown("room", room, catalog::rooms()).into());
    }
    let names = || catalog::cards().filter(|card| card.room == room).map(|card| card.name);
    if !names().any(|known| known == name) {
        return Err(suggest::unknown(&format!("algorithm of room {room}"), name, names()).into());
    }
    Ok((room, name))
}

/// What is done in the run. Which flags mean something depends on the room.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "The work")]
pub struct RoomArgs {
    /// Mutex: who asks when: low, high, pair, relay, poisson:MEAN, burst:SIZE,EVERY or script:NODE@TIME,...
    /// [default: low]
    #[arg(long, value_name = "LOAD")]
    pub load: Option<Work>,
    /// Mutex: how many requests in all, over all sites [default: 100]
    #[arg(long, value_name = "N")]
    pub entries: Option<u64>,
    /// Mutex: how long a site stays in the critical section [default: 1ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub cs: Option<Duration>,
    /// Mutex: whose permission Maekawa asks for: plane, grid, majority or all [default: plane where one exists,
    /// else grid]
    #[arg(long, value_name = "QUORUM")]
    pub quorum: Option<Quorum>,
    /// Deadlock: how many requests in all, over all processes [default: 100]
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Deadlock: what processes ask for: single, and, or, p-out-of-q [default: as much as the algorithm can judge]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<Model>,
    /// Deadlock: how long a process thinks before it grants or asks, on average [default: 1ms]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub think: Option<Duration>,
    /// Deadlock: find deadlocks and leave them standing
    #[arg(long)]
    pub detect_only: bool,
}

impl RoomArgs {
    /// The error for a flag that means nothing to this room.
    pub fn refuse_strangers<S: Room>(&self) -> Result<(), Failure> {
        match self.given().into_iter().find(|flag| !S::FLAGS.contains(flag)) {
            Some(flag) => {
                let own: Vec<_> = S::FLAGS.iter().map(|flag| format!("--{flag}")).collect();
                Err(Failure::usage(format!(
                    "--{flag} means nothing in room {}; its flags are {}",
                    S::ROOM,
                    own.join(" ")
                )))
            }
            None => Ok(()),
        }
    }

    /// The names of the flags that were given.
    fn given(&self) -> Vec<&'static str> {
        let flags = [
            ("load", self.load.is_some()),
            ("entries", self.entries.is_some()),
            ("cs", self.cs.is_some()),
            ("quorum", self.quorum.is_some()),
            ("requests", self.requests.is_some()),
            ("model", self.model.is_some()),
            ("think", self.think.is_some()),
            ("detect-only", self.detect_only),
        ];
        flags.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }
}

impl Room for mutex::Scenario {
    const FLAGS: &'static [&'static str] = &["load", "entries", "cs", "quorum"];

    fn read(&mut self, flags: &RoomArgs) -> Result<(), Failure> {
        replace(&mut self.load, flags.load.clone());
        replace(&mut self.entries, flags.entries);
        replace(&mut self.cs, flags.cs);
        self.quorum = flags.quorum.or(self.quorum);
        Ok(())
    }
}

impl Room for deadlock::Scenario {
    const FLAGS: &'static [&'static str] = &["requests", "model", "think", "detect-only"];

    fn read(&mut self, flags: &RoomArgs) -> Result<(), Failure> {
        replace(&mut self.requests, flags.requests);
        replace(&mut self.think, flags.think);
        self.model = flags.model.or(self.model);
        self.detect_only |= flags.detect_only;
        Ok(())
    }
}
