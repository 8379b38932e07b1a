//! A program that outlives its server: it counts in a file under a lock while the server is restarted.
//!
//! ```console
//! $ conclave serve --data n1                                # in another terminal; stop and start it again
//! $ cargo run -p conclave-client --example retry_after_restart
//! ```

use std::time::Duration;

use conclave_client::{Client, Code, Create, DEFAULT_SERVER, Error, Files, Result, Version};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // The session survives a restart that is shorter than the TTL. A request is retried for `retry_timeout`.
    let builder = Client::builder().ttl(Duration::from_secs(60)).retry_timeout(Duration::from_secs(60));
    let client = builder.connect(&server()).await?;
    let guard = client.lock("counter").await?;
    let session = client.session();

    let files = client.files();
    match files.create("/counter", "0", Create::default()).await {
        Err(error) if error.code != Code::FileExists => return Err(error),
        _ => {}
    }
    let mut version = files.write("/counter", "0", None).await?;
    for number in 1..=10 {
        version = count(&files, number, version).await?;
        println!("the counter is {number}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("one session from begin to end: {}", client.session() == session);
    println!("the lock is held: {}", guard.loss().is_none());
    guard.release().await?;
    client.close().await
}

/// Writes the next number. The expected version makes a repetition harmless. If only the answer of the first
/// attempt was lost, the second attempt fails, and a read shows the number.
async fn count(files: &Files, number: u32, version: Version) -> Result<Version> {
    loop {
        match files.write("/counter", number.to_string(), Some(version)).await {
            // A definite error had no effect, so trying again does not help. The others may have had one.
            Err(error) if error.code.is_definite() && error.code != Code::VersionMismatch => {
                return Err(error);
            }
            Err(_) => {}
            written => return written,
        }
        let data = files.read("/counter").await?.data;
        if data == number.to_string().as_bytes() {
            return Ok(Version(version.0 + 1));
        }
        if data != (number - 1).to_string().as_bytes() {
            return Err(Error::new(
                Code::VersionMismatch,
                "another program writes /counter without the lock",
            ));
        }
    }
}

/// The first argument, else `CONCLAVE_SERVER`, else the address of a server that was started without options.
fn server() -> String {
    let given = std::env::args().nth(1).or_else(|| std::env::var("CONCLAVE_SERVER").ok());
    given.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}
