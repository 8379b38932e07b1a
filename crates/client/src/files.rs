//! The tree of small files.

use conclave_api::Version;
use conclave_api::proto::v1;
use conclave_api::proto::v1::file_done::Done;

use crate::client::unexpected;
use crate::watch::Watch;
use crate::{Client, Code, Error, Result};

/// The files: small, versioned, watched. Paths begin with `/`; every file may have children.
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

/// A file as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// What it contains.
    pub data: Vec<u8>,
    /// Its version, children and dates.
    pub stat: v1::Stat,
    /// The state that was read: a watch from here misses nothing.
    pub index: u64,
}

/// The children of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// Their names, without the path, in order.
    pub names: Vec<String>,
    /// What is known of the file itself.
    pub stat: v1::Stat,
    /// The state that the first page was read at: a watch from here misses nothing.
    pub index: u64,
}

/// How a file is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// It ends with the session.
    pub ephemeral: bool,
    /// The directory's next number, ten digits, is appended to its name.
    pub sequential: bool,
}

/// One change; several are done all or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileOp {
    /// Makes a file.
    Create(String, Vec<u8>, Create),
    /// Replaces what it contains, if it has the version.
    Write(String, Vec<u8>, Option<Version>),
    /// Removes it, if it has the version.
    Delete(String, Option<Version>),
    /// Changes nothing: the others are done only if the file has the version.
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
        match self.client.ask(v1::query::What::File(v1::ReadFile { path: path.into() })).await? {
            v1::answer::Result::File(v1::File { data, stat, index }) => {
                Ok(File { data, stat: stat.unwrap_or_default(), index })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Lists the children of a file.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`].
    pub async fn list(&self, path: &str) -> Result<Children> {
        let mut all = Children { names: Vec::new(), stat: v1::Stat::default(), index: u64::MAX };
        loop {
            let after = all.names.last().cloned().unwrap_or_default();
            let what = v1::query::What::Children(v1::ReadChildren { path: path.into(), after });
            match self.client.ask(what).await? {
                v1::answer::Result::Children(page) => {
                    let more = page.more && !page.names.is_empty();
                    all.names.extend(page.names);
                    all.stat = page.stat.unwrap_or_default();
                    // Of the first page: the later ones were read later.
                    all.index = all.index.min(page.index);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Makes a file; gives the path it has, which for a sequential one has its number.
    ///
    /// # Errors
    /// [`Code::FileExists`], or [`Code::NoSuchFile`] if its directory is not there.
    pub async fn create(&self, path: &str, data: impl Into<Vec<u8>>, how: Create) -> Result<String> {
        match self.one(FileOp::Create(path.into(), data.into(), how)).await? {
            Done::Created(path) => Ok(path),
            _ => Err(confused()),
        }
    }

    /// Replaces what a file contains, if it has the version expected; gives the version from now on.
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
            Done::Written(version) => Ok(Version(version)),
            _ => Err(confused()),
        }
    }

    /// Writes a file, making it if it is not there; gives the version from now on.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`] if its directory is not there.
    pub async fn put(&self, path: &str, data: impl Into<Vec<u8>>) -> Result<Version> {
        let data = data.into();
        loop {
            match self.write(path, data.clone(), None).await {
                Err(error) if error.code == Code::NoSuchFile => {}
                written => return written,
            }
            match self.create(path, data.clone(), Create::default()).await {
                Ok(_) => return Ok(Version(1)),
                // Somebody made it meanwhile.
                Err(error) if error.code == Code::FileExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes a file without children, if it has the version expected.
    ///
    /// # Errors
    /// [`Code::NoSuchFile`], [`Code::NotEmpty`], [`Code::VersionMismatch`].
    pub async fn delete(&self, path: &str, expected: Option<Version>) -> Result<()> {
        self.one(FileOp::Delete(path.into(), expected)).await.map(drop)
    }

    /// Changes several files, in order: all of them or none. Gives what was done, one for one.
    ///
    /// # Errors
    /// That of the first change that cannot be done.
    pub async fn multi(&self, ops: Vec<FileOp>) -> Result<Vec<v1::FileDone>> {
        let files = v1::Files { ops: ops.into_iter().map(Into::into).collect() };
        match self.client.change(v1::request::Op::Files(files)).await? {
            v1::answer::Result::Files(done) => Ok(done.done),
            other => Err(unexpected(&other)),
        }
    }

    /// Watches one file: made, written, removed. With `after`, from that index on.
    ///
    /// # Errors
    /// The path is none, or there are too many watches.
    pub async fn watch(&self, path: &str, after: Option<u64>) -> Result<Watch> {
        Watch::begin(&self.client, v1::watch::Target::File(path.into()), after).await
    }

    /// Watches the children of one file: made and removed. With `after`, from that index on.
    ///
    /// # Errors
    /// As [`Files::watch`].
    pub async fn watch_children(&self, path: &str, after: Option<u64>) -> Result<Watch> {
        Watch::begin(&self.client, v1::watch::Target::Children(path.into()), after).await
    }

    async fn one(&self, op: FileOp) -> Result<Done> {
        let done = self.multi(vec![op]).await?;
        done.into_iter().next().and_then(|done| done.done).ok_or_else(confused)
    }
}

impl From<FileOp> for v1::FileOp {
    fn from(op: FileOp) -> Self {
        use v1::file_op::{self, Op};
        let version = |expected: Option<Version>| expected.map(|version| version.0);
        let op = match op {
            FileOp::Create(path, data, Create { ephemeral, sequential }) => {
                Op::Create(file_op::Create { path, data, ephemeral, sequential })
            }
            FileOp::Write(path, data, expected) => {
                Op::Write(file_op::Write { path, data, expected: version(expected) })
            }
            FileOp::Delete(path, expected) => {
                Op::Delete(file_op::Delete { path, expected: version(expected) })
            }
            FileOp::Check(path, Version(expected)) => Op::Check(file_op::Check { path, expected }),
        };
        Self { op: Some(op) }
    }
}

fn confused() -> Error {
    Error::new(Code::Internal, "the server sent a reply to another request")
}
