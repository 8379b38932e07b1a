//! `conclave get`, `put`, `ls` and `rm`: the tree of small files.

use std::io::{self, Read as _};
use std::process::ExitCode;

use conclave_client::{Client, Code, Create, Error, FileOp, Version};
use serde_json::{Value, json};

use super::ServerArgs;
use crate::output::{self, Done, Failure};

/// What a file contains.
#[derive(clap::Args)]
#[command(after_help = GET_EXAMPLES)]
pub struct GetArgs {
    /// The file, as /PATH
    #[arg(value_name = "PATH")]
    pub path: String,
    #[command(flatten)]
    common: Common,
}

const GET_EXAMPLES: &str = "\
Examples:
  conclave get /config
  conclave get /config --json | jq .version";

/// Write a file; it is made if it is not there.
#[derive(clap::Args)]
#[command(after_help = PUT_EXAMPLES)]
pub struct PutArgs {
    /// The file, as /PATH
    #[arg(value_name = "PATH")]
    pub path: String,
    /// What it is to contain; standard input, if absent or -
    #[arg(value_name = "TEXT", allow_negative_numbers = true)]
    pub value: Option<String>,
    /// Only if the file has this version
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["create", "sequential"])]
    pub expect: Option<u64>,
    /// Only if there is no such file
    #[arg(long)]
    pub create: bool,
    /// Append the directory's next number to the name
    #[arg(long)]
    pub sequential: bool,
    /// Make missing directories
    #[arg(long, short)]
    pub parents: bool,
    #[command(flatten)]
    common: Common,
}

const PUT_EXAMPLES: &str = "\
Examples:
  conclave put /config blue
  conclave put /config green --expect 1
  conclave put -p --sequential /jobs/job- < job.json";

/// The children of a file.
#[derive(clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// The file, as /PATH
    #[arg(value_name = "PATH", default_value = "/")]
    pub path: String,
    #[command(flatten)]
    common: Common,
}

const LIST_EXAMPLES: &str = "\
Examples:
  conclave ls
  conclave ls /jobs --json";

/// Remove a file.
#[derive(clap::Args)]
#[command(after_help = REMOVE_EXAMPLES)]
pub struct RemoveArgs {
    /// The file, as /PATH
    #[arg(value_name = "PATH")]
    pub path: String,
    /// Only if the file has this version
    #[arg(long, value_name = "VERSION", conflicts_with = "recursive")]
    pub expect: Option<u64>,
    /// Its children too; / is refused
    #[arg(long, short)]
    pub recursive: bool,
    #[command(flatten)]
    common: Common,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  conclave rm /config --expect 2
  conclave rm -r /jobs";

#[derive(clap::Args)]
struct Common {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Reads.
pub fn get(args: &GetArgs) -> Done {
    let file = args.common.server.with(async |client| client.files().read(&args.path).await)?;
    if !args.common.json {
        output::print_bytes(&file.data);
        return Ok(ExitCode::SUCCESS);
    }
    // JSON has no bytes: what is no text is given as numbers.
    let data = match String::from_utf8(file.data) {
        Ok(text) => Value::String(text),
        Err(bytes) => json!(bytes.into_bytes()),
    };
    output::print_json(&json!({
        "path": args.path, "data": data, "version": file.stat.version, "children": file.stat.children,
        "ephemeral": file.stat.ephemeral, "index": file.index,
    }))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes.
pub fn put(args: &PutArgs) -> Done {
    let data = match args.value.as_deref() {
        Some(text) if text != "-" => text.as_bytes().to_vec(),
        _ => {
            let mut data = Vec::new();
            let read = io::stdin().read_to_end(&mut data);
            read.map_err(|error| Failure::usage(format!("standard input: {error}")))?;
            data
        }
    };
    let (path, version) = args.common.server.with(async |client| {
        if args.parents {
            make_parents(&client, args).await?;
        }
        let files = client.files();
        if args.create || args.sequential {
            let how = Create { sequential: args.sequential, ..Create::default() };
            return Ok((files.create(&args.path, data, how).await?, Version(1)));
        }
        let version = match args.expect {
            Some(version) => files.write(&args.path, data, Some(Version(version))).await?,
            None => files.put(&args.path, data).await?,
        };
        Ok((args.path.clone(), version))
    })?;
    if args.common.json {
        output::print_json(&json!({ "path": path, "version": version.0 }))?;
    } else if args.sequential {
        output::print(&format!("{path}\n"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists.
pub fn list(args: &ListArgs) -> Done {
    // As the shell completes it.
    let path = args.path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(&args.path);
    let children = args.common.server.with(async |client| client.files().list(path).await)?;
    if args.common.json {
        output::print_json(&children.names)?;
    } else {
        output::print(&children.names.iter().map(|name| format!("{name}\n")).collect::<String>());
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes.
pub fn remove(args: &RemoveArgs) -> Done {
    if args.recursive && args.path == "/" {
        return Err(Failure::usage("/ cannot be removed: name the files in it that are to go"));
    }
    let removed = args.common.server.with(async |client| {
        if !args.recursive {
            let deleted = client.files().delete(&args.path, args.expect.map(Version)).await;
            return deleted.map(|()| 1).map_err(|error| match error.code {
                Code::NotEmpty => {
                    Error { message: format!("{} (rm -r takes them along)", error.message), ..error }
                }
                _ => error,
            });
        }
        let paths = all_below(&client, &args.path).await?;
        let count = paths.len();
        for batch in paths.chunks(100) {
            let ops = batch.iter().map(|path| FileOp::Delete(path.clone(), None)).collect();
            client.files().multi(ops).await?;
        }
        Ok(count)
    })?;
    if args.common.json {
        output::print_json(&json!({ "removed": removed }))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn make_parents(client: &Client, args: &PutArgs) -> conclave_client::Result<()> {
    let path = &args.path;
    // A path that is none is refused before anything is made for it; the server knows best what is one.
    let made = if args.sequential { format!("{path}0") } else { path.clone() };
    match client.files().read(&made).await {
        Err(error) if error.code != Code::NoSuchFile => return Err(error),
        _ => {}
    }
    let ends = path.char_indices().skip(1).filter(|(_, c)| *c == '/').map(|(at, _)| at);
    for end in ends {
        match client.files().create(&path[..end], "", Create::default()).await {
            Err(error) if error.code != Code::FileExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A file and everything below it, children before their parents.
async fn all_below(client: &Client, path: &str) -> conclave_client::Result<Vec<String>> {
    let mut found = vec![path.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        let children = client.files().list(&path).await?;
        let parent = path.trim_end_matches('/');
        found.extend(children.names.iter().map(|name| format!("{parent}/{name}")));
    }
    found.reverse();
    Ok(found)
}
