//! `conclave cluster backup`: saves the data that outlives the cluster in a file.
//!
//! The command fetches the bytes by HTTP, as `curl` would. It checks them, writes them to a temporary file,
//! and syncs it. Then it renames that file. So a file of the given name is always a complete backup.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use conclave_client::{Code, Error, Socket};
use conclave_node::state::backup::Contents;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::{NO_SERVER, REFUSED, ServerArgs, block_on, failure, local};
use crate::output::{self, Done, Failure, counted};

/// Save files and limits of semaphores, as of one moment, for `serve --restore`
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file to write; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

const EXAMPLES: &str = "\
Examples:
  conclave cluster backup monday.backup
  conclave cluster backup --force latest.backup --server 10.0.0.1:7411,10.0.0.2:7411 --json
  curl -o monday.backup http://127.0.0.1:7411/v1/backup
  conclave serve --data new --restore monday.backup

A backup contains all files except ephemeral ones, with their versions, and the limits of \
semaphores, as of one moment. Every change that was acknowledged before is in it. It contains no \
sessions, no locks and no secrets. Any node can send it.
Exit codes: 0 the backup is whole and on disk, 1 the server sent none, 2 bad usage or the file \
cannot be written, 69 no server answers.";

/// The longest silence of a server. A large backup takes at most a minute to make.
const SILENCE: Duration = Duration::from_secs(65);
/// The longest wait for a server to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest head of a response, and the longest body of an error, in bytes.
const TEXT_BYTES_MAX: u64 = 64 * 1024;
/// The largest backup that is accepted, in bytes.
const BACKUP_BYTES_MAX: u64 = 4 << 30;

/// The advice after a reply that a conclave server of this version never sends.
const NOT_CONCLAVE: &str = "check that the address is that of a conclave server of this version";

#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    files: u64,
    file_bytes: u64,
    semaphores: u64,
    applied: u64,
    bytes: usize,
}

/// Saves a backup.
pub fn run(args: &Args) -> Done {
    check_place(args)?;
    let servers = args.server.addresses()?;
    let bytes = block_on(fetch_any(&servers))?;
    let contents = Contents::of(&bytes).map_err(|error| {
        Failure::new(REFUSED, "no-backup", format!("the server sent no backup: {error}")).advise(NOT_CONCLAVE)
    })?;
    check_place(args)?;
    save(&args.file, &bytes).map_err(|error| Failure::file(&args.file, &error))?;
    let Contents { files, file_bytes, semaphores, applied } = contents;
    let report = Report { file: &args.file, files, file_bytes, semaphores, applied, bytes: bytes.len() };
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&format!(
            "saved {} ({}) and {} as of command {applied} to {}, {}\n",
            counted(files, "file"),
            counted(file_bytes, "byte"),
            counted(semaphores, "semaphore"),
            args.file.display(),
            counted(bytes.len() as u64, "byte"),
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the file may be written, as far as possible before the write.
fn check_place(args: &Args) -> Result<(), Failure> {
    match std::fs::symlink_metadata(&args.file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::file(&args.file, &error)),
        Ok(found) if !found.is_file() => {
            Err(Failure::usage(format!("{} is not a regular file; give another name", args.file.display())))
        }
        Ok(_) if args.force => Ok(()),
        Ok(_) => Err(Failure::usage(format!(
            "{} exists; replace it with --force, or give another name",
            args.file.display()
        ))),
    }
}

/// Writes a temporary file that only its user can read, syncs it, renames it and syncs the folder.
fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    let written = (|| {
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    })();
    // An incomplete backup is useless, so delete it. The error returned is that of the write.
    written.inspect_err(|_| drop(std::fs::remove_file(&beside)))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Returns the backup of the first server that sends one.
async fn fetch_any(servers: &str) -> Result<Vec<u8>, Failure> {
    let mut refused = failure(Error::new(Code::Unreachable, "no server is named"));
    for server in servers.split(',').map(str::trim).filter(|server| !server.is_empty()) {
        // Remove the prefix, which forces TCP; HTTP always uses TCP.
        let address = server.strip_prefix("tcp:").unwrap_or(server);
        match fetch(address).await {
            Ok(bytes) => return Ok(bytes),
            Err(failure) => refused = failure,
        }
    }
    Err(refused)
}

async fn fetch(address: &str) -> Result<Vec<u8>, Failure> {
    let unreachable =
        |error: io::Error| failure(Error::new(Code::Unreachable, format!("{address}: {error}")));
    let (status, body) = if local::is_named(address) {
        let Socket::Unix(socket) = local::Local::find()?.connect().await? else {
            return Err(unreachable(io::ErrorKind::Unsupported.into()));
        };
        let stream = socket.into_stream().map_err(unreachable)?;
        get(stream, address, "/v1/backup").await.map_err(unreachable)?
    } else {
        let stream = soon(CONNECT, TcpStream::connect(address)).await.map_err(unreachable)?;
        get(stream, address, "/v1/backup").await.map_err(unreachable)?
    };
    if status == 200 {
        return Ok(body);
    }
    let (reason, advice) = match serde_json::from_slice::<conclave_core::failure::Failure<'_>>(&body) {
        Ok(conclave_core::failure::Failure { error }) => {
            (error.message.into_owned(), error.advice.into_owned())
        }
        Err(_) => (format!("HTTP status {status}"), NOT_CONCLAVE.to_owned()),
    };
    let (code, kind) = if status == 503 { (NO_SERVER, "unavailable") } else { (REFUSED, "no-backup") };
    Err(Failure::new(code, kind, format!("{address} sends no backup: {reason}")).advise(advice))
}

/// Sends a plain GET: one connection, and one response with a `Content-Length`.
async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = BufReader::new(stream);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    soon(SILENCE, stream.write_all(request.as_bytes())).await?;
    let mut head = (&mut stream).take(TEXT_BYTES_MAX);
    let (mut status, mut length) = (None, None);
    loop {
        let mut line = String::new();
        soon(SILENCE, head.read_line(&mut line)).await?;
        match line.trim_end() {
            "" => break,
            line if status.is_none() => {
                status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
            }
            line => {
                let value =
                    line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                length = value.and_then(|(_, value)| value.trim().parse().ok()).or(length);
            }
        }
    }
    let odd = || io::Error::new(io::ErrorKind::InvalidData, "the response cannot be read");
    let (status, length): (u16, u64) = status.zip(length).ok_or_else(odd)?;
    if length > if status == 200 { BACKUP_BYTES_MAX } else { TEXT_BYTES_MAX } {
        return Err(odd());
    }
    let mut body = Vec::new();
    let mut stream = stream.take(length);
    while soon(SILENCE, stream.read_buf(&mut body)).await? > 0 {}
    if body.len() as u64 == length { Ok((status, body)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

async fn soon<T>(limit: Duration, act: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no reply within {limit:?}"));
    tokio::time::timeout(limit, act).await.map_err(late)?
}
