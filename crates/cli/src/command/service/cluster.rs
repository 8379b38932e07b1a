//! `conclave cluster status`: the state of each node, as the node itself reports it.
//!
//! The first node that replies names the members. The command then queries all members at the same time, for
//! a bounded time. So it works while nodes are down, and without a majority.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use conclave_client::{Client, ClusterStatus, Code, Error, MemberStatus};
use serde::Serialize;

use super::{ServerArgs, backup, block_on, local};
use crate::output::{self, Done, Failure, Paint, Table};

/// Show the nodes of the cluster, or save a backup
#[derive(clap::Subcommand)]
#[command(defer = true, after_help = ALL_EXAMPLES)]
pub enum Command {
    /// Show the members, the leader, and how far behind each node is
    Status(StatusArgs),
    /// Save files and limits of semaphores, as of one moment, for `serve --restore`
    Backup(backup::Args),
}

/// Show the members, the leader, and how far behind each node is
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// The longest time for the reply of a node
    #[arg(long, value_name = "DURATION", value_parser = super::duration, default_value = "1s", allow_hyphen_values = true)]
    within: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

const ALL_EXAMPLES: &str = "\
Examples:
  conclave cluster status
  conclave cluster backup monday.backup

Exit codes: see the help of the two commands.";

const EXAMPLES: &str = "\
Examples:
  conclave cluster status
  conclave cluster status --server 10.0.0.1:7411,10.0.0.2:7411 --json

log and applied are the last entries that a node has, and has applied; behind is the number of entries that its \
log lacks.
Exit codes: 0 the leader and a majority reply, 1 they do not, so the service cannot work, 2 bad usage, 69 no \
node replies.";

/// The state of a node, or the reason why it is unknown.
#[derive(Serialize)]
struct Node {
    node: u64,
    address: String,
    role: &'static str,
    up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    term: Option<u64>,
    last: Option<u64>,
    applied: Option<u64>,
    snapshot: Option<u64>,
    behind: Option<u64>,
    version: Option<String>,
}

/// The state of the cluster.
#[derive(Serialize)]
struct Status {
    cluster: String,
    leader: Option<u64>,
    term: u64,
    voters: usize,
    voters_up: usize,
    healthy: bool,
    nodes: Vec<Node>,
}

/// Runs a subcommand.
pub fn run(command: &Command) -> Done {
    match command {
        Command::Status(args) => show_status(args),
        Command::Backup(args) => backup::run(args),
    }
}

fn show_status(args: &StatusArgs) -> Done {
    let status = block_on(async { status(args).await })?;
    if args.json {
        output::print_json(&status)?;
    } else {
        output::print(&render(&status));
    }
    Ok(if status.healthy { ExitCode::SUCCESS } else { ExitCode::from(super::REFUSED) })
}

async fn status(args: &StatusArgs) -> Result<Status, Failure> {
    let servers = args.server.addresses()?;
    if local::is_named(&servers) {
        // This starts the node. Its error is better than that of a client without a server.
        local::Local::find()?.connect().await?;
    }
    let seen = first_answer(args, &servers).await.map_err(super::failure)?;
    let requests: Vec<_> = seen
        .members
        .iter()
        .map(|member| tokio::spawn(tokio::time::timeout(args.within, fetch_status(member.address.clone()))))
        .collect();
    let mut answers = Vec::new();
    for (member, result) in seen.members.iter().zip(requests) {
        let answer = match result.await {
            Ok(Ok(Ok(answer))) if (&answer.cluster, answer.node) == (&seen.cluster, member.node) => {
                Ok(answer)
            }
            Ok(Ok(Ok(answer))) => {
                Err(format!("node {} of cluster {} has this address", answer.node, answer.cluster))
            }
            Ok(Ok(Err(error))) => Err(error.message),
            Ok(Err(_)) | Err(_) => Err(format!("no reply within {:?}", args.within)),
        };
        answers.push(answer);
    }
    Ok(judge(&seen, &answers))
}

/// Returns the state from the first node that replies. A stuck node still accepts connections, so the time
/// for each is bounded.
async fn first_answer(args: &StatusArgs, servers: &str) -> conclave_client::Result<ClusterStatus> {
    let mut refused = Error::new(Code::Unreachable, "no server is named");
    for address in servers.split(',').map(str::trim).filter(|address| !address.is_empty()) {
        let result = tokio::time::timeout(args.within, fetch_status(address.to_owned())).await;
        let silent = || format!("{address} does not reply within {:?}", args.within);
        match result.unwrap_or_else(|_| Err(Error::new(Code::NoAnswer, silent()))) {
            Ok(seen) => return Ok(seen),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

async fn fetch_status(address: String) -> conclave_client::Result<ClusterStatus> {
    let client = match local::is_named(&address) {
        true => local::open(Client::builder())
            .await
            .map_err(|failure| Error::new(Code::Unreachable, failure.message))?,
        false => Client::connect(&address).await?,
    };
    client.admin().cluster().await
}

/// Combines the replies of the nodes. The reply with the highest term names the leader.
fn judge(seen: &ClusterStatus, answers: &[Result<ClusterStatus, String>]) -> Status {
    let latest =
        answers.iter().flatten().chain([seen]).max_by_key(|answer| (answer.term, answer.leader.is_some()));
    let (term, leader) = latest.map_or((0, None), |latest| (latest.term, latest.leader));
    let leads = |member: &&MemberStatus| Some(member.node) == leader;
    let position = seen.members.iter().position(|member| leads(&member));
    let head = position.and_then(|position| answers[position].as_ref().ok()).map(last);
    let nodes = seen.members.iter().zip(answers).map(|(member, answer)| {
        let known = answer.as_ref().ok();
        Node {
            node: member.node,
            address: member.address.clone(),
            role: match member.voter {
                true if leads(&member) => "leader",
                true => "voter",
                false => "learner",
            },
            up: known.is_some(),
            why: answer.as_ref().err().cloned(),
            term: known.map(|known| known.term),
            last: known.map(last),
            applied: known.map(|known| known.applied.unwrap_or(0)),
            snapshot: known.and_then(|known| known.snapshot),
            behind: head.zip(known).map(|(head, known)| head.saturating_sub(last(known))),
            version: known.map(|known| known.version.clone()),
        }
    });
    let nodes: Vec<Node> = nodes.collect();
    let voters: BTreeSet<u64> =
        seen.members.iter().filter(|member| member.voter).map(|member| member.node).collect();
    let voters_up = nodes.iter().filter(|node| node.up && voters.contains(&node.node)).count();
    let healthy = head.is_some() && voters_up * 2 > voters.len();
    Status { cluster: seen.cluster.clone(), leader, term, voters: voters.len(), voters_up, healthy, nodes }
}

/// The index of the last entry in the log of a node; 0 if the log is empty.
fn last(known: &ClusterStatus) -> u64 {
    known.last.unwrap_or(0)
}

fn render(status: &Status) -> String {
    let paint = Paint::stdout();
    let mut table = Table::new(&["node", "role", "state", "log", "applied", "behind", "term", "address"]);
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    for node in &status.nodes {
        table.row(vec![
            node.node.to_string(),
            node.role.to_owned(),
            if node.up { "up" } else { "down" }.to_owned(),
            number(node.last),
            number(node.applied),
            number(node.behind),
            number(node.term),
            node.address.clone(),
        ]);
    }
    let leader = match status.leader {
        Some(leader) => format!("node {leader} leads in term {}", status.term),
        None => format!("no node leads, the term is {}", status.term),
    };
    let summary = format!(
        "cluster {}: {leader}; {} of {} voters reply",
        status.cluster, status.voters_up, status.voters
    );
    let mut text = format!("{}\n{}", paint.bold(&summary), table.render(paint));
    for (node, why) in status.nodes.iter().filter_map(|node| node.why.as_ref().map(|why| (node, why))) {
        text.push_str(&format!("node {} at {}: {why}\n", node.node, node.address));
    }
    if !status.healthy {
        text.push_str("the service cannot work: it needs a leader and a majority of the voters; start the nodes that are down\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(node: u64, leader: Option<u64>, term: u64, last: u64) -> ClusterStatus {
        let member = |node| {
            let mut member = MemberStatus::default();
            (member.node, member.voter) = (node, node != 4);
            member
        };
        let mut status = ClusterStatus::default();
        (status.node, status.leader, status.term) = (node, leader, term);
        (status.last, status.applied) = (Some(last), Some(last));
        status.members = (1..=4).map(member).collect();
        status
    }

    #[test]
    fn the_latest_term_names_the_leader_and_lag_is_against_its_log() {
        let answers = [
            Err("refused".to_owned()),
            Ok(says(2, Some(2), 7, 100)),
            Ok(says(3, Some(1), 6, 90)),
            Ok(says(4, None, 7, 40)),
        ];
        let status = judge(&says(3, Some(1), 6, 90), &answers);
        assert_eq!((status.leader, status.term, status.voters, status.voters_up), (Some(2), 7, 3, 2));
        assert!(status.healthy);
        let roles: Vec<_> = status.nodes.iter().map(|node| node.role).collect();
        assert_eq!(roles, ["voter", "leader", "voter", "learner"]);
        let behind: Vec<_> = status.nodes.iter().map(|node| node.behind).collect();
        assert_eq!(behind, [None, Some(0), Some(10), Some(60)]);
    }

    #[test]
    fn without_a_majority_or_its_leader_the_service_is_not_healthy() {
        let down = || Err("refused".to_owned());
        let minority = judge(
            &says(1, Some(1), 5, 9),
            &[Ok(says(1, Some(1), 5, 9)), down(), down(), Ok(says(4, Some(1), 5, 9))],
        );
        assert!(!minority.healthy, "a learner is no voter");
        let leaderless = judge(
            &says(2, Some(1), 5, 9),
            &[down(), Ok(says(2, Some(1), 5, 9)), Ok(says(3, Some(1), 5, 9)), down()],
        );
        assert!(!leaderless.healthy, "the reported leader does not answer");
        assert!(render(&leaderless).contains("cannot work"));
    }
}
