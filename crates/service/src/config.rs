//! What an operator can set, and where data goes when nothing is set.

use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::lease::Timing;

/// The port of the service.
pub const DEFAULT_PORT: u16 = 7411;

/// How a node is to run. The default is one node on this machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the log, the snapshot and the identity of the node are kept.
    pub data: PathBuf,
    /// Where clients and peers are listened to.
    pub listen: SocketAddr,
    /// Where others reach this node, if that is not `listen`.
    pub advertise: Option<String>,
    /// Listen beyond this machine although nothing is encrypted and nobody is asked who they are.
    pub insecure: bool,
    /// The most connections at a time; more are closed at once.
    pub connections_max: usize,
    /// The drift assumed between any two clocks, in millionths.
    pub drift_ppm: u32,
    /// How often the leader says that it lives; also how late a tick of the leases may be.
    pub heartbeat: Duration,
    /// A node that heard nothing from the leader for a time between these two asks for votes.
    pub election: (Duration, Duration),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data: default_data(),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT),
            advertise: None,
            insecure: false,
            connections_max: 10_000,
            drift_ppm: 10_000,
            heartbeat: Duration::from_millis(150),
            election: (Duration::from_millis(800), Duration::from_millis(1400)),
        }
    }
}

impl Config {
    /// Checks what can be checked without touching anything.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        if !self.listen.ip().is_loopback() && !self.insecure {
            return Err(format!(
                "refusing to listen on {}: anybody who reaches it could take every lock; say `insecure` to do it all the same",
                self.listen
            ));
        }
        if self.drift_ppm >= 500_000 {
            return Err(format!("a drift of {} millionths leaves nothing of a lease", self.drift_ppm));
        }
        if self.heartbeat.is_zero()
            || self.heartbeat * 2 > self.election.0
            || self.election.0 >= self.election.1
        {
            return Err(
                "elections must begin after two heartbeats at the earliest, and within a range".to_owned()
            );
        }
        if self.connections_max == 0 {
            return Err("a node without connections is of no use".to_owned());
        }
        Ok(())
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing { drift_ppm: self.drift_ppm, heartbeat: self.heartbeat }
    }
}

/// `$XDG_STATE_HOME/conclave`, else `~/.local/state/conclave`, else `conclave-data` in the current folder: the log is state
/// that must outlive a reboot but is nobody's document.
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
    fn listening_beyond_loopback_must_be_said_twice() {
        let open = Config { listen: "0.0.0.0:7411".parse().unwrap(), ..Config::default() };
        assert!(open.check().unwrap_err().contains("insecure"));
        assert_eq!(Config { insecure: true, ..open }.check(), Ok(()));
    }

    #[test]
    fn elections_that_heartbeats_cannot_prevent_are_refused() {
        let hasty = Config { heartbeat: Duration::from_millis(500), ..Config::default() };
        assert!(hasty.check().is_err());
    }
}
