//! Locks: exclusive, of several names, shared, and with a time limit.
//!
//! ```console
//! $ conclave serve                                          # in another terminal
//! $ cargo run -p conclave-client --example lock
//! ```

use std::time::Duration;

use conclave_client::{Client, Code, DEFAULT_SERVER, Guard, Result};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let client = Client::builder().label("the example `lock`").connect(&server()).await?;

    // One name, then two names at once. The guard releases its names when it is dropped; `release` also waits
    // until other clients can acquire them.
    let guard = client.lock("orders").await?;
    println!("holding {}", names(&guard));
    guard.release().await?;
    let guard = client.lock("orders & (eu | us)").await?;
    println!("holding {}", names(&guard));

    // Each request has its own owner, so the lock excludes also this client.
    if client.lock("orders").try_now().await?.is_none() {
        println!("orders is taken");
    }
    match client.lock("orders").timeout(Duration::from_millis(100)).await {
        Err(error) if error.code == Code::TimedOut => println!("orders is still taken"),
        other => println!("unexpected: {other:?}"),
    }
    guard.release().await?;

    // A lock for many readers or one writer.
    let (one, two) = (client.lock("plan").shared().await?, client.lock("plan").shared().await?);
    println!("two readers hold {} and {}", names(&one), names(&two));
    let mut writer = client.lock("plan").start()?;
    if let Some(place) = writer.queued().await {
        println!("the writer waits for {} readers", place.holders.len());
    }
    one.release().await?;
    two.release().await?;
    let mut writer = writer.granted().await?;
    println!("the writer holds {}", names(&writer));
    writer.downgrade().await?;
    let reader = client.lock("plan").shared().await?;
    println!("a reader beside the former writer holds {}", names(&reader));
    client.close().await
}

fn names(guard: &Guard) -> String {
    guard.names().iter().map(|held| held.name.as_str()).collect::<Vec<_>>().join(" and ")
}

/// The first argument, else `CONCLAVE_SERVER`, else the address of a server that was started without options.
fn server() -> String {
    let given = std::env::args().nth(1).or_else(|| std::env::var("CONCLAVE_SERVER").ok());
    given.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}
