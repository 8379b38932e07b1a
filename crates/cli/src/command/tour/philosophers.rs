//! `conclave tour philosophers`: a program that runs into a deadlock on purpose, through the client library.

use std::process::ExitCode;

use conclave_client::{Client, Code, Error, Guard, Owner, PendingLock, Result};

use crate::command::service::ServerArgs;
use crate::output::{self, Done};

/// Run a program that causes a deadlock: three philosophers and three forks.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave tour philosophers
  conclave why fork1

Each philosopher (p1, p2, p3) is an owner of its own. Each takes the left fork, then requests the right one. The \
server rejects the request that completes the cycle. Its owner releases a fork, and the others can eat.
Exit codes: 0 done, 2 bad usage, 69 no server or no majority.";

/// Runs the dinner.
pub fn run(args: &Args) -> Done {
    args.server.with(async |client| dine(&client).await)?;
    Ok(ExitCode::SUCCESS)
}

async fn dine(client: &Client) -> Result<()> {
    let [one, two, three] = [client.owner("p1")?, client.owner("p2")?, client.owner("p3")?];
    let left_of_one = take(&one, "fork1").await?;
    let left_of_two = take(&two, "fork2").await?;
    let left_of_three = take(&three, "fork3").await?;
    let right_of_one = request(&one, "fork2").await?;
    let right_of_two = request(&two, "fork3").await?;
    match three.lock("fork1").await {
        Err(error) if error.code == Code::Deadlock => say(&format!("p3 is rejected: {}", error.message)),
        Err(error) => return Err(error),
        Ok(_) => return Err(Error::new(Code::InvalidArgument, "the server did not detect the deadlock")),
    }
    left_of_three.release().await?;
    say("p3 releases fork3");
    eat("p2", left_of_two, right_of_two).await?;
    eat("p1", left_of_one, right_of_one).await?;
    // One expression takes both forks at once: no cycle is possible.
    let both = three.lock("fork3 & fork1").await?;
    say("p3 eats: it has requested 'fork3 & fork1', both at once");
    both.release().await
}

async fn take(owner: &Owner, fork: &str) -> Result<Guard> {
    let guard = owner.lock(fork).await?;
    say(&format!("{} holds {fork}", owner.label()));
    Ok(guard)
}

/// Returns when the request waits in the queue.
async fn request(owner: &Owner, fork: &str) -> Result<PendingLock> {
    let mut pending = owner.lock(fork).start()?;
    pending.queued().await;
    say(&format!("{} waits for {fork}", owner.label()));
    Ok(pending)
}

async fn eat(name: &str, left: Guard, mut right: PendingLock) -> Result<()> {
    let right = right.granted().await?;
    say(&format!("{name} eats, and releases both forks"));
    right.release().await?;
    left.release().await
}

fn say(line: &str) {
    output::print(&format!("{}\n", output::shown(line)));
}
