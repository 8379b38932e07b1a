//! Where the labels of arrows go: along the arrow, off other labels and bars, across as few arrows as can be.
//!
//! Greedy: arrows in order, a few places each, the best free one taken; an arrow without a free place gets no
//! label, for its colour and its tooltip still say what it is.

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

/// An arrow from one point to another.
pub(super) type Segment = ((f64, f64), (f64, f64));

/// Labels placed so far, and what else they must keep off.
#[derive(Default)]
pub(super) struct Labels {
    taken: Vec<Slab>,
}

/// Where along the arrow a label may sit, the best first. Broadcasts fan out from a point: labels near their
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
    pub(super) fn place(
        &mut self,
        text: &str,
        on: Segment,
        side: Side,
        arrows: &[Segment],
    ) -> Option<Placed> {
        let (mut from, mut to) = on;
        if from.0 > to.0 {
            (from, to) = (to, from);
        }
        let along = unit(from, to);
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let width = width_of(text, TINY) + 6.0;
        if width > length * 0.9 {
            return None;
        }
        // Text steeper than this is hard to read.
        let angle = along.1.atan2(along.0).to_degrees();
        if angle.abs() > 76.0 {
            return None;
        }
        let lift = if side == Side::Above { LIFT } else { -LIFT };
        let places = PLACES.into_iter().filter(|place| {
            let (before, after) = (place * length, (1.0 - place) * length);
            before.min(after) >= width / 2.0
        });
        let slabs = places.map(|place| {
            let at = (from.0 + along.0 * length * place, from.1 + along.1 * length * place);
            let centre = (at.0 + along.1 * lift, at.1 - along.0 * lift);
            Slab { centre, axis: along, half: (width / 2.0, TINY / 2.0 + 1.0) }
        });
        let free = slabs.filter(|slab| !self.taken.iter().any(|taken| taken.meets(slab)));
        let crossed = |slab: &Slab| arrows.iter().filter(|arrow| slab.is_crossed_by(**arrow)).count();
        let counted = free.map(|slab| (crossed(&slab), slab));
        let (_, best) =
            counted.filter(|(crossed, _)| *crossed <= MOST_CROSSED).min_by_key(|(crossed, _)| *crossed)?;
        self.taken.push(best);
        Some(Placed { x: best.centre.0, y: best.centre.1, angle })
    }
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

    fn is_crossed_by(&self, (from, to): Segment) -> bool {
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
        let arrow = ((0.0, 0.0), (150.0, 60.0));
        let mut labels = Labels::default();
        let placed: Vec<_> =
            (0..9).map_while(|_| labels.place("reply(3,0)", arrow, Side::Above, &[arrow])).collect();
        assert!((1..9).contains(&placed.len()), "{placed:?}");
        let apart = |a: &Placed, b: &Placed| (a.x - b.x).hypot(a.y - b.y) > TINY;
        assert!(placed.iter().enumerate().all(|(n, a)| placed[..n].iter().all(|b| apart(a, b))));
    }

    #[test]
    fn a_label_keeps_off_what_is_taken_and_prefers_to_cross_nothing() {
        let arrow = ((0.0, 0.0), (300.0, 0.0));
        let mut labels = Labels::default();
        let middle = labels.place("abc", arrow, Side::Above, &[]).expect("nothing is in the way");
        assert_eq!((middle.x, middle.angle), (150.0, 0.0));

        let mut labels = Labels::default();
        labels.avoid(100.0, -20.0, 100.0, 40.0);
        let aside = labels.place("abc", arrow, Side::Above, &[]).expect("there is room beside the bar");
        assert!(aside.x < 100.0 || aside.x > 200.0);

        let crossing = ((150.0, -30.0), (150.0, 30.0));
        let beside =
            Labels::default().place("abc", arrow, Side::Above, &[crossing]).expect("nothing is taken");
        assert!((beside.x - 150.0).abs() > 10.0);
    }

    #[test]
    fn a_short_or_upright_arrow_gets_no_label() {
        assert_eq!(
            Labels::default().place("request(1,0)", ((0.0, 0.0), (20.0, 5.0)), Side::Above, &[]),
            None
        );
        assert_eq!(
            Labels::default().place("request(1,0)", ((0.0, 0.0), (5.0, 400.0)), Side::Above, &[]),
            None
        );
    }
}
