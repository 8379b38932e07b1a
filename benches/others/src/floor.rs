//! What nothing can beat that is durable before it is answered, one after another: a flush of the file plus a round trip over loopback.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Result;
use crate::work::histogram;

/// As long as a small entry of a log.
const ENTRY: usize = 120;
/// Zeros written beforehand, so that a flush does not have to write where the file ends. Little, so that they are no load themselves.
const FILE: usize = 4 << 20;

/// What was measured. The sum bears the name of what it is the floor of.
#[derive(Serialize)]
pub struct Floor {
    fdatasync_p50_us: f64,
    round_trip_p50_us: f64,
    acquire_p50_us: f64,
}

/// Half the time for each. The file is left to whoever made the folder.
pub fn measure(folder: &Path, time: Duration) -> Result<Floor> {
    let fdatasync_p50_us = median_us(&flushes(folder, time / 2)?);
    let round_trip_p50_us = median_us(&round_trips(time / 2)?);
    Ok(Floor { fdatasync_p50_us, round_trip_p50_us, acquire_p50_us: fdatasync_p50_us + round_trip_p50_us })
}

fn median_us(latencies: &Histogram<u64>) -> f64 {
    latencies.value_at_quantile(0.5) as f64 / 1_000.0
}

fn flushes(folder: &Path, time: Duration) -> Result<Histogram<u64>> {
    let mut file = File::create(folder.join("floor"))?;
    file.write_all(&vec![0; FILE])?;
    file.sync_all()?;
    let entries = (0..FILE - ENTRY).step_by(ENTRY).cycle();
    repeated(time, entries, |at| {
        file.write_all_at(&[1; ENTRY], at as u64)?;
        Ok(rustix::fs::fdatasync(&file)?)
    })
}

fn round_trips(time: Duration) -> Result<Histogram<u64>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let echo = std::thread::spawn(move || {
        let mut entry = [0; ENTRY];
        // Ends when the near side is dropped.
        while far.read_exact(&mut entry).and_then(|()| far.write_all(&entry)).is_ok() {}
    });
    let mut entry = [1; ENTRY];
    let latencies = repeated(time, 0.., |_| {
        near.write_all(&entry)?;
        Ok(near.read_exact(&mut entry)?)
    })?;
    drop(near);
    echo.join().map_err(|_| "the echo failed")?;
    Ok(latencies)
}

fn repeated(
    time: Duration,
    steps: impl Iterator<Item = usize>,
    mut act: impl FnMut(usize) -> Result<()>,
) -> Result<Histogram<u64>> {
    let mut latencies = histogram();
    let until = Instant::now() + time;
    for step in steps {
        let began = Instant::now();
        if began >= until {
            break;
        }
        act(step)?;
        latencies.saturating_record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(latencies)
}
