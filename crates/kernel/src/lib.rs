//! The contract between an algorithm and the world that runs it.
//!
//! An algorithm is a [`Protocol`]: a pure state machine. A handler reads only its own state, the input that
//! the world passes to it, and a [`Cx`]. It acts only through that `Cx`. A *world* is the program that runs
//! the algorithm: the simulator, the checker or the real network. Behind the `Cx`, a world implements
//! [`Sink`]. This crate is `no_std`: code in it cannot use a socket, a clock, a thread, a file or a random
//! source.
//!
//! | file | content |
//! |---|---|
//! | [`protocol`] | the [`Protocol`] trait that every algorithm implements |
//! | [`context`] | [`Cx`]: a handler's interface to its world; [`Cx::drive`] runs one protocol in another |
//! | [`effect`] | [`Effect`]: a request of a handler to its world; [`Sink`]: the receiver of effects |
//! | [`node`] | [`NodeId`], [`Members`], [`NodeSet`] |
//! | [`time`] | [`Time`], a reading of a local clock, and durations with units |
//! | [`prng`] | [`Prng`]: our own random number generator, so that a seed always gives the same run |
//! | [`card`] | [`Card`]: an algorithm's paper, assumptions, promises and cost formulas, as data |
//! | [`property`] | [`Property`] and [`Verdict`]: claims that hold always, sometimes or eventually |
//! | [`suggest`] | the error message for an unknown name, with the nearest known name |
//! | [`trace`] | [`Trace`] records a run; [`Recording`] is read; [`Digest`]: a 64-bit fingerprint of a run |
//!
//! # Example
//!
//! A protocol in which each site greets all other sites, with one step executed by hand:
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
pub use property::{Judgement, Kind, Property, Verdict, Violation};
pub use protocol::{Input, Never, Protocol, Tag, Wire};
pub use time::Time;
pub use trace::{Digest, Header, Recording, StepHead, Trace};
