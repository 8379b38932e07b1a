//! The configuration of a node, and the default data folder.

use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use conclave_core::DEFAULT_PORT;

use crate::membership::join;
use crate::replica::{Options, log};
use conclave_node::leases::Timing;

/// The configuration of a node. The default is a single node on this machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder, with the log, the snapshot and the identity of the node.
    pub data: PathBuf,
    /// The TCP address for clients and for other nodes.
    pub listen: SocketAddr,
    /// `true` to listen only on a Unix socket in the data folder, for the same user on the same machine.
    /// `listen` is then ignored.
    pub local: bool,
    /// The address at which others reach this node; `None` if it is `listen`.
    pub advertise: Option<String>,
    /// Addresses of members of the cluster to join. Empty: a new data folder founds a cluster. An existing
    /// data folder stays in its cluster; the addresses then only help to find members.
    pub join: Vec<String>,
    /// A backup from which this node founds a new cluster. The data folder must be empty.
    pub restore: Option<PathBuf>,
    /// `true` to listen beyond this machine although there is no encryption and no authentication.
    pub insecure: bool,
    /// The most client connections at a time. Further ones are closed at once.
    pub connections_max: usize,
    /// The assumed difference of rate between any two clocks, in millionths.
    pub drift_ppm: u32,
    /// The interval of the leader's heartbeats, and the largest delay of a tick of the leases.
    pub heartbeat: Duration,
    /// The range of the election timeout. A node that receives nothing from the leader for so long starts an
    /// election.
    pub election: (Duration, Duration),
    /// The number of entries after which the node writes a snapshot.
    pub snapshot_every: u64,
    /// The number of entries before a snapshot that are kept, for followers that are only a little behind.
    pub keep: u64,
    /// The sizes of the log.
    pub log: log::Options,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: default_data(),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT),
            local: false,
            advertise: None,
            join: Vec::new(),
            restore: None,
            insecure: false,
            connections_max: 10_000,
            drift_ppm: 10_000,
            heartbeat: Duration::from_millis(150),
            election: (Duration::from_millis(800), Duration::from_millis(1400)),
            snapshot_every: 100_000,
            keep: 10_000,
            log: log::Options::default(),
        }
    }
}

impl Config {
    /// Checks the configuration without access to the disk or the network.
    ///
    /// # Errors
    /// The text says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if !self.listen.ip().is_loopback() && !self.insecure {
            return Err(format!(
                "{} can be reached from other machines, without encryption or passwords; allow that with `insecure`, or listen on 127.0.0.1",
                self.listen
            ));
        }
        if let Some(none) = self.join.iter().chain(&self.advertise).find(|address| !join::is_address(address))
        {
            return Err(format!("`{none}` is not an address; write HOST:PORT"));
        }
        if self.local && (!self.join.is_empty() || self.restore.is_some() || self.advertise.is_some()) {
            return Err(
                "a local node is alone: it cannot join a cluster, restore a backup or advertise an address"
                    .to_owned(),
            );
        }
        if self.restore.is_some() && !self.join.is_empty() {
            return Err(
                "a node either restores a backup or joins a cluster: restore on one node, then let the others join it, \
                        each with an empty data folder"
                    .to_owned(),
            );
        }
        if self.advertise.is_none() && self.listen.ip().is_unspecified() {
            return Err(format!(
                "other nodes cannot connect to {}; give an address that they reach with `advertise`",
                self.listen
            ));
        }
        if self.drift_ppm >= 500_000 {
            return Err(format!(
                "a drift of {} ppm is too large; it must be less than 500000",
                self.drift_ppm
            ));
        }
        if self.heartbeat.is_zero()
            || self.heartbeat * 2 > self.election.0
            || self.election.0 >= self.election.1
        {
            return Err(
                "the election timeout must be a range that begins at two heartbeats or later".to_owned()
            );
        }
        if self.connections_max == 0 {
            return Err("at least one connection must be allowed".to_owned());
        }
        Ok(())
    }

    pub(crate) fn replica(&self) -> Options {
        Options {
            log: self.log,
            heartbeat: self.heartbeat,
            election: self.election,
            snapshot_every: self.snapshot_every,
            keep: self.keep,
            ..Options::default()
        }
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing { drift_ppm: self.drift_ppm, heartbeat: self.heartbeat }
    }
}

/// Returns `$XDG_STATE_HOME/conclave`, else `~/.local/state/conclave`, else `conclave-data` in the current
/// folder. The log must survive a reboot, but is not a document of the user.
fn default_data() -> PathBuf {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_STATE_HOME")
        .or_else(|| folder("HOME").map(|home| home.join(".local/state")))
        .map_or_else(|| PathBuf::from("conclave-data"), |state| state.join("conclave"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_loopback_and_fine() {
        assert_eq!(Config::default().check(), Ok(()));
        assert!(Config::default().listen.ip().is_loopback());
    }

    #[test]
    fn an_address_beyond_loopback_needs_insecure_and_advertise() {
        let open = Config { listen: "0.0.0.0:7411".parse().unwrap(), ..Config::default() };
        assert!(open.check().unwrap_err().contains("insecure"));
        let insecure = Config { insecure: true, ..open };
        assert!(insecure.check().unwrap_err().contains("advertise"), "0.0.0.0 is nowhere");
        assert_eq!(Config { advertise: Some("db-1:7411".into()), ..insecure }.check(), Ok(()));
    }

    #[test]
    fn an_invalid_address_is_rejected() {
        for address in ["somewhere", "host:0", ":1", "a b:1"] {
            let join = Config { join: vec![address.into()], ..Config::default() };
            assert!(join.check().unwrap_err().contains(address));
            let advertise = Config { advertise: Some(address.into()), ..Config::default() };
            assert!(advertise.check().is_err());
        }
    }

    #[test]
    fn a_node_restores_or_joins() {
        let restore = Config { restore: Some("backup".into()), ..Config::default() };
        assert_eq!(restore.check(), Ok(()));
        let both = Config { join: vec!["db-1:7411".into()], ..restore };
        assert!(both.check().unwrap_err().contains("restore on one node"));
    }

    #[test]
    fn elections_that_heartbeats_cannot_prevent_are_refused() {
        let hasty = Config { heartbeat: Duration::from_millis(500), ..Config::default() };
        assert!(hasty.check().is_err());
    }
}
