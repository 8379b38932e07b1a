//! A semaphore: at most two of five downloads run at the same time.
//!
//! ```console
//! $ conclave serve                                          # in another terminal
//! $ cargo run -p conclave-client --example semaphore
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conclave_client::{Client, Code, DEFAULT_SERVER, Result, Semaphore};
use tokio::task::JoinSet;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let client = Client::connect(&server()).await?;
    let slots = client.semaphore("download-slots", 2).await?;
    let running = Arc::new(AtomicU32::new(0));

    let mut downloads = JoinSet::new();
    for number in 1..=5 {
        downloads.spawn(download(number, slots.clone(), running.clone()));
    }
    for most in downloads.join_all().await {
        assert!(most? <= 2, "the semaphore has two permits");
    }
    println!("all downloads are done, never more than 2 at a time");

    // Permits of one request are granted together. More than the limit can never be granted.
    let both = slots.acquire(2).await?;
    println!("both slots are held: another one is free: {}", slots.acquire(1).try_now().await?.is_some());
    match slots.acquire(3).await {
        Err(error) if error.code == Code::Impossible => println!("three slots: {error}"),
        other => println!("unexpected: {other:?}"),
    }
    slots.set_limit(3).await?;
    println!("with a limit of 3, one is free: {}", slots.acquire(1).try_now().await?.is_some());
    both.release().await?;
    client.close().await
}

/// Downloads while it holds a slot. Returns the number of downloads that ran at that time.
async fn download(_number: u32, slots: Semaphore, running: Arc<AtomicU32>) -> Result<u32> {
    let slot = slots.acquire(1).await?;
    let now_running = running.fetch_add(1, Ordering::Relaxed) + 1;
    tokio::time::sleep(Duration::from_millis(10)).await;
    running.fetch_sub(1, Ordering::Relaxed);
    slot.release().await?;
    Ok(now_running)
}

/// The first argument, else `CONCLAVE_SERVER`, else the address of a server that was started without options.
fn server() -> String {
    let given = std::env::args().nth(1).or_else(|| std::env::var("CONCLAVE_SERVER").ok());
    given.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}
