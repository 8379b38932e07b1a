//! The tree of small files.

use conclave_core::Version;
use conclave_core::report::{FileResult, FileStat};
use conclave_wire::v1;

use crate::client::unexpected;
use crate::watch::Watch;
use crate::{Client, Code, Error, Result};

/// The tree of small, versioned files. A path begins with `/`, and every file may have children.
///
/// ```no_run
/// # async fn example(client: conclave_client::Client) -> conclave_client::Result<()> {
/// let files = client.files();
/// let version = files.put("/config", "blue").await?;
/// files.write("/config", "green", Some(version)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Files {
    client: Client,
}

/// The content of a file, with its state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct File {
    /// The content.
    pub data: Vec<u8>,
    /// The version, the number of children and the indices of the latest changes.
    pub stat: FileStat,
    /// The index of the state that was read. A watch after this index has no gap.
    pub index: u64,
}

/// The children of a file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Children {
    /// The names of the children, without the path, in order.
    pub names: Vec<String>,
    /// The state of the parent file itself.
    pub stat: FileStat,
    /// The index of the state in which the first page was read. A watch after this index has no gap.
    pub index: u64,
}

/// The options for the creation of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// True if the file is deleted when the session ends.
    pub ephemeral: bool,
    /// True if the parent's next number, with ten digits, is appended to the name.
    pub sequential: bool,
}

/// One operation on a file. Several operations are applied together, or none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileOp {
    /// Creates a file.
    Create(String, Vec<u8>, Create),
    /// Replaces the content of a file. With a version, only if the file has this version.
    Write(String, Vec<u8>, Option<Version>),
    /// Deletes a file. With a version, only if the file has this version.
    Delete(String, Option<Version>),
    /// Changes nothing. The other operations are applied only if the file has this version.
    Check(String, Version),
}

impl Files {
    pub(crate) fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`].
    pub async fn read(&self, path: &str) -> Result<File> {
        match self.client.query(v1::query::Kind::File(v1::ReadFile { path: path.into() })).await? {
            v1::answer::Result::File(v1::File { data, stat, index }) => {
                Ok(File { data, stat: stat.unwrap_or_default().into(), index })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Lists the children of a file.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`].
    pub async fn list(&self, path: &str) -> Result<Children> {
        let mut all = Children { names: Vec::new(), stat: FileStat::default(), index: u64::MAX };
        loop {
            let after = all.names.last().cloned().unwrap_or_default();
            let query = v1::query::Kind::Children(v1::ReadChildren { path: path.into(), after });
            match self.client.query(query).await? {
                v1::answer::Result::Children(page) => {
                    let more = page.more && !page.names.is_empty();
                    all.names.extend(page.names);
                    all.stat = page.stat.unwrap_or_default().into();
                    // Keep the index of the first page: the later pages were read at larger indices.
                    all.index = all.index.min(page.index);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Creates a file. Returns its path, with the appended number if the file is sequential.
    ///
    /// # Errors
    /// [`Code::FileExists`], or [`Code::NoSuchFile`] if the parent does not exist.
    pub async fn create(&self, path: &str, data: impl Into<Vec<u8>>, how: Create) -> Result<String> {
        match self.one(FileOp::Create(path.into(), data.into(), how)).await? {
            FileResult::Created(path) => Ok(path.as_str().to_owned()),
            _ => Err(confused()),
        }
    }

    /// Replaces the content of a file, if it has the version `expected`. Returns the new version.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`], [`Code::VersionMismatch`].
    pub async fn write(
        &self,
        path: &str,
        data: impl Into<Vec<u8>>,
        expected: Option<Version>,
    ) -> Result<Version> {
        match self.one(FileOp::Write(path.into(), data.into(), expected)).await? {
            FileResult::Written(version) => Ok(version),
            _ => Err(confused()),
        }
    }

    /// Writes a file, and creates it if it does not exist. Returns the new version.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`] if the parent does not exist.
    pub async fn put(&self, path: &str, data: impl Into<Vec<u8>>) -> Result<Version> {
        let data = data.into();
        loop {
            match self.write(path, data.clone(), None).await {
                Err(error) if error.code == Code::NoSuchFile => {}
                written => return written,
            }
            match self.create(path, data.clone(), Create::default()).await {
                Ok(_) => return Ok(Version(1)),
                // Another client has created the file in the meantime.
                Err(error) if error.code == Code::FileExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes a file without children, if it has the version `expected`.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`], [`Code::NotEmpty`], [`Code::VersionMismatch`].
    pub async fn delete(&self, path: &str, expected: Option<Version>) -> Result<()> {
        self.one(FileOp::Delete(path.into(), expected)).await.map(drop)
    }

    /// Applies several operations in order: all of them or none. Returns one result for each operation.
    ///
    /// # Errors
    /// The error of the first operation that fails.
    pub async fn multi(&self, ops: Vec<FileOp>) -> Result<Vec<FileResult>> {
        let files = v1::Files { ops: ops.into_iter().map(to_wire).collect() };
        match self.client.change(v1::request::Op::Files(files)).await? {
            v1::answer::Result::Files(done) => done.done.into_iter().map(TryInto::try_into).collect(),
            other => Err(unexpected(&other)),
        }
    }

    /// Watches one file for creation, writes and deletion. `after` is the index after which events begin;
    /// `None` means now.
    ///
    /// # Errors
    /// The path is invalid, or the connection has too many watches.
    pub async fn watch(&self, path: &str, after: Option<u64>) -> Result<Watch> {
        Watch::begin(&self.client, v1::watch::Target::File(path.into()), after).await
    }

    /// Watches the children of one file for creation and deletion. `after` is the index after which events
    /// begin; `None` means now.
    ///
    /// # Errors
    /// The same as [`Files::watch`].
    pub async fn watch_children(&self, path: &str, after: Option<u64>) -> Result<Watch> {
        Watch::begin(&self.client, v1::watch::Target::Children(path.into()), after).await
    }

    async fn one(&self, op: FileOp) -> Result<FileResult> {
        let done = self.multi(vec![op]).await?;
        done.into_iter().next().ok_or_else(confused)
    }
}

fn to_wire(op: FileOp) -> v1::FileOp {
    use v1::file_op::{self, Op};
    let version = |expected: Option<Version>| expected.map(|version| version.0);
    let op = match op {
        FileOp::Create(path, data, Create { ephemeral, sequential }) => {
            Op::Create(file_op::Create { path, data, ephemeral, sequential })
        }
        FileOp::Write(path, data, expected) => {
            Op::Write(file_op::Write { path, data, expected: version(expected) })
        }
        FileOp::Delete(path, expected) => Op::Delete(file_op::Delete { path, expected: version(expected) }),
        FileOp::Check(path, Version(expected)) => Op::Check(file_op::Check { path, expected }),
    };
    v1::FileOp { op: Some(op) }
}

fn confused() -> Error {
    Error::new(Code::Internal, "the server sent a reply to another request")
}
