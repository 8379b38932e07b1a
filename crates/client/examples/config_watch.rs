//! Configuration in a file: a program that reads it, and follows every change until the file is deleted.
//!
//! ```console
//! $ conclave serve                                          # in another terminal
//! $ conclave put /config blue
//! $ cargo run -p conclave-client --example config_watch &
//! $ conclave put /config green
//! $ conclave rm /config
//! ```

use conclave_client::{Client, Code, DEFAULT_SERVER, File, Result, WatchEvent};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let client = Client::connect(&server()).await?;
    let files = client.files();
    let Some(first) = read(&client).await? else {
        println!("there is no /config");
        return Ok(());
    };
    show(&first);

    // The watch begins at the index of the read, so no change between the two is missed. `Watch` is a stream.
    // The program needs no adapters for it: `next` is a method of its own.
    let mut watch = files.watch("/config", Some(first.index)).await?;
    while let Some(event) = watch.next().await {
        match event? {
            WatchEvent::Changed { .. } => {}
            // After a gap, reading the file again is enough.
            WatchEvent::Resync { index } => println!("changes up to index {index} may be missing"),
            _ => continue,
        }
        match read(&client).await? {
            Some(file) => show(&file),
            None => break,
        }
    }
    println!("/config is deleted");
    client.close().await
}

async fn read(client: &Client) -> Result<Option<File>> {
    match client.files().read("/config").await {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.code == Code::NoSuchFile => Ok(None),
        Err(error) => Err(error),
    }
}

fn show(file: &File) {
    println!("/config is {:?}", String::from_utf8_lossy(&file.data));
}

/// The first argument, else `CONCLAVE_SERVER`, else the address of a server that was started without options.
fn server() -> String {
    let given = std::env::args().nth(1).or_else(|| std::env::var("CONCLAVE_SERVER").ok());
    given.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}
