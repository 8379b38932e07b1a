//! Tests of several nodes, each in its own process: joining, `kill -9` of the leader under load, and restart.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use conclave_client::{Client, LeaseState};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::watch;

use crate::service::support::{self, Running, Server, conclave};

/// Starts a cluster of three nodes and returns when all of them vote.
pub fn three() -> Vec<Server> {
    let first = Server::start();
    let second = Server::start_joining(&first);
    let third = Server::start_joining(&second);
    let nodes = vec![first, second, third];
    until(&nodes[0], |status| status["voters"] == 3 && status["healthy"] == true);
    nodes
}

/// Queries a node until `wanted` accepts the status of the cluster, and returns that status.
fn until(server: &Server, wanted: impl Fn(&Value) -> bool) -> Value {
    support::until("the cluster stands so", || {
        // Without a leader the command exits with an error, but still prints the status.
        let output = server.output(&["cluster", "status", "--json", "--within", "5s"]);
        serde_json::from_slice(&output.stdout).ok().filter(|status| wanted(status))
    })
}

/// The shared state of the clients of a test.
struct Load {
    servers: String,
    stop: AtomicBool,
    /// The fences of the name that all clients use, in the order in which it was held.
    fences: Mutex<Vec<u64>>,
    done: watch::Sender<u64>,
}

/// The final result of one client.
struct Account {
    writes: u64,
    kept_session: bool,
    kept_lock: bool,
}

/// Repeats: acquires the common name and counts in this client's file. Holds another name all the time.
async fn work(load: Arc<Load>, number: usize) -> Account {
    let client = Client::builder().ttl(Duration::from_secs(60)).connect(&load.servers).await.unwrap();
    let mine = client.lock(format!("mine/{number}")).await.unwrap();
    let session = client.session();
    let path = format!("/count-{number}");
    let mut writes = 0;
    while !load.stop.load(Ordering::Relaxed) {
        let guard = client.lock("hot").await.unwrap();
        load.fences.lock().unwrap().push(guard.fence().0);
        client.files().put(&path, (writes + 1_u64).to_string()).await.unwrap();
        writes += 1;
        guard.release().await.unwrap();
        load.done.send_modify(|done| *done += 1);
    }
    let account = Account {
        writes,
        kept_session: client.session() == session,
        kept_lock: mine.state() != LeaseState::Lost,
    };
    mine.release().await.unwrap();
    account
}

#[test]
fn three_nodes_lose_their_leader_under_load_and_nothing_else() {
    let mut nodes = three();
    let servers: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let load = Arc::new(Load {
        servers: servers.join(","),
        stop: AtomicBool::new(false),
        fences: Mutex::default(),
        done: watch::Sender::new(0),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let clients: Vec<_> = (0..4).map(|number| runtime.spawn(work(load.clone(), number))).collect();
    let mut done = load.done.subscribe();
    let mut progress = |more: u64| {
        let target = *done.borrow() + more;
        runtime.block_on(async { done.wait_for(|done| *done >= target).await.map(drop).unwrap() });
    };
    progress(100);

    let status = until(&nodes[0], |status| status["healthy"] == true);
    let leader = status["nodes"].as_array().unwrap().iter().find(|node| node["role"] == "leader").unwrap();
    let leader = nodes.iter().position(|node| leader["address"] == node.address.as_str()).unwrap();
    nodes[leader].kill();
    let killed = Instant::now();
    progress(1);
    println!("failover: the next lock was granted, used and released {:?} after the kill", killed.elapsed());
    progress(100);

    nodes[leader].start_again();
    let other = &nodes[(leader + 1) % 3];
    until(other, |status| status["voters_up"] == 3 && status["healthy"] == true);
    progress(50);
    load.stop.store(true, Ordering::Relaxed);
    let accounts: Vec<Account> =
        clients.into_iter().map(|client| runtime.block_on(client).unwrap()).collect();

    for (number, account) in accounts.iter().enumerate() {
        assert!(account.kept_session && account.kept_lock, "client {number} lost its session");
        for node in &nodes {
            let read = node.text(&["get", &format!("/count-{number}")]);
            assert_eq!(read, account.writes.to_string(), "client {number}, by {}", node.address);
        }
    }
    let fences = load.fences.lock().unwrap();
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
    let caught_up = |status: &Value| {
        status["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|node| node["behind"] == 0 && node["role"] != "learner")
    };
    until(&nodes[leader], caught_up);
    let text = nodes[leader].text(&["cluster", "status"]);
    assert!(text.contains("3 of 3 voters reply"), "{text}");
}

#[test]
fn a_cluster_without_a_majority_reports_that_and_serves_the_waiting_request_later() {
    let mut nodes = three();
    nodes[1].kill();
    nodes[2].kill();
    let status = until(&nodes[0], |status| status["voters_up"] == 1);
    assert_eq!(status["healthy"], false);
    assert_eq!(nodes[0].code(&["cluster", "status"]), 1);
    for path in ["/readyz", "/v1/locks"] {
        let (status, body) = nodes[0].http(path);
        assert_eq!((status, &body["error"]["code"]), (503, &"no-quorum".into()), "{path}: {body}");
    }
    let asked = nodes[0].spawn(&["put", "/greeting", "hello"]);
    nodes[1].start_again();
    let (code, _, errors) = asked.end();
    assert_eq!(code, 0, "{errors}");
    assert_eq!(nodes[1].text(&["get", "/greeting"]), "hello");
}

#[test]
fn a_node_comes_back_at_another_address_and_is_found_there() {
    let mut nodes = three();
    nodes[2].kill();
    let serve = |node: &Server, flags: &[&str]| {
        let mut command = conclave();
        command.args(["serve", "--data"]).arg(&node.data).args(flags).output().unwrap()
    };
    let stranger = Server::start();
    let refused = serve(&nodes[2], &["--listen", "127.0.0.1:0", "--join", &stranger.address]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("refuses") && text.contains("of cluster"), "{text}");

    // A new folder is a new node, which cannot have the address of another node.
    let own_address = nodes[1].address.clone();
    let folder = std::env::temp_dir().join(format!("conclave-cli-none-{}", std::process::id()));
    let taken = conclave()
        .args(["serve", "--listen", "127.0.0.1:0", "--advertise", &own_address, "--join", &nodes[0].address])
        .arg("--data")
        .arg(&folder)
        .output()
        .unwrap();
    drop(std::fs::remove_dir_all(&folder));
    assert_eq!(taken.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&taken.stderr).contains("its own data folder"), "{taken:?}");

    let hint = nodes[0].address.clone();
    nodes[2].move_elsewhere(&hint);
    let address = nodes[2].address.clone();
    until(&nodes[0], |status| {
        let third = status["nodes"].as_array().and_then(|nodes| nodes.iter().find(|node| node["node"] == 3));
        third.is_some_and(|third| third["address"] == address.as_str() && third["up"] == true)
    });
    nodes[2].text(&["put", "/from-the-third", "yes"]);
    assert_eq!(nodes[1].text(&["get", "/from-the-third"]), "yes");
}

#[test]
fn any_node_that_answers_reports_the_state_of_the_cluster() {
    let server = Server::start();
    let (_listener, silent) = support::silent_server();
    let servers = format!("{silent},127.0.0.1:1,{}", server.address);
    let status = server.json(&["cluster", "status", "--json", "--server", &servers]);
    assert_eq!(status["voters_up"], 1, "{status}");
    let nobody = server.output(&["cluster", "status", "--within", "100ms", "--server", &silent]);
    assert_eq!(nobody.status.code(), Some(69));
}

#[test]
fn a_watch_leaves_a_node_that_has_fallen_silent() {
    let nodes = three();
    let servers: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let mut command = conclave();
    // The command is connected to the first server of the list.
    let mut watch = Running::start(command.args(["watch", "/config", "--server", &servers.join(",")]));
    assert!(watch.line().ends_with("watching\n"));
    nodes[0].signal(Signal::STOP);
    let put = || (nodes[1].code(&["put", "/config", "blue"]) == 0).then_some(());
    support::until("the others go on", put);
    let told = watch.line();
    assert!(told.contains("created") || told.contains("resync"), "{told}");
    watch.signal(Signal::INT);
    assert_eq!(watch.end().0, 130);
    nodes[0].signal(Signal::CONT);
}
