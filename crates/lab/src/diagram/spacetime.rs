//! The space-time diagram: one line for each site, time to the right, arrows for messages.
//!
//! | file | contents |
//! |---|---|
//! | `scene` | [`Scene`]: everything in the picture, as data that serialises |
//! | `window` | the part of a log that is drawn, and the meaning of the axis |
//! | `collect` | builds the scene from a log |
//! | `frame` | places on the paper |
//! | `route` | the ways of arrows past the dots of other sites |
//! | `render` | the SVG of a scene |
//! | `marks` | the SVG of brackets, states, cuts and violations |
//! | `legend` | the legend |
//!
//! Bars on a line show the state that the problem is about: waiting, the critical section, the leader.
//! Crosses and gaps show crashes, shaded bands partitions. A lost message ends in a cross, and the second
//! copy of a duplicated one has a hollow head. The area of a violation is hatched in red. Every element has a
//! tooltip with more words.
//!
//! **Bound**: a picture of thousands of arrows is unreadable. Only a window is drawn: the first messages, as
//! many as stay readable at that number of sites, or those around the violation. The last line of the picture
//! says what it leaves out. Labels are drawn only while there are few arrows.
//!
//! **Trap**: in a run in which no time passes, everything would be on one vertical line. There the axis
//! counts steps, and so it does in a counterexample of the checker.

mod collect;
mod frame;
mod legend;
mod marks;
mod render;
mod route;
mod scene;
#[cfg(test)]
mod tests;
mod window;

use conclave_kernel::Time;

use super::span::{self, Span};
use crate::log::Log;
use crate::problems::{election, snapshot};

pub use render::render;
pub(in crate::diagram) use route::Route;
pub use scene::{Alarm, Arrow, Axis, Band, Bar, Brace, CutLine, Dot, Head, Interval, Kind, Place, Scene};

/// The part of a log that is drawn, and the texts around it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The title. If it is empty, it is the name of the algorithm.
    pub title: String,
    /// The line below the title. If it is empty, it is the number of sites and the seed.
    pub subtitle: String,
    /// The command that shows the run, for the footer.
    pub command: String,
    /// The verdict on the run in one line, for the footer.
    pub verdict: String,
    /// The violation that the picture must show.
    pub violation: Option<Broken>,
    /// The beginning of the window.
    pub from: Time,
    /// The end of the window; as far as the picture stays readable if it is not given.
    pub until: Option<Time>,
    /// The most messages; as many as stay readable if it is not given.
    pub most_messages: Option<usize>,
    /// The bars.
    pub spans: Vec<Span>,
    /// The cuts of snapshots.
    pub cuts: Vec<Cut>,
    /// Whether brackets show the durations of [`span::durations`]. Timers are always shown.
    pub brackets: bool,
    /// Whether the changes of the sites' states stand below the dots. The log must contain states.
    pub states: bool,
}

/// A violation of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The time of the decisive step.
    pub at: Time,
    /// The property and the violation, in one sentence.
    pub sentence: String,
}

/// The cut of a recorded snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The name of the snapshot.
    pub name: String,
    /// The events at which the sites recorded their states, each with the recorded state in words.
    pub points: Vec<(usize, String)>,
    /// The recorded global state in lines of text.
    pub summary: Vec<String>,
}

impl Options {
    /// The options with everything that the problem of the log adds: its bars, its cuts, and a window that
    /// contains a whole snapshot.
    pub fn of(log: &Log) -> Self {
        let problem = log.about.algorithm.split('/').next().unwrap_or_default();
        match problem {
            "mutex" => Self { spans: span::mutex(log), ..Self::default() },
            "election" => Self { spans: election::spans(log), ..Self::default() },
            "snapshot" => snapshot::options(log),
            _ => Self::default(),
        }
    }
}

/// Draws a log as an SVG file.
pub fn draw(log: &Log, options: &Options) -> String {
    render(&Scene::new(log, options))
}
