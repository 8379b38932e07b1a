//! Pictures of a run, and its export to other tools.
//!
//! | file | product |
//! |---|---|
//! | [`spacetime`] | a scene and its SVG: one line for each site, time to the right, arrows for messages |
//! | [`clocks`] | an SVG: the offset and the promised interval of each clock over the true time |
//! | [`plot`] | an SVG: curves and measured points, for how cost grows |
//! | [`bounds`] | an SVG: what was measured over time, under what was promised |
//! | [`shiviz`] | a log that ShiViz reads, with vector clocks; and the way back |
//! | [`waitfor`] | a scene, its SVG, and DOT: the waits of processes for each other |
//! | [`span`] | the bars and brackets of a space-time diagram |
//! | `label` | the places of the labels of arrows |
//! | `scale` | ticks and units of axes |
//! | `svg` | colours, type and escaping: the visual language of all pictures |

pub mod bounds;
pub mod clocks;
pub mod plot;
pub mod shiviz;
pub mod spacetime;
pub mod span;
pub mod waitfor;

mod label;
mod scale;
mod svg;

#[cfg(test)]
pub(crate) mod testing;
