//! Times and sizes, and what openraft makes of them.

use std::time::Duration;

use openraft::{Config, SnapshotPolicy};

use super::{OpenError, log};

/// Times and sizes. The defaults are those of production.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the log.
    pub log: log::Options,
    /// How often the leader says that it lives.
    pub heartbeat: Duration,
    /// A node that heard nothing for a time between these two asks for votes.
    pub election: (Duration, Duration),
    /// A snapshot is taken after so many entries.
    pub snapshot_every: u64,
    /// So many entries that a snapshot covers are kept, for followers that are only a little behind.
    pub keep: u64,
    /// A log with more bytes is covered by a snapshot and cut to half of them, however few entries it has.
    pub log_bytes_max: u64,
    /// Handfuls of deliveries that may wait for the frontends; the machine waits when there are more.
    pub deliveries: usize,
    /// How long a peer is kept waiting for an answer, and a follower may take to install a snapshot.
    pub answer_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log: log::Options::default(),
            heartbeat: Duration::from_millis(150),
            election: (Duration::from_millis(800), Duration::from_millis(1400)),
            snapshot_every: 100_000,
            keep: 10_000,
            log_bytes_max: 256 * 1024 * 1024,
            deliveries: 64,
            answer_limit: Duration::from_secs(20),
        }
    }
}

impl Options {
    pub(super) fn config(&self) -> Result<Config, OpenError> {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        // openraft waits for the leader's lease, which it makes as long as the longest timeout, and for the timeout on top of
        // it. Said as we mean it, from the last sign of life to the election: half of the longest time is the lease.
        let lease = (ms(self.election.1) / 2).max(ms(self.heartbeat) + 2);
        // The shortest timeout is also how long openraft waits for a vote, which a voter must make durable before it gives it. So
        // it is no shorter than half the lease, or a slow disk would have no leader for ever.
        let shortest = ms(self.election.0).saturating_sub(lease).max(lease / 2).max(ms(self.heartbeat) + 1);
        let config = Config {
            cluster_name: "conclave".to_owned(),
            heartbeat_interval: ms(self.heartbeat),
            election_timeout_min: shortest,
            election_timeout_max: lease,
            install_snapshot_timeout: ms(self.answer_limit),
            max_payload_entries: 1024,
            replication_lag_threshold: self.snapshot_every.saturating_add(self.keep).saturating_mul(2),
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_every),
            max_in_snapshot_log_to_keep: self.keep,
            enable_pre_vote: Some(true),
            // Decay in a follower's last batch looks like a torn tail. Without this its leader could never send it again.
            allow_log_reversion: Some(true),
            backoff: "50ms 100ms 200ms ...1s".to_owned(),
            ..Config::default()
        };
        config.validate().map_err(|error| OpenError::Invalid(error.to_string()))
    }
}
