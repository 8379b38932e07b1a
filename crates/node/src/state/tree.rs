//! The tree of small files, like Chubby's files and ZooKeeper's znodes.
//!
//! **Intuition.** Every node is a file *and* a directory: it has data and children. Files are small, and are
//! read and written as a whole. So versions and conditional writes are sufficient.
//!
//! **Rules.**
//! - A file has version 1 when it is created. Each write adds 1. A condition names the expected version.
//! - An *ephemeral* file is removed when its session ends. It has no children.
//! - A *sequential* file gets the next number of its directory appended, with ten digits. A directory never
//!   uses a number twice.
//! - The operations of a multi are executed in order. If one fails, the earlier ones are undone in reverse
//!   order.
//!
//! **Bounds.** [`MAX_FILE_BYTES`] for each file, [`MAX_FILES`] and [`MAX_TREE_BYTES`] in total,
//! [`MAX_OPERATIONS`] for each multi. Beyond them the operation is rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use conclave_core::report::{FileResult, FileStat};
use conclave_core::{Code, Error, FilePath, SessionId, Version};
use serde::{Deserialize, Serialize};

/// The largest size of a file, in bytes. Larger data are rejected.
pub const MAX_FILE_BYTES: usize = 256 * 1024;
/// The largest number of files, the root included. Beyond it, new files are rejected.
pub const MAX_FILES: usize = 1 << 20;
/// The largest sum of the data in all files, in bytes. An operation that would exceed it is rejected.
pub const MAX_TREE_BYTES: u64 = 256 * 1024 * 1024;
/// The largest number of operations in a multi. A longer multi is rejected.
pub const MAX_OPERATIONS: usize = 128;

/// An operation on the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOp {
    /// Creates a file. The directory must exist.
    Create {
        /// The path. For a sequential file, the number is appended to it.
        path: FilePath,
        /// The data of the file.
        data: Vec<u8>,
        /// `true` if the file is removed when the session ends.
        ephemeral: bool,
        /// `true` if the next number of the directory is appended to the name.
        sequential: bool,
    },
    /// Replaces the data of a file.
    Write {
        /// The path.
        path: FilePath,
        /// The new data.
        data: Vec<u8>,
        /// The version that the file must have; `None` for no condition.
        expected: Option<Version>,
    },
    /// Removes a file that has no children.
    Delete {
        /// The path.
        path: FilePath,
        /// The version that the file must have; `None` for no condition.
        expected: Option<Version>,
    },
    /// Changes nothing, but fails if the file does not have the expected version. Then the whole multi fails.
    Check {
        /// The path.
        path: FilePath,
        /// The version that the file must have.
        expected: Version,
    },
}

/// A change of a file, for watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileChange {
    /// The file was created.
    Created,
    /// The file was written and has this version now.
    Written(Version),
    /// The file was removed.
    Deleted,
}

/// A change of a file, with the session of an ephemeral file.
#[derive(Debug, PartialEq)]
pub(super) struct TreeChange {
    pub(super) path: FilePath,
    pub(super) change: FileChange,
    pub(super) ephemeral: Option<SessionId>,
}

/// All files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Tree {
    files: BTreeMap<FilePath, File>,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct File {
    data: Vec<u8>,
    version: u64,
    created: u64,
    modified: u64,
    children: BTreeSet<Box<str>>,
    children_version: u64,
    children_modified: u64,
    next_number: u64,
    ephemeral: Option<SessionId>,
}

/// The data that undo one operation.
enum Undo {
    Create { path: FilePath, parent: FilePath, directory: Directory },
    Write { path: FilePath, data: Vec<u8>, modified: u64 },
    Delete { path: FilePath, file: File, parent: FilePath, directory: Directory },
}

/// The counters of a directory before an operation.
struct Directory {
    children_version: u64,
    children_modified: u64,
    next_number: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let root = File::new(Vec::new(), 0, None);
        Self { files: BTreeMap::from([(FilePath::root(), root)]), bytes: 0 }
    }
}

impl Tree {
    /// Executes all operations or none. Returns the results and the changes, in order.
    pub(super) fn apply(
        &mut self,
        index: u64,
        session: SessionId,
        operations: Vec<FileOp>,
    ) -> Result<(Vec<FileResult>, Vec<TreeChange>), Error> {
        if operations.len() > MAX_OPERATIONS {
            let message = format!("a request has at most {MAX_OPERATIONS} file operations");
            return Err(Error::new(Code::TooLarge, message));
        }
        let (mut done, mut changes, mut undo) = (Vec::new(), Vec::new(), Vec::new());
        let is_multi = operations.len() > 1;
        for (number, operation) in operations.into_iter().enumerate() {
            match self.apply_one(index, session, operation, &mut changes, &mut undo) {
                Ok(result) => done.push(result),
                Err(mut error) => {
                    undo.into_iter().rev().for_each(|step| self.undo(step));
                    if is_multi {
                        error.message =
                            format!("operation {} failed, and none was done: {}", number + 1, error.message);
                    }
                    return Err(error);
                }
            }
        }
        Ok((done, changes))
    }

    /// Removes the ephemeral files of a session that ended.
    pub(super) fn end_session(
        &mut self,
        index: u64,
        paths: impl IntoIterator<Item = FilePath>,
    ) -> Vec<TreeChange> {
        let mut changes = Vec::new();
        for path in paths {
            // An ephemeral file has no children, so the removal cannot fail.
            _ = self.remove(index, path, &mut changes, &mut Vec::new());
        }
        changes
    }

    pub(super) fn read(&self, path: &FilePath) -> Option<(&[u8], FileStat)> {
        self.files.get(path).map(|file| (&*file.data, file.stat()))
    }

    /// Returns the names in a directory that come after `after`. An empty `after` returns all, because no
    /// name is empty.
    pub(super) fn list_after(&self, path: &FilePath, after: &str) -> Option<impl Iterator<Item = &str>> {
        let file = self.files.get(path)?;
        Some(file.children.range::<str, _>((Excluded(after), Unbounded)).map(|name| &**name))
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks that directories, counts and sessions agree.
    pub(super) fn audit(&self, owns: impl Fn(SessionId, &FilePath) -> bool) -> Result<(), &'static str> {
        let bytes: u64 = self.files.values().map(|file| file.data.len() as u64).sum();
        let children: usize = self.files.values().map(|file| file.children.len()).sum();
        let is_linked = |(path, _): (&FilePath, _)| match path.split() {
            Some((parent, name)) => self.files.get(&parent).is_some_and(|file| file.children.contains(name)),
            None => true,
        };
        if !self.files.contains_key(&FilePath::root()) {
            return Err("there is no root");
        }
        if bytes != self.bytes || children + 1 != self.files.len() || !self.files.iter().all(is_linked) {
            return Err("the tree does not add up");
        }
        let is_owned =
            |(path, file): (&FilePath, &File)| file.ephemeral.is_none_or(|session| owns(session, path));
        if self.files.iter().all(is_owned) { Ok(()) } else { Err("an ephemeral file without its session") }
    }

    fn apply_one(
        &mut self,
        index: u64,
        session: SessionId,
        operation: FileOp,
        changes: &mut Vec<TreeChange>,
        undo: &mut Vec<Undo>,
    ) -> Result<FileResult, Error> {
        match operation {
            FileOp::Create { path, data, ephemeral, sequential } => {
                let ephemeral = ephemeral.then_some(session);
                let path = self.create(index, path, File::new(data, index, ephemeral), sequential, undo)?;
                changes.push(TreeChange { path: path.clone(), change: FileChange::Created, ephemeral });
                Ok(FileResult::Created(path))
            }
            FileOp::Write { path, data, expected } => {
                let old_bytes = self.expect(&path, expected)?.data.len();
                self.check_room(data.len(), old_bytes)?;
                self.bytes = self.bytes - old_bytes as u64 + data.len() as u64;
                let file = self.files.get_mut(&path).expect("it was found just before");
                let data = std::mem::replace(&mut file.data, data);
                undo.push(Undo::Write { path: path.clone(), data, modified: file.modified });
                file.version += 1;
                file.modified = index;
                let version = Version(file.version);
                let (change, ephemeral) = (FileChange::Written(version), file.ephemeral);
                changes.push(TreeChange { path, change, ephemeral });
                Ok(FileResult::Written(version))
            }
            FileOp::Delete { path, expected } => {
                self.expect(&path, expected)?;
                self.remove(index, path, changes, undo)?;
                Ok(FileResult::Deleted)
            }
            FileOp::Check { path, expected } => {
                self.expect(&path, Some(expected))?;
                Ok(FileResult::Checked)
            }
        }
    }

    fn create(
        &mut self,
        index: u64,
        path: FilePath,
        file: File,
        sequential: bool,
        undo: &mut Vec<Undo>,
    ) -> Result<FilePath, Error> {
        let Some((parent, _)) = path.split() else { return Err(exists(&path)) };
        let directory = self.files.get(&parent).ok_or_else(|| no_such(&parent))?;
        if directory.ephemeral.is_some() {
            let message = format!("{parent} is ephemeral and cannot have children");
            return Err(Error::new(Code::EphemeralParent, message));
        }
        let path =
            if sequential { FilePath::new(&format!("{path}{:010}", directory.next_number))? } else { path };
        if self.files.contains_key(&path) {
            return Err(exists(&path));
        }
        if self.files.len() >= MAX_FILES {
            return Err(Error::new(
                Code::LimitReached,
                format!("there are {MAX_FILES} files, which is the most"),
            ));
        }
        self.check_room(file.data.len(), 0)?;
        let (_, name) = path.split().expect("only the root has no directory");
        let directory = self.files.get_mut(&parent).expect("it was found just before");
        undo.push(Undo::Create { path: path.clone(), parent, directory: directory.memo() });
        directory.children.insert(name.into());
        directory.next_number += u64::from(sequential);
        directory.touch_children(index);
        self.bytes += file.data.len() as u64;
        self.files.insert(path.clone(), file);
        Ok(path)
    }

    fn remove(
        &mut self,
        index: u64,
        path: FilePath,
        changes: &mut Vec<TreeChange>,
        undo: &mut Vec<Undo>,
    ) -> Result<(), Error> {
        let file = self.files.get(&path).ok_or_else(|| no_such(&path))?;
        if !file.children.is_empty() {
            return Err(Error::new(Code::NotEmpty, format!("{path} has children")));
        }
        let Some((parent, name)) = path.split() else {
            return Err(Error::new(Code::InvalidArgument, "the root directory cannot be deleted"));
        };
        let directory = self.files.get_mut(&parent).expect("a file lies in a directory");
        let memo = directory.memo();
        directory.children.remove(name);
        directory.touch_children(index);
        let file = self.files.remove(&path).expect("it was found just before");
        self.bytes -= file.data.len() as u64;
        let ephemeral = file.ephemeral;
        changes.push(TreeChange { path: path.clone(), change: FileChange::Deleted, ephemeral });
        undo.push(Undo::Delete { path, file, parent, directory: memo });
        Ok(())
    }

    /// Undoes one operation. Operations are undone in reverse order, so each one finds the tree as it left
    /// it.
    fn undo(&mut self, step: Undo) {
        const LEFT: &str = "undone in reverse: it is where the step left it";
        match step {
            Undo::Create { path, parent, directory } => {
                let (_, name) = path.split().expect("a file that was made is not the root");
                let parent = self.files.get_mut(&parent).expect(LEFT);
                parent.children.remove(name);
                parent.restore(&directory);
                let file = self.files.remove(&path).expect(LEFT);
                self.bytes -= file.data.len() as u64;
            }
            Undo::Write { path, data, modified } => {
                let file = self.files.get_mut(&path).expect(LEFT);
                self.bytes = self.bytes - file.data.len() as u64 + data.len() as u64;
                (file.data, file.modified) = (data, modified);
                file.version -= 1;
            }
            Undo::Delete { path, file, parent, directory } => {
                let (_, name) = path.split().expect("a file that was deleted is not the root");
                let parent = self.files.get_mut(&parent).expect(LEFT);
                parent.children.insert(name.into());
                parent.restore(&directory);
                self.bytes += file.data.len() as u64;
                self.files.insert(path, file);
            }
        }
    }

    fn expect(&self, path: &FilePath, expected: Option<Version>) -> Result<&File, Error> {
        let file = self.files.get(path).ok_or_else(|| no_such(path))?;
        match expected {
            Some(Version(expected)) if expected != file.version => {
                let message = format!("{path} has version {}, not the expected {expected}", file.version);
                Err(Error::new(Code::VersionMismatch, message))
            }
            _ => Ok(file),
        }
    }

    fn check_room(&self, bytes: usize, instead_of: usize) -> Result<(), Error> {
        if bytes > MAX_FILE_BYTES {
            let message = format!("a file has at most {MAX_FILE_BYTES} bytes, and this one has {bytes}");
            return Err(Error::new(Code::TooLarge, message));
        }
        if self.bytes - instead_of as u64 + bytes as u64 > MAX_TREE_BYTES {
            return Err(Error::new(
                Code::LimitReached,
                format!("all files together have at most {MAX_TREE_BYTES} bytes"),
            ));
        }
        Ok(())
    }
}

impl File {
    fn new(data: Vec<u8>, index: u64, ephemeral: Option<SessionId>) -> Self {
        Self {
            data,
            version: 1,
            created: index,
            modified: index,
            children: BTreeSet::new(),
            children_version: 0,
            children_modified: index,
            next_number: 0,
            ephemeral,
        }
    }

    fn stat(&self) -> FileStat {
        let mut stat = FileStat::default();
        stat.version = Version(self.version);
        stat.children_version = self.children_version;
        stat.created = self.created;
        stat.modified = self.modified;
        stat.children_modified = self.children_modified;
        stat.ephemeral = self.ephemeral;
        stat.bytes = self.data.len() as u64;
        stat.children = self.children.len() as u64;
        stat
    }

    fn memo(&self) -> Directory {
        let Self { children_version, children_modified, next_number, .. } = *self;
        Directory { children_version, children_modified, next_number }
    }

    fn restore(&mut self, memo: &Directory) {
        self.children_version = memo.children_version;
        self.children_modified = memo.children_modified;
        self.next_number = memo.next_number;
    }

    fn touch_children(&mut self, index: u64) {
        self.children_version += 1;
        self.children_modified = index;
    }
}

fn no_such(path: &FilePath) -> Error {
    Error::new(Code::NoSuchFile, format!("{path} does not exist"))
}

fn exists(path: &FilePath) -> Error {
    Error::new(Code::FileExists, format!("{path} already exists"))
}
