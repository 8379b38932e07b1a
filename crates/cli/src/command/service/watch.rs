//! `conclave watch`: prints the changes of a file, its children or a lock as they are made.

use std::process::ExitCode;

use conclave_client::{Client, WatchEvent};
use serde_json::json;

use super::signals::{STOP, Signals};
use super::{ServerArgs, block_on, close, failure, files};
use crate::output::{self, Done};

/// Print the changes of a file or a lock, one per line
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file as /PATH, or the name of a lock, semaphore or election
    #[arg(value_name = "/PATH|NAME")]
    pub target: String,
    /// Watch the children of a file; its leading / may be left out
    #[arg(long, conflicts_with = "lock")]
    pub children: bool,
    /// Watch a file; its leading / may be left out
    #[arg(long, conflicts_with = "lock")]
    pub file: bool,
    /// Watch a lock, semaphore or election, also if its name begins with /
    #[arg(long)]
    pub lock: bool,
    /// End after this many changes
    #[arg(long, short = 'n', value_name = "N")]
    pub count: Option<u64>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave watch /config
  conclave watch --children /jobs
  conclave watch db
  conclave watch -n 1 db                             wait for one change

The first line says `watching`: every change after its index is printed. It does not count for -n. The line \
`resync` says that changes may be missing, because the service has forgotten them: read the file or lock again. \
It counts as a change.
Lines: INDEX NAME CHANGE [NUMBER]. NUMBER is the version of a written file, the fence of a taken lock, or the \
permits of a limit.
Exit codes: 0 done (-n, or the reader of the output has gone), 128 + the signal that stopped it, 2 bad usage, 69 \
no server or no majority.";

/// Prints changes until `--count` is reached, standard output is closed or a signal arrives. Then it ends its
/// session.
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
    let is_file = args.children || args.file || (args.target.starts_with('/') && !args.lock);
    let target = if is_file { files::absolute(&args.target) } else { args.target.clone() };
    let begun = match (is_file, args.children) {
        (_, true) => client.files().watch_children(&target, None).await,
        (true, false) => client.files().watch(&target, None).await,
        (false, false) => client.watch_lock(&target).await,
    };
    let mut watch = begun.map_err(failure)?;
    line(args, watch.index(), &target, "watching", None);
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0
        && let Some(event) = watch.next().await
    {
        left -= 1;
        let event = event.map_err(failure)?;
        match &event {
            WatchEvent::Changed { .. } if args.json => output::print(&format!("{}\n", json!(event))),
            WatchEvent::Changed { index, name, change } => {
                line(args, *index, name, change.kind(), change.number());
            }
            lost => line(args, lost.index(), &target, "resync", None),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn line(args: &Args, index: u64, name: &str, what: &str, number: Option<u64>) {
    if args.json {
        let value = json!({ "index": index, "name": name, "change": what, "number": number });
        return output::print(&format!("{value}\n"));
    }
    let number = number.map(|number| format!(" {number}")).unwrap_or_default();
    output::print(&format!("{index} {name} {what}{number}\n"));
}
