//! The places of the labels of arrows: along the arrow, off other labels, dots and bars, across few other
//! arrows.
//!
//! The arrows are handled in order. Each has a few places, and its label gets the best free one. An arrow
//! without a free place has no label: its colour and its tooltip still show its kind.

use super::spacetime::Route;
use super::svg::{TINY, unit, width_of};

/// A placed label: its centre and its angle in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placed {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) angle: f64,
}

/// On which side of its arrow a label stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Above,
    Below,
}

/// Labels placed so far, and what else they must keep off.
#[derive(Default)]
pub(super) struct Labels {
    taken: Vec<Slab>,
}

/// The places of labels along an arrow, the best first. Broadcasts fan out from a point: labels near their
/// heads are further apart.
const PLACES: [f64; 7] = [0.5, 0.6, 0.4, 0.7, 0.3, 0.78, 0.22];

/// How far the middle of the text is above its arrow.
const LIFT: f64 = 8.0;

/// A label across more arrows than this is not worth its place.
const MOST_CROSSED: usize = 1;

impl Labels {
    /// Keeps labels off a rectangle.
    pub(super) fn avoid(&mut self, x: f64, y: f64, width: f64, height: f64) {
        let centre = (x + width / 2.0, y + height / 2.0);
        self.taken.push(Slab { centre, axis: (1.0, 0.0), half: (width / 2.0, height / 2.0) });
    }

    /// Finds a place for the text on that arrow, among all arrows.
    pub(super) fn place(&mut self, text: &str, on: Route, side: Side, arrows: &[Route]) -> Option<Placed> {
        let length = (on.to.0 - on.from.0).hypot(on.to.1 - on.from.1);
        let width = width_of(text, TINY) + 6.0;
        if width > length * 0.9 {
            return None;
        }
        let lift = if side == Side::Above { LIFT } else { -LIFT };
        let places = PLACES.into_iter().filter(|place| {
            let (before, after) = (place * length, (1.0 - place) * length);
            before.min(after) >= width / 2.0
        });
        let slabs = places.filter_map(|place| {
            let axis = along(on, place);
            // Steeper text is hard to read.
            if axis.1.atan2(axis.0).to_degrees().abs() > 76.0 {
                return None;
            }
            let at = on.point(place);
            let centre = (at.0 + axis.1 * lift, at.1 - axis.0 * lift);
            Some(Slab { centre, axis, half: (width / 2.0, TINY / 2.0 + 1.0) })
        });
        let free = slabs.filter(|slab| !self.taken.iter().any(|taken| taken.meets(slab)));
        let crossed = |slab: &Slab| arrows.iter().filter(|arrow| slab.is_crossed_by(arrow)).count();
        let counted = free.map(|slab| (crossed(&slab), slab));
        let (_, best) =
            counted.filter(|(crossed, _)| *crossed <= MOST_CROSSED).min_by_key(|(crossed, _)| *crossed)?;
        self.taken.push(best);
        Some(Placed::on(&best))
    }

    /// Finds a place for the text above the loop of a message of a site to itself.
    pub(super) fn above(&mut self, text: &str, on: Route) -> Option<Placed> {
        const HEIGHT: f64 = 29.0;
        let centre = (f64::midpoint(on.from.0, on.to.0), on.from.1 - HEIGHT);
        let half = (width_of(text, TINY) / 2.0 + 3.0, TINY / 2.0 + 1.0);
        let slab = Slab { centre, axis: (1.0, 0.0), half };
        if self.taken.iter().any(|taken| taken.meets(&slab)) {
            return None;
        }
        self.taken.push(slab);
        Some(Placed::on(&slab))
    }
}

impl Placed {
    fn on(slab: &Slab) -> Self {
        let angle = slab.axis.1.atan2(slab.axis.0).to_degrees();
        Self { x: slab.centre.0, y: slab.centre.1, angle }
    }
}

/// The direction of a way at a part of it, from left to right.
fn along(way: Route, part: f64) -> (f64, f64) {
    let (before, after) = (way.point((part - 0.04).max(0.0)), way.point((part + 0.04).min(1.0)));
    if before.0 <= after.0 { unit(before, after) } else { unit(after, before) }
}

/// A rectangle that may be turned.
#[derive(Clone, Copy)]
struct Slab {
    centre: (f64, f64),
    /// The direction of its length.
    axis: (f64, f64),
    half: (f64, f64),
}

impl Slab {
    /// Whether two overlap: they do unless one of their four axes separates them.
    fn meets(&self, other: &Self) -> bool {
        let between = (other.centre.0 - self.centre.0, other.centre.1 - self.centre.1);
        let axes = [self.axis, normal(self.axis), other.axis, normal(other.axis)];
        axes.into_iter().all(|axis| dot(between, axis).abs() <= self.reach(axis) + other.reach(axis))
    }

    fn is_crossed_by(&self, way: &Route) -> bool {
        let pieces = if way.is_straight() { 1 } else { 6 };
        (0..pieces).any(|piece| {
            let end = |piece: usize| way.point(piece as f64 / pieces as f64);
            self.is_crossed_by_line(end(piece), end(piece + 1))
        })
    }

    fn is_crossed_by_line(&self, from: (f64, f64), to: (f64, f64)) -> bool {
        let axis = unit(from, to);
        let half = ((to.0 - from.0).hypot(to.1 - from.1) / 2.0, 0.0);
        let centre = ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0);
        self.meets(&Self { centre, axis, half })
    }

    fn reach(&self, axis: (f64, f64)) -> f64 {
        self.half.0 * dot(self.axis, axis).abs() + self.half.1 * dot(normal(self.axis), axis).abs()
    }
}

fn dot(a: (f64, f64), b: (f64, f64)) -> f64 {
    a.0 * b.0 + a.1 * b.1
}

fn normal(a: (f64, f64)) -> (f64, f64) {
    (-a.1, a.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_on_the_same_arrow_do_not_overlap_and_the_last_finds_no_place() {
        let arrow = Route::straight((0.0, 0.0), (150.0, 60.0));
        let mut labels = Labels::default();
        let placed: Vec<_> =
            (0..9).map_while(|_| labels.place("reply(3,0)", arrow, Side::Above, &[arrow])).collect();
        assert!((1..9).contains(&placed.len()), "{placed:?}");
        let apart = |a: &Placed, b: &Placed| (a.x - b.x).hypot(a.y - b.y) > TINY;
        assert!(placed.iter().enumerate().all(|(n, a)| placed[..n].iter().all(|b| apart(a, b))));
    }

    #[test]
    fn a_label_keeps_off_what_is_taken_and_prefers_to_cross_nothing() {
        let arrow = Route::straight((0.0, 0.0), (300.0, 0.0));
        let mut labels = Labels::default();
        let middle = labels.place("abc", arrow, Side::Above, &[]).expect("nothing is in the way");
        assert_eq!((middle.x, middle.angle), (150.0, 0.0));

        let mut labels = Labels::default();
        labels.avoid(100.0, -20.0, 100.0, 40.0);
        let aside = labels.place("abc", arrow, Side::Above, &[]).expect("there is room beside the bar");
        assert!(aside.x < 100.0 || aside.x > 200.0);

        let crossing = Route::straight((150.0, -30.0), (150.0, 30.0));
        let beside =
            Labels::default().place("abc", arrow, Side::Above, &[crossing]).expect("nothing is taken");
        assert!((beside.x - 150.0).abs() > 10.0);
    }

    #[test]
    fn a_short_or_upright_arrow_gets_no_label() {
        for end in [(20.0, 5.0), (5.0, 400.0)] {
            let arrow = Route::straight((0.0, 0.0), end);
            assert_eq!(Labels::default().place("request(1,0)", arrow, Side::Above, &[]), None);
        }
    }
}
