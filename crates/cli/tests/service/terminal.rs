//! Tests of commands on a terminal: which process reads it, and Ctrl-Z.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::service::support::{PATIENCE, Server, with_signals};

/// A shell with its own terminal, as the user of its keyboard sees it.
struct Terminal {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    shell: Child,
}

impl Terminal {
    /// Starts a shell that runs the script, in which `$C` is conclave.
    fn start(server: &Server, script: &str) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let name = ptsname(&keyboard, Vec::new()).unwrap();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(OpenptFlags::NOCTTY.bits().cast_signed());
        let terminal = options.open(OsStr::from_bytes(name.to_bytes())).unwrap();
        let shell = with_signals("setsid")
            .args(["--ctty", "--wait", "sh", "-c", script])
            .env("C", env!("CARGO_BIN_EXE_conclave"))
            .env("CONCLAVE_SERVER", &server.address)
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal)
            .spawn()
            .unwrap();
        let keyboard = File::from(keyboard);
        let mut output = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error means that all processes have closed the terminal.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { keyboard, screen, seen: String::new(), shell }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this text is on the screen.
    fn see(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("{error}: no {text:?} on the screen: {:?}", self.seen),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Clean up even if the test has failed: without the terminal, the shell and its jobs end.
        drop(self.shell.kill());
        drop(self.shell.wait());
    }
}

#[test]
fn the_terminal_goes_to_a_command_that_reads_it_and_comes_back() {
    let server = Server::start();
    let script = "$C run x -- sh -c 'read line; echo got $line'; read line; echo and $line";
    let mut terminal = Terminal::start(&server, script);
    terminal.press("one\n");
    terminal.see("got one");
    terminal.press("two\n");
    terminal.see("and two");
}

#[test]
fn a_command_that_stops_itself_after_it_got_the_terminal_continues() {
    let server = Server::start();
    // Programs that read a password stop themselves in this way.
    let script = "$C run x -- sh -c 'read line; sh -c \"kill -STOP \\$\\$; echo went on\"; echo got $line'";
    let mut terminal = Terminal::start(&server, script);
    terminal.press("one\n");
    terminal.see("went on");
    terminal.see("got one");
}

#[test]
fn a_command_in_the_background_waits_for_the_terminal_and_reports_it_once() {
    let server = Server::start();
    let script = "set -m; $C run x -- sh -c 'read line; echo got $line' & read go; fg; echo over";
    let mut terminal = Terminal::start(&server, script);
    terminal.see("waits until it is in the foreground");
    terminal.press("go\n");
    terminal.press("one\n");
    terminal.see("got one");
    terminal.see("over");
    assert_eq!(terminal.seen.matches("conclave: ").count(), 1, "{:?}", terminal.seen);
}

#[test]
fn a_command_in_the_background_can_be_ended_while_it_waits_for_the_terminal() {
    let server = Server::start();
    let script = "set -m; $C run x -- cat & read go; kill $!; wait $!; echo ended by $?";
    let mut terminal = Terminal::start(&server, script);
    terminal.see("waits until it is in the foreground");
    terminal.press("go\n");
    terminal.see("ended by 143");
}

#[test]
fn the_terminal_stays_with_the_rest_of_a_pipeline() {
    let server = Server::start();
    let pipe = pipe(&server);
    let script = format!(
        "set -m; $C run x -- cat {pipe} | {{ read line < /dev/tty; echo got $line > {pipe}; cat; }}; echo over"
    );
    let mut terminal = Terminal::start(&server, &script);
    terminal.press("one\n");
    terminal.see("got one");
    terminal.see("over");
}

#[test]
fn a_command_that_has_the_terminal_is_not_suspended() {
    let server = Server::start();
    let script = "$C run x -- sh -c 'read line; echo got $line; read line; echo and $line'";
    let mut terminal = Terminal::start(&server, script);
    terminal.press("one\n");
    terminal.see("got one");
    terminal.press("\x1a");
    terminal.see("is not suspended");
    terminal.press("two\n");
    terminal.see("and two");
}

#[test]
fn run_is_not_suspended_while_it_holds_a_lock() {
    let server = Server::start();
    let pipe = pipe(&server);
    let mut terminal = Terminal::start(&server, &format!("$C run x -- sh -c 'echo up; cat {pipe}'"));
    terminal.see("up");
    terminal.press("\x1a");
    terminal.see("is not suspended");
    std::fs::write(pipe, "over\n").unwrap();
    terminal.see("over");
}

fn pipe(server: &Server) -> String {
    let pipe = server.data.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe.to_str().unwrap().to_owned()
}
