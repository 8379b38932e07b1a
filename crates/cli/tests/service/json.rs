//! The fields and values of every report in JSON: `--json` of the commands, and the same data over HTTP.
//!
//! The expected texts are in `json/`. `CONCLAVE_REWRITE=1` writes the present output into these files.
//! Numbers that differ from run to run are replaced by `N`, and the fields of each object are sorted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use conclave_client::{Client, Create, VictimPolicy};
use serde_json::Value;

use crate::service::support::Server;

/// The fields whose digits differ from run to run.
const VOLATILE: [&str; 15] = [
    "session",
    "owner",
    "fence",
    "since_ms",
    "at_ms",
    "index",
    "waiter",
    "holder",
    "waits_for",
    "victim",
    "address",
    "applied",
    "last",
    "matched",
    "ephemeral",
];

/// The output of commands and paths, as in `json/`.
struct Transcript<'a> {
    server: &'a Server,
    text: String,
}

impl Transcript<'_> {
    fn command(&mut self, args: &[&str]) {
        let printed = self.server.text(&[args, &["--json"]].concat());
        self.add(&format!("conclave {} --json", args.join(" ")), &printed);
    }

    fn path(&mut self, path: &str) {
        let (status, body) = self.server.http_text(path);
        assert_eq!(status, 200, "{path}: {body}");
        self.add(&format!("GET {path}"), &body);
    }

    fn add(&mut self, title: &str, printed: &str) {
        // Writing to a string cannot fail.
        _ = writeln!(self.text, "$ {title}");
        let values = serde_json::Deserializer::from_str(printed).into_iter::<Value>();
        for value in values.map(Result::unwrap) {
            // A watch reports the fence as the number of the change.
            let has_fence = value["change"] == "taken";
            let mut is_volatile = false;
            for line in format!("{:#}", sorted(value)).lines() {
                // The lines of an array belong to the field before them.
                if let Some((field, _)) =
                    line.trim_start().strip_prefix('"').and_then(|rest| rest.split_once("\":"))
                {
                    is_volatile = VOLATILE.contains(&field) || (has_fence && field == "number");
                }
                _ = writeln!(self.text, "{}", if is_volatile { masked(line) } else { line.to_owned() });
            }
        }
    }
}

/// Returns the value with the fields of each object in order. Their order in the output depends on features
/// of `serde_json`.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> = fields.into_iter().collect();
            fields.into_iter().map(|(name, value)| (name, sorted(value))).collect()
        }
        other => other,
    }
}

/// Replaces each run of digits by `N`.
fn masked(line: &str) -> String {
    let mut out = String::new();
    for c in line.chars() {
        match c.is_ascii_digit() {
            false => out.push(c),
            true if out.ends_with('N') => {}
            true => out.push('N'),
        }
    }
    out
}

#[test]
fn every_report_keeps_its_json() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seen = runtime.block_on(fill(&server));
    let mut transcript = Transcript { server: &server, text: String::new() };
    for args in [
        &["locks"][..],
        &["locks", "team/"],
        &["sessions"],
        &["why", "x"],
        &["why", "team/pool"],
        &["why", "y & nothing"],
        &["why", "boss"],
        &["why", "broken"],
        &["why", "ended"],
        &["why", "left"],
        &["get", "/config"],
        &["get", "/bytes"],
        &["get", "/mine"],
        &["ls", "/"],
        &["put", "/config", "green", "--expect", "1"],
        &["rm", "/config"],
        &["limit", "team/pool", "4"],
        &["break", "boss", "--reason", "test"],
        &["cluster", "status"],
    ] {
        transcript.command(args);
    }
    for path in ["/v1/locks?limit=1", "/v1/sessions", "/v1/why/x", "/v1/why/y%20%26%20nothing", "/v1/cluster"]
    {
        transcript.path(path);
    }
    drop(seen);
    let cluster = server.json(&["cluster", "status", "--json"])["cluster"].as_str().unwrap().to_owned();
    let version = format!("\"{}\"", env!("CARGO_PKG_VERSION"));
    compare("reports.txt", &transcript.text.replace(&cluster, "CLUSTER").replace(&version, "\"VERSION\""));
}

/// Creates at least one case of each report. The client and the guards keep them until they are dropped.
async fn fill(server: &Server) -> impl Sized {
    let client = Client::builder().label("golden").connect(&server.address).await.unwrap();
    client.admin().limit("team/pool", 3).await.unwrap();
    let holder = client.owner("holder").unwrap();
    let held = holder.lock("x & team/pool*2 & \"with space\"").await.unwrap();
    let shared = client.lock("y:shared").await.unwrap();
    let waiter = client.owner("waiter").unwrap();
    let mut waiting = waiter.lock("x & y:shared & \"with space\"").priority(3).start().unwrap();
    waiting.queued().await.unwrap();
    let leader = client.elect("boss", vec![b'a', 0xff, b'"']).await.unwrap();
    let broken = client.lock("broken").await.unwrap();
    client.admin().break_lock("broken", "stuck since noon").await.unwrap();
    let [p, q] = ["p", "q"].map(|label| client.owner(label).unwrap());
    let (first, second) = (p.lock("ended").await.unwrap(), q.lock("left").await.unwrap());
    let mut stands = p.lock("left").start().unwrap();
    stands.queued().await.unwrap();
    q.lock("ended").await.unwrap_err();
    let mut closes = q.lock("ended").on_deadlock(VictimPolicy::None).start().unwrap();
    closes.queued().await.unwrap();
    let files = client.files();
    files.put("/config", "blue").await.unwrap();
    files.put("/bytes", vec![0xff, 1]).await.unwrap();
    let ephemeral = Create { ephemeral: true, ..Default::default() };
    files.create("/mine", "", ephemeral).await.unwrap();
    (held, shared, waiting, leader, broken, first, second, stands, closes)
}

#[test]
fn every_change_keeps_its_json() {
    let server = Server::start();
    let mut transcript = Transcript { server: &server, text: String::new() };
    let mut watch = server.spawn(&["watch", "/f", "-n", "3", "--json"]);
    let begun = watch.line();
    for args in [&["put", "/f", "a"][..], &["put", "/f", "b"], &["rm", "/f"]] {
        server.text(args);
    }
    transcript.add("conclave watch /f --json", &(begun + &watch.end().1));
    let mut watch = server.spawn(&["watch", "pool", "-n", "3", "--json"]);
    let begun = watch.line();
    server.text(&["limit", "pool", "3"]);
    server.text(&["run", "pool", "--", "true"]);
    transcript.add("conclave watch pool --json", &(begun + &watch.end().1));
    compare("changes.txt", &transcript.text);
}

/// Compares the text with a file, or rewrites the file.
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/json").join(name);
    if std::env::var_os("CONCLAVE_REWRITE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let differing = text.lines().zip(expected.lines()).find(|(now, expected)| now != expected);
    assert_eq!(differing, None, "{name} differs: look at it, then set CONCLAVE_REWRITE=1 to accept");
    assert_eq!(text.len(), expected.len(), "{name} differs in length: CONCLAVE_REWRITE=1 accepts");
}
