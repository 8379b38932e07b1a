//! The detector problem in the checker.

use conclave_algorithms::detector::{self, Detector, Group};
use conclave_lab::problems::detector::Watching;

use super::{Args, explore, refuse_clocks};
use crate::output::Done;

/// Explores an algorithm; `None` if nobody has that name.
pub fn check(args: &Args, name: &str) -> Option<Done> {
    detector::visit(name, Check(args))
}

struct Check<'a>(&'a Args);

impl detector::Visit for Check<'_> {
    type Out = Done;

    fn visit<P: Detector>(self) -> Done {
        let Self(args) = self;
        refuse_clocks(&P::CARD)?;
        let group = Group::new(args.nodes, args.period(), args.bound(args.margin));
        explore(args, &P::CARD, &Watching::<P>::new(group)?, |_| Vec::new())
    }
}
