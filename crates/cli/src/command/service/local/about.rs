//! The version of the local node, in a file beside its socket.
//!
//! The node writes the file before it listens. A client reads the file after it has connected. So the file
//! describes that node or a later one.

use std::cmp::Ordering;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use conclave_wire::frame::VERSION;
use serde::{Deserialize, Serialize};

/// The name of the file in the data folder.
const NAME: &str = "node.json";
/// The temporary name of the file while it is written.
const DRAFT: &str = "node.json.tmp";

/// The description of a node.
#[derive(Debug, Deserialize, Serialize)]
pub struct About {
    /// The version of the program: `1.2.3`.
    pub version: String,
    /// The version of the protocol, which is in the preface of a connection.
    pub protocol: u8,
    /// The number of the process, in the pid namespace of that process.
    pub process: u32,
}

/// The age of a node compared with this command.
#[derive(Debug, PartialEq)]
pub enum Age {
    Older,
    Same,
    Newer,
}

impl About {
    /// Returns the description of a node that this process runs.
    pub fn ours() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, protocol: VERSION, process: std::process::id() }
    }

    /// Reads the file. Returns `None` if it is missing or unreadable; the handshake of the protocol then
    /// decides.
    pub fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join(NAME)).ok()?).ok()
    }

    /// Writes the file atomically.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut draft =
            options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(DRAFT))?;
        draft.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(folder.join(DRAFT), folder.join(NAME))
    }

    /// Returns whether the node is older or newer than this command. A version that cannot be parsed counts
    /// as the same.
    pub fn age(&self) -> Age {
        match (numbers(&self.version), numbers(env!("CARGO_PKG_VERSION"))) {
            (Some(theirs), Some(ours)) => match theirs.cmp(&ours) {
                Ordering::Less => Age::Older,
                Ordering::Equal => Age::Same,
                Ordering::Greater => Age::Newer,
            },
            _ => Age::Same,
        }
    }
}

fn numbers(version: &str) -> Option<[u64; 3]> {
    let plain = version.split(['-', '+']).next()?;
    let numbers: Vec<u64> = plain.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let age = |version: &str| About { version: version.into(), protocol: 1, process: 1 }.age();
        assert_eq!(age(env!("CARGO_PKG_VERSION")), Age::Same);
        assert_eq!(age("0.0.99"), Age::Older);
        assert_eq!(age("999.0.0-rc.1"), Age::Newer);
        for unreadable in ["", "1.2", "a.b.c", "1.2.3.4"] {
            assert_eq!(age(unreadable), Age::Same, "{unreadable:?}");
        }
        assert!(numbers("0.10.0") > numbers("0.9.9"));
    }
}
