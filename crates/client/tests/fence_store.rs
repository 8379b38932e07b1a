//! Tests of the example store: a client that ignores its lost lock can write, unless the store checks fences.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../examples/fence_store/store.rs"]
mod store;

use conclave_client::{Fence, LeaseState};
use store::{Held, Stale, Store};

use crate::support::Service;

#[tokio::test]
async fn a_late_write_is_rejected_with_a_fence_and_accepted_without_one() {
    let service = Service::start().await;
    let (slow, quick) = (service.client().await, service.client().await);
    let late = slow.lock("report").await.unwrap();
    quick.admin().break_lock("report", "its holder hangs").await.unwrap();
    let guard = quick.lock("report").await.unwrap();

    let (mut naive, mut store) = (Vec::new(), Store::default());
    naive.push("quick");
    store.append("report", Held::Exclusive(guard.fence()), "quick").unwrap();
    // The slow client does not check its guard.
    naive.push("slow");
    let refused = store.append("report", Held::Exclusive(late.fence()), "slow");
    assert_eq!(refused, Err(Stale { shown: late.fence(), seen: guard.fence() }));
    assert!(refused.unwrap_err().to_string().contains("out of date"));

    assert_eq!(naive, ["quick", "slow"], "nothing stops it");
    assert_eq!(store.lines("report"), ["quick"]);
    // The guard would have shown the loss.
    late.lost().await;
    assert_eq!((late.state(), guard.state()), (LeaseState::Lost, LeaseState::Valid));
}

#[tokio::test]
async fn shared_holders_come_in_any_order_but_not_after_an_exclusive_one() {
    let service = Service::start().await;
    let (one, two) = (service.client().await, service.client().await);
    let mut store = Store::default();
    let first = one.lock("report:shared").await.unwrap();
    let second = two.lock("report:shared").await.unwrap();
    assert!(first.fence() < second.fence());
    store.append("report", Held::Shared(second.fence()), "second").unwrap();
    store.append("report", Held::Shared(first.fence()), "first").unwrap();
    let stale = first.fence();
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = one.lock("report").await.unwrap();
    store.append("report", Held::Exclusive(writer.fence()), "writer").unwrap();
    store.append("report", Held::Exclusive(writer.fence()), "writer again").unwrap();
    assert!(store.append("report", Held::Shared(stale), "first again").is_err());
    assert_eq!(store.lines("report"), ["second", "first", "writer", "writer again"]);
}

#[test]
fn an_exclusive_holder_is_late_if_a_shared_one_came_since() {
    let mut store = Store::default();
    store.append("a", Held::Exclusive(Fence(5)), "writer").unwrap();
    store.append("a", Held::Shared(Fence(8)), "reader").unwrap();
    assert_eq!(
        store.append("a", Held::Exclusive(Fence(5)), "late"),
        Err(Stale { shown: Fence(5), seen: Fence(8) })
    );
    store.append("b", Held::Exclusive(Fence(1)), "another item, another lock").unwrap();
    assert!(store.lines("c").is_empty());
}
