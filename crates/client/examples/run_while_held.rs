//! Work that runs only while a lock is held: it is cancelled when the lock is lost.
//!
//! ```console
//! $ conclave serve                                          # in another terminal
//! $ cargo run -p conclave-client --example run_while_held
//! ```

use std::time::Duration;

use conclave_client::{Client, DEFAULT_SERVER, Fence, Result};
use tokio::time::sleep;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let client = Client::connect(&server()).await?;

    let guard = client.lock("report").await?;
    match guard.run(write_report(guard.fence(), 3)).await {
        Ok(pages) => println!("the report has {pages} pages"),
        Err(lost) => println!("start again: {lost}"),
    }
    guard.release().await?;

    // An operator takes the lock away while the work runs. The work is dropped at its next `.await`. If the
    // server did not reply, the work would be dropped one tenth of the TTL before the deadline.
    let guard = client.lock("report").await?;
    let admin = client.admin();
    let operator = async {
        sleep(Duration::from_millis(50)).await;
        admin.break_lock("report", "the disk is full").await
    };
    let (worked, broken) = tokio::join!(guard.run(write_report(guard.fence(), u32::MAX)), operator);
    broken?;
    match worked {
        Ok(pages) => println!("the report has {pages} pages"),
        Err(lost) => println!("start again: {lost}"),
    }
    drop(guard);
    client.close().await
}

/// Writes pages. A real store gets the fence with each page, and rejects one that is out of date.
async fn write_report(_fence: Fence, pages: u32) -> u32 {
    for _page in 0..pages {
        sleep(Duration::from_millis(5)).await;
    }
    pages
}

/// The first argument, else `CONCLAVE_SERVER`, else the address of a server that was started without options.
fn server() -> String {
    let given = std::env::args().nth(1).or_else(|| std::env::var("CONCLAVE_SERVER").ok());
    given.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}
