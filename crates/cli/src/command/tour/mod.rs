//! `conclave tour`: the main features, shown by commands that a user can type.

mod philosophers;
mod shell;
mod steps;

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use tokio::time::timeout;

use crate::command::service::signals::{STOP, Signals, killed_by};
use crate::output::{self, Done, Failure, Paint};
use shell::{Screen, Shell};
use steps::{By, Command, STEPS, Step};

/// Show the main features in half a minute, on a server of its own.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// Print the steps and their commands, and run nothing
    #[arg(long)]
    list: bool,
}

#[derive(clap::Subcommand)]
enum Part {
    /// Run a program that causes a deadlock: three philosophers and three forks
    Philosophers(philosophers::Args),
}

const EXAMPLES: &str = "\
Examples:
  conclave tour
  conclave tour --list

The tour types its commands into a shell (sh), in a temporary folder. At the end it stops its server and removes \
the folder. It needs no other server and changes nothing on one that runs.
Exit codes: 0 every step showed the expected output, 1 one did not, 128 + N stopped by signal N, 2 bad usage.";

/// The limit for one command. It is reached only if something is wrong.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the tour, lists it, or runs one of its programs.
pub fn run(args: &Args) -> Done {
    match &args.part {
        Some(Part::Philosophers(args)) => philosophers::run(args),
        None if args.list => {
            output::print(&steps::list(HAS_LAB));
            Ok(ExitCode::SUCCESS)
        }
        None => tour(),
    }
}

/// Whether this binary contains the laboratory.
const HAS_LAB: bool = cfg!(feature = "lab");

fn tour() -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::usage(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        let mut signals = Signals::new(STOP)?;
        let folder = Folder::create().map_err(|error| failed(&format!("no temporary folder: {error}")))?;
        let shell = Shell::start(&folder.work(), &folder.programs()).await;
        let shell = shell.map_err(|error| failed(&format!("sh cannot be started: {error}")))?;
        let mut guide = Guide { shell, address: free_address()?, paint: Paint::stdout() };
        let done = tokio::select! {
            biased;
            signal = signals.next() => Err(killed_by(signal)),
            done = guide.walk() => done,
        };
        guide.shell.end().await;
        done.and_then(|()| finish(&folder))
    })
}

/// Keeps the picture and says where it is.
fn finish(folder: &Folder) -> Done {
    if HAS_LAB {
        let kept =
            folder.keep_picture().map_err(|error| failed(&format!("the picture is missing: {error}")))?;
        say(&format!("\nThe picture of the run is in {}\n", kept.display()))?;
    } else {
        say("\nThis binary has no laboratory (feature `lab`): the last step is left out.\n")?;
    }
    say("Every step showed the expected output. `conclave tour --list` prints the commands.\n")?;
    Ok(ExitCode::SUCCESS)
}

/// Types the commands and checks their output.
struct Guide {
    shell: Shell,
    address: String,
    paint: Paint,
}

impl Guide {
    async fn walk(&mut self) -> Result<(), Failure> {
        let steps = STEPS.iter().filter(|step| HAS_LAB || !step.needs_lab);
        for (number, step) in steps.enumerate() {
            self.show(number + 1, step).await?;
        }
        Ok(())
    }

    async fn show(&mut self, number: usize, step: &Step) -> Result<(), Failure> {
        let gap = if number == 1 { "" } else { "\n" };
        let title = self.paint.bold(&format!("{number}. {}", step.title));
        say(&format!("{gap}{title}\n   {}\n", step.explains))?;
        for command in step.commands {
            let line = command.line.replace(steps::ADDRESS, &self.address);
            say(&format!("{}\n", self.paint.bold(&format!("$ {line}"))))?;
            let Ok(done) = timeout(LIMIT, self.follow(command, &line)).await else {
                return Err(failed(&unexpected(command, &line, "that did not appear in time")));
            };
            done?;
        }
        Ok(())
    }

    /// Types a command until its outcome is the expected one, and prints its output.
    async fn follow(&mut self, command: &Command, line: &str) -> Result<(), Failure> {
        loop {
            let lines = self.enter(command, line).await?;
            match (command.by, steps::appear(command.shows, &lines)) {
                (By::Repetition, true) => return lines.iter().try_for_each(|line| say(&format!("{line}\n"))),
                (By::Repetition, false) => {}
                (_, true) => return Ok(()),
                (_, false) => return Err(failed(&unexpected(command, line, "it has ended without that"))),
            }
        }
    }

    /// Types a command once. Returns the lines that appeared until it had ended, and showed what it starts in the background.
    async fn enter(&mut self, command: &Command, line: &str) -> Result<Vec<String>, Failure> {
        let broken = |error: io::Error| failed(&format!("`{line}`: {error}"));
        self.shell.enter(line).await.map_err(broken)?;
        let mut lines = Vec::new();
        let mut has_ended = false;
        while !has_ended || (command.by == By::AnyTime && !steps::appear(command.shows, &lines)) {
            match self.shell.next().await.map_err(broken)? {
                Screen::Prompt(0) => has_ended = true,
                Screen::Prompt(code) => {
                    return Err(failed(&format!("`{line}` ended with exit code {code} in place of 0")));
                }
                Screen::Line(text) => {
                    let text = output::shown(&text);
                    if command.by != By::Repetition {
                        say(&format!("{text}\n"))?;
                    }
                    lines.push(text);
                }
            }
        }
        Ok(lines)
    }
}

fn unexpected(command: &Command, line: &str, why: &str) -> String {
    format!("`{line}` should show {:?}, but {why}", command.shows)
}

/// A step that did not show what it claims, or a tour that cannot begin.
fn failed(why: &str) -> Failure {
    Failure::new(1, "tour", format!("the tour has failed: {why}; please report this"))
}

/// Prints now. If the reader of the output has gone, the tour ends quietly, and cleans up first.
fn say(text: &str) -> Result<(), Failure> {
    output::try_print(text.as_bytes())
        .map_err(|error| output::unwritten(&error).unwrap_or_else(|| Failure::new(0, "closed", "")))
}

fn free_address() -> Result<String, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(|address| address.to_string()).map_err(|error| failed(&format!("no free port: {error}")))
}

/// The folder of one tour. It is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    /// Creates a folder that only this user can enter, with this binary under the name `conclave`.
    fn create() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let folder = Self(new_folder()?);
        fs::create_dir(folder.work())?;
        fs::create_dir(folder.programs())?;
        symlink(program, folder.programs().join("conclave"))?;
        Ok(folder)
    }

    fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    fn programs(&self) -> PathBuf {
        self.0.join("bin")
    }

    /// Moves the picture beside the folder, under the folder's name, so that it outlives the folder.
    fn keep_picture(&self) -> io::Result<PathBuf> {
        let kept = self.0.with_extension("svg");
        fs::rename(self.work().join(steps::PICTURE), &kept)?;
        Ok(kept)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            output::complain(&format!("{} cannot be removed: {error}; remove it by hand", self.0.display()));
        }
    }
}

/// Creates a folder under the system's folder for temporary files. An existing name is never used.
fn new_folder() -> io::Result<PathBuf> {
    const ATTEMPTS: u32 = 100;
    let mut last = io::ErrorKind::AlreadyExists.into();
    for attempt in 0..ATTEMPTS {
        let name = format!("conclave-tour-{}-{attempt}", std::process::id());
        let path = std::env::temp_dir().join(name);
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}
