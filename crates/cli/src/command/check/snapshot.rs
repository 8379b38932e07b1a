//! The snapshot room in the checker: a bank, and one snapshot of it.

use conclave_algorithms::snapshot::bank::Bank;
use conclave_algorithms::snapshot::{self, Snapshot};
use conclave_lab::rooms::snapshot::Transfers;

use super::{Args, explore};
use crate::output::Done;

/// Explores the tenant of that name; `None` if nobody has it.
pub fn check(args: &Args, name: &str) -> Option<Done> {
    snapshot::visit::<Bank, _>(name, Check { args })
}

struct Check<'a> {
    args: &'a Args,
}

impl snapshot::Visit<Bank> for Check<'_> {
    type Out = Done;

    fn visit<P: Snapshot<Bank>>(self) -> Done {
        let model = Transfers::<P>::new(self.args.nodes, self.args.entries);
        explore(self.args, &P::CARD, &model, |_| Vec::new())
    }
}
