//! Mistakes in programs, which tests with the server in memory find. Each mistake stands beside the correct
//! program.

use std::cell::RefCell;

use conclave_client::testing::Server;
use conclave_client::{Client, Code, Create, Fence, Guard, Result};
use tokio::time::{sleep, timeout};

use super::{secs, soon};

/// The seeds that each test tries.
const SEEDS: std::ops::Range<u64> = 0..10;

/// Starts a server with two clients.
async fn two_clients(seed: u64) -> (Server, Client, Client) {
    let server = Server::start(seed);
    let (first, second) = (server.client().await.unwrap(), server.client().await.unwrap());
    (server, first, second)
}

/// The actions of two programs, in their order.
type Actions = RefCell<Vec<&'static str>>;

/// Returns whether the first program acted although the second had begun.
fn acted_too_late(actions: &Actions) -> bool {
    let actions = actions.borrow();
    assert!(actions.contains(&"first") && actions.contains(&"second"), "both act: {actions:?}");
    actions.iter().skip_while(|who| **who == "first").any(|who| *who == "first")
}

mod work_goes_on_after_the_loss {
    use super::*;

    async fn wrong(client: &Client, store: &Actions, who: &'static str) -> Result<()> {
        let _guard = client.lock("ledger").await?;
        write_lines(store, who).await;
        Ok(())
    }

    async fn right(client: &Client, store: &Actions, who: &'static str) -> Result<()> {
        let guard = client.lock("ledger").await?;
        tokio::select! {
            biased;
            _ = guard.lost() => {}
            () = write_lines(store, who) => {}
        }
        Ok(())
    }

    async fn write_lines(store: &Actions, who: &'static str) {
        for _ in 0..60 {
            store.borrow_mut().push(who);
            sleep(secs(1)).await;
        }
    }

    /// Cuts the first program off during its work; the second then gets the lock.
    async fn is_found(
        seed: u64,
        program: impl AsyncFn(&Client, &Actions, &'static str) -> Result<()>,
    ) -> bool {
        let ((server, first, second), store) = (two_clients(seed).await, Actions::default());
        let fault = async {
            sleep(secs(5)).await;
            server.cut_off(&first);
            program(&second, &store, "second").await.unwrap();
        };
        let (done, ()) = tokio::join!(program(&first, &store, "first"), fault);
        done.unwrap();
        acted_too_late(&store)
    }

    #[tokio::test(start_paused = true)]
    async fn the_mistake_is_found_and_its_correction_is_not() {
        for seed in SEEDS {
            assert!(soon(is_found(seed, wrong)).await, "seed {seed}");
            assert!(!soon(is_found(seed, right)).await, "seed {seed}");
        }
    }
}

mod a_fence_is_not_sent {
    use super::*;

    /// A store that rejects a fence smaller than the largest that it has seen.
    #[derive(Default)]
    struct Store {
        fence: Fence,
        content: &'static str,
    }

    impl Store {
        fn write(&mut self, fence: Option<Fence>, content: &'static str) {
            let fence = fence.unwrap_or(self.fence);
            if fence >= self.fence {
                (self.fence, self.content) = (fence, content);
            }
        }
    }

    fn wrong(_guard: &Guard) -> Option<Fence> {
        None
    }

    fn right(guard: &Guard) -> Option<Fence> {
        Some(guard.fence())
    }

    /// The first program has checked its guard, and is suspended before its write. The second writes
    /// meanwhile.
    async fn is_found(seed: u64, fence: fn(&Guard) -> Option<Fence>) -> bool {
        let ((server, first, second), mut store) = (two_clients(seed).await, Store::default());
        let late = first.lock("report").await.unwrap();
        server.cut_off(&first);
        server.lose_session(&first);
        let guard = second.lock("report").await.unwrap();
        store.write(fence(&guard), "second");
        store.write(fence(&late), "first");
        store.content != "second"
    }

    #[tokio::test(start_paused = true)]
    async fn the_mistake_is_found_and_its_correction_is_not() {
        for seed in SEEDS {
            assert!(soon(is_found(seed, wrong)).await, "seed {seed}");
            assert!(!soon(is_found(seed, right)).await, "seed {seed}");
        }
    }
}

mod a_retry_is_done_twice {
    use super::*;

    /// Creates a job again if the reply is late. Each attempt is a new request, and the service applies all
    /// of them.
    async fn wrong(client: &Client) -> Result<()> {
        let how = Create { sequential: true, ..Create::default() };
        loop {
            match timeout(secs(1), client.files().create("/jobs/job-", "pay", how)).await {
                Ok(created) => return created.map(drop),
                Err(_late) => {}
            }
        }
    }

    /// Chooses the name of the job before the first attempt: a second creation fails, and changes nothing.
    async fn right(client: &Client) -> Result<()> {
        loop {
            match timeout(secs(1), client.files().create("/jobs/invoice-17", "pay", Create::default())).await
            {
                Ok(Err(error)) if error.code == Code::FileExists => return Ok(()),
                Ok(created) => return created.map(drop),
                Err(_late) => {}
            }
        }
    }

    /// Delays the replies by up to three seconds.
    async fn is_found(seed: u64, program: impl AsyncFn(&Client) -> Result<()>) -> bool {
        let (server, client, other) = two_clients(seed).await;
        other.files().create("/jobs", "", Create::default()).await.unwrap();
        server.delay_replies(secs(0)..=secs(3));
        program(&client).await.unwrap();
        other.files().list("/jobs").await.unwrap().names.len() != 1
    }

    #[tokio::test(start_paused = true)]
    async fn some_seed_finds_the_mistake_and_none_finds_its_correction() {
        let mut found = 0;
        for seed in SEEDS {
            found += u32::from(soon(is_found(seed, wrong)).await);
            assert!(!soon(is_found(seed, right)).await, "seed {seed}");
        }
        assert!(found > 0);
    }
}

mod a_winner_acts_after_its_term {
    use super::*;

    async fn wrong(client: &Client, acts: &Actions, who: &'static str) -> Result<()> {
        let _term = client.elect("boss", who).await?;
        govern(acts, who).await;
        Ok(())
    }

    async fn right(client: &Client, acts: &Actions, who: &'static str) -> Result<()> {
        loop {
            let term = client.elect("boss", who).await?;
            tokio::select! {
                biased;
                _ = term.lost() => {}
                () = govern(acts, who) => {}
            }
        }
    }

    async fn govern(acts: &Actions, who: &'static str) {
        loop {
            acts.borrow_mut().push(who);
            sleep(secs(1)).await;
        }
    }

    /// Ends the session of the first leader; the second program is elected.
    async fn is_found(
        seed: u64,
        program: impl AsyncFn(&Client, &Actions, &'static str) -> Result<()>,
    ) -> bool {
        let ((server, first, second), acts) = (two_clients(seed).await, Actions::default());
        let fault = async {
            sleep(secs(5)).await;
            server.lose_session(&first);
        };
        let begin_second = async {
            sleep(secs(1)).await;
            program(&second, &acts, "second").await
        };
        let run = async { tokio::join!(program(&first, &acts, "first"), begin_second, fault) };
        assert!(timeout(secs(60), run).await.is_err(), "the programs run until they are stopped");
        acted_too_late(&acts)
    }

    #[tokio::test(start_paused = true)]
    async fn the_mistake_is_found_and_its_correction_is_not() {
        for seed in SEEDS {
            assert!(soon(is_found(seed, wrong)).await, "seed {seed}");
            assert!(!soon(is_found(seed, right)).await, "seed {seed}");
        }
    }
}
