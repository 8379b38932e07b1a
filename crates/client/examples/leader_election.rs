//! Leader election: two candidates, one leader at a time, and terms that only grow.
//!
//! ```console
//! $ conclave serve                                          # in another terminal
//! $ cargo run -p conclave-client --example leader_election
//! ```

use conclave_client::{Client, DEFAULT_SERVER, Fence, Leadership, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let (one, two) = (Client::connect(&server()).await?, Client::connect(&server()).await?);

    // The value is the address of the leader, for the followers.
    let leadership = one.elect("scheduler", "node-1:9000").await?;
    println!("{} leads", leader(&two).await?);
    let first = lead(&leadership).await;

    // The second candidate waits until the first one resigns, or until its lease ends.
    let candidate = two.clone();
    let campaign = tokio::spawn(async move { candidate.elect("scheduler", "node-2:9000").await });
    leadership.proclaim("node-1:9000, leaving").await?;
    println!("{} leads", leader(&two).await?);
    leadership.resign().await?;
    let Ok(leadership) = campaign.await else { panic!("the task of the campaign has panicked") };
    let leadership = leadership?;
    println!("{} leads", leader(&one).await?);
    let second = lead(&leadership).await;

    // A store that remembers the largest term can reject a former leader that does not know its loss yet.
    println!("the later term is larger: {}", second > first);
    leadership.resign().await?;
    println!("{} leads", leader(&one).await?);
    one.close().await?;
    two.close().await
}

/// Works as the leader, and returns the term. The work is cancelled if the leadership is lost.
async fn lead(leadership: &Leadership) -> Fence {
    let term = leadership.term();
    match leadership.run(async { println!("the leader assigns the jobs") }).await {
        Ok(()) => {}
        Err(lost) => println!("no longer the leader: {lost}"),
    }
    term
}

async fn leader(client: &Client) -> Result<String> {
    let leader = client.leader("scheduler").await?;
    Ok(leader.map_or("nobody".to_owned(), |leader| String::from_utf8_lossy(&leader.value).into_owned()))
}

/// The first argument, else `CONCLAVE_SERVER`, else the address of a server that was started without options.
fn server() -> String {
    let given = std::env::args().nth(1).or_else(|| std::env::var("CONCLAVE_SERVER").ok());
    given.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}
