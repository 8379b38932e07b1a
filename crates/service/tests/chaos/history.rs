//! The history: the operations of the clients, their results, and the times of their begin and end.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

/// The known outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// Applied, with this result.
    Done(T),
    /// Certainly not applied.
    Refused(String),
    /// Applied or not; the client does not know.
    Unknown(String),
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A write to a register; the result is its version.
    Write { file: usize, value: String, outcome: Outcome<u64> },
    /// A read of a register; the result is the version and the value.
    Read { file: usize, outcome: Outcome<(u64, String)> },
    /// The creation of a file with the next number of its folder; the result is its path.
    Create { value: String, outcome: Outcome<String> },
    /// The holding of a lock, from the begin of the entry to its end.
    Held { name: usize, fence: u64, lost: bool },
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub client: usize,
    pub began: Instant,
    pub ended: Instant,
    pub event: Event,
}

#[derive(Default)]
pub struct History(Mutex<Vec<Entry>>);

impl History {
    pub fn push(&self, client: usize, began: Instant, event: Event) {
        self.push_until(client, began, Instant::now(), event);
    }

    pub fn push_until(&self, client: usize, began: Instant, ended: Instant, event: Event) {
        self.0.lock().unwrap().push(Entry { client, began, ended, event });
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    /// Writes the history into a folder, one entry per line: microseconds since the first entry, client,
    /// event.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let mut entries = self.entries();
        entries.sort_by_key(|entry| entry.began);
        let origin = entries.first().map(|entry| entry.began);
        let mut text = String::new();
        for Entry { client, began, ended, event } in &entries {
            let since = |at: &Instant| origin.map_or(0, |origin| at.duration_since(origin).as_micros());
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}..{} client {client} {event:?}", since(began), since(ended));
        }
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("history.txt"), text)
    }
}
