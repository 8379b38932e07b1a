//! What clients did and what they were told, with the times between which it happened.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

/// What is known of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// Done, with this result.
    Done(T),
    /// Definitely not done.
    Refused(String),
    /// Perhaps.
    Unknown(String),
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A register was written; the version it got.
    Write { file: usize, value: String, outcome: Outcome<u64> },
    /// A register was read: version and value.
    Read { file: usize, outcome: Outcome<(u64, String)> },
    /// A file was made, under the next number of its folder; its path.
    Create { value: String, outcome: Outcome<String> },
    /// A lock was held from the beginning of the entry to its end.
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

    /// Writes it into a folder, a line an entry: microseconds since the first, the client, what happened.
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
