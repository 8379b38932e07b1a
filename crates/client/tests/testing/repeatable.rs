//! A seed means the same run.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use conclave_client::testing::Server;
use conclave_client::{Client, Fence, LeaseState};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::secs;

/// The number of tasks that wait for one loss: more than tokio wakes in one batch.
const WAITERS: usize = 100;

/// A grant: its client, the time since the start, and the fence.
type Grant = (usize, Duration, Fence);

/// Lets four clients use three locks during many faults. Returns all grants.
fn run(seed: u64) -> Vec<Grant> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (server, began, grants) = (Server::start(seed), Instant::now(), RefCell::default());
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(server.client().await.unwrap());
        }
        server.delay_replies(secs(0)..=Duration::from_millis(20));
        let faults = async {
            for round in 0..5 {
                sleep(secs(20)).await;
                server.drop_connections();
                server.change_leader();
                sleep(secs(20)).await;
                server.cut_off(&clients[round % 4]);
                server.pause_for(secs(12));
                sleep(secs(20)).await;
                server.reconnect(&clients[round % 4]);
                server.power_cut();
            }
        };
        let work = async |number: usize| use_locks(number, &clients[number], began, &grants).await;
        tokio::select! {
            biased;
            () = faults => {}
            _ = async { tokio::join!(work(0), work(1), work(2), work(3)) } => {}
        }
        grants.into_inner()
    })
}

/// Acquires one of three locks again and again. Some guards are dropped.
async fn use_locks(number: usize, client: &Client, began: Instant, grants: &RefCell<Vec<Grant>>) {
    for round in 0_u64.. {
        let Ok(guard) = client.lock(["x", "y", "x & z"][(number + round as usize) % 3]).await else {
            sleep(secs(1)).await;
            continue;
        };
        grants.borrow_mut().push((number, began.elapsed(), guard.fence()));
        sleep(Duration::from_millis(700 * (1 + round % 3))).await;
        if round % 2 == 0 {
            // An error means that the guard was lost before.
            drop(guard.release().await);
        }
    }
}

/// Lets many tasks wait for one loss in three ways. Returns the order in which they go on.
fn order_of_waiters(seed: u64) -> Vec<usize> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let server = Server::start(seed);
        let client = server.client().await.unwrap();
        let guard = Arc::new(client.lock("x").await.unwrap());
        let (woken, mut order) = mpsc::unbounded_channel();
        for number in 0..WAITERS {
            let (guard, woken) = (guard.clone(), woken.clone());
            tokio::spawn(async move {
                match number % 3 {
                    0 => drop(guard.lost().await),
                    1 => drop(guard.changed(LeaseState::Valid).await),
                    _ => drop(guard.run(std::future::pending::<()>()).await),
                }
                woken.send(number).unwrap();
            });
        }
        // All tasks wait before the fault.
        sleep(secs(1)).await;
        server.lose_session(&client);
        drop(woken);
        let mut numbers = Vec::new();
        while let Some(number) = order.recv().await {
            numbers.push(number);
        }
        numbers
    })
}

#[test]
fn tasks_that_wait_for_one_loss_go_on_in_the_order_in_which_they_began_to_wait() {
    for seed in 0..3 {
        let order = order_of_waiters(seed);
        assert_eq!(order, (0..WAITERS).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(order, order_of_waiters(seed), "seed {seed}");
    }
}

#[test]
fn a_seed_means_the_same_grants_at_the_same_times() {
    for seed in 0..5 {
        let first = run(seed);
        assert!(first.len() > 50, "seed {seed}: {} grants", first.len());
        let second = run(seed);
        let difference = first.iter().zip(&second).find(|(one, other)| one != other);
        assert_eq!(first, second, "seed {seed}: {difference:?}");
    }
    assert_ne!(run(1), run(2));
}
