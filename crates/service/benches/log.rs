//! The time of a durable batch, compared with one bare sync of the disk in the same run; and the time to read
//! the log at a restart.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conclave_service::replica::disk::{Disk, RealDisk};
use conclave_service::replica::log::{Change, Entry, Log, LogId, Options};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const ENTRY_BYTES: usize = 120;

fn durable_batch(c: &mut Criterion) {
    let mut group = c.benchmark_group("durable_batch");
    group.measurement_time(Duration::from_secs(4));
    for count in [1_u64, 64, 256] {
        group.throughput(Throughput::Elements(count));
        group.bench_with_input(BenchmarkId::new("bare_fdatasync", count), &count, |b, &count| {
            let folder = Folder::new("bare");
            let disk = RealDisk::open(&folder.0).expect("the folder opens");
            let file = disk.create("zeros").expect("a file can be made");
            let size = 32 * 1024 * 1024;
            for step in 0..size / (1024 * 1024) {
                file.write_at(&vec![0; 1024 * 1024], step * 1024 * 1024).expect("zeros are written");
            }
            file.sync().expect("zeros are synced");
            let bytes = vec![7; (32 + ENTRY_BYTES) * usize::try_from(count).expect("small")];
            let mut at = 0;
            b.iter(|| {
                file.write_at(&bytes, at).expect("written");
                file.sync().expect("synced");
                at = (at + bytes.len() as u64) % (size - bytes.len() as u64);
            });
        });
        group.bench_with_input(BenchmarkId::new("log", count), &count, |b, &count| {
            let folder = Folder::new("log");
            let disk = Arc::new(RealDisk::open(&folder.0).expect("the folder opens"));
            let (log, _) = Log::open(disk, Options::default()).expect("the log opens");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let mut next = 0;
            b.iter(|| {
                runtime.block_on(log.write(entries(next, count))).expect("durable");
                next += count;
            });
            log.close();
        });
    }
    group.finish();
}

fn recovery(c: &mut Criterion) {
    const COUNT: u64 = 1_000_000;
    let folder = Folder::new("recovery");
    let disk = Arc::new(RealDisk::open(&folder.0).expect("the folder opens"));
    let (log, _) = Log::open(disk.clone(), Options::default()).expect("the log opens");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for start in (0..COUNT).step_by(5000) {
        runtime.block_on(log.write(entries(start, 5000))).expect("durable");
    }
    log.close();
    let mut group = c.benchmark_group("recovery");
    group.sample_size(10);
    group.bench_function("a_million_entries", |b| {
        b.iter(|| {
            let (log, state) = Log::open(disk.clone(), Options::default()).expect("the log opens");
            assert_eq!(black_box(state.last), Some(LogId { term: 1, index: COUNT - 1 }));
            log.close();
        });
    });
    group.finish();
}

fn entries(start: u64, count: u64) -> Change {
    let entry =
        |index| Entry { id: LogId { term: 1, index }, membership: false, data: vec![7; ENTRY_BYTES].into() };
    Change::Append((start..start + count).map(entry).collect())
}

/// A folder in the target folder, which is on a real disk. The temporary folder may be in memory.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

criterion_group!(benches, durable_batch, recovery);
criterion_main!(benches);
