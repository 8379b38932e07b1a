//! Tests of errors, for people and for scripts: one line, or one JSON object, and the right exit code.

use std::collections::BTreeSet;
use std::fs::File;

use serde_json::Value;

use crate::service::support::{Server, conclave, new_path};

#[test]
fn a_command_fails_if_its_output_cannot_be_written() {
    let server = Server::start();
    server.text(&["put", "-p", "/jobs/a", "x"]);
    let holder = server.hold(&["x"]);
    let commands: [&[&str]; 12] = [
        &["get", "/jobs/a"],
        &["get", "/jobs/a", "--json"],
        &["ls"],
        &["put", "--sequential", "/jobs/job-", "x"],
        &["locks"],
        &["why", "x"],
        &["sessions"],
        &["cluster", "status"],
        &["watch", "x", "-n", "1"],
        &["elect", "scheduler"],
        &["completions", "bash"],
        &["run", "--help"],
    ];
    for command in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = server.command(command).stdout(full).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(74), "{command:?}: {errors}");
        assert!(errors.contains("standard output: "), "{command:?}: {errors}");
    }
    assert_eq!(server.json(&["why", "scheduler", "--json"])["holders_total"], 0, "it has resigned");
    assert_eq!(holder.finish(), 0);
}

#[test]
fn with_json_errors_are_json_too() {
    let server = Server::start();
    let error = |args: &[&str]| -> (String, bool) {
        let output = server.output(args);
        assert_eq!(output.stdout, b"");
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        let fields: BTreeSet<&str> = error["error"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, BTreeSet::from(["advice", "code", "definite", "exit", "message"]), "{error}");
        assert_eq!(error["error"]["exit"].as_i64(), output.status.code().map(i64::from));
        let [code, message, advice] =
            ["code", "message", "advice"].map(|field| error["error"][field].as_str().unwrap().to_owned());
        assert!(!message.is_empty() && !advice.is_empty() && !message.contains(&advice), "{error}");
        (code, error["error"]["definite"].as_bool().unwrap())
    };
    for (args, code) in [
        (&["get", "/none", "--json"][..], "no-such-file"),
        (&["get", "/none/", "--json"], "invalid-name"),
        (&["break", "none", "--reason", "x", "--json"], "not-held"),
        (&["why", "x", "--json", "--server", "127.0.0.1:1"], "unreachable"),
        (&["limit", "x", "--json", "many"], "usage"),
        (&["watch", "--json"], "usage"),
    ] {
        assert_eq!(error(args), (code.to_owned(), true), "{args:?}");
    }
    let output = server.output(&["run", "x", "--", "/no/such/command", "--json"]);
    assert!(output.stderr.starts_with(b"conclave: "), "that flag is the command's");
}

#[test]
fn a_result_that_cannot_be_printed_as_json_is_an_indefinite_error() {
    let server = Server::start();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = server.command(&["put", "/x", "y", "--json"]).stdout(full).output().unwrap();
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (&error["error"]["code"], &error["error"]["definite"]),
        (&"not-written".into(), &false.into())
    );
    assert_eq!(server.text(&["get", "/x"]), "y", "the file was written");
}

#[test]
fn an_error_of_usage_gives_advice() {
    let server = Server::start();
    server.text(&["put", "-p", "/jobs/a", "x"]);
    let says = |args: &[&str], code: i32, wanted: &str| {
        let output = server.output(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
        assert!(errors.starts_with("conclave: ") && errors.contains(wanted), "{args:?}: {errors}");
    };
    says(&["get", "/none"], 1, "/none does not exist; create it, or check the path");
    says(&["run", "a", "echo"], 2, "put -- before the command");
    says(&["run", "--ttl", "-1s", "a", "--", "true"], 2, "at least 0");
    says(&["limit", "x", "-1"], 2, "0..=");
    says(&["sessions", "edn"], 2, "did you mean end?");
    says(&["cluster", "statsu"], 2, "did you mean status?");
    says(&["why", "x", "--server", ""], 2, "expected HOST[:PORT]");
    says(&["why", "x", "--server", "https://a"], 2, "write HOST:PORT");
    says(&["why", "x", "--server", "127.0.0.1,a:b"], 2, "`a:b` is not an address");
    says(&["cluster", "status", "--server", "127.0.0.1:1,"], 69, "127.0.0.1:1");
    says(&["rm", "/jobs"], 1, "rm -r");
    says(&["rm", "-r", "/"], 2, "cannot be removed");
    says(&["put", "-p", "/new/dir/", "x"], 2, "not a path");
    says(&["break", "none", "--reason", "x"], 1, "look for a mistake in the name with `conclave locks`");
    says(&["sessions", "end", "999999"], 1, "`conclave sessions` lists the sessions");
    says(&["limit", "x*2", "3"], 2, "in double quotes: '\"x*2\"'");
    says(&["elect", "a&b", "--", "true"], 2, "one name");
    says(&["run", "--ttl", "1ms", "a", "--", "true"], 2, "the TTL of a lease");
    says(&["why", "x", "--server", "ftp://a"], 2, "the scheme must be http");
    says(&["why", "x", "--server", "unix:/tmp/x"], 2, "by its port");
    says(&["serve", "--listen", "abc"], 2, "such as 127.0.0.1:7411");
    says(&["serve", "--restore", "/no/file", "--data", "/no/folder"], 2, "check the path");
    says(&["serve", "--restore", "/no/file"], 2, "--restore /no/file: No such file");
    says(&["serve", "--config", "/no/file"], 2, "--config /no/file: No such file");
    says(&["serve", "--join", "a b"], 2, "--join: `a b` is not an address");
    says(&["serve", "--data", "/proc/nope/data"], 1, "--data /proc/nope/data: cannot open the data folder");
    let file = new_path();
    let config = file.to_str().unwrap();
    for (text, problem) in
        [("lsten = 1", ", line 1: "), ("join = [\"a b\"]", ": join: `a b` is not an address")]
    {
        std::fs::write(&file, text).unwrap();
        says(&["serve", "--config", config], 2, &format!("--config {config}{problem}"));
    }
    std::fs::write(&file, "no backup").unwrap();
    let data = new_path();
    let restore = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap(), "--restore", config];
    says(&restore, 1, &format!("--restore {config}: "));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(server.text(&["limit", "/q", "3"]), "made the semaphore q with 3 permits\n");
    assert_eq!(server.text(&["limit", "\"x*2\"", "3"]), "made the semaphore \"x*2\" with 3 permits\n");
    assert_eq!(server.text(&["ls"]), "jobs\n", "nothing was made for it");
    assert_eq!(server.text(&["ls", "/jobs/"]), "a\n");
    server.text(&["put", "/x", "-5"]);
    assert_eq!(server.text(&["get", "/x"]), "-5");
}

#[test]
fn a_server_is_found_in_every_form_of_its_address() {
    let server = Server::start();
    for form in [format!("http://{}/", server.address), format!("127.0.0.1:1,tcp:http://{}", server.address)]
    {
        let listed = conclave().arg("ls").env("CONCLAVE_SERVER", &form).status().unwrap();
        assert!(listed.success(), "{form}");
        assert_eq!(server.code(&["ls", "--server", &form]), 0, "{form}");
        assert_eq!(server.code(&["cluster", "status", "--server", &form]), 0, "{form}");
        let file = server.data.join(form.replace(['/', ':', ','], "-"));
        let file = file.to_str().unwrap();
        assert_eq!(server.code(&["cluster", "backup", file, "--server", &form]), 0, "{form}");
    }
}

#[test]
fn without_a_server_option_the_default_address_is_used() {
    let mut command = conclave();
    let help = command.args(["why", "--help"]).env("CONCLAVE_SERVER", "").output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("[env: CONCLAVE_SERVER]"));
    let mut command = conclave();
    let asked = command.args(["why", "x"]).env("CONCLAVE_SERVER", "").output().unwrap();
    let errors = String::from_utf8(asked.stderr).unwrap();
    // A server may run on this machine; then the command reaches it, whatever it replies.
    let is_served = std::net::TcpStream::connect("127.0.0.1:7411").is_ok();
    assert!(is_served || errors.contains("127.0.0.1:7411"), "{errors}");
    for args in [&["why", "x"][..], &["run", "x", "--", "true"], &["cluster", "status"]] {
        let asked = conclave().args(args).env("CONCLAVE_SERVER", " , ").output().unwrap();
        let errors = String::from_utf8(asked.stderr).unwrap();
        assert_eq!(asked.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains("CONCLAVE_SERVER: expected HOST[:PORT]"), "{args:?}: {errors}");
    }
}
