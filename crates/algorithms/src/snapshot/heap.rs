//! Objects that refer to each other across sites: the application whose garbage a snapshot finds.
//!
//! A site has variables, which hold references, and objects, which hold references too. A program can use
//! only what it can reach from its variables: it can make an object, store a reference in an object of its
//! own site, load one from there, forget one, and send one to another site, where it becomes a variable. So
//! an object that no variable, no message on its way and no reachable object refers to can never be used
//! again: *being garbage is stable*. Cycles across sites are found like everything else, which counting
//! references cannot do.
//!
//! **Trap**: a reference that is only on its way still counts. A collector that looks at the sites alone
//! frees what the message refers to.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use conclave_kernel::{Cx, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Picture};

/// At most so many objects are made at a site, and as many references kept in its variables.
pub const MOST_OBJECTS: usize = 1 << 16;

/// An object, by its site and the number that the site gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object {
    /// Where it is.
    pub site: NodeId,
    /// Which.
    pub number: u32,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.site, self.number)
    }
}

/// A site's objects and variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heap {
    /// The references that each object holds. A list, for JSON has no keys but strings.
    pub objects: Vec<BTreeSet<Object>>,
    /// What the program holds.
    pub variables: BTreeSet<Object>,
}

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Makes an object and holds it.
    Make,
    /// Stores a reference that it holds in an object of this site that it holds.
    Store {
        /// In which.
        into: Object,
        /// What.
        reference: Object,
    },
    /// Loads a reference from an object of this site that it holds.
    Load {
        /// From which.
        out_of: Object,
        /// What.
        reference: Object,
    },
    /// Takes a reference out of an object of this site that it holds.
    Clear {
        /// Of which.
        out_of: Object,
        /// What.
        reference: Object,
    },
    /// No longer holds it.
    Forget(Object),
    /// Sends a reference that it holds.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        reference: Object,
    },
}

/// What the heap tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The new object.
    Made(Object),
    /// The program cannot do that: it does not hold what it names, or the heap is full.
    Refused,
}

impl Heap {
    /// Does what the program wants; `None` if it cannot.
    fn act(&mut self, act: Act, cx: &mut Cx<'_, Self>) -> Option<()> {
        let me = cx.me();
        let holds = |heap: &Self, object: &Object| heap.variables.contains(object).then_some(());
        match act {
            Act::Make => {
                (self.objects.len() < MOST_OBJECTS).then_some(())?;
                let made = Object { site: me, number: self.objects.len() as u32 };
                self.objects.push(BTreeSet::new());
                self.hold(made)?;
                cx.emit(Told::Made(made));
            }
            Act::Store { into, reference } => {
                holds(self, &reference)?;
                self.own(me, into)?.insert(reference);
            }
            Act::Load { out_of, reference } => {
                self.own(me, out_of)?.get(&reference)?;
                self.hold(reference)?;
            }
            Act::Clear { out_of, reference } => _ = self.own(me, out_of)?.remove(&reference),
            Act::Forget(object) => _ = self.variables.remove(&object),
            Act::Send { to, reference } => {
                holds(self, &reference)?;
                cx.members().contains(to).then(|| cx.send(to, reference))?;
            }
        }
        Some(())
    }

    /// The references in an object of this site that the program holds.
    fn own(&mut self, me: NodeId, object: Object) -> Option<&mut BTreeSet<Object>> {
        let own = object.site == me && self.variables.contains(&object);
        own.then(|| self.objects.get_mut(object.number as usize)).flatten()
    }

    fn hold(&mut self, object: Object) -> Option<()> {
        let room = self.variables.len() < MOST_OBJECTS || self.variables.contains(&object);
        room.then(|| _ = self.variables.insert(object))
    }
}

impl Protocol for Heap {
    type Message = Object;
    type Timer = Never;
    type Command = Act;
    type Event = Told;

    fn on_message(&mut self, _from: NodeId, reference: Object, cx: &mut Cx<'_, Self>) {
        if self.hold(reference).is_none() {
            cx.emit(Told::Refused);
        }
    }

    fn on_command(&mut self, act: Act, cx: &mut Cx<'_, Self>) {
        if self.act(act, cx).is_none() {
            cx.emit(Told::Refused);
        }
    }
}

/// The objects that nobody can ever reach again.
pub fn garbage(picture: &Picture<Heap>) -> BTreeSet<Object> {
    let mut unreached: BTreeMap<Object, &BTreeSet<Object>> = BTreeMap::new();
    for part in &picture.parts {
        for (number, references) in part.state.objects.iter().enumerate() {
            unreached.insert(Object { site: part.site, number: number as u32 }, references);
        }
    }
    let held = picture.states().flat_map(|heap| heap.variables.iter().copied());
    let mut reached: Vec<Object> = held.chain(picture.in_transit().map(|(_, _, object)| *object)).collect();
    while let Some(object) = reached.pop() {
        reached.extend(unreached.remove(&object).into_iter().flatten());
    }
    unreached.into_keys().collect()
}

impl Application for Heap {
    fn stable_facts(picture: &Picture<Self>) -> BTreeSet<u64> {
        garbage(picture)
            .iter()
            .map(|object| u64::from(object.site.0) << 32 | u64::from(object.number))
            .collect()
    }

    fn fact(number: u64) -> String {
        let object = Object { site: NodeId((number >> 32) as u32), number: number as u32 };
        format!("{object:?} is garbage")
    }
}
