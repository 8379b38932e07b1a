//! Objects that refer to each other across sites: an application whose garbage a snapshot finds.
//!
//! A site has variables and objects, and both hold references. A program can use only the objects that it can
//! reach from its variables. It can make an object, store a reference in an object of its own site, load one
//! from there, or forget one. It can also send a reference to another site, where it goes into a variable.
//!
//! An object can never be used again if no variable, no message in transit and no reachable object refers to
//! it. So *being garbage is stable*. Garbage includes cycles across sites, which reference counting cannot
//! find.
//!
//! **Trap**: a reference counts while it is in transit. A collector that looks only at the sites frees the
//! object to which the message refers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use conclave_kernel::{Cx, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Picture};

/// The largest number of objects at a site, and of references in its variables. The site refuses to make or
/// hold more.
pub const MOST_OBJECTS: usize = 1 << 16;

/// The name of an object: its site, and its number at that site.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object {
    /// The site that has the object.
    pub site: NodeId,
    /// The number of the object at its site.
    pub number: u32,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.site, self.number)
    }
}

/// The objects and variables of one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heap {
    /// The references in each object, by the object's number. It is a list, because JSON allows only strings
    /// as keys.
    pub objects: Vec<BTreeSet<Object>>,
    /// The references that the program holds in its variables.
    pub variables: BTreeSet<Object>,
}

/// A command: one operation of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Make an object and hold a reference to it.
    Make,
    /// Store a reference that the program holds in an object of this site that it holds.
    Store {
        /// The object that receives the reference.
        into: Object,
        /// The reference.
        reference: Object,
    },
    /// Load a reference from an object of this site that the program holds.
    Load {
        /// The object that contains the reference.
        out_of: Object,
        /// The reference.
        reference: Object,
    },
    /// Remove a reference from an object of this site that the program holds.
    Clear {
        /// The object that contains the reference.
        out_of: Object,
        /// The reference.
        reference: Object,
    },
    /// Remove a reference from the variables.
    Forget(Object),
    /// Send a reference that the program holds to another site.
    Send {
        /// The receiver.
        to: NodeId,
        /// The reference.
        reference: Object,
    },
}

/// An event that the heap reports to the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The program has made this object.
    Made(Object),
    /// The operation is impossible: the program does not hold the object that it names, or the heap is full.
    Refused,
}

impl Heap {
    /// Executes an operation of the program; returns `None` if it is impossible.
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

    /// Returns the references in an object of this site that the program holds.
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

/// Returns the objects that no program can ever reach again.
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
