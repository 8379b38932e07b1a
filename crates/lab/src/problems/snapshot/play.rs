//! What the applications do in a run, and how their states are shown.

use conclave_algorithms::snapshot::Application;
use conclave_algorithms::snapshot::bank::{Bank, Money, Transfer};
use conclave_algorithms::snapshot::heap::{Act, Heap, Object};
use conclave_algorithms::snapshot::work::{Task, Work};
use conclave_kernel::{NodeId, Prng};

use super::Scenario;

/// An application that the problem can run.
pub(crate) trait Played: Application {
    /// A site before it starts.
    fn make(scenario: &Scenario) -> Self;

    /// The sum that every picture must show.
    fn total(scenario: &Scenario) -> Option<u64> {
        let _ = scenario;
        None
    }

    /// Something for this site to do.
    fn act(&self, me: NodeId, nodes: u32, random: &mut Prng) -> Self::Command;

    /// A site's state in a word or two.
    fn state_in_words(&self) -> String;

    /// A message in a word or two.
    fn message_in_words(message: &Self::Message) -> String;
}

/// Another site, if there is one.
fn other(me: NodeId, nodes: u32, random: &mut Prng) -> NodeId {
    if nodes == 1 {
        return me;
    }
    NodeId((me.0 + 1 + random.below(u64::from(nodes - 1)) as u32) % nodes)
}

impl Played for Bank {
    fn make(scenario: &Scenario) -> Self {
        Self { balance: scenario.work.balance }
    }

    fn total(scenario: &Scenario) -> Option<u64> {
        scenario.work.balance.checked_mul(u64::from(scenario.world.nodes))
    }

    /// A transfer of up to a quarter of what is there.
    fn act(&self, me: NodeId, nodes: u32, random: &mut Prng) -> Transfer {
        let amount = (1 + random.below(self.balance / 4 + 1)).min(self.balance);
        Transfer { to: other(me, nodes, random), amount }
    }

    fn state_in_words(&self) -> String {
        self.balance.to_string()
    }

    fn message_in_words(Money(amount): &Money) -> String {
        amount.to_string()
    }
}

impl Played for Work {
    fn make(_: &Scenario) -> Self {
        Self::default()
    }

    fn act(&self, _: NodeId, _: u32, random: &mut Prng) -> Task {
        Task(1 + random.below(8) as u32)
    }

    fn state_in_words(&self) -> String {
        match self.left {
            0 => "passive".into(),
            left => format!("active ({left} left)"),
        }
    }

    fn message_in_words(Task(task): &Task) -> String {
        format!("task {task}")
    }
}

impl Played for Heap {
    fn make(_: &Scenario) -> Self {
        Self::default()
    }

    /// Makes, sends, stores, loads and forgets, each now and then.
    fn act(&self, me: NodeId, nodes: u32, random: &mut Prng) -> Act {
        let held: Vec<Object> = self.variables.iter().copied().collect();
        if held.is_empty() {
            return Act::Make;
        }
        let mut any = || held[random.below(held.len() as u64) as usize];
        let (one, two) = (any(), any());
        match random.below(8) {
            0 => Act::Make,
            1 | 2 => Act::Send { to: other(me, nodes, random), reference: one },
            3 | 4 => Act::Store { into: one, reference: two },
            5 => match self.objects.get(one.number as usize).and_then(|inside| inside.first()) {
                Some(reference) => Act::Load { out_of: one, reference: *reference },
                None => Act::Make,
            },
            _ => Act::Forget(one),
        }
    }

    fn state_in_words(&self) -> String {
        format!("{} objects, holds {}", self.objects.len(), self.variables.len())
    }

    fn message_in_words(reference: &Object) -> String {
        format!("{reference:?}")
    }
}
