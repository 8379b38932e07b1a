//! The check of a `run` inside the command of another `run`: it must not wait for a name that the outer one holds until it ends.
//!
//! The outer `run` has its own session, so the service sees no deadlock. But its command has the names and the fence in the
//! environment: the holder of such a name with exactly that fence is the outer `run`.

use conclave_api::Claim;
use conclave_api::expr::{Leaf, Node};
use conclave_client::{Client, Code};

use super::hold::Asked;
use super::{DEADLOCK, failure};
use crate::output::Failure;

/// Refuses a request that would wait for ever. A request that has another way is not refused: an alternative, a shared claim, or a
/// permit of a semaphore.
pub async fn check(client: &Client, asked: &Asked<'_>) -> Result<(), Failure> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let Ok(fence) = variable("CONCLAVE_FENCE").parse::<u64>() else { return Ok(()) };
    // A name in quotes may look like several names. The fence decides.
    let held = format!(" {} ", variable("CONCLAVE_LOCKS"));
    let mut needed = Vec::new();
    if !asked.shared {
        collect_needed(asked.expr.node(), &mut needed);
    }
    for leaf in needed.into_iter().filter(|leaf| held.contains(&format!(" {} ", leaf.name))) {
        let report = client.why(leaf.name.as_str()).await.map_err(failure)?;
        if report.limit.is_none() && report.holders.iter().any(|holder| holder.fence == fence) {
            let message = format!(
                "{} is held by the `conclave run` around this one, which waits for this one; put all names into the outer one",
                leaf.name
            );
            return Err(Failure::new(DEADLOCK, Code::Deadlock.name(), message));
        }
    }
    Ok(())
}

/// Collects the names that every choice of the expression needs, and needs exclusively.
fn collect_needed<'a>(node: &'a Node, needed: &mut Vec<&'a Leaf>) {
    match node {
        Node::Name(leaf) if leaf.claim == Claim::Exclusive => needed.push(leaf),
        Node::All(members) => members.iter().for_each(|member| collect_needed(member, needed)),
        Node::Name(_) | Node::Any(_) | Node::AtLeast(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use conclave_client::Expr;

    use super::*;

    #[test]
    fn only_what_must_be_had_alone_is_certain_to_be_waited_for() {
        let needed = |text: &str| {
            let expr: Expr = text.parse().expect("it is one");
            let mut needed = Vec::new();
            collect_needed(expr.node(), &mut needed);
            needed.iter().map(|leaf| leaf.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(needed("a"), ["a"]);
        assert_eq!(needed("a & b:shared & (c | d) & e & pool*2"), ["a", "e"]);
        assert_eq!(needed("a | b"), Vec::<String>::new());
        assert_eq!(needed("1 of (a, b)"), Vec::<String>::new());
    }
}
