//! Damages a good log and recovers it. Recovery must cut a torn end or reject the log; it must not panic and must not return
//! other entries. The input is a list of damages: offset (3 bytes), value (1 byte).
//! Twin in CI: `crates/service/src/replica/log/tests.rs`.

#![no_main]

use std::sync::{Arc, LazyLock};

use conclave_service::replica::disk::{Disk, SimDisk};
use conclave_service::replica::log::{Change, Entry, Log, LogId, Options};
use libfuzzer_sys::fuzz_target;

const SIZES: Options = Options { segment_bytes: 16 * 1024, batch_bytes: 4096, queue: 64 };

static GOOD: LazyLock<SimDisk> = LazyLock::new(|| {
    let disk = SimDisk::new(1);
    let (log, _) = Log::open(Arc::new(disk.handle()), SIZES).expect("an empty disk");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    for index in 0..64_u64 {
        let data: Arc<[u8]> = index.to_le_bytes().repeat(16).into();
        let entry = Entry { id: LogId { term: 1, index }, membership: false, data };
        runtime.block_on(log.write(Change::Append(vec![entry]))).expect("a disk that works");
    }
    log.close();
    disk
});

fuzz_target!(|damage: &[u8]| {
    let disk = GOOD.copy(2);
    let names: Vec<String> = disk
        .handle()
        .list()
        .expect("a disk that works")
        .into_iter()
        .filter(|name| name.ends_with(".log"))
        .collect();
    for hit in damage.chunks_exact(4).take(64) {
        let offset = usize::from(hit[0]) << 16 | usize::from(hit[1]) << 8 | usize::from(hit[2]);
        let name = &names[offset % names.len()];
        disk.edit(name, |bytes| {
            let at = offset % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = hit[3];
            }
        });
    }
    if let Ok((log, state)) = Log::open(Arc::new(disk.handle()), SIZES) {
        assert!(state.last.is_none_or(|last| last.index < 64 && last.term == 1));
        log.close();
    }
});
