//! Helpers for the tests of golden scenarios: they find the scripts and play them.

use std::fs;
use std::path::{Path, PathBuf};

use conclave_sim::script::{Played, Script, ScriptError, golden};

/// Plays every script, and fails with a list of all scripts whose expectations were not met.
pub fn come_true(scripts: &[PathBuf], play: fn(&Script) -> Result<Played, ScriptError>) {
    assert!(!scripts.is_empty(), "there are no scripts");
    let complaints: Vec<_> =
        scripts.iter().filter_map(|path| golden(path, play).err()).map(|error| error.to_string()).collect();
    assert!(complaints.is_empty(), "{} scripts failed\n{}", complaints.len(), complaints.join("\n\n"));
}

/// Returns all scripts in a folder of `tests` and its subfolders, sorted.
pub fn scripts(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the scripts are in the repository") {
            let path = entry.expect("a folder can be listed").path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "txt" => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// A function that plays a script with the sites of one algorithm.
pub type Player = fn(&Script) -> Result<Played, ScriptError>;
