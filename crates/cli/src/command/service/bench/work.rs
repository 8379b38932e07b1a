//! The work of one client.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use conclave_client::{Client, Guard, Result};
use hdrhistogram::Histogram;

use super::Workload;
use super::judge::Judge;

/// One outstanding request of a client.
pub struct Worker {
    pub client: Client,
    pub number: u32,
    pub slot: u32,
    pub judge: Arc<Judge>,
    /// The histogram of all workers. One per worker would not fit into the processor's caches.
    pub latencies: Arc<Mutex<Histogram<u64>>>,
    pub until: Instant,
}

impl Worker {
    /// Acquires and releases until the time is over. Returns the number of completed pairs.
    pub async fn run(self, workload: Workload) -> Result<u64> {
        let mut pairs = 0;
        let mut turn = u64::from(self.number) + u64::from(self.slot) * 7;
        let mut next = self.acquire(workload, turn).await?;
        while let Some(guard) = next {
            self.judge.leave(&guard);
            turn += 1;
            next = if workload == Workload::Contended {
                // Both go in one write, so the name is not idle for a round trip.
                let (released, acquired) =
                    tokio::join!(biased; guard.release(), self.acquire(workload, turn));
                released?;
                acquired?
            } else {
                guard.release().await?;
                self.acquire(workload, turn).await?
            };
            pairs += 1;
        }
        Ok(pairs)
    }

    /// Acquires once; `None` if the time is over.
    async fn acquire(&self, workload: Workload, turn: u64) -> Result<Option<Guard>> {
        let asked = Instant::now();
        if asked >= self.until {
            return Ok(None);
        }
        let guard = self.client.lock(self.expr(workload, turn)).await?;
        self.judge.enter(&guard);
        let waited = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(waited);
        Ok(Some(guard))
    }

    fn expr(&self, workload: Workload, turn: u64) -> String {
        match workload {
            Workload::Own => format!("bench/own/{}/{}", self.number, self.slot),
            Workload::Contended => "bench/contended".to_owned(),
            Workload::Shared if turn.is_multiple_of(16) => "bench/shared".to_owned(),
            Workload::Shared => "bench/shared:shared".to_owned(),
            Workload::Expression => {
                let name = |step: u64| format!("bench/expression/{}", (turn * 3 + step) % 8);
                format!("{} & ({} | {})", name(0), name(1), name(2))
            }
        }
    }
}
