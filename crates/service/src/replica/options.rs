//! Times and sizes of a replica, and their translation into openraft's configuration.

use std::time::Duration;

use openraft::{Config, SnapshotPolicy};

use super::{OpenError, log};

/// Times and sizes of a replica. The defaults are those of production.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sizes of the log.
    pub log: log::Options,
    /// The interval at which the leader sends heartbeats.
    pub heartbeat: Duration,
    /// The shortest and longest time from the leader's last message to a request for votes. The shortest is
    /// raised to three quarters of the longest if it is below.
    pub election: (Duration, Duration),
    /// The number of entries after which a snapshot is taken.
    pub snapshot_every: u64,
    /// The number of entries kept although a snapshot covers them, for followers that are only a little
    /// behind.
    pub keep: u64,
    /// The most bytes of the log. A longer log gets a snapshot and is cut to half of this, however few
    /// entries it has.
    pub log_bytes_max: u64,
    /// The most batches of deliveries that wait for the frontends. The machine waits when there are more.
    pub deliveries: usize,
    /// The longest time until a peer gets a reply, and the longest time a follower may take to install a
    /// snapshot.
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
        // Openraft waits for the leader's lease, as long as `election_timeout_max`, and then for the timeout.
        // `election` is the whole time from the leader's last message to the election. So the lease is half
        // of its upper bound.
        let lease = (ms(self.election.1) / 2).max(ms(self.heartbeat) + 2);
        // The shortest timeout is also openraft's time limit for a vote, and a voter must sync its vote
        // first. So it is at least half of the lease; otherwise a cluster with slow disks could never elect a
        // leader.
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
            // Damage in a follower's last batch looks like a torn tail, so recovery removes entries that the
            // leader knows it had. Without this option, the leader could never send them again.
            allow_log_reversion: Some(true),
            backoff: "50ms 100ms 200ms ...1s".to_owned(),
            ..Config::default()
        };
        config.validate().map_err(|error| OpenError::Invalid(error.to_string()))
    }
}
