//! `conclave watch`: what happens to a file, its children or a lock, as it happens.

use std::process::ExitCode;

use conclave_client::wire::Event;
use conclave_client::wire::event::Change;
use conclave_client::{Client, Notice};
use serde_json::json;

use super::signals::{STOP, Signals};
use super::{ServerArgs, block_on, close, failure};
use crate::output::{self, Done};

/// Print what happens to a file or a lock, one line a change.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file as /PATH, or the name of a lock, semaphore or election
    #[arg(value_name = "/PATH|NAME")]
    pub target: String,
    /// The children of the file
    #[arg(long, conflicts_with = "lock")]
    pub children: bool,
    /// Take the target for the name of a lock, also if it begins with /
    #[arg(long)]
    pub lock: bool,
    /// End after this many lines
    #[arg(long, short = 'n', value_name = "N")]
    pub count: Option<u64>,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Where the servers are.
    #[command(flatten)]
    pub server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave watch /config
  conclave watch --children /jobs
  conclave watch db

The first line says that the watch stands, and from which index on it misses nothing.";

/// Watches until nobody reads, or a signal says stop: a watch has a session, which is not left behind.
pub fn run(args: &Args) -> Done {
    block_on(async {
        let mut signals = Signals::new(STOP)?;
        let client = signals.or_stop(args.server.connect()).await?;
        let done = signals.or_stop(follow(args, &client)).await;
        close(&client).await;
        done
    })
}

async fn follow(args: &Args, client: &Client) -> Done {
    let is_file = args.target.starts_with('/') && !args.lock;
    let begun = match (is_file || args.children, args.children) {
        (_, true) => client.files().watch_children(&args.target, None).await,
        (true, false) => client.files().watch(&args.target, None).await,
        (false, false) => client.watch_lock(&args.target).await,
    };
    let mut watch = begun.map_err(failure)?;
    line(args, watch.index(), &args.target, "watching", None);
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        match watch.next().await.map_err(failure)? {
            Notice::Resync { index } => line(args, index, &args.target, "resync", None),
            Notice::Changed(event) => {
                let (what, number) = describe(&event);
                line(args, event.index, &event.name, what, number);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(event: &Event) -> (&'static str, Option<u64>) {
    match event.change {
        Some(Change::Created(_)) => ("created", None),
        Some(Change::Written(version)) => ("written", Some(version)),
        Some(Change::Deleted(_)) => ("deleted", None),
        Some(Change::Taken(fence)) => ("taken", Some(fence)),
        Some(Change::Released(_)) => ("released", None),
        Some(Change::Proclaimed(_)) => ("proclaimed", None),
        Some(Change::Limited(permits)) => ("limited", Some(permits.into())),
        None => ("changed", None),
    }
}

fn line(args: &Args, index: u64, name: &str, what: &str, number: Option<u64>) {
    if args.json {
        let value = json!({ "index": index, "name": name, "change": what, "number": number });
        return output::print(&format!("{value}\n"));
    }
    let number = number.map(|number| format!(" {number}")).unwrap_or_default();
    output::print(&format!("{index} {name} {what}{number}\n"));
}
