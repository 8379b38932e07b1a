//! Tests of the local node: `--local` starts it, and it ends by itself.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, getpgid, getsid, kill_process, kill_process_group, test_kill_process};
use serde_json::{Value, json};

use crate::service::support::{Running, conclave, new_path, until};

/// A folder for a local node. Dropping it kills the node and removes the folder.
struct Place {
    folder: PathBuf,
    idle: &'static str,
}

/// An idle time that is longer than any test.
const LONG: &str = "1h";
/// An idle time so short that a node ends between two commands.
const AT_ONCE: &str = "0s";

impl Place {
    fn new(idle: &'static str) -> Self {
        Self { folder: new_path(), idle }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = conclave();
        command.args(args).env("CONCLAVE_LOCAL_DIR", &self.folder).env("CONCLAVE_LOCAL_IDLE", self.idle);
        command.env("CONCLAVE_SERVER", "local").stdin(Stdio::null());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn text(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(args)).unwrap()
    }

    /// Checks that a command fails with this code, and that its message contains these parts.
    fn fails(&self, args: &[&str], code: i32, parts: &[&str]) {
        let output = self.output(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(parts.iter().all(|part| errors.contains(part)), "{args:?}: {errors}");
    }

    fn fence(&self, name: &str) -> u64 {
        let command = ["run", "--local", name, "--", "sh", "-c", "echo $CONCLAVE_FENCE"];
        self.text(&command).trim().parse().unwrap()
    }

    /// Holds a lock until [`Running::finish`].
    fn hold(&self, name: &str) -> Running {
        let command = ["run", "--local", name, "--", "sh", "-c", "echo held; read line"];
        let mut running = Running::start(&mut self.command(&command));
        assert_eq!(running.line(), "held\n");
        running
    }

    /// Returns the process of the node that started last.
    fn node(&self) -> Pid {
        let about = self.about();
        Pid::from_raw(about["process"].as_i64().unwrap().try_into().unwrap()).unwrap()
    }

    fn about(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.join("node.json")).unwrap()).unwrap()
    }

    /// Changes the version and the protocol in the node's description.
    fn forge(&self, version: &str, protocol: u8) {
        let mut about = self.about();
        about["version"] = json!(version);
        about["protocol"] = json!(protocol);
        fs::write(self.folder.join("node.json"), about.to_string()).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("node.log")).unwrap()
    }

    fn kill_node(&self) {
        let node = self.node();
        kill_process(node, Signal::KILL).unwrap();
        until("the node is gone", || has_ended(node).then_some(()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let about = fs::read(self.folder.join("node.json")).unwrap_or_default();
        let process =
            serde_json::from_slice::<Value>(&about).ok().and_then(|about| about["process"].as_i64());
        let process = process.and_then(|process| process.try_into().ok()).and_then(Pid::from_raw);
        // Do not kill another process that has got the same number.
        if let Some(process) = process.filter(|process| is_node(*process, &self.folder)) {
            _ = kill_process(process, Signal::KILL);
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn is_node(process: Pid, folder: &std::path::Path) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(&folder.display().to_string())
}

/// Returns whether a process has ended or is a zombie.
fn has_ended(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    stat.is_empty() || stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

#[test]
fn the_first_command_starts_a_node_that_outlives_it() {
    let place = Place::new(LONG);
    let first = place.fence("build");
    let node = place.node();
    test_kill_process(node).unwrap();
    assert_eq!((getpgid(Some(node)).unwrap(), getsid(Some(node)).unwrap()), (node, node));
    assert!(place.fence("build") > first);
    assert_eq!(place.node(), node, "one node serves both commands");
}

#[test]
fn every_command_takes_the_local_node_as_its_server() {
    let place = Place::new(LONG);
    place.text(&["put", "/x", "by variable"]);
    assert_eq!(place.text(&["get", "/x", "--server", "local"]), "by variable");
    place.text(&["limit", "--local", "pool", "3"]);
    let holder = place.hold("db");
    assert_eq!(place.json(&["why", "--local", "db", "--json"])["holders_total"], 1);
    let names = place.json(&["locks", "--json"]);
    assert_eq!(names.as_array().unwrap().len(), 2, "{names}");
    assert_eq!(place.json(&["sessions", "--json"]).as_array().unwrap().len(), 1);
    let status = place.json(&["cluster", "status", "--json"]);
    assert_eq!((&status["healthy"], &status["nodes"][0]["address"]), (&json!(true), &json!("local")));
    let backup = place.folder.with_extension("backup");
    let saved = place.text(&["cluster", "backup", backup.to_str().unwrap(), "--local"]);
    fs::remove_file(backup).unwrap();
    assert!(saved.contains("1 file"), "{saved}");
    place.text(&["bench", "--local", "--clients", "2", "--seconds", "0.1"]);
    place.text(&["break", "db", "--reason", "test"]);
    assert_eq!(holder.end().0, 76);
}

#[test]
fn sixteen_first_commands_start_one_node() {
    let place = Place::new(LONG);
    let fences: BTreeSet<u64> = thread::scope(|scope| {
        let commands: Vec<_> = (0..16).map(|_| scope.spawn(|| place.fence("x"))).collect();
        commands.into_iter().map(|command| command.join().unwrap()).collect()
    });
    assert_eq!(fences.len(), 16, "each had the lock by itself");
    assert_eq!(place.log().matches("serving as process").count(), 1, "{}", place.log());
}

#[test]
fn a_signal_from_the_terminal_does_not_reach_the_node() {
    let place = Place::new(LONG);
    let command = ["run", "--local", "x", "--", "sh", "-c", "echo held; read line"];
    let mut first = Running::start(place.command(&command).process_group(0));
    assert_eq!(first.line(), "held\n");
    let node = place.node();
    let group = Pid::from_raw(first.child.id().cast_signed()).unwrap();
    kill_process_group(group, Signal::INT).unwrap();
    assert_eq!(first.end().0, 130);
    assert_eq!(place.json(&["why", "x", "--json"])["holders_total"], 0);
    assert_eq!(place.node(), node);
}

#[test]
fn a_node_has_no_descriptor_of_the_command_that_starts_it() {
    let place = Place::new(LONG);
    let file = new_path();
    let script = format!("exec 7>{}; exec \"$@\"", file.display());
    let direct = place.command(&["run", "--local", "x", "--", "true"]);
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(direct.get_program()).args(direct.get_args());
    command.envs(direct.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert!(command.output().unwrap().status.success());
    let open = format!("/proc/{}/fd", place.node().as_raw_nonzero());
    // A descriptor may be closed while the folder is read. The node releases the lock of the starter just
    // after the start.
    until("the node has only descriptors of its own", || {
        let links = fs::read_dir(&open).unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let links: Vec<PathBuf> = links.collect();
        assert!(links.contains(&place.folder.join("lock")), "{links:?}");
        (!links.contains(&file) && !links.contains(&place.folder.join("starter"))).then_some(())
    });
    fs::remove_file(&file).unwrap();
}

#[test]
fn an_unused_node_ends_and_keeps_its_data() {
    let place = Place::new(AT_ONCE);
    place.text(&["put", "/x", "kept"]);
    let node = place.node();
    until("the node has ended", || has_ended(node).then_some(()));
    assert!(place.log().contains("ending: not in use"), "{}", place.log());
    assert_eq!(place.text(&["get", "/x"]), "kept");
    assert_ne!(place.node(), node);
}

#[test]
fn a_node_does_not_end_while_a_lock_is_held() {
    let place = Place::new(AT_ONCE);
    let holder = place.hold("x");
    let node = place.node();
    for _ in 0..20 {
        assert_eq!(place.json(&["why", "x", "--json"])["holders_total"], 1);
    }
    assert_eq!(place.node(), node);
    assert_eq!(holder.finish(), 0);
    until("the node has ended", || has_ended(node).then_some(()));
}

#[test]
fn a_client_that_meets_an_ending_node_starts_the_next_one() {
    let place = Place::new(AT_ONCE);
    thread::scope(|scope| {
        for client in 0..3 {
            let place = &place;
            scope.spawn(move || {
                for round in 0..15 {
                    let path = format!("/{client}-{round}");
                    place.text(&["put", &path, "x"]);
                    place.fence("x");
                }
            });
        }
    });
    until("nodes have ended between commands", || {
        place.fence("x");
        (place.log().matches("serving as process").count() > 3).then_some(())
    });
    assert_eq!(place.json(&["ls", "--json"]).as_array().unwrap().len(), 45, "nothing is lost");
}

#[test]
fn a_folder_that_is_locked_without_a_reachable_socket_is_an_error() {
    let place = Place::new(LONG);
    place.fence("x");
    let node = place.node();
    fs::remove_file(place.folder.join("socket")).unwrap();
    let (folder, process) = (place.folder.display().to_string(), node.as_raw_nonzero().to_string());
    place.fails(&["run", "--local", "x", "--", "true"], 69, &[&folder, &process, "end that process"]);
    assert_eq!(place.node(), node, "no other node has started");
    place.kill_node();
    place.fence("x");
}

#[test]
fn locks_survive_a_kill_of_the_node() {
    let place = Place::new(LONG);
    let before = place.fence("other");
    let holder = place.hold("x");
    place.kill_node();
    // The holder starts the next node, or this command does.
    assert_eq!(place.output(&["run", "--local", "--try", "x", "--", "true"]).status.code(), Some(75));
    assert_eq!(holder.finish(), 0);
    assert!(place.fence("x") > before);
}

#[test]
fn a_server_and_a_local_node_never_share_a_folder() {
    let place = Place::new(AT_ONCE);
    place.text(&["put", "/x", "kept"]);
    let mut serve = conclave();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&place.folder);
    let mut serve = Running::start(&mut serve);
    if !serve.line().is_empty() {
        // The server runs, which is the error that this test looks for. End it.
        serve.signal(Signal::TERM);
    }
    let (code, _, errors) = serve.end();
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("belongs to a local node") && errors.contains("--data"), "{errors}");
    assert_eq!(place.text(&["get", "/x"]), "kept");

    let other = Place { folder: new_path(), idle: LONG };
    let mut serve = conclave();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&other.folder);
    let mut serve = Running::start(&mut serve);
    serve.line();
    serve.signal(Signal::TERM);
    assert_eq!(serve.end().0, 0);
    other.fails(&["run", "--local", "x", "--", "true"], 69, &["belongs to `conclave serve`"]);
}

#[test]
fn a_newer_command_replaces_an_older_node_that_holds_nothing() {
    let place = Place::new(LONG);
    place.text(&["put", "/x", "kept"]);
    let node = place.node();
    place.forge("0.0.1", 1);
    assert_eq!(place.text(&["get", "/x"]), "kept");
    assert_ne!(place.node(), node);
    until("the older node has ended", || has_ended(node).then_some(()));
}

#[test]
fn an_older_node_that_holds_a_lock_is_used_if_it_speaks_the_protocol() {
    let place = Place::new(LONG);
    let holder = place.hold("x");
    let node = place.node();
    place.forge("0.0.1", 1);
    assert_eq!(place.json(&["why", "x", "--json"])["holders_total"], 1);
    assert_eq!(place.node(), node);
    place.forge("0.0.1", 0);
    place.fails(&["why", "x"], 69, &["older version 0.0.1", "try again"]);
    place.forge("999.0.0", 99);
    place.fails(&["why", "x"], 69, &["newer version 999.0.0", "use that version"]);
    place.forge("999.0.0", 1);
    assert_eq!(place.json(&["why", "x", "--json"])["holders_total"], 1, "a newer node is used");
    assert_eq!(holder.finish(), 0);
}

#[test]
fn a_folder_that_cannot_be_used_is_named_with_a_way_out() {
    let mut place = Place::new(LONG);
    let file = new_path();
    fs::write(&file, "").unwrap();
    place.folder = file.join("local");
    let folder = place.folder.display().to_string();
    place.fails(&["why", "--local", "x"], 69, &[&folder, "CONCLAVE_LOCAL_DIR"]);
    place.fails(&["cluster", "status"], 69, &[&folder, "CONCLAVE_LOCAL_DIR"]);
    fs::remove_file(file).unwrap();
    place.folder = "relative".into();
    place.fails(&["why", "--local", "x"], 2, &["CONCLAVE_LOCAL_DIR is not an absolute path"]);
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let place = Place::new(LONG);
    fs::create_dir(&place.folder).unwrap();
    fs::set_permissions(&place.folder, fs::Permissions::from_mode(0o777)).unwrap();
    place.fails(&["why", "x"], 69, &["other users may write", "chmod 700"]);
}

#[test]
fn the_local_node_is_named_alone() {
    let place = Place::new(LONG);
    place.fails(&["why", "x", "--server", "local,127.0.0.1:1"], 2, &["name `local` alone"]);
    place.fails(&["why", "x", "--local", "--server", "127.0.0.1:1"], 2, &["cannot be used with"]);
}

#[test]
fn an_error_without_a_server_names_both_ways_on() {
    let place = Place::new(LONG);
    let backup = new_path();
    let commands: [&[&str]; 6] = [
        &["run", "x", "--server", "127.0.0.1:1", "--", "true"],
        &["why", "x", "--server", "127.0.0.1:1"],
        &["get", "/x", "--server", "127.0.0.1:1"],
        &["watch", "x", "--server", "127.0.0.1:1"],
        &["cluster", "status", "--server", "127.0.0.1:1"],
        &["cluster", "backup", backup.to_str().unwrap(), "--server", "127.0.0.1:1"],
    ];
    for command in commands {
        place.fails(command, 69, &["conclave serve", "--local"]);
    }
}
