//! Pictures of a run, and its export to other tools.
//!
//! | file | what it makes |
//! |---|---|
//! | [`spacetime`] | an SVG: one line a site, time to the right, arrows for messages |
//! | [`plot`] | an SVG: curves and measured points, for how cost grows |
//! | [`bounds`] | an SVG: what was measured over time, under what was promised |
//! | [`shiviz`] | a log that ShiViz reads, with vector clocks; and the way back |
//! | [`waitfor`] | an SVG, and DOT: who waits for whom |
//! | [`span`] | what the bars of a space-time diagram show |
//! | `label` | where the labels of arrows go |
//! | `scale` | ticks and units of axes |
//! | `svg` | colours, type and escaping: the visual language of all pictures |

pub mod bounds;
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
