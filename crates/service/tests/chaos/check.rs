//! The checks of a history.
//!
//! - **Exclusion in the order of fences**: for each name, sorted by fence, every hold ends before the next
//!   begins. All times are from the one clock of this process.
//! - **Linearizable registers**: the service numbers the writes of a file, so no search for their order is
//!   needed. A history is linearizable if each version has one value and each read returned a written value.
//!   In addition, an operation that began after another had ended has no smaller version, and a write has a
//!   larger one.
//! - **No acknowledged write lost**: the same order holds for the final reads on every node.
//! - **Exactly once**: every write has its own value. A value with two versions, or in two numbered files,
//!   was applied twice. No refused operation was applied. The number of versions is within the number of
//!   writes that may have been applied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::Seen;
use crate::history::{Entry, Event, History, Outcome};
use crate::load::{FEW, Finals};

pub fn judge(history: &History, finals: &[Finals]) -> Result<Seen, String> {
    let entries = history.entries();
    let mut seen = Seen { operations: entries.len(), ..Seen::default() };
    for entry in &entries {
        match &entry.event {
            Event::Held { lost, .. } => {
                seen.grants += 1;
                seen.lost_guards += usize::from(*lost);
            }
            Event::Write { outcome: Outcome::Unknown(_), .. }
            | Event::Create { outcome: Outcome::Unknown(_), .. } => {
                seen.uncertain += 1;
            }
            _ => {}
        }
    }
    exclusion(&entries)?;
    for file in 0..FEW {
        register(&entries, file, finals)?;
    }
    once(&entries, finals)?;
    Ok(seen)
}

fn exclusion(entries: &[Entry]) -> Result<(), String> {
    let mut holds: BTreeMap<usize, Vec<(u64, &Entry)>> = BTreeMap::new();
    for entry in entries {
        if let Event::Held { name, fence, .. } = entry.event {
            holds.entry(name).or_default().push((fence, entry));
        }
    }
    for (name, mut holds) in holds {
        holds.sort_by_key(|(fence, _)| *fence);
        for pair in holds.windows(2) {
            let ((one, first), (two, second)) = (pair[0], pair[1]);
            if one == two {
                return Err(format!("lock {name} was granted twice by fence {one}: {first:?}, {second:?}"));
            }
            if first.ended > second.began {
                return Err(format!("lock {name} was held twice at once: {first:?}, {second:?}"));
            }
        }
    }
    Ok(())
}

/// An operation on a register, with its version.
struct Op<'a> {
    began: Instant,
    ended: Instant,
    version: u64,
    value: &'a str,
    write: bool,
}

fn register(entries: &[Entry], file: usize, finals: &[Finals]) -> Result<(), String> {
    let mut ops = Vec::new();
    let (mut refused, mut unknown) = (BTreeSet::new(), 0);
    for Entry { began, ended, event, .. } in entries {
        let (version, value, write) = match event {
            Event::Write { file: of, value, outcome } if *of == file => match outcome {
                Outcome::Done(version) => (*version, value, true),
                Outcome::Refused(_) => {
                    refused.insert(value.as_str());
                    continue;
                }
                Outcome::Unknown(_) => {
                    unknown += 1;
                    continue;
                }
            },
            Event::Read { file: of, outcome: Outcome::Done((version, value)) } if *of == file => {
                (*version, value, false)
            }
            _ => continue,
        };
        ops.push(Op { began: *began, ended: *ended, version, value, write });
    }
    let mut values: BTreeMap<u64, &str> = BTreeMap::new();
    let mut versions: BTreeMap<&str, u64> = BTreeMap::new();
    let read_last = finals.iter().map(|finals| (finals.registers[file].0, finals.registers[file].1.as_str()));
    for (version, value) in ops.iter().map(|op| (op.version, op.value)).chain(read_last.clone()) {
        let known = *values.entry(version).or_insert(value);
        if known != value {
            return Err(format!("register {file}, version {version} is both {known} and {value}"));
        }
        let known = *versions.entry(value).or_insert(version);
        if known != version {
            return Err(format!("register {file}: {value} was written as version {known} and {version}"));
        }
        if refused.contains(value) {
            return Err(format!("register {file}: {value} was refused, and written as version {version}"));
        }
    }
    in_order(file, &mut ops)?;
    let acknowledged = ops.iter().filter(|op| op.write).count() as u64;
    let largest = ops.iter().map(|op| op.version).max().unwrap_or(1);
    for (last, _) in read_last {
        if last < largest {
            return Err(format!(
                "register {file}: version {largest} was acknowledged, {last} is all there is"
            ));
        }
        // Version 1 is the file as it was created.
        if !(acknowledged..=acknowledged + unknown).contains(&(last - 1)) {
            return Err(format!(
                "register {file}: version {last} of {acknowledged} writes and perhaps {unknown}"
            ));
        }
    }
    Ok(())
}

/// Checks that no operation has a smaller version than one that ended before it began.
fn in_order(file: usize, ops: &mut [Op<'_>]) -> Result<(), String> {
    ops.sort_by_key(|op| op.began);
    let mut ended: Vec<&Op<'_>> = ops.iter().collect();
    ended.sort_by_key(|op| op.ended);
    let mut ended = ended.into_iter().peekable();
    let mut largest = 0;
    for op in &*ops {
        while let Some(before) = ended.next_if(|before| before.ended < op.began) {
            largest = largest.max(before.version);
        }
        if op.version < largest || (op.write && op.version == largest) {
            let what = if op.write { "written" } else { "read" };
            return Err(format!(
                "register {file}: {} was {what} as version {} when version {largest} had been acknowledged",
                op.value, op.version
            ));
        }
    }
    Ok(())
}

fn once(entries: &[Entry], finals: &[Finals]) -> Result<(), String> {
    for finals in finals {
        let mut paths: BTreeMap<&str, &str> = BTreeMap::new();
        for (path, value) in &finals.numbered {
            if let Some(other) = paths.insert(value, path) {
                return Err(format!("{value} was created once, and is {other} and {path}"));
            }
        }
        for entry in entries {
            let Event::Create { value, outcome } = &entry.event else { continue };
            match (outcome, paths.get(value.as_str())) {
                (Outcome::Done(path), found) if found != Some(&path.as_str()) => {
                    return Err(format!("{path} was acknowledged for {value}; found at the end: {found:?}"));
                }
                (Outcome::Refused(why), Some(path)) => {
                    return Err(format!("{value} was refused ({why}), and is {path}"));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
