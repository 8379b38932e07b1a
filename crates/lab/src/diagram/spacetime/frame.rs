//! Places on the paper: columns for moments, rows for sites.

use super::legend;
use super::scene::{Arrow, Place, Scene};
use crate::diagram::span::BracketKind;
use crate::diagram::svg::{BODY, TINY, unit, width_of};

/// The free space around the picture.
pub(super) const MARGIN: f64 = 28.0;
/// The height of a row of brackets below a line.
pub(super) const LANE: f64 = 17.0;
/// The height of a line of text in a state.
pub(super) const STATE_LINE: f64 = 11.5;
/// The width of a line of text in a state. A longer line is cut.
pub(super) const MOST_STATE_WIDTH: f64 = 190.0;
/// The distance from a site's line to the first thing below it.
pub(super) const BELOW: f64 = 13.0;

/// The places on the paper.
pub(super) struct Frame {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    /// The top of the area of the sites.
    pub(super) top: f64,
    /// The lines of the sites, and the bottom of the last row.
    rows: Vec<f64>,
    pub(super) bottom: f64,
    /// The part of a row above and below its line that belongs to the site.
    pub(super) half: f64,
    low: f64,
    high: f64,
    /// The end of the window, without the free space at the right.
    last: f64,
    pub(super) band_labels: f64,
    /// The first line of the footer.
    pub(super) footer: f64,
    /// The texts of states, with their places.
    pub(super) states: Vec<StateText>,
}

/// The text of a state below a dot.
pub(super) struct StateText {
    pub(super) dot: usize,
    pub(super) x: f64,
    /// The distance from the site's line.
    pub(super) below: f64,
}

impl Frame {
    pub(super) fn new(scene: &Scene, legend: &[legend::Entry]) -> Self {
        let rows = scene.sites.len().max(1);
        let names = scene.sites.iter().map(|name| width_of(name, BODY));
        let left = MARGIN + names.fold(16.0, f64::max).min(130.0) + 16.0;
        let gap = (540.0 / (rows.max(2) - 1) as f64).clamp(38.0, 116.0);
        // Wide enough for its steps, and not narrower than it is high. States need more room.
        let least = (gap * rows as f64 * 1.4).clamp(860.0, 1560.0);
        let has_states = scene.dots.iter().any(|dot| !dot.changes.is_empty());
        let is_measured = scene.brackets.iter().any(|brace| brace.kind == BracketKind::Measure);
        let (step, most) = if has_states || is_measured { (78.0, 3200.0) } else { (46.0, 1560.0) };
        let right = left + (scene.instants as f64 * step).clamp(least, f64::max(least, most));
        let lanes = scene.bands.iter().map(|band| band.lane + 1).max().unwrap_or(0);
        let alarm = if scene.violation.is_some() { 24.0 } else { 0.0 };
        let band_labels = legend::TOP + legend::ROW * legend::rows(legend, right) as f64 + 14.0 + alarm;
        let pad = (scene.axis.high - scene.axis.low) * 0.012;
        let half = gap.min(60.0) / 2.0;
        let cut_names = if scene.cuts.is_empty() { 0.0 } else { 16.0 };
        let mut frame = Self {
            width: right + MARGIN,
            height: 0.0,
            left,
            right,
            top: band_labels + lanes as f64 * 20.0 + cut_names,
            rows: Vec::new(),
            bottom: 0.0,
            half,
            low: scene.axis.low - pad,
            high: scene.axis.high + pad,
            last: scene.axis.high,
            band_labels,
            footer: 0.0,
            states: Vec::new(),
        };
        frame.set_rows(scene, rows, gap);
        frame.footer = frame.bottom + 62.0;
        let summary: usize = scene.cuts.iter().map(|cut| cut.summary.len()).sum();
        let lines = summary
            + usize::from(!scene.command.is_empty())
            + usize::from(!scene.verdict.is_empty())
            + usize::from(scene.limited.is_some());
        frame.height = frame.footer + 18.0 * lines as f64 + 14.0;
        frame
    }

    /// Sets the lines of the sites. A site with brackets or states has more space below its line.
    fn set_rows(&mut self, scene: &Scene, rows: usize, gap: f64) {
        let mut y = self.top + self.half;
        for site in 0..rows as u32 {
            let of_site = scene.brackets.iter().filter(|brace| brace.site == site);
            let lanes = of_site.map(|brace| brace.lane + 1).max().unwrap_or(0) as f64 * LANE;
            let states = self.place_states(scene, site, lanes);
            let below = if lanes + states > 0.0 { BELOW + lanes + states } else { 0.0 };
            self.rows.push(y);
            self.bottom = y + self.half.max(below + 4.0);
            y += gap.max(below + self.half + 4.0);
        }
    }

    /// Places the states of a site in rows, so that no two overlap. Returns their height.
    fn place_states(&mut self, scene: &Scene, site: u32, from: f64) -> f64 {
        let mut rows: Vec<(f64, usize)> = Vec::new();
        let mut placed = Vec::new();
        let dots = scene.dots.iter().enumerate();
        for (dot, found) in dots.filter(|(_, dot)| dot.place.site == site && !dot.changes.is_empty()) {
            let width = found.changes.iter().map(|line| width_of(line, TINY)).fold(0.0, f64::max);
            let width = width.min(MOST_STATE_WIDTH) + 10.0;
            let x = (self.x(found.place.at) - 3.0).min(self.width - width);
            let row = rows.iter().position(|(end, _)| *end <= x).unwrap_or(rows.len());
            if row == rows.len() {
                rows.push((0.0, 0));
            }
            rows[row] = (x + width, rows[row].1.max(found.changes.len()));
            placed.push((dot, x, row));
        }
        let heights: Vec<f64> = rows.iter().map(|(_, lines)| *lines as f64 * STATE_LINE + 4.0).collect();
        for (dot, x, row) in placed {
            let below = BELOW + from + heights[..row].iter().sum::<f64>();
            self.states.push(StateText { dot, x, below });
        }
        heights.iter().sum()
    }

    pub(super) fn x(&self, at: f64) -> f64 {
        let part = (at - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE);
        self.left + part.clamp(0.0, 1.0) * (self.right - self.left)
    }

    /// The end of a stretch that may go on beyond the window.
    pub(super) fn end(&self, at: Option<f64>) -> f64 {
        match at {
            Some(at) if at <= self.last => self.x(at),
            _ => self.right,
        }
    }

    pub(super) fn y(&self, site: u32) -> f64 {
        self.rows.get(site as usize).copied().unwrap_or(self.bottom)
    }

    pub(super) fn point(&self, place: Place) -> (f64, f64) {
        (self.x(place.at), self.y(place.site))
    }

    /// The ends of an arrow on the paper, cut at the edges of the window.
    pub(super) fn segment(&self, arrow: &Arrow) -> ((f64, f64), (f64, f64)) {
        let place = |at: f64| self.left + (at - self.low) / (self.high - self.low) * (self.right - self.left);
        let (mut from, mut to) =
            ((place(arrow.from.at), self.y(arrow.from.site)), (place(arrow.to.at), self.y(arrow.to.site)));
        let slope = (to.1 - from.1) / (to.0 - from.0).max(1e-9);
        to = (from.0 + (to.0 - from.0) * arrow.part, from.1 + (to.1 - from.1) * arrow.part);
        if from.0 < self.left {
            from = (self.left, from.1 + slope * (self.left - from.0));
        }
        if to.0 > self.right {
            to = (self.right, from.1 + slope * (self.right - from.0));
        }
        let (along, shift) = (unit(from, to), 3.2 * arrow.offset());
        let shifted = |(x, y): (f64, f64)| (x + along.1 * shift, y - along.0 * shift);
        (shifted(from), shifted(to))
    }
}
