//! `conclave get`, `put`, `ls` and `rm`: the tree of small files.

use std::io::{self, Read as _};
use std::process::ExitCode;

use conclave_client::{Client, Code, Create, FileOp, Version};
use serde_json::{Value, json};

use super::{Quiet, ServerArgs};
use crate::output::{self, Done, Failure, counted};

/// Print the content of a file
#[derive(clap::Args)]
#[command(after_help = GET_EXAMPLES)]
pub struct GetArgs {
    /// The file; a leading / may be left out
    #[arg(value_name = "PATH", value_parser = path)]
    pub path: String,
    #[command(flatten)]
    common: Common,
}

const GET_EXAMPLES: &str = "\
Examples:
  conclave get /config
  conclave get /config --json | jq .version

Exit codes: 0 done, 1 there is no such file, 2 bad usage, 69 no server or no majority.";

/// Write a file, and create it if it does not exist
#[derive(clap::Args)]
#[command(after_help = PUT_EXAMPLES)]
pub struct PutArgs {
    /// The file; a leading / may be left out
    #[arg(value_name = "PATH", value_parser = path)]
    pub path: String,
    /// The new content; read from standard input if absent or -
    #[arg(value_name = "TEXT", allow_negative_numbers = true)]
    pub value: Option<String>,
    /// Write only if the file has this version
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["create", "sequential"])]
    pub expect: Option<u64>,
    /// Write only if the file does not exist
    #[arg(long)]
    pub create: bool,
    /// Create a file with the directory's next number after the name, and print its path
    #[arg(long)]
    pub sequential: bool,
    /// Create missing directories
    #[arg(long, short)]
    pub parents: bool,
    #[command(flatten)]
    quiet: Quiet,
    #[command(flatten)]
    common: Common,
}

const PUT_EXAMPLES: &str = "\
Examples:
  conclave put /config blue
  conclave put /config green --expect 1
  conclave put -p --sequential /jobs/job- < job.json

Exit codes: 0 written, 1 rejected (another version, the file exists, its directory does not), 2 bad usage, 69 no \
server or no majority.";

/// List the children of a file
#[derive(clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// The file; a leading / may be left out
    #[arg(value_name = "PATH", default_value = "/", value_parser = path)]
    pub path: String,
    #[command(flatten)]
    common: Common,
}

const LIST_EXAMPLES: &str = "\
Examples:
  conclave ls
  conclave ls /jobs --json

Exit codes: 0 done, 1 there is no such file, 2 bad usage, 69 no server or no majority.";

/// Remove a file
#[derive(clap::Args)]
#[command(after_help = REMOVE_EXAMPLES)]
pub struct RemoveArgs {
    /// The file; a leading / may be left out
    #[arg(value_name = "PATH", value_parser = path)]
    pub path: String,
    /// Remove the file only if it has this version
    #[arg(long, value_name = "VERSION", conflicts_with = "recursive")]
    pub expect: Option<u64>,
    /// Remove its children too; not allowed for /
    #[arg(long, short)]
    pub recursive: bool,
    #[command(flatten)]
    quiet: Quiet,
    #[command(flatten)]
    common: Common,
}

const REMOVE_EXAMPLES: &str = "\
Examples:
  conclave rm /config --expect 2
  conclave rm -r /jobs

Exit codes: 0 removed, 1 rejected (no such file, another version, it has children), 2 bad usage, 69 no server or \
no majority.";

#[derive(clap::Args)]
struct Common {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The path with a leading `/`, which users may leave out.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// [`absolute`], as a parser of an argument.
#[expect(clippy::unnecessary_wraps, reason = "the form of a parser")]
fn path(text: &str) -> Result<String, String> {
    Ok(absolute(text))
}

/// Prints the content of a file.
pub fn get(args: &GetArgs) -> Done {
    let file = args.common.server.with(async |client| client.files().read(&args.path).await)?;
    if !args.common.json {
        output::print_bytes(&file.data);
        return Ok(ExitCode::SUCCESS);
    }
    // JSON has no bytes. Content that is not UTF-8 is printed as an array of numbers.
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

/// Writes a file.
pub fn put(args: &PutArgs) -> Done {
    if args.path == "/" {
        return Err(Failure::usage(
            "/ is the root directory and has no content: name a file in it, as /NAME",
        ));
    }
    let data = match args.value.as_deref() {
        Some(text) if text != "-" => text.as_bytes().to_vec(),
        _ => {
            let mut data = Vec::new();
            let read = io::stdin().read_to_end(&mut data);
            read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
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
        // The path is the result that scripts need.
        output::print(&format!("{path}\n"));
    } else {
        args.quiet.print(&format!("wrote {}, version {}", output::shown(&path), version.0));
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the children of a file.
pub fn list(args: &ListArgs) -> Done {
    // Shells complete a directory with a / at the end.
    let path = args.path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(&args.path);
    let children = args.common.server.with(async |client| client.files().list(path).await)?;
    if args.common.json {
        output::print_json(&children.names)?;
    } else {
        output::print(&children.names.iter().map(|name| format!("{name}\n")).collect::<String>());
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes a file, and its children with `--recursive`.
pub fn remove(args: &RemoveArgs) -> Done {
    if args.path == "/" {
        return Err(Failure::usage(
            "/ is the root directory and cannot be removed: name the files to remove",
        ));
    }
    let removed = args.common.server.with(async |client| {
        if !args.recursive {
            let deleted = client.files().delete(&args.path, args.expect.map(Version)).await;
            return deleted.map(|()| 1);
        }
        let paths = all_below(&client, &args.path).await?;
        let count = paths.len();
        for batch in paths.chunks(100) {
            let ops = batch.iter().map(|path| FileOp::Delete(path.clone(), None)).collect();
            client.files().multi(ops).await?;
        }
        Ok(count)
    });
    let removed = removed.map_err(|failure| match failure.kind {
        kind if kind == Code::NotEmpty.name() => failure.advise("remove the children first, or use rm -r"),
        _ => failure,
    })?;
    if args.common.json {
        output::print_json(&json!({ "removed": removed }))?;
    } else {
        let count =
            if args.recursive { format!(": {}", counted(removed as u64, "file")) } else { String::new() };
        args.quiet.print(&format!("removed {}{count}", output::shown(&args.path)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates the missing directories of the path.
async fn make_parents(client: &Client, args: &PutArgs) -> conclave_client::Result<()> {
    let path = &args.path;
    // The server checks the whole path first, so that no directory is created for a wrong path.
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

/// The paths of a file and of all files below it, children before their parents.
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
