//! `conclave sessions`: the list of sessions, and the end of one.

use std::process::ExitCode;

use conclave_client::{Code, SessionId};
use serde_json::json;

use super::{Quiet, ServerArgs, ago};
use crate::output::{self, Done, Paint, Table};

/// List the sessions, or end one
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(clap::Subcommand)]
enum Action {
    /// End a session as if its lease had expired
    End(EndArgs),
}

#[derive(clap::Args)]
struct ListArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args)]
#[command(after_help = END_EXAMPLES)]
struct EndArgs {
    /// The number of the session, as `conclave sessions` prints it
    #[arg(value_name = "ID")]
    session: u64,
    #[command(flatten)]
    quiet: Quiet,
    #[command(flatten)]
    list: ListArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave sessions
  conclave sessions end 42

Exit codes: 0 done, 2 bad usage, 69 no server or no majority.";

const END_EXAMPLES: &str = "\
Examples:
  conclave sessions end 42

Exit codes: 0 done, 1 there is no such session, 2 bad usage, 69 no server or no majority.";

/// Lists the sessions, or ends one.
pub fn run(args: &Args) -> Done {
    match &args.action {
        None => list(&args.list),
        Some(Action::End(end)) => {
            let session = SessionId(end.session);
            let ended = end.list.server.with(async |client| client.admin().end_session(session).await);
            ended.map_err(|failure| match failure.kind {
                kind if kind == Code::SessionEnded.name() => {
                    failure.advise("`conclave sessions` lists the sessions")
                }
                _ => failure,
            })?;
            if end.list.json {
                output::print_json(&json!({ "ended": end.session }))?;
            } else {
                end.quiet.print(&format!("ended session {}", end.session));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn list(args: &ListArgs) -> Done {
    let sessions = args.server.with(async |client| client.admin().sessions().await)?;
    if args.json {
        output::print_json(&sessions)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["session", "holds", "waits", "lease", "since", "label"]);
    for session in &sessions {
        table.row(vec![
            session.session.to_string(),
            session.grants.to_string(),
            session.waits.to_string(),
            format!("{} s", output::number(session.ttl_ms as f64 / 1_000.0)),
            ago(session.since_ms),
            output::shown(&session.label),
        ]);
    }
    output::print(&table.render(Paint::stdout()));
    Ok(ExitCode::SUCCESS)
}
