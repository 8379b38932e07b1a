//! A simulated disk that loses unsynced data, sector by sector, by a random generator with a seed.
//!
//! **Rules.**
//! - At a crash, each sector of each unsynced write survives or not, independently. Of the unsynced changes
//!   to names a prefix survives, because file systems journal names in order.
//! - A sector itself is never torn, except after [`SimDisk::tear_bytes`], which lets single bytes survive. No
//!   real disk does that, but it shows whether the log depends on a lucky alignment.
//! - A failed sync leaves the data readable and treats it as written. A later sync does not write it, and a
//!   crash loses it. A page cache behaves the same.
//! - A handle belongs to one boot. After a crash, the old handles fail like those of a dead process.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Disk, File};

const SECTOR: usize = 512;

/// The disk. It survives crashes and gives each boot a [`SimHandle`].
#[derive(Clone, Debug)]
pub struct SimDisk {
    platter: Arc<Mutex<Platter>>,
}

impl SimDisk {
    /// Creates an empty disk whose random generator starts from `seed`.
    pub fn new(seed: u64) -> Self {
        let platter = Platter {
            files: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            next_file: 0,
            boot: 0,
            dice: seed,
            grain: SECTOR,
            operations_left: None,
            syncs_left: None,
            sync_takes: Duration::ZERO,
        };
        Self { platter: Arc::new(Mutex::new(platter)) }
    }

    /// Returns a handle to the folder for the process of this boot.
    pub fn handle(&self) -> SimHandle {
        SimHandle { platter: self.platter.clone(), boot: self.lock().boot }
    }

    /// Makes a crash tear at single bytes instead of sectors.
    pub fn tear_bytes(&self) {
        self.lock().grain = 1;
    }

    /// Makes everything fail after `operations` more writes, syncs and changes of names, until
    /// [`SimDisk::crash`].
    pub fn lose_power_after(&self, operations: u64) {
        self.lock().operations_left = Some(operations);
    }

    /// Makes every sync of a file fail after `syncs` more, until [`SimDisk::crash`] or [`SimDisk::mend`].
    pub fn fail_syncs_after(&self, syncs: u64) {
        self.lock().syncs_left = Some(syncs);
    }

    /// Makes syncs succeed again without a restart, as if a cable was plugged in.
    pub fn mend(&self) {
        self.lock().syncs_left = None;
    }

    /// Makes each later sync of a file take this long.
    pub fn slow_down(&self, sync_takes: Duration) {
        self.lock().sync_takes = sync_takes;
    }

    /// Simulates a power failure and a restart: a random part of the unsynced data survives, and old handles
    /// fail.
    pub fn crash(&self) {
        self.lock().crash();
    }

    /// Flips one bit of a file, like a disk error.
    pub fn flip(&self, name: &str, byte: usize, bit: u8) {
        self.edit(name, |bytes| bytes[byte] ^= 1 << bit);
    }

    /// Changes the bytes of a file durably, without an operation of a handle.
    ///
    /// # Panics
    /// Panics if there is no such file.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut platter = self.lock();
        let number = *platter.names.get(name).expect("the file to damage exists");
        let inode = platter.files.get_mut(&number).expect("every name has its file");
        change(&mut inode.content);
        inode.durable = inode.content.clone();
        inode.unsynced.clear();
    }

    /// Returns the bytes of a file as a reader sees them now.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let platter = self.lock();
        platter.names.get(name).map(|number| platter.files[number].content.clone())
    }

    /// Returns a disk with the same bytes, all durable, and a random generator of its own.
    pub fn copy(&self, seed: u64) -> Self {
        let copy = Self::new(seed);
        {
            let from = self.lock();
            let mut to = copy.lock();
            for (name, number) in &from.names {
                let content = from.files[number].content.clone();
                to.files.insert(*number, Inode { durable: content.clone(), content, unsynced: Vec::new() });
                to.names.insert(name.clone(), *number);
            }
            to.durable_names = to.names.clone();
            to.next_file = from.next_file;
        }
        copy
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        lock(&self.platter)
    }
}

/// The view of one boot on a [`SimDisk`].
#[derive(Clone, Debug)]
pub struct SimHandle {
    platter: Arc<Mutex<Platter>>,
    boot: u64,
}

impl SimHandle {
    fn alive(&self) -> io::Result<MutexGuard<'_, Platter>> {
        alive(&self.platter, self.boot)
    }

    fn change(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let mut platter = self.alive()?;
        platter.spend()?;
        Ok(platter)
    }

    fn file(&self, number: u64) -> Arc<dyn File> {
        Arc::new(SimFile { platter: self.platter.clone(), boot: self.boot, number })
    }
}

impl Disk for SimHandle {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.alive()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut platter = self.change()?;
        let number = platter.next_file;
        platter.next_file += 1;
        platter.files.insert(number, Inode::default());
        platter.rename_to(NameChange::Set(name.to_owned(), number));
        drop(platter);
        Ok(self.file(number))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let number = self.alive()?.number(name)?;
        Ok(self.file(number))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut platter = self.change()?;
        let number = platter.number(from)?;
        platter.rename_to(NameChange::Move(from.to_owned(), to.to_owned(), number));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut platter = self.change()?;
        platter.number(name)?;
        platter.rename_to(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut platter = self.change()?;
        platter.durable_names = platter.names.clone();
        platter.unsynced_names.clear();
        Ok(())
    }

    fn salt(&self) -> io::Result<u64> {
        Ok(self.alive()?.draw())
    }
}

struct SimFile {
    platter: Arc<Mutex<Platter>>,
    boot: u64,
    number: u64,
}

impl File for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(alive(&self.platter, self.boot)?.inode(self.number)?.content.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut platter = alive(&self.platter, self.boot)?;
        let content = &platter.inode(self.number)?.content;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = content.get(start..start + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut platter = alive(&self.platter, self.boot)?;
        platter.spend()?;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let inode = platter.inode(self.number)?;
        put(&mut inode.content, start, bytes);
        inode.unsynced.push((start, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let takes = alive(&self.platter, self.boot)?.sync_takes;
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        let mut platter = alive(&self.platter, self.boot)?;
        platter.spend()?;
        let fails = platter.syncs_left == Some(0);
        platter.syncs_left = platter.syncs_left.map(|left| left.saturating_sub(1));
        let inode = platter.inode(self.number)?;
        if fails {
            inode.unsynced.clear();
            return Err(io::Error::other("simulated disk: the sync failed"));
        }
        for (start, bytes) in std::mem::take(&mut inode.unsynced) {
            put(&mut inode.durable, start, &bytes);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Platter {
    files: BTreeMap<u64, Inode>,
    durable_names: BTreeMap<String, u64>,
    names: BTreeMap<String, u64>,
    unsynced_names: Vec<NameChange>,
    next_file: u64,
    boot: u64,
    dice: u64,
    grain: usize,
    operations_left: Option<u64>,
    syncs_left: Option<u64>,
    sync_takes: Duration,
}

#[derive(Debug, Default)]
struct Inode {
    durable: Vec<u8>,
    content: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Move(String, String, u64),
    Remove(String),
}

impl Platter {
    fn crash(&mut self) {
        self.boot += 1;
        self.operations_left = None;
        self.syncs_left = None;
        let changes = std::mem::take(&mut self.unsynced_names);
        let kept = self.choose(changes.len() as u64 + 1);
        let mut names = std::mem::take(&mut self.durable_names);
        for change in changes.into_iter().take(usize::try_from(kept).expect("at most the number of changes"))
        {
            change.apply(&mut names);
        }
        self.durable_names = names.clone();
        self.names = names;
        let living: Vec<u64> = self.names.values().copied().collect();
        self.files.retain(|number, _| living.contains(number));
        let grain = self.grain;
        let mut dice = self.dice;
        for inode in self.files.values_mut() {
            for (start, bytes) in std::mem::take(&mut inode.unsynced) {
                survive(&mut inode.durable, start, &bytes, grain, &mut dice);
            }
            inode.content = inode.durable.clone();
        }
        self.dice = dice;
    }

    fn rename_to(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
    }

    fn number(&self, name: &str) -> io::Result<u64> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no file {name}")))
    }

    fn inode(&mut self, number: u64) -> io::Result<&mut Inode> {
        self.files.get_mut(&number).ok_or_else(|| io::Error::other("simulated disk: the file is gone"))
    }

    fn spend(&mut self) -> io::Result<()> {
        match &mut self.operations_left {
            Some(0) => Err(io::Error::other("simulated disk: the power is off")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn draw(&mut self) -> u64 {
        draw(&mut self.dice)
    }

    fn choose(&mut self, n: u64) -> u64 {
        self.draw() % n
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Set(name, number) => {
                names.insert(name.clone(), *number);
            }
            Self::Move(from, to, number) => {
                names.remove(from);
                names.insert(to.clone(), *number);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

/// Writes the parts of `bytes` that survive by chance. The parts end where sectors of the file end.
fn survive(durable: &mut Vec<u8>, start: usize, bytes: &[u8], grain: usize, dice: &mut u64) {
    // Half of the crashes treat a write as a whole; otherwise the all-or-nothing cases would be too rare.
    let luck = draw(dice) % 4;
    let mut at = start;
    while at < start + bytes.len() {
        let end = ((at / grain + 1) * grain).min(start + bytes.len());
        let survives = match luck {
            0 => true,
            1 => false,
            _ => draw(dice).is_multiple_of(2),
        };
        if survives {
            put(durable, at, &bytes[at - start..end - start]);
        }
        at = end;
    }
}

fn put(content: &mut Vec<u8>, start: usize, bytes: &[u8]) {
    let end = start + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(bytes);
}

fn alive(platter: &Mutex<Platter>, boot: u64) -> io::Result<MutexGuard<'_, Platter>> {
    let platter = lock(platter);
    if platter.boot == boot {
        Ok(platter)
    } else {
        Err(io::Error::other("simulated disk: this handle is of a boot that has ended"))
    }
}

fn lock(platter: &Mutex<Platter>) -> MutexGuard<'_, Platter> {
    platter.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SplitMix64, written out here so that a seed gives the same run with every version of a library.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_data_survives_a_crash_and_unsynced_data_may_not() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let disk = SimDisk::new(seed);
            let handle = disk.handle();
            let file = handle.create("f").unwrap();
            handle.sync_names().unwrap();
            file.write_at(&[1; 2 * SECTOR], 0).unwrap();
            file.sync().unwrap();
            file.write_at(&[2; 2 * SECTOR], 2 * SECTOR as u64).unwrap();
            disk.crash();
            let content = disk.content("f").unwrap();
            assert_eq!(content[..2 * SECTOR], [1; 2 * SECTOR]);
            match content[2 * SECTOR..].iter().filter(|byte| **byte == 2).count() {
                0 => lost += 1,
                n if n == 2 * SECTOR => kept += 1,
                _ => torn += 1,
            }
            assert!(file.sync().is_err(), "a handle outlived its boot");
        }
        assert!(lost > 0 && kept > 0 && torn > 0, "{lost} {kept} {torn}");
    }

    #[test]
    fn data_of_a_failed_sync_is_readable_and_does_not_survive() {
        let disk = SimDisk::new(1);
        let handle = disk.handle();
        let file = handle.create("f").unwrap();
        handle.sync_names().unwrap();
        file.write_at(b"old", 0).unwrap();
        file.sync().unwrap();
        file.write_at(b"new", 0).unwrap();
        disk.fail_syncs_after(0);
        assert!(file.sync().is_err());
        disk.mend();
        file.write_at(b"more", 3).unwrap();
        file.sync().unwrap();
        assert_eq!(disk.content("f").unwrap(), b"newmore");
        disk.crash();
        assert_eq!(disk.content("f").unwrap(), b"oldmore");
    }

    #[test]
    fn a_name_is_durable_only_after_the_folder_was_synced() {
        let mut lost = 0;
        for seed in 0..50 {
            let disk = SimDisk::new(seed);
            let handle = disk.handle();
            handle.create("old").unwrap();
            handle.sync_names().unwrap();
            handle.rename("old", "new").unwrap();
            disk.crash();
            let names = disk.handle().list().unwrap();
            assert!(names == ["old"] || names == ["new"], "{names:?}");
            lost += usize::from(names == ["old"]);
        }
        assert!(lost > 0 && lost < 50, "{lost}");
    }

    #[test]
    fn power_goes_after_the_operations_allowed() {
        let disk = SimDisk::new(1);
        let handle = disk.handle();
        disk.lose_power_after(2);
        let file = handle.create("f").unwrap();
        file.write_at(b"x", 0).unwrap();
        assert!(file.sync().is_err());
        assert!(handle.sync_names().is_err());
    }
}
