//! Disks: the few file operations that the log and the snapshots need.
//!
//! **Intuition.** All durable data goes through [`Disk`] and [`File`]. So the same log runs on a real folder
//! ([`RealDisk`]), and on a simulated disk that loses, tears and fails on purpose ([`SimDisk`]).
//!
//! **Rules.** Both keep this contract, on which the log depends:
//! - bytes written are durable only after [`File::sync`] of that file returned `Ok`;
//! - names (create, rename, remove) are durable only after [`Disk::sync_names`] returned `Ok`;
//! - unsynced changes may be lost, kept, or kept in part, in any mixture.
//!
//! **Trap.** After a *failed* sync, the content of the disk is unknown. The kernel may have dropped the dirty
//! pages, so that a second sync returns `Ok` without writing anything. The caller must not retry a sync.

mod real;
mod sim;

use std::io;
use std::sync::Arc;

pub use real::RealDisk;
pub use sim::{SimDisk, SimHandle};

/// The bytes that a disk writes at once. Most disks have smaller blocks, which divide it.
pub const BLOCK: usize = 4096;

/// One flat folder of files.
pub trait Disk: Send + Sync + 'static {
    /// Returns the names of all files, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file, replacing one of that name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, replacing the file that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all creations, renames and removals so far durable.
    fn sync_names(&self) -> io::Result<()>;

    /// Returns a random number that no client can guess. See the salt in `docs/log-format.md`.
    fn salt(&self) -> io::Result<u64>;
}

/// One file with positioned reads and writes, so that a reader never disturbs the writer.
pub trait File: Send + Sync + 'static {
    /// Returns the length in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buffer` from `offset` on. Fails with `UnexpectedEof` if the file is too short.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, and extends the file if needed. Whole [`BLOCK`]s in memory with the
    /// same alignment may bypass the page cache.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written so far durable. A failure is final: the caller must not retry.
    fn sync(&self) -> io::Result<()>;
}
