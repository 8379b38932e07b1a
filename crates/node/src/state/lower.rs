//! Translation of lock expressions to requests: finds the names, decides their kinds, and checks that a
//! request is possible.

use conclave_core::expr::{Leaf, Node};
use conclave_core::{Claim as Mode, Code, Error, Expr};
use conclave_deadlock::{Claim, Demand, Request, RequestError};

use super::grant::Work;
use super::lock::{LockId, Locks};

impl Locks {
    /// Translates an expression to a request. Creates the names that do not exist.
    pub(super) fn lower(&mut self, expr: &Expr, work: &mut Work) -> Result<Request<LockId>, Error> {
        self.lower_node(expr.node(), work)
    }

    fn lower_node(&mut self, node: &Node, work: &mut Work) -> Result<Request<LockId>, Error> {
        let mut members = |nodes: &[Node]| -> Result<Vec<_>, Error> {
            nodes.iter().map(|node| self.lower_node(node, work)).collect()
        };
        let request = match node {
            Node::Name(leaf) => Request::one(self.lower_leaf(leaf, work)?),
            Node::All(nodes) => Request::all(members(nodes)?),
            Node::Any(nodes) => Request::any(members(nodes)?),
            Node::AtLeast(count, nodes) => Request::at_least(*count, members(nodes)?),
        };
        request.map_err(|error| match error {
            RequestError::Entangled { alternatives } => {
                let message =
                    format!("one semaphore is named in {alternatives} alternatives, which is too many");
                Error::new(Code::InvalidExpression, message)
            }
            other => {
                Error::new(Code::InvalidExpression, format!("the expression is not a valid request: {other}"))
            }
        })
    }

    fn lower_leaf(&mut self, leaf: &Leaf, work: &mut Work) -> Result<Claim<LockId>, Error> {
        let name = &leaf.name;
        let id = self.intern(name).ok_or_else(too_many_names)?;
        work.touched.push(id);
        let demand = match (leaf.claim, self.lock(id).limit) {
            (Mode::Exclusive, None) => Demand::Exclusive,
            (Mode::Shared, None) => Demand::Shared,
            (Mode::Exclusive, Some(_)) => Demand::Permits(1),
            (Mode::Permits(count), Some(_)) => Demand::Permits(count),
            (Mode::Permits(_), None) => {
                let message = format!("{name} is not a semaphore: it has no limit and no permits");
                return Err(Error::new(Code::NotASemaphore, message));
            }
            (Mode::Shared, Some(_)) => {
                let message = format!("{name} is a semaphore, and its permits cannot be shared");
                return Err(Error::new(Code::WrongKind, message));
            }
        };
        Ok(Claim { resource: id, demand })
    }

    fn is_possible(&self, wants: &Request<LockId>) -> bool {
        wants.is_satisfied(|id, demand| match (demand, self.lock(*id).limit) {
            (Demand::Permits(count), Some(limit)) => count <= limit,
            (Demand::Permits(_), None) => false,
            (Demand::Exclusive | Demand::Shared, _) => true,
        })
    }

    pub(super) fn check_possible(&self, wants: &Request<LockId>) -> Result<(), Error> {
        if self.is_possible(wants) {
            return Ok(());
        }
        let limits: Vec<String> = wants
            .envelope()
            .iter()
            .map(|claim| self.lock(claim.resource))
            .filter_map(|lock| lock.limit.map(|limit| format!("{} has {limit}", lock.name)))
            .collect();
        let message = format!("the request needs more permits than the limit ({})", limits.join(", "));
        Err(Error::new(Code::Impossible, message))
    }
}

pub(super) fn too_many_names() -> Error {
    Error::new(
        Code::LimitReached,
        format!("the service has {} names in use, which is the most", Locks::MAX_NAMES),
    )
}
