//! Tests of `conclave tour`: the files that it leaves, and its failures.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::service::support::{Running, conclave, new_path, until};

/// A folder for the temporary files of one test.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        let folder = new_path();
        fs::create_dir(&folder).expect("a new folder");
        Self(folder)
    }

    fn tour(&self) -> Command {
        let mut command = conclave();
        command.arg("tour").env("TMPDIR", &self.0);
        command
    }

    fn contents(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).expect("it exists").map(|entry| entry.expect("readable").path()).collect()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_tour_leaves_only_its_picture_behind() {
    let temporary = Temporary::new();
    let output = temporary.tour().env("CONCLAVE_SERVER", "127.0.0.1:1").output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    let left = temporary.contents();
    if cfg!(feature = "lab") {
        let [picture] = &left[..] else { panic!("{left:?}") };
        assert!(text.contains(&format!("is in {}", picture.display())), "{text}");
        assert!(fs::read_to_string(picture).unwrap().starts_with("<svg"));
    } else {
        assert!(left.is_empty(), "{left:?}");
        assert!(text.contains("has no laboratory"), "{text}");
    }
    let claims =
        ["behind", "I took gpu0 gpu2", "p3 is rejected", "granted again", "rejected slow", "exit code 76"];
    claims.iter().for_each(|claim| assert!(text.contains(claim), "{claim}: {text}"));
}

#[test]
fn a_tour_that_is_interrupted_stops_its_server_and_removes_its_folder() {
    let temporary = Temporary::new();
    let mut tour = Running::start(&mut temporary.tour());
    let server = until_holding(&mut tour);
    tour.signal(Signal::INT);
    let (code, _, errors) = tour.end();
    assert_eq!((code, errors.as_str()), (130, ""));
    assert!(temporary.contents().is_empty());
    assert!(TcpStream::connect(server).is_err());
}

#[test]
fn the_server_of_a_tour_that_is_killed_ends() {
    let temporary = Temporary::new();
    let mut tour = Running::start(&mut temporary.tour());
    let server = until_holding(&mut tour);
    tour.child.kill().unwrap();
    tour.child.wait().unwrap();
    until("the server has ended", || TcpStream::connect(&server).is_err().then_some(()));
}

#[test]
fn a_tour_without_a_reader_stops_and_cleans_up() {
    let temporary = Temporary::new();
    let mut tour = Running::start(&mut temporary.tour());
    let server = until_holding(&mut tour);
    drop(tour.lines);
    assert!(tour.child.wait().unwrap().success());
    assert!(temporary.contents().is_empty());
    assert!(TcpStream::connect(server).is_err());
}

#[test]
fn a_command_that_fails_ends_the_tour_with_its_name() {
    let (temporary, programs) = (Temporary::new(), Temporary::new());
    replace_program(&programs.0, "mkfifo", "exit 3");
    let output = with_programs(temporary.tour(), &programs.0).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("`mkfifo next` ended with exit code 3"), "{errors}");
    assert!(temporary.contents().is_empty());
}

#[test]
fn a_claim_that_is_not_shown_ends_the_tour() {
    let (temporary, programs) = (Temporary::new(), Temporary::new());
    // With this `cat`, the store rejects every fence.
    replace_program(&programs.0, "cat", "echo 1000000");
    let output = with_programs(temporary.tour(), &programs.0).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("sh store $CONCLAVE_FENCE quick"), "{errors}");
    assert!(errors.contains("should show [\"wrote quick\"], but it has ended without that"), "{errors}");
    assert!(temporary.contents().is_empty());
}

/// Reads until the first command of the tour holds a lock, and returns the address of the server.
fn until_holding(tour: &mut Running) -> String {
    let mut server = None;
    loop {
        let line = tour.line();
        assert!(!line.is_empty(), "the tour has ended: {:?}", tour.child.wait());
        if let Some(rest) = line.strip_prefix("serving on ") {
            server = rest.split(',').next().map(ToOwned::to_owned);
        }
        if line.starts_with("first: ") {
            return server.expect("the server is first");
        }
    }
}

/// Replaces a program by a script. Another process writes the file. If this process wrote it, a child that
/// another test forks could have it open for writing, and it could not be run.
fn replace_program(folder: &Path, name: &str, script: &str) {
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod +x \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(folder.join(name)).arg(script).status();
    assert!(written.expect("sh runs").success());
}

fn with_programs(mut tour: Command, folder: &Path) -> Command {
    let path = std::env::var("PATH").expect("a PATH");
    tour.env("PATH", format!("{}:{path}", folder.display()));
    tour
}
