//! The visual language: colours, type, escaping, and a few shapes.
//!
//! Pictures bring their own background, so that they read the same in a light and in a dark browser; they use
//! presentation attributes only, so that several can stand in one page without their styles mixing; and they
//! contain no script.

use std::fmt::{self, Display, Write as _};

/// Behind everything.
pub(super) const PAPER: &str = "#ffffff";
/// Titles and names.
pub(super) const INK: &str = "#1c2733";
/// Secondary text.
pub(super) const SOFT: &str = "#5a6675";
/// Axes and the sites' lines.
pub(super) const LINE: &str = "#8d98a5";
/// The grid.
pub(super) const GRID: &str = "#e8ebef";
/// Something is broken.
pub(super) const ALARM: &str = "#b3261e";

/// Told apart by people with any colour vision, and dark enough for thin lines on white: after Okabe and Ito,
/// and Tol.
pub(super) const HUES: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#8f7300", "#332288", "#cc6677", "#5b6470"];

/// The sizes of type.
pub(super) const TITLE: f64 = 20.0;
/// Subtitle, site names.
pub(super) const BODY: f64 = 13.0;
/// Axis and legend.
pub(super) const SMALL: f64 = 11.5;
/// On arrows and bars.
pub(super) const TINY: f64 = 10.5;

/// A picture in the making.
pub(super) struct Svg {
    out: String,
}

impl Svg {
    /// A picture of that size, with its background and a title for screen readers.
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        let (w, h) = (Num(width), Num(height));
        let mut out = String::new();
        put(
            &mut out,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
                 viewBox=\"0 0 {w} {h}\" role=\"img\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif\">\n\
                 <title>{}</title>\n<rect width=\"{w}\" height=\"{h}\" fill=\"{PAPER}\"/>\n",
                Escaped(title)
            ),
        );
        Self { out }
    }

    /// Appends markup as it is.
    pub(super) fn raw(&mut self, markup: fmt::Arguments<'_>) {
        put(&mut self.out, markup);
        self.out.push('\n');
    }

    /// Opens a group with those attributes.
    pub(super) fn open(&mut self, attributes: &str) {
        self.raw(format_args!("<g {attributes}>"));
    }

    /// Closes a group.
    pub(super) fn close(&mut self) {
        self.raw(format_args!("</g>"));
    }

    /// The tooltip of the group.
    pub(super) fn tooltip(&mut self, text: &str) {
        self.raw(format_args!("<title>{}</title>", Escaped(text)));
    }

    /// A piece of text.
    pub(super) fn text(&mut self, text: &Type<'_>, x: f64, y: f64, words: &str) {
        let Type { size, fill, anchor, weight } = text;
        self.raw(format_args!(
            "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{fill}\" text-anchor=\"{}\" \
             font-weight=\"{weight}\">{}</text>",
            Num(x),
            Num(y),
            Num(*size),
            anchor.name(),
            Escaped(words)
        ));
    }

    /// Two pieces of text in one row, the second wherever the first ends: only the browser knows where.
    pub(super) fn two_texts(
        &mut self,
        (x, y): (f64, f64),
        first: (&Type<'_>, &str),
        second: (&Type<'_>, &str),
    ) {
        let run = |out: &mut Self, (Type { size, fill, weight, .. }, words): (&Type<'_>, &str), dx: f64| {
            out.raw(format_args!(
                "<tspan dx=\"{}\" font-size=\"{}\" fill=\"{fill}\" font-weight=\"{weight}\">{}</tspan>",
                Num(dx),
                Num(*size),
                Escaped(words)
            ));
        };
        self.raw(format_args!("<text x=\"{}\" y=\"{}\">", Num(x), Num(y)));
        run(self, first, 0.0);
        run(self, second, 6.0);
        self.raw(format_args!("</text>"));
    }

    /// A straight line.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        self.raw(format_args!(
            "<path d=\"M{} {}L{} {}\" {attributes}/>",
            Num(from.0),
            Num(from.1),
            Num(to.0),
            Num(to.1)
        ));
    }

    /// A cubic curve.
    pub(super) fn curve(
        &mut self,
        from: (f64, f64),
        [first, second]: [(f64, f64); 2],
        to: (f64, f64),
        attributes: &str,
    ) {
        self.raw(format_args!(
            "<path d=\"M{} {}C{} {} {} {} {} {}\" {attributes}/>",
            Num(from.0),
            Num(from.1),
            Num(first.0),
            Num(first.1),
            Num(second.0),
            Num(second.1),
            Num(to.0),
            Num(to.1)
        ));
    }

    /// Straight lines from point to point.
    pub(super) fn polyline(&mut self, places: &[(f64, f64)], attributes: &str) {
        let places: Vec<_> = places.iter().map(|(x, y)| format!("{} {}", Num(*x), Num(*y))).collect();
        self.raw(format_args!("<path d=\"M{}\" {attributes}/>", places.join("L")));
    }

    /// A rectangle.
    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, attributes: &str) {
        self.raw(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {attributes}/>",
            Num(x),
            Num(y),
            Num(width.max(0.0)),
            Num(height.max(0.0))
        ));
    }

    /// A circle, with what a pointer that rests on it sees.
    pub(super) fn circle(&mut self, (x, y): (f64, f64), radius: f64, attributes: &str, tooltip: &str) {
        let (x, y, radius) = (Num(x), Num(y), Num(radius));
        self.raw(format_args!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" {attributes}><title>{}</title></circle>",
            Escaped(tooltip)
        ));
    }

    /// The head of an arrow that ends at `tip`, coming from the direction of `from`.
    pub(super) fn head(&mut self, from: (f64, f64), tip: (f64, f64), length: f64, attributes: &str) {
        let (dx, dy) = unit(from, tip);
        let (bx, by) = (tip.0 - dx * length, tip.1 - dy * length);
        let half = length * 0.42;
        self.raw(format_args!(
            "<path d=\"M{} {}L{} {}L{} {}Z\" {attributes}/>",
            Num(tip.0),
            Num(tip.1),
            Num(bx - dy * half),
            Num(by + dx * half),
            Num(bx + dy * half),
            Num(by - dx * half)
        ));
    }

    /// A cross.
    pub(super) fn cross(&mut self, x: f64, y: f64, half: f64, attributes: &str) {
        self.raw(format_args!(
            "<path d=\"M{} {}L{} {}M{} {}L{} {}\" fill=\"none\" {attributes}/>",
            Num(x - half),
            Num(y - half),
            Num(x + half),
            Num(y + half),
            Num(x - half),
            Num(y + half),
            Num(x + half),
            Num(y - half)
        ));
    }

    /// The whole file.
    pub(super) fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
}

/// Defines the hatching of violations. Returns the name by which a fill refers to it.
pub(super) fn hatching(out: &mut Svg) -> &'static str {
    const NAME: &str = "conclave-hatching";
    out.raw(format_args!(
        "<defs><pattern id=\"{NAME}\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><path d=\"M0 0V7\" stroke=\"{ALARM}\" stroke-width=\"2\" \
         stroke-opacity=\"0.45\"/></pattern></defs>"
    ));
    NAME
}

/// The colour of a number.
pub(super) fn hue(number: usize) -> &'static str {
    HUES[number % HUES.len()]
}

/// How text is set.
#[derive(Clone, Copy)]
pub(super) struct Type<'a> {
    pub(super) size: f64,
    pub(super) fill: &'a str,
    pub(super) anchor: Anchor,
    pub(super) weight: u16,
}

impl Type<'static> {
    pub(super) const fn new(size: f64, fill: &'static str) -> Self {
        Self { size, fill, anchor: Anchor::Start, weight: 400 }
    }
}

impl Type<'_> {
    pub(super) const fn anchored(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub(super) const fn weighing(self, weight: u16) -> Self {
        Self { weight, ..self }
    }
}

/// Which part of a text its position is.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// About how wide a text will be: no font is at hand, so the mean of common sans-serif faces.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    let units: f64 = text
        .chars()
        .map(|c| match c {
            'i' | 'l' | 'j' | '.' | ',' | ':' | ';' | '\'' | '|' | 'I' | '(' | ')' | ' ' | 't' | 'f'
            | 'r' => 0.34,
            'm' | 'w' | 'M' | 'W' | '…' => 0.86,
            c if c.is_ascii_uppercase() => 0.68,
            c if c.is_ascii() => 0.57,
            _ => 0.9,
        })
        .sum();
    units * size
}

/// The text, cut so that it fits.
pub(super) fn fit(text: &str, size: f64, width: f64) -> String {
    if width_of(text, size) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if width_of(&kept, size) + size > width {
            break;
        }
    }
    kept.push('…');
    kept
}

/// The direction from one point to another; downwards if they are one.
pub(super) fn unit(from: (f64, f64), to: (f64, f64)) -> (f64, f64) {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy);
    if length < 1e-9 { (0.0, 1.0) } else { (dx / length, dy / length) }
}

/// A coordinate: at most one decimal, without trailing zeros. A number that is not finite becomes 0, so that
/// a picture is always well formed.
pub(super) struct Num(pub(super) f64);

impl Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = if self.0.is_finite() { (self.0 * 10.0).round() / 10.0 } else { 0.0 };
        // Adding zero turns -0 into 0.
        write!(f, "{}", tenths + 0.0)
    }
}

/// Text as XML takes it; characters that XML forbids are replaced.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            '\t' | '\n' => f.write_char(c),
            '\0'..' ' | '\u{7f}'..'\u{a0}' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}'),
            c => f.write_char(c),
        })
    }
}

fn put(out: &mut String, markup: fmt::Arguments<'_>) {
    out.write_fmt(markup).expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_forbidden_characters_are_replaced() {
        assert_eq!(
            Escaped("<a b='\"&\"'>\u{1}\0").to_string(),
            "&lt;a b=&#39;&quot;&amp;&quot;&#39;&gt;\u{fffd}\u{fffd}"
        );
    }

    #[test]
    fn coordinates_have_at_most_one_decimal_and_are_always_numbers() {
        let shown = [1.25, -0.01, 3.0, f64::NAN, f64::INFINITY].map(|n| Num(n).to_string());
        assert_eq!(shown, ["1.3", "0", "3", "0", "0"]);
    }

    #[test]
    fn a_text_that_is_too_wide_is_cut() {
        assert_eq!(fit("short", BODY, 100.0), "short");
        let cut = fit("a very long name of a host", BODY, 60.0);
        assert!(cut.ends_with('…') && width_of(&cut, BODY) <= 75.0, "{cut}");
    }
}
