//! The log of the local node: a file in its data folder, of bounded size.
//!
//! Standard error of the process is the file, so it also receives the messages of a panic.
//!
//! **Bounds.** At [`BYTES_MAX`], the file is renamed to `node.log.old`, which replaces the previous one, and
//! a new file begins.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The name of the file in the data folder.
pub const NAME: &str = "node.log";
/// The name of the previous file.
const OLD: &str = "node.log.old";
/// The size in bytes at which a new file begins.
const BYTES_MAX: u64 = 256 * 1024;

/// Opens the file for appending.
pub fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(folder.join(NAME))
}

/// A writer to standard error that bounds the size of the file.
pub struct Log {
    folder: PathBuf,
    bytes_max: u64,
}

impl Log {
    /// Creates a writer for the log in this folder. Standard error must be the file already.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), bytes_max: BYTES_MAX }
    }

    /// Begins a new file if this one is full, and returns it.
    fn rotate(&self, file: &File) -> io::Result<Option<File>> {
        if file.metadata()?.len() < self.bytes_max {
            return Ok(None);
        }
        std::fs::rename(self.folder.join(NAME), self.folder.join(OLD))?;
        open(&self.folder).map(Some)
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = File::from(rustix::io::dup(io::stderr())?);
        if let Some(new) = self.rotate(&stderr)? {
            rustix::stdio::dup2_stderr(new)?;
        }
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_replaced_and_one_old_file_stays() {
        let folder = std::env::temp_dir().join(format!("conclave-log-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a new folder");
        let log = Log { folder: folder.clone(), bytes_max: 10 };
        let mut file = open(&folder).expect("a new file");
        for line in 0..100 {
            if let Some(new) = log.rotate(&file).expect("a folder of its own") {
                file = new;
            }
            writeln!(file, "line {line}").expect("room on the disk");
        }
        let sizes: Vec<u64> = [NAME, OLD]
            .map(|name| std::fs::metadata(folder.join(name)).expect("both are there").len())
            .into();
        assert!(sizes.iter().all(|size| *size <= 20), "{sizes:?}");
        let text = std::fs::read_to_string(folder.join(NAME)).expect("text");
        assert!(text.contains("line 99"), "{text}");
        assert_eq!(std::fs::read_dir(&folder).expect("readable").count(), 2);
        std::fs::remove_dir_all(&folder).expect("no other test uses it");
    }
}
