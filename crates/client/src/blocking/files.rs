//! The tree of files, and watches.

use conclave_core::Version;

use super::runtime::Runtime;
use crate::{Children, Create, File, FileOp, FileResult, Result, WatchEvent};

/// The tree of small, versioned files, like [`crate::Files`]. All errors are the same.
#[derive(Clone)]
pub struct Files {
    inner: crate::Files,
    runtime: Runtime,
}

impl Files {
    pub(super) fn new(inner: crate::Files, runtime: &Runtime) -> Self {
        Self { inner, runtime: runtime.clone() }
    }

    /// Reads a file.
    pub fn read(&self, path: &str) -> Result<File> {
        self.runtime.wait(self.inner.read(path))
    }

    /// Lists the children of a file.
    pub fn list(&self, path: &str) -> Result<Children> {
        self.runtime.wait(self.inner.list(path))
    }

    /// Creates a file. Returns its path, with the appended number if the file is sequential.
    pub fn create(&self, path: &str, data: impl Into<Vec<u8>>, how: Create) -> Result<String> {
        self.runtime.wait(self.inner.create(path, data, how))
    }

    /// Replaces the content of a file, if it has the version `expected`. Returns the new version.
    pub fn write(&self, path: &str, data: impl Into<Vec<u8>>, expected: Option<Version>) -> Result<Version> {
        self.runtime.wait(self.inner.write(path, data, expected))
    }

    /// Writes a file, and creates it if it does not exist. Returns the new version.
    pub fn put(&self, path: &str, data: impl Into<Vec<u8>>) -> Result<Version> {
        self.runtime.wait(self.inner.put(path, data))
    }

    /// Deletes a file without children, if it has the version `expected`.
    pub fn delete(&self, path: &str, expected: Option<Version>) -> Result<()> {
        self.runtime.wait(self.inner.delete(path, expected))
    }

    /// Applies several operations in order: all of them or none. Returns one result for each operation.
    pub fn multi(&self, ops: Vec<FileOp>) -> Result<Vec<FileResult>> {
        self.runtime.wait(self.inner.multi(ops))
    }

    /// Watches one file for creation, writes and deletion after an index; `None` means now.
    pub fn watch(&self, path: &str, after: Option<u64>) -> Result<Watch> {
        Ok(Watch::new(self.runtime.wait(self.inner.watch(path, after))?, &self.runtime))
    }

    /// Watches the children of one file for creation and deletion after an index; `None` means now.
    pub fn watch_children(&self, path: &str, after: Option<u64>) -> Result<Watch> {
        Ok(Watch::new(self.runtime.wait(self.inner.watch_children(path, after))?, &self.runtime))
    }
}

/// A watch, like [`crate::Watch`]. As an iterator it waits for each event; the last item is the reason of its
/// end.
pub struct Watch {
    inner: crate::Watch,
    runtime: Runtime,
}

impl Watch {
    pub(super) fn new(inner: crate::Watch, runtime: &Runtime) -> Self {
        Self { inner, runtime: runtime.clone() }
    }

    /// The index of the state in which the watch begins. It delivers every change after this index.
    pub fn index(&self) -> u64 {
        self.inner.index()
    }
}

impl Iterator for Watch {
    type Item = Result<WatchEvent>;

    fn next(&mut self) -> Option<Result<WatchEvent>> {
        self.runtime.wait(self.inner.next())
    }
}
