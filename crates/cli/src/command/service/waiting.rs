//! The messages on standard error while a command waits for a lock. The first comes soon, the later ones
//! rarely.

use std::convert::Infallible;
use std::time::Duration;

use conclave_client::{Blocker, Client, Expr, QueuePosition};
use tokio::time::{Instant, sleep_until, timeout};

use super::hold::RequestedLock;
use super::{ago, terminal};

/// The time until the first message. A request that is granted earlier prints nothing.
const FIRST_AFTER: Duration = Duration::from_secs(1);
/// The longest wait for the server's replies to one message. The message then says that the server does not
/// reply.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// The most names of an expression that one message looks up. Further names are omitted.
const MAX_NAMES: usize = 4;

/// Prints messages until the caller drops the future. `place` is the place in the queue at the time of the
/// request.
pub async fn report(client: &Client, requested: &RequestedLock<'_>, place: &QueuePosition) -> Infallible {
    let began = Instant::now();
    let expr = requested.text;
    sleep_until(began + FIRST_AFTER).await;
    print(&format!("waiting for {expr}: {}", describe(&place.holders, place.ahead)));
    for after in later() {
        sleep_until(began + after).await;
        let place = timeout(ANSWERS_WITHIN, look_up(client, requested.expr)).await.ok().flatten();
        let place = place
            .map_or("the server does not answer".to_owned(), |(holders, ahead)| describe(&holders, ahead));
        print(&format!("waiting for {expr} for {}: {place}", minutes(after)));
    }
    // Not reached: the times never end.
    std::future::pending().await
}

/// Returns the times of the later messages, from the request: after 1 and 5 minutes, then every 15 minutes.
fn later() -> impl Iterator<Item = Duration> {
    [1, 5]
        .into_iter()
        .chain((1..).map(|quarters| quarters * 15))
        .map(|minutes: u64| Duration::from_secs(minutes * 60))
}

fn minutes(time: Duration) -> String {
    format!("{} min", time.as_secs() / 60)
}

/// Returns the holders of the first names of an expression, and the number of requests before that of this
/// session.
async fn look_up(client: &Client, expr: &Expr) -> Option<(Vec<Blocker>, u64)> {
    let session = client.session()?;
    let (mut holders, mut ahead) = (Vec::new(), 0);
    for leaf in expr.leaves().into_iter().take(MAX_NAMES) {
        let report = client.why(leaf.name.as_str()).await.ok()?;
        let place = report.waiters.iter().position(|waiter| waiter.session == session);
        // A request that is not in the list is behind all listed ones.
        ahead = ahead.max(place.unwrap_or(report.waiters.len()) as u64);
        holders
            .extend(report.holders.into_iter().take(1).map(|holder| Blocker::new(leaf.name.clone(), holder)));
    }
    Some((holders, ahead))
}

fn describe(holders: &[Blocker], ahead: u64) -> String {
    let held = holders.iter().map(|Blocker { name, holder, .. }| {
        format!("{} is held by {} since {}", name.as_str(), holder.owner, ago(holder.since_ms))
    });
    let ahead = (ahead > 0).then(|| format!("{ahead} ahead"));
    let parts: Vec<String> = held.chain(ahead).collect();
    if parts.is_empty() { "it is next".to_owned() } else { parts.join(", ") }
}

/// Prints a message from another thread: a blocked standard error must not stop the keep-alives of this
/// process.
fn print(message: &str) {
    terminal::print(message.to_owned());
}

#[cfg(test)]
mod tests {
    use conclave_client::{Holder, LockName};

    use super::*;

    #[test]
    fn the_messages_become_rare() {
        let minutes: Vec<u64> = later().take(5).map(|time| time.as_secs() / 60).collect();
        assert_eq!(minutes, [1, 5, 15, 30, 45]);
    }

    #[test]
    fn a_message_names_the_holders_and_the_place_in_the_queue() {
        let mut holder = Holder::default();
        holder.owner = "host:7 make of session 3".into();
        let text = describe(&[Blocker::new(LockName::new("db").unwrap(), holder)], 2);
        assert!(text.starts_with("db is held by host:7 make of session 3 since "), "{text}");
        assert!(text.ends_with(", 2 ahead"), "{text}");
        assert_eq!(describe(&[], 0), "it is next");
    }
}
