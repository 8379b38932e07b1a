//! Tests of the source text: no protobuf type is public, and code for one system is in its own files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all Rust files below a folder, with their contents.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the public items of a file: signatures without bodies, and fields; all variants of public enums.
fn public_items(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut items = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let start = line.trim_start();
        if !start.starts_with("pub ") && !start.starts_with("impl") {
            continue;
        }
        let indent = line.len() - start.len();
        let closing = format!("{}}}", " ".repeat(indent));
        let has_public_body = ["pub enum ", "pub trait "].iter().any(|kind| start.starts_with(kind));
        let mut item = String::new();
        for line in &lines[at..] {
            item.push_str(line);
            item.push('\n');
            let ends = match has_public_body {
                true => *line == closing,
                false => {
                    line.ends_with(['{', ';', ',']) && item.matches('(').count() == item.matches(')').count()
                }
            };
            if ends {
                break;
            }
        }
        items.push(item);
    }
    items
}

/// Returns the names that the file imports from the generated messages.
fn imported_messages(text: &str) -> Vec<&str> {
    let imports = text.lines().filter(|line| line.trim_start().starts_with("use ") && line.contains("v1::"));
    imports.flat_map(|line| line.rsplit("::").next()).map(|name| name.trim_end_matches(';')).collect()
}

#[test]
fn no_public_item_names_a_message_of_the_wire() {
    let mut checked = 0;
    for (path, text) in sources(&here().join("src")) {
        // The feature `testing` connects the client to a simulated network, which carries messages.
        if path.ends_with("conversation.rs") || path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let imported = imported_messages(&text);
        for item in public_items(&text) {
            let names_wire =
                item.contains("v1") || item.contains("wire::") && !item.contains("wire::socket::Socket");
            let imports = imported.iter().find(|name| item.contains(**name));
            assert!(!names_wire && imports.is_none(), "{}: {item}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} public items were found");
}

#[test]
fn code_for_one_system_is_in_files_of_its_own() {
    let mut found = 0;
    for folder in [here().join("src"), here().join("../wire/src"), here().join("../core/src")] {
        for (path, text) in sources(&folder) {
            let is_own = ["unix.rs", "unix/folder.rs", "linux.rs"].iter().any(|name| path.ends_with(name));
            let words = ["std::os::", "rustix::", "UnixStream", "UnixListener", "/proc/"];
            for (number, line) in
                text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
            {
                let is_special = words.iter().any(|word| line.contains(word));
                assert!(is_own || !is_special, "{}:{}: {line}", path.display(), number + 1);
                found += usize::from(is_special);
            }
            for module in ["unix", "linux"] {
                let guard =
                    text.split(&format!("mod {module};")).next().filter(|before| before.len() < text.len());
                if let Some(before) = guard {
                    let last = before.lines().last().unwrap_or_default();
                    assert!(
                        last.starts_with("#[cfg(") && last.contains(module),
                        "{}: {last}",
                        path.display()
                    );
                }
            }
        }
    }
    assert!(found > 10, "the words of the test are out of date");
}
