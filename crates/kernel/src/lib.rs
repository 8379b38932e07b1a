//! The contract between an algorithm and the world it runs in.
//!
//! An algorithm is a [`Protocol`]: a pure state machine that learns only from its own state, the input it is
//! handed and the [`Cx`] it is handed with, and that acts only through that `Cx`. A world (the simulator, the
//! checker, the real network) is whatever stands behind the `Cx`: a [`Sink`]. Nothing here can reach a
//! socket, a clock, a thread, a file or dice: the crate is `no_std`.
//!
//! | file | what it holds |
//! |---|---|
//! | [`protocol`] | the [`Protocol`] trait: what an algorithm is |
//! | [`context`] | [`Cx`]: the only way out of a handler; [`Cx::drive`] runs one protocol inside another |
//! | [`effect`] | [`Effect`] and [`Sink`]: what a handler asked for, and who takes it |
//! | [`node`] | [`NodeId`], [`Members`], [`NodeSet`] |
//! | [`time`] | [`Time`], a reading of a local clock, and durations with units |
//! | [`prng`] | [`Prng`]: our own dice, so that a seed means the same run next year |
//! | [`card`] | [`Card`]: an algorithm's paper, assumptions, promises and cost formulas, as data |
//! | [`property`] | [`Property`] and [`Verdict`]: what must hold always, sometimes, eventually |
//! | [`suggest`] | the error for an unknown name: the nearest name, and all of them |
//! | [`trace`] | [`Trace`]: what happened, step by step; [`Digest`]: the same in 64 bits |
//!
//! # Example
//!
//! A protocol in which everybody greets everybody, stepped by hand:
//!
//! ```
//! use conclave_kernel::{Buffer, Cx, Effect, Env, Never, NodeId, Protocol};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
//! struct Greeter {
//!     heard: u32,
//! }
//!
//! impl Protocol for Greeter {
//!     type Message = u8;
//!     type Timer = Never;
//!     type Command = ();
//!     type Event = u32;
//!
//!     fn on_message(&mut self, _from: NodeId, _hello: u8, cx: &mut Cx<'_, Self>) {
//!         self.heard += 1;
//!         cx.emit(self.heard);
//!     }
//!     fn on_command(&mut self, (): (), cx: &mut Cx<'_, Self>) {
//!         cx.broadcast(7);
//!     }
//! }
//!
//! let mut world = Buffer::default();
//! let mut greeter = Greeter::default();
//! greeter.on_command((), &mut Cx::new(Env::new(NodeId(0), 3), &mut world));
//! assert_eq!(world.effects, [Effect::Broadcast { message: 7 }]);
//! ```
#![no_std]

extern crate alloc;

pub mod card;
pub mod context;
pub mod effect;
pub mod node;
pub mod prng;
pub mod property;
pub mod protocol;
pub mod suggest;
pub mod time;
pub mod trace;

pub use card::{Card, Cost, Load, Measure, Needs, Size};
pub use context::{Cx, Emitted, Env};
pub use effect::{Buffer, Effect, Sink};
pub use node::{Members, NodeId, NodeMap, NodeSet};
pub use prng::{Prng, Ratio};
pub use property::{Kind, Property, Verdict, Violation};
pub use protocol::{Input, Never, Protocol, Tag, Wire};
pub use time::Time;
pub use trace::{Digest, Header, Step, StepHead, Trace};
