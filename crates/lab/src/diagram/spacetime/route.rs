//! The ways of arrows: straight, or bent around the dots of sites in between.
//!
//! A way is a cubic curve whose heights are equally spaced. So its height grows evenly with its parameter,
//! and the place where it crosses a site's line is known without a search. It never runs backwards in time.

use super::frame::Frame;
use super::scene::{Arrow, Dot};

/// The way of an arrow on the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::diagram) struct Route {
    pub(in crate::diagram) from: (f64, f64),
    pub(in crate::diagram) to: (f64, f64),
    /// The horizontal places of the two control points.
    bend: (f64, f64),
}

/// The distance that an arrow keeps from the dots of other sites.
const CLEAR: f64 = 7.5;

/// The steps in which a control point is moved, as parts of the arrow's length in time.
const STEPS: usize = 8;

impl Route {
    pub(in crate::diagram) fn straight(from: (f64, f64), to: (f64, f64)) -> Self {
        let width = to.0 - from.0;
        Self { from, to, bend: (from.0 + width / 3.0, from.0 + width * 2.0 / 3.0) }
    }

    /// The way of an arrow that passes no dot of another site, if there is one; else the way with the most
    /// distance from them.
    pub(super) fn of(arrow: &Arrow, frame: &Frame, dots: &Dots) -> Self {
        let (from, to) = frame.segment(arrow);
        let straight = Self::straight(from, to);
        let (first, last) = (arrow.from.site.min(arrow.to.site) + 1, arrow.from.site.max(arrow.to.site));
        if first >= last {
            return straight;
        }
        let clearance = |route: &Self| {
            let crossings =
                (first..last).filter_map(|site| route.at_height(frame.y(site)).map(|at| (site, at)));
            crossings.map(|(site, at)| dots.distance(site, at)).fold(f64::INFINITY, f64::min)
        };
        let mut best = (clearance(&straight), straight);
        if best.0 >= CLEAR {
            return straight;
        }
        for (_, bent) in straight.bends() {
            let clear = clearance(&bent);
            if clear > best.0 {
                best = (clear, bent);
            }
            if clear >= CLEAR {
                break;
            }
        }
        best.1
    }

    /// Other ways between the same ends, the straightest first.
    fn bends(self) -> Vec<(f64, Self)> {
        let width = self.to.0 - self.from.0;
        let part = |step: usize| step as f64 / STEPS as f64;
        let bend = |first: usize, second: usize| {
            let (u, v) = (part(first), part(second));
            let bent = Self { bend: (self.from.0 + u * width, self.from.0 + v * width), ..self };
            ((u - 1.0 / 3.0).powi(2) + (v - 2.0 / 3.0).powi(2), bent)
        };
        let mut bends: Vec<_> =
            (0..=STEPS).flat_map(|first| (first..=STEPS).map(move |second| bend(first, second))).collect();
        bends.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        bends
    }

    /// The place at which the way crosses a height, if it does.
    fn at_height(&self, y: f64) -> Option<f64> {
        let part = (y - self.from.1) / (self.to.1 - self.from.1);
        (part > 0.0 && part < 1.0).then(|| self.point(part).0)
    }

    /// The point at a part of the way, from 0 to 1.
    pub(in crate::diagram) fn point(&self, part: f64) -> (f64, f64) {
        let rest = 1.0 - part;
        let x = rest.powi(3) * self.from.0
            + 3.0 * rest.powi(2) * part * self.bend.0
            + 3.0 * rest * part.powi(2) * self.bend.1
            + part.powi(3) * self.to.0;
        (x, self.from.1 + (self.to.1 - self.from.1) * part)
    }

    /// Whether the way is a straight line.
    pub(in crate::diagram) fn is_straight(&self) -> bool {
        *self == Self::straight(self.from, self.to)
    }

    /// The control points of the curve.
    pub(super) fn controls(&self) -> [(f64, f64); 2] {
        let height = (self.to.1 - self.from.1) / 3.0;
        [(self.bend.0, self.from.1 + height), (self.bend.1, self.from.1 + 2.0 * height)]
    }

    /// The way without its last piece of this length, so that the head of the arrow covers its end.
    pub(super) fn shortened(&self, by: f64) -> Self {
        let near = self.point(0.94);
        let (dx, dy) = super::super::svg::unit(near, self.to);
        Self { to: (self.to.0 - dx * by, self.to.1 - dy * by), ..*self }
    }
}

/// The dots of each site, from left to right.
pub(super) struct Dots {
    rows: Vec<Vec<f64>>,
}

impl Dots {
    pub(super) fn new(dots: &[Dot], frame: &Frame, sites: usize) -> Self {
        let mut rows = vec![Vec::new(); sites];
        for dot in dots {
            rows[dot.place.site as usize].push(frame.x(dot.place.at));
        }
        rows.iter_mut().for_each(|row| row.sort_by(f64::total_cmp));
        Self { rows }
    }

    /// The distance from a place on a site's line to its nearest dot.
    pub(super) fn distance(&self, site: u32, x: f64) -> f64 {
        let row = &self.rows[site as usize];
        let next = row.partition_point(|dot| *dot < x);
        let near = [next.checked_sub(1).map(|before| x - row[before]), row.get(next).map(|after| after - x)];
        near.into_iter().flatten().fold(f64::INFINITY, f64::min)
    }
}
