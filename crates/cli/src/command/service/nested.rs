//! The check that a request does not wait for a lock whose holder waits for this request.
//!
//! **Intuition.** Two kinds of such locks are known: that of a `conclave run` around this process, and those
//! of `conclave lock` in the same shell. Each has its own session, so the service detects no deadlock. Their
//! names and fences are known from the environment, or from the lock holders of the shell. A holder of such a
//! name with the same fence is the outer lock.

use conclave_client::{Client, Code, LockName};
use conclave_core::expr::{Leaf, Node};
use conclave_core::{Claim, Wait};

use super::hold::RequestedLock;
use super::{DEADLOCK, failure, lock};
use crate::output::Failure;

/// Refuses a request that would wait for ever. It does not refuse a request that may succeed in another way:
/// by an alternative, or by a permit of a semaphore.
pub async fn check(client: &Client, requested: &RequestedLock<'_>, wait: Wait) -> Result<(), Failure> {
    let outer = outer(requested, wait);
    if outer.is_empty() {
        return Ok(());
    }
    let mut needed = Vec::new();
    collect_needed(requested.expr.node(), &mut needed);
    for leaf in needed {
        let name = leaf.name.as_str();
        let known: Vec<&Outer> = outer.iter().filter(|outer| outer.may_hold(leaf)).collect();
        if known.is_empty() {
            continue;
        }
        let report = client.why(name).await.map_err(failure)?;
        let is_shared = requested.shared || leaf.claim == Claim::Shared;
        for holder in report.holders.iter().filter(|_| report.limit.is_none()) {
            let is_compatible = is_shared && holder.claim == Claim::Shared;
            if let Some(outer) = known.iter().find(|outer| outer.fence == holder.fence.0 && !is_compatible) {
                return Err(outer.refuse(leaf));
            }
        }
    }
    Ok(())
}

/// A lock that stays held until this process has ended.
struct Outer {
    /// The held names, with a space before and after each.
    names: String,
    fence: u64,
    /// `true` if the lock is one of `conclave lock`.
    is_of_shell: bool,
}

impl Outer {
    /// Returns whether the name is among the held names. A quoted name may look like several names; the fence
    /// then decides.
    fn may_hold(&self, leaf: &Leaf) -> bool {
        self.names.contains(&format!(" {} ", leaf.name))
    }

    fn refuse(&self, leaf: &Leaf) -> Failure {
        let name = &leaf.name;
        let message = if self.is_of_shell {
            format!(
                "{name} is held by this shell (`conclave lock`), so this request would wait for ever; unlock it first"
            )
        } else {
            format!(
                "{name} is held by the `conclave run` around this one, which waits for this one; put all names into the outer one"
            )
        };
        Failure::new(DEADLOCK, Code::Deadlock.name(), message)
    }
}

/// Returns the outer locks of a request that waits. A request with a limit is refused only for a lock of its
/// own shell.
fn outer(requested: &RequestedLock<'_>, wait: Wait) -> Vec<Outer> {
    if wait == Wait::Try {
        return Vec::new();
    }
    let around = if wait == Wait::Forever { around() } else { None };
    let of_shell = requested.shell.into_iter().flat_map(|shell| lock::sockets(Some(shell)));
    // Skip a holder that does not reply; the request then goes to the service.
    let of_shell = of_shell.filter_map(|socket| lock::status(&socket).ok().flatten()).flat_map(|status| {
        let outer = |(name, fence): (String, u64)| {
            let name = LockName::new(&name).map_or(name, |name| name.to_string());
            Outer { names: format!(" {name} "), fence, is_of_shell: true }
        };
        status.names.into_iter().map(outer)
    });
    around.into_iter().chain(of_shell).collect()
}

/// Returns the lock of the `conclave run` around this process.
fn around() -> Option<Outer> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let fence = variable("CONCLAVE_FENCE").parse().ok()?;
    Some(Outer { names: format!(" {} ", variable("CONCLAVE_LOCKS")), fence, is_of_shell: false })
}

/// Collects the names that every alternative of the expression needs.
fn collect_needed<'a>(node: &'a Node, needed: &mut Vec<&'a Leaf>) {
    match node {
        Node::Name(leaf) if matches!(leaf.claim, Claim::Exclusive | Claim::Shared) => needed.push(leaf),
        Node::All(members) => members.iter().for_each(|member| collect_needed(member, needed)),
        Node::Name(_) | Node::Any(_) | Node::AtLeast(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use conclave_client::Expr;

    use super::*;

    #[test]
    fn only_names_that_every_choice_needs_are_certain_to_be_waited_for() {
        let needed = |text: &str| {
            let expr: Expr = text.parse().expect("it is one");
            let mut needed = Vec::new();
            collect_needed(expr.node(), &mut needed);
            needed.iter().map(|leaf| leaf.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(needed("a"), ["a"]);
        assert_eq!(needed("a & b:shared & (c | d) & e & pool*2"), ["a", "b", "e"]);
        assert_eq!(needed("a | b"), Vec::<String>::new());
        assert_eq!(needed("1 of (a, b)"), Vec::<String>::new());
    }
}
