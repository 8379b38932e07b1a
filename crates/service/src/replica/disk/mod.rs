//! Where bytes survive: the few file operations that the log and the snapshots need, and nothing more.
//!
//! Everything durable goes through [`Disk`] and [`File`], so that the same log runs on a real folder
//! ([`RealDisk`]) and on a disk that forgets, tears and fails on purpose ([`SimDisk`]).
//!
//! The contract that both keep, and on which the log's promises rest:
//! - bytes written are durable only after [`File::sync`] of that file returned `Ok`;
//! - names (create, rename, remove) are durable only after [`Disk::sync_names`] returned `Ok`;
//! - what was not synced may be lost, kept, or kept in part, in any mixture.
//!
//! The trap: a *failed* sync says nothing about what is on the disk, and the kernel may have dropped the
//! dirty pages, so that a second sync returns `Ok` without having written anything. Nobody may retry one.

mod real;
mod sim;

use std::io;
use std::sync::Arc;

pub use real::RealDisk;
pub use sim::{SimDisk, SimHandle};

/// What a disk writes at once. Most have smaller blocks, which divide it.
pub const BLOCK: usize = 4096;

/// One flat folder of files.
pub trait Disk: Send + Sync + 'static {
    /// The names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file, replacing one of that name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, replacing the file that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all creations, renames and removals so far durable.
    fn sync_names(&self) -> io::Result<()>;

    /// A number that nobody outside can guess; see the salt in `docs/log-format.md`.
    fn salt(&self) -> io::Result<u64>;
}

/// One file: positioned reads and writes, so that a reader never disturbs the writer.
pub trait File: Send + Sync + 'static {
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buffer` from `offset` on; an `UnexpectedEof` error if the file is too short.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, growing the file if need be. Whole [`BLOCK`]s, in memory that is aligned alike, may go
    /// to the disk without a stop in memory of the system.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written so far durable. A failure is final: see the module's head.
    fn sync(&self) -> io::Result<()>;
}
