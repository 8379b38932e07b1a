//! A demonstration of fences. Run `conclave serve`, then this:
//!
//! ```console
//! $ cargo run -p conclave-client --example fence_store
//! ```

mod store;

use conclave_client::{Client, DEFAULT_SERVER, Guard};
use store::{Held, Store};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = server();
    let mut store = Store::default();

    let slow = Client::connect(&server).await?;
    let late = slow.lock("report").await?;
    println!("the slow one holds `report` by fence {}", late.fence());

    // The slow client is paused here for an hour. An operator takes the lock away, and another client
    // acquires it.
    let quick = Client::connect(&server).await?;
    quick.admin().break_lock("report", "its holder hangs").await?;
    let guard = quick.lock("report").await?;
    println!("the quick one holds it by fence {}", guard.fence());
    store.append("report", exclusive(&guard), "written by the quick one")?;

    // The slow client wakes up and writes without checking its guard.
    match store.append("report", exclusive(&late), "written by the slow one") {
        Ok(()) => println!("the slow one has overwritten what it should not"),
        Err(stale) => println!("the slow one: {stale}"),
    }
    println!("in the store: {:?}", store.lines("report"));

    let readers = (Client::connect(&server).await?, Client::connect(&server).await?);
    guard.release().await?;
    let (one, two) = (readers.0.lock("report").shared().await?, readers.1.lock("report").shared().await?);
    store.append("report", shared(&two), "the second reader was here")?;
    store.append("report", shared(&one), "and the first, in any order")?;
    println!("in the store: {:?}", store.lines("report"));
    Ok(())
}

fn exclusive(guard: &Guard) -> Held {
    Held::Exclusive(guard.fence_of("report").unwrap_or_default())
}

fn shared(guard: &Guard) -> Held {
    Held::Shared(guard.fence_of("report").unwrap_or_default())
}

/// The first argument, else `CONCLAVE_SERVER`, else the address of a server that was started without options.
fn server() -> String {
    let given = std::env::args().nth(1).or_else(|| std::env::var("CONCLAVE_SERVER").ok());
    given.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}
