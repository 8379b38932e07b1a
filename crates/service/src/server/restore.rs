//! Founding a cluster from a backup. The file is read and checked before anything is written to the data
//! folder.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::StartError;
use crate::replica::disk::Disk;
use crate::replica::{self, Identity, OpenError};
use conclave_node::state::State;
use conclave_node::state::backup::Contents;
use conclave_node::state::snapshot::SnapshotError;

/// Founds a cluster in an empty data folder from a backup, and returns the identity of its first node.
pub(super) async fn restore(
    file: &Path,
    disk: &Arc<dyn Disk>,
    advertised: &str,
) -> Result<Identity, StartError> {
    let (file, disk, advertised) = (file.to_owned(), disk.clone(), advertised.to_owned());
    let restored = tokio::task::spawn_blocking(move || {
        let (state, contents) = read(&file)?;
        let identity = replica::restore(&disk, &advertised, &state.to_snapshot())?;
        Ok((identity, contents))
    });
    let panicked = |error| StartError::Data(OpenError::Io(io::Error::other(error)));
    let (identity, contents) = restored.await.map_err(panicked).flatten()?;
    let Contents { files, file_bytes, semaphores, applied } = contents;
    tracing::info!(files, file_bytes, semaphores, applied, "restored a backup; its sessions have ended");
    Ok(identity)
}

fn read(file: &PathBuf) -> Result<(State, Contents), StartError> {
    let refused = |why: String| StartError::Backup(file.clone(), why);
    let bytes = std::fs::read(file).map_err(|error| refused(error.to_string()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    State::from_backup(&bytes, now_ms).map_err(|error| {
        refused(match error {
            SnapshotError::NotASnapshot => {
                "the file is not a backup; make one with `conclave cluster backup`".to_owned()
            }
            SnapshotError::UnknownVersion(_) => {
                format!("{error}; restore it with the version of conclave that made it")
            }
            SnapshotError::Damaged => {
                "the backup is damaged: bytes were changed or are missing; use another copy".to_owned()
            }
            SnapshotError::Inconsistent(what) => {
                format!("the backup is inconsistent: {what}; use another one")
            }
        })
    })
}
