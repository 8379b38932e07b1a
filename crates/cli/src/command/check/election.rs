//! The election room in the checker.

use conclave_algorithms::detector;
use conclave_algorithms::election::{self, Election, Group};
use conclave_lab::room::Scenario as _;
use conclave_lab::rooms::election::{Elections, Scenario};

use super::{Args, explore, refuse_clocks};
use crate::output::Done;

/// Explores a tenant; `None` if nobody has that name.
pub fn check(args: &Args, name: &str) -> Option<Done> {
    election::visit(name, Check(args))
}

struct Check<'a>(&'a Args);

impl election::Visit for Check<'_> {
    type Out = Done;

    fn visit<P: Election>(self) -> Done {
        let Self(args) = self;
        refuse_clocks(&P::CARD)?;
        let transmission = args.bound(args.transmission);
        let group = Group {
            detector: detector::Group::new(args.nodes, args.period(), args.bound(args.margin)),
            ..Group::new(args.nodes, transmission)
        };
        explore(args, &P::CARD, &Elections::<P>::new(group, args.entries), Scenario::spans)
    }
}
