//! Faults and their plan, which is fixed before the run begins.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use conclave_kernel::{NodeId, NodeSet, time};
use serde::{Deserialize, Serialize};

use crate::text;

/// One planned fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The moment at which the fault begins.
    #[serde(with = "text::duration")]
    pub at: Duration,
    /// The moment at which the fault ends; `None` if it never ends.
    #[serde(default, with = "text::optional_duration")]
    pub until: Option<Duration>,
    /// Whether the run fails if it ends before this fault begins. Faults that the user requested are
    /// demanded. Faults that a swarm drew may come too late.
    #[serde(default)]
    pub demanded: bool,
}

/// The kinds of [`Fault`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The site crashes. Its timers are lost, and so are messages and commands that arrive while it is down.
    Crash {
        /// The site.
        node: NodeId,
        /// The state of the site after recovery.
        recovery: Recovery,
    },
    /// The site handles no input. Messages, timers and commands wait until the pause ends.
    Pause {
        /// The site.
        node: NodeId,
    },
    /// The links between a group and all other sites are cut.
    Partition {
        /// The sites on one side of the cut.
        group: NodeSet,
        /// The fate of messages on a cut link.
        loss: CutLoss,
    },
    /// The site's clock jumps once, outside its specification.
    Step {
        /// The site.
        node: NodeId,
        /// The jump in nanoseconds. A clock that is stepped back stands still until its new time reaches the
        /// old reading.
        by: i64,
    },
}

/// The state of a site after a crash and recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovery {
    /// The state before the crash: it was on stable storage.
    #[default]
    Stable,
    /// The initial state: the old state is lost.
    Amnesia,
}

/// The fate of messages on a cut link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutLoss {
    /// They wait and arrive when the partition ends, in the order in which they were sent.
    #[default]
    Hold,
    /// They are lost.
    Drop,
}

impl Fault {
    /// Returns whether the fault is active at this moment.
    pub(crate) fn covers(&self, at: u64) -> bool {
        time::nanos(self.at) <= at && self.until.is_none_or(|until| at < time::nanos(until))
    }

    /// Returns whether the fault is active at some moment from `from` to `to`, both included.
    pub(crate) fn meets(&self, from: u64, to: u64) -> bool {
        time::nanos(self.at) <= to && self.until.is_none_or(|until| from < time::nanos(until))
    }

    /// Checks the fault. The error describes the problem in one line.
    pub(crate) fn validate(&self) -> Result<(), String> {
        match (&self.kind, self.until) {
            (_, Some(until)) if until <= self.at => Err(format!("{self}: the end must lie after the start")),
            (FaultKind::Step { .. }, Some(_)) => Err(format!("{self}: a clock step has no end; remove it")),
            (FaultKind::Pause { .. }, None) => {
                Err(format!("{self}: a pause needs an end; give one, or use --crash"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the sites that the fault names.
    pub fn nodes(&self) -> NodeSet {
        match &self.kind {
            FaultKind::Crash { node, .. } | FaultKind::Pause { node } | FaultKind::Step { node, .. } => {
                [*node].into_iter().collect()
            }
            FaultKind::Partition { group, .. } => group.clone(),
        }
    }

    /// Parses `NODE@AT`, `NODE@AT..UNTIL` or `NODE@AT..UNTIL,amnesia`.
    pub fn parse_crash(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected NODE@TIME, NODE@TIME..TIME or NODE@TIME..TIME,amnesia, such as 2@10ms..50ms";
        let (rest, recovery) = match text.rsplit_once(',') {
            Some((rest, "amnesia")) => (rest, Recovery::Amnesia),
            Some((rest, "stable")) => (rest, Recovery::Stable),
            Some(_) => return Err(EXPECTED.into()),
            None => (text, Recovery::Stable),
        };
        let (node, at, until) = split(rest, EXPECTED)?;
        let node = node.parse().map(NodeId).map_err(|_| EXPECTED)?;
        Ok(Self { kind: FaultKind::Crash { node, recovery }, at, until, demanded: true })
    }

    /// Parses `NODE@AT..UNTIL`.
    pub fn parse_pause(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected NODE@TIME..TIME, such as 2@10ms..50ms";
        let (node, at, until) = split(text, EXPECTED)?;
        let node = node.parse().map(NodeId).map_err(|_| EXPECTED)?;
        let until = Some(until.ok_or(EXPECTED)?);
        Ok(Self { kind: FaultKind::Pause { node }, at, until, demanded: true })
    }

    /// Parses `NODE@AT,+BY` or `NODE@AT,-BY`.
    pub fn parse_step(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected NODE@TIME,+D or NODE@TIME,-D, such as 2@10s,+50ms";
        let (rest, by) = text.rsplit_once(',').ok_or(EXPECTED)?;
        let (sign, by) = match by.split_at_checked(1) {
            Some(("+", by)) => (1, by),
            Some(("-", by)) => (-1, by),
            _ => return Err(EXPECTED.into()),
        };
        let (node, at, until) = split(rest, EXPECTED)?;
        let node = node.parse().map(NodeId).map_err(|_| EXPECTED)?;
        let by = i64::try_from(time::nanos(text::bounded(by)?)).map_err(|_| EXPECTED)?;
        if until.is_some() || by == 0 {
            return Err(EXPECTED.into());
        }
        Ok(Self { kind: FaultKind::Step { node, by: sign * by }, at, until: None, demanded: true })
    }

    /// Parses `NODE+NODE@AT..UNTIL` with an optional `,hold` or `,drop`.
    pub fn parse_partition(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected NODE+NODE@TIME..TIME, then optionally ,drop, such as 0+1@10ms..50ms,drop";
        let (rest, loss) = match text.rsplit_once(',') {
            Some((rest, "hold")) => (rest, CutLoss::Hold),
            Some((rest, "drop")) => (rest, CutLoss::Drop),
            Some(_) => return Err(EXPECTED.into()),
            None => (text, CutLoss::Hold),
        };
        let (nodes, at, until) = split(rest, EXPECTED)?;
        let group = nodes
            .split('+')
            .map(|node| u32::from_str(node).map(NodeId).map_err(|_| EXPECTED.to_owned()))
            .collect::<Result<Vec<_>, _>>()?;
        if group.iter().any(|node| node.0 >= conclave_kernel::node::MOST_NODES) {
            return Err(EXPECTED.into());
        }
        let group = group.into_iter().collect();
        Ok(Self { kind: FaultKind::Partition { group, loss }, at, until, demanded: true })
    }
}

fn split<'a>(text: &'a str, expected: &str) -> Result<(&'a str, Duration, Option<Duration>), String> {
    let (who, when) = text.split_once('@').ok_or(expected)?;
    let (at, until) = match when.split_once("..") {
        Some((at, until)) => (at, Some(time::parse(until)?)),
        None => (when, None),
    };
    let at = time::parse(at)?;
    if until.is_some_and(|until| until <= at) {
        return Err(format!("{text}: the end must lie after the start"));
    }
    Ok((who, at, until))
}

impl fmt::Display for Fault {
    /// Writes the fault as a flag of the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.until {
            Some(until) => format!("{}..{}", exact(self.at), exact(until)),
            None => exact(self.at),
        };
        match &self.kind {
            FaultKind::Crash { node, recovery: Recovery::Stable } => write!(f, "--crash {}@{when}", node.0),
            FaultKind::Crash { node, .. } => write!(f, "--crash {}@{when},amnesia", node.0),
            FaultKind::Pause { node } => write!(f, "--pause {}@{when}", node.0),
            FaultKind::Partition { group, loss } => {
                let group: Vec<_> = group.iter().map(|node| node.0.to_string()).collect();
                let loss = if *loss == CutLoss::Drop { ",drop" } else { "" };
                write!(f, "--partition {}@{when}{loss}", group.join("+"))
            }
            FaultKind::Step { node, by } => {
                let sign = if *by < 0 { '-' } else { '+' };
                write!(f, "--step {}@{when},{sign}{}", node.0, exact(Duration::from_nanos(by.unsigned_abs())))
            }
        }
    }
}

/// Formats a duration without loss of precision, in the largest unit that gives a whole number.
pub fn exact(duration: Duration) -> String {
    let ns = time::nanos(duration);
    match ns {
        0 => "0".into(),
        _ if ns.is_multiple_of(1_000_000_000) => format!("{}s", ns / 1_000_000_000),
        _ if ns.is_multiple_of(1_000_000) => format!("{}ms", ns / 1_000_000),
        _ if ns.is_multiple_of(1_000) => format!("{}us", ns / 1_000),
        _ => format!("{ns}ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_as_it_is_written() {
        let faults = [
            Fault::parse_crash("2@10ms"),
            Fault::parse_crash("2@10ms..50ms,amnesia"),
            Fault::parse_pause("0@1us..2us"),
            Fault::parse_partition("0+1@5ms..20ms"),
            Fault::parse_partition("3@0..20ms,drop"),
            Fault::parse_step("1@10s,+50ms"),
            Fault::parse_step("1@10s,-1500us"),
        ];
        let flags: Vec<_> = faults.into_iter().map(|fault| fault.unwrap().to_string()).collect();
        assert_eq!(
            flags,
            [
                "--crash 2@10ms",
                "--crash 2@10ms..50ms,amnesia",
                "--pause 0@1us..2us",
                "--partition 0+1@5ms..20ms",
                "--partition 3@0..20ms,drop",
                "--step 1@10s,+50ms",
                "--step 1@10s,-1500us"
            ]
        );
    }

    #[test]
    fn bad_faults_are_refused() {
        assert!(Fault::parse_crash("2").is_err());
        assert!(Fault::parse_crash("x@1ms").is_err());
        assert!(Fault::parse_crash("2@5ms..1ms").is_err());
        assert!(Fault::parse_crash("2@5ms,later").is_err());
        assert!(Fault::parse_pause("2@5ms").is_err());
        assert!(Fault::parse_partition("4000000000@1ms").is_err());
        assert!(Fault::parse_partition("@1ms").is_err());
        for step in [
            "1@1s",
            "1@1s,50ms",
            "1@1s..2s,+50ms",
            "1@1s,+0",
            "1@1s,+",
            "1@1s,",
            "x@1s,+1ms",
            "1@1s,+9999999999s",
        ] {
            assert!(Fault::parse_step(step).is_err(), "{step}");
        }
    }
}
