//! The serialised form of the graph. It uses names, so it does not depend on the history of the graph.
//! Reading it back performs the same checks as all other changes.

use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::super::request::{Claim, Request};
use super::{GraphError, Turn, WaitGraph};

#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "R: Ord + Clone + Serialize, O: Serialize"))]
#[serde(bound(deserialize = "R: Ord + Deserialize<'de>, O: Deserialize<'de>"))]
struct Picture<R, O> {
    limits: Vec<(R, u32)>,
    holds: Vec<(O, Claim<R>)>,
    waits: Vec<(O, Turn, Request<R>)>,
}

impl<R: Ord + Copy, O: Ord + Copy> WaitGraph<R, O> {
    fn picture(&self) -> Picture<R, O> {
        let limit = |(name, slot)| Some((name, self.resources[slot].limit?));
        let owners = || self.owners.names().map(|(name, slot)| (name, &self.owners[slot]));
        let request = |request: &Request<_>| {
            let named = request.clone().map(|slot| *self.resources.name(slot));
            named.expect("names are as different as slots")
        };
        Picture {
            limits: self.resources.names().filter_map(limit).collect(),
            holds: owners().flat_map(|(name, _)| self.holds(name).map(move |claim| (name, claim))).collect(),
            waits: owners()
                .filter_map(|(name, owner)| owner.wait.as_ref().map(|wait| (name, wait)))
                .map(|(name, wait)| (name, wait.turn, request(&wait.request)))
                .collect(),
        }
    }

    fn from_picture(picture: Picture<R, O>) -> Result<Self, GraphError> {
        let mut graph = Self::new();
        for (resource, limit) in picture.limits {
            graph.set_limit(resource, Some(limit))?;
        }
        for (owner, claim) in picture.holds {
            graph.hold(owner, claim)?;
        }
        for (owner, turn, request) in picture.waits {
            // A lowered limit may have made this wait impossible. So `enqueue`, which rejects such waits, is
            // not used.
            graph.check_waiter(owner, &request)?;
            graph.add_wait(owner, turn, request)?;
        }
        Ok(graph)
    }
}

/// Compares the contents, not the history.
impl<R: Ord + Copy, O: Ord + Copy> PartialEq for WaitGraph<R, O> {
    fn eq(&self, other: &Self) -> bool {
        self.picture() == other.picture()
    }
}

impl<R: Ord + Copy, O: Ord + Copy> Eq for WaitGraph<R, O> {}

impl<R: Ord + Copy + Serialize, O: Ord + Copy + Serialize> Serialize for WaitGraph<R, O> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.picture().serialize(serializer)
    }
}

impl<'de, R, O> Deserialize<'de> for WaitGraph<R, O>
where
    R: Ord + Copy + Deserialize<'de>,
    O: Ord + Copy + Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_picture(Picture::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Graph, turn};
    use super::*;
    use crate::request::Demand;

    #[test]
    fn a_graph_read_back_is_the_same_whatever_its_history() {
        let mut graph = Graph::new();
        graph.set_limit(9, Some(4)).unwrap();
        // Add and remove names, so that the slots are out of order.
        for owner in [5, 3, 8] {
            graph.hold(owner, Claim { resource: owner, demand: Demand::Exclusive }).unwrap();
        }
        graph.remove(5);
        graph.hold(8, Claim { resource: 9, demand: Demand::Permits(3) }).unwrap();
        graph.hold(1, Claim { resource: 2, demand: Demand::Shared }).unwrap();
        graph.wait(3, turn(7), Request::any([Request::exclusive(2), Request::shared(8)]).unwrap()).unwrap();
        graph.wait(1, turn(6), Request::permits(9, 4).unwrap()).unwrap();
        graph.set_limit(9, Some(2)).unwrap();
        let again = Graph::from_picture(graph.picture()).unwrap();
        assert!(again == graph);
        assert_eq!((again.stuck(), again.impossible(9)), (graph.stuck(), graph.impossible(9)));
        graph.cancel(1);
        assert!(again != graph);
    }

    #[test]
    fn a_picture_of_what_cannot_be_is_refused() {
        let hold = |owner| (owner, Claim { resource: 1, demand: Demand::Exclusive });
        let wait = || (3, turn(1), Request::exclusive(1));
        let picture = Picture { limits: [].into(), holds: [hold(1), hold(2)].into(), waits: [].into() };
        assert_eq!(Graph::from_picture(picture).err(), Some(GraphError::Conflict));
        let picture = Picture { limits: [].into(), holds: [].into(), waits: [wait(), wait()].into() };
        assert_eq!(Graph::from_picture(picture).err(), Some(GraphError::AlreadyWaiting));
        let picture = Picture { limits: [(1, 5)].into(), holds: [].into(), waits: [wait()].into() };
        assert_eq!(Graph::from_picture(picture).err(), Some(GraphError::NotALock));
    }
}
