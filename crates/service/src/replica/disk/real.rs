//! A folder of the operating system, locked against a second process.
//!
//! **Rules.**
//! - Whole blocks are written without the page cache (`O_DIRECT`) if the file system allows that. All reads
//!   use the page cache. The kernel keeps both consistent: it drops the cached pages of such a write.
//! - Only the user may read the files, and the folder if it is created here, because the log contains the
//!   secrets of sessions.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{BLOCK, Disk, File};

const LOCK_NAME: &str = "lock";

/// A data folder. The lock is held while the value lives, and ends with the process in any case.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
    created: Created,
    /// `true` if the drop removes the folder.
    is_provisional: AtomicBool,
    // Open only to make directory changes durable.
    directory: fs::File,
    // Open only to hold the lock.
    _lock: fs::File,
}

impl RealDisk {
    /// Opens the folder, and creates it if it is missing.
    ///
    /// # Errors
    /// Another process has it open ([`io::ErrorKind::ResourceBusy`]), or the file system returns an error. A
    /// folder that was created here is removed if it is empty.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        Self::open_by(folder.into(), FlockOperation::NonBlockingLockExclusive)
    }

    /// Opens the folder as [`RealDisk::open`] does, but waits until no other process has it open.
    ///
    /// # Errors
    /// The file system returns an error.
    pub fn open_when_free(folder: impl Into<PathBuf>) -> io::Result<Self> {
        Self::open_by(folder.into(), FlockOperation::LockExclusive)
    }

    fn open_by(folder: PathBuf, operation: FlockOperation) -> io::Result<Self> {
        let mut created = Created::default();
        let made = created.create(&folder).map_err(|e| named(&e, "cannot create the data folder", &folder));
        match made.and_then(|()| lock(&folder, operation)) {
            Ok((directory, lock)) => {
                Ok(Self { folder, created, is_provisional: AtomicBool::new(false), directory, _lock: lock })
            }
            Err(error) => {
                created.remove_empty();
                Err(error)
            }
        }
    }

    /// Opens the folder for a start that may fail. If this call creates the folder, dropping the disk removes
    /// it with its files and the created parents. [`RealDisk::keep`] prevents that.
    ///
    /// # Errors
    /// As [`RealDisk::open`].
    pub fn open_provisional(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let mut disk = Self::open(folder)?;
        *disk.is_provisional.get_mut() = disk.created.0.last() == Some(&disk.folder);
        Ok(disk)
    }

    /// Keeps the folder for good.
    pub fn keep(&self) {
        self.is_provisional.store(false, Ordering::Relaxed);
    }

    fn file(&self, name: &str, options: &mut OpenOptions) -> io::Result<Arc<dyn File>> {
        let path = self.folder.join(name);
        let file = options.mode(0o600).open(&path).map_err(|e| named(&e, "cannot open", &path))?;
        Ok(Arc::new(RealFile { file, direct: OnceLock::new() }))
    }
}

/// The lock is still held while the folder is removed, so no other process has files in it.
impl Drop for RealDisk {
    fn drop(&mut self) {
        if *self.is_provisional.get_mut() {
            // A folder that cannot be removed stays; there is no caller to report it to.
            drop(fs::remove_dir_all(&self.folder));
            self.created.remove_empty();
        }
    }
}

/// Opens the folder as a file, and opens and locks its lock file.
fn lock(folder: &Path, operation: FlockOperation) -> io::Result<(fs::File, fs::File)> {
    let lock_path = folder.join(LOCK_NAME);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock_path)
        .map_err(|e| named(&e, "cannot open", &lock_path))?;
    match flock(&lock, operation) {
        Ok(()) => Ok((fs::File::open(folder)?, lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let message = format!(
                "the data folder {} is in use by another process: stop it, or use another folder",
                folder.display()
            );
            Err(io::Error::new(io::ErrorKind::ResourceBusy, message))
        }
        Err(e) => Err(named(&e.into(), "cannot lock", &lock_path)),
    }
}

/// The folders that this process has created, parents first.
#[derive(Debug, Default)]
struct Created(Vec<PathBuf>);

impl Created {
    fn create(&mut self, folder: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Ok(()) => {
                self.0.push(folder.to_owned());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
                // A parent that exists and still has no place for the folder: a file system like /proc.
                let parent = parent.filter(|parent| !parent.is_dir()).ok_or(error)?;
                self.create(parent)?;
                self.create(folder)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the folders that are empty. Errors are ignored: a folder in use stays.
    fn remove_empty(&self) {
        for folder in self.0.iter().rev() {
            drop(fs::remove_dir(folder));
        }
    }
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if !entry.file_type()?.is_file() {
                continue;
            }
            // A name that is not UTF-8 does not belong to Conclave.
            if let Ok(name) = entry.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.file(name, OpenOptions::new().create(true).truncate(true).read(true).write(true))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.file(name, OpenOptions::new().read(true).write(true))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn salt(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        // The kernel never returns eight bytes in part.
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[derive(Debug)]
struct RealFile {
    file: fs::File,
    /// The same file without the page cache. Opened at the first use; `None` if the file system does not
    /// support it.
    direct: OnceLock<Option<fs::File>>,
}

impl RealFile {
    fn direct(&self) -> Option<&fs::File> {
        let open = || {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let flags = OFlags::DIRECT.bits().cast_signed();
            OpenOptions::new().write(true).custom_flags(flags).open(path).ok()
        };
        self.direct.get_or_init(open).as_ref()
    }

    /// Returns whether the bytes were written without the page cache. If not, the caller writes all of them
    /// through it.
    fn write_direct(&self, bytes: &[u8], offset: u64) -> io::Result<bool> {
        if !is_whole_blocks(bytes, offset) {
            return Ok(false);
        }
        let Some(direct) = self.direct() else { return Ok(false) };
        match direct.write_all_at(bytes, offset) {
            Ok(()) => Ok(true),
            // The blocks of this disk are larger.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn is_whole_blocks(bytes: &[u8], offset: u64) -> bool {
    let are_multiples = bytes.len().is_multiple_of(BLOCK) && offset.is_multiple_of(BLOCK as u64);
    are_multiples && bytes.as_ptr().align_offset(BLOCK) == 0
}

impl File for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.write_direct(bytes, offset)? { Ok(()) } else { self.file.write_all_at(bytes, offset) }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn named(error: &io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::replica::tests::support::TempFolder;

    #[test]
    fn a_second_opener_is_refused_until_the_first_is_gone() {
        let folder = TempFolder::new();
        let first = RealDisk::open(folder.path()).unwrap();
        let refused = RealDisk::open(folder.path()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        assert!(refused.to_string().contains("in use by another process"), "{refused}");
        drop(first);
        RealDisk::open(folder.path()).unwrap();
    }

    #[test]
    fn a_provisional_folder_is_removed_only_by_the_process_that_has_created_and_locked_it() {
        let folder = TempFolder::new();
        let data = folder.path().join("a/b");
        let first = RealDisk::open(&data).unwrap();
        first.create("draft").unwrap();
        RealDisk::open_provisional(&data).unwrap_err();
        assert!(data.join("draft").exists(), "the second opener has removed it");
        drop(first);
        drop(RealDisk::open_provisional(&data).unwrap());
        assert!(data.join("draft").exists(), "it existed before");
        let other = folder.path().join("a/c/d");
        RealDisk::open_provisional(&other).unwrap().create("draft").unwrap();
        assert!(!folder.path().join("a/c").exists() && data.exists());
        RealDisk::open_provisional(&other).unwrap().keep();
        assert!(other.exists());
    }

    #[test]
    fn a_folder_that_the_file_system_cannot_have_is_an_error() {
        let error = RealDisk::open("/proc/nope/data").unwrap_err();
        assert!(error.to_string().contains("cannot create the data folder"), "{error}");
    }

    #[test]
    fn all_files_are_for_their_user_alone() {
        let folder = TempFolder::new();
        let disk = RealDisk::open(folder.path()).unwrap();
        disk.create("draft").unwrap();
        for name in [LOCK_NAME, "draft"] {
            let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn bytes_written_are_read_back_after_a_rename() {
        let folder = TempFolder::new();
        let disk = RealDisk::open(folder.path()).unwrap();
        let file = disk.create("draft").unwrap();
        file.write_at(b"conclave", 3).unwrap();
        file.sync().unwrap();
        disk.rename("draft", "final").unwrap();
        disk.sync_names().unwrap();
        let file = disk.open("final").unwrap();
        let mut bytes = [0xff; 11];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0conclave");
        assert_eq!(file.size().unwrap(), 11);
        assert_eq!(file.read_at(&mut [0; 2], 10).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Returns memory that contains an aligned block, and the range of the block.
    fn block(byte: u8) -> (Vec<u8>, std::ops::Range<usize>) {
        let memory = vec![byte; 2 * BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK);
        (memory, start..start + BLOCK)
    }

    fn file_with_other_way(folder: &TempFolder, other: fs::File) -> RealFile {
        let path = folder.path().join("file");
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path).unwrap();
        RealFile { file, direct: OnceLock::from(Some(other)) }
    }

    #[test]
    fn whole_blocks_and_nothing_else_go_past_the_page_cache_where_they_can() {
        let folder = TempFolder::new();
        let path = folder.path().join("file");
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        let file = RealFile { file, direct: OnceLock::new() };
        let (ones, aligned) = block(1);
        file.write_at(&ones[aligned.clone()], 8).unwrap();
        file.write_at(&ones[aligned.start..aligned.end - 8], 0).unwrap();
        file.write_at(&ones[aligned.start + 8..][..BLOCK], 0).unwrap();
        assert!(file.direct.get().is_none(), "another place, length or memory");
        file.write_at(&ones[aligned], 0).unwrap();
        let flags = OFlags::DIRECT.bits().cast_signed();
        let is_possible = OpenOptions::new().write(true).custom_flags(flags).open(&path).is_ok();
        assert_eq!(file.direct.get().unwrap().is_some(), is_possible);
        let mut bytes = [0; BLOCK + 8];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [1; BLOCK + 8]);
    }

    #[test]
    fn blocks_that_the_disk_does_not_take_go_through_the_page_cache() {
        let folder = TempFolder::new();
        // This file returns "invalid argument" for a block of zeros, as a disk with larger blocks does.
        let refuses = OpenOptions::new().write(true).open("/proc/self/coredump_filter").unwrap();
        let (zeros, aligned) = block(0);
        let refused = refuses.write_at(&zeros[aligned.clone()], 0).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let file = file_with_other_way(&folder, refuses);
        file.write_at(&zeros[aligned], BLOCK as u64).unwrap();
        assert_eq!(file.size().unwrap(), 2 * BLOCK as u64);
    }

    #[test]
    fn a_write_past_the_page_cache_that_fails_is_not_tried_again() {
        let folder = TempFolder::new();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let file = file_with_other_way(&folder, full);
        let (ones, aligned) = block(1);
        let failed = file.write_at(&ones[aligned], 0).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.size().unwrap(), 0, "the content on the disk is unknown now");
    }

    #[test]
    fn two_salts_differ() {
        let folder = TempFolder::new();
        let disk = RealDisk::open(folder.path()).unwrap();
        assert_ne!(disk.salt().unwrap(), disk.salt().unwrap());
    }
}
