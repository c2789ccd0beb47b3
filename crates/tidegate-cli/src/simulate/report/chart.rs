//! Charts as inline SVG. Colours are classes, so that the page's style decides them.

use super::super::timeline::Axis;
use super::time_text::Clockface;
use crate::human;
use std::fmt::Write as _;
use tidegate::Micros;

/// What all charts of a page share.
pub(super) struct Scale {
    pub(super) axis: Axis,
    pub(super) face: Clockface,
}

/// Sizes in the SVG's own units: the page scales them.
const WIDTH: u64 = 960;
const HEIGHT: u64 = 150;
const LEFT: u64 = 56;
const BOTTOM: u64 = 22;
const TOP: u64 = 8;
/// Labels below a chart, about.
const TICKS: u64 = 9;

/// Allowed and denied, one on the other, with axes.
pub(super) fn stacked(out: &mut String, scale: &Scale, allowed: &[u32], denied: &[u32]) {
    let pairs = || allowed.iter().map(|n| u64::from(*n)).zip(denied.iter().map(|n| u64::from(*n)));
    let top = round_up(pairs().map(|(a, d)| a + d).max().unwrap_or(0).max(1));
    let (all_width, all_height) = (LEFT + WIDTH, TOP + HEIGHT + BOTTOM);
    let _ = writeln!(out, "<svg viewBox=\"0 0 {all_width} {all_height}\" role=\"img\">");
    for part in 0..=2 {
        let (y, value) = (TOP + HEIGHT - HEIGHT * part / 2, top * part / 2);
        let _ = writeln!(out, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y}\" x2=\"{all_width}\" y2=\"{y}\"/>");
        if part != 1 || top.is_multiple_of(2) {
            let (x, y) = (LEFT - 8, y + 4);
            let _ = writeln!(out, "<text class=\"y\" x=\"{x}\" y=\"{y}\">{}</text>", human::count(value));
        }
    }
    for (bar, (a, d)) in pairs().enumerate().filter(|(_, (a, d))| a + d > 0) {
        let (x, width) = place(bar, allowed.len());
        let (allowed_height, denied_height) = (height(a, top), height(d, top));
        let from = scale.face.instant(start_of(scale, bar));
        let _ = writeln!(out, "<g><title>{from}: {} allowed, {} denied</title>", human::count(a), human::count(d));
        let base = thousandths((TOP + HEIGHT) * 1_000 - allowed_height);
        let ceiling = thousandths((TOP + HEIGHT) * 1_000 - allowed_height - denied_height);
        let (tall_a, tall_d) = (thousandths(allowed_height), thousandths(denied_height));
        let _ = writeln!(out, "<rect class=\"allowed\" x=\"{x}\" y=\"{base}\" width=\"{width}\" height=\"{tall_a}\"/>");
        let _ = writeln!(
            out,
            "<rect class=\"denied\" x=\"{x}\" y=\"{ceiling}\" width=\"{width}\" height=\"{tall_d}\"/></g>"
        );
    }
    ticks(out, scale, allowed.len());
    out.push_str("</svg>\n");
}

/// Denials over time, as high as the cell; its tallest bar is its own largest count.
pub(super) fn sparkline(out: &mut String, scale: &Scale, denied: &[u32]) {
    const TALL: u64 = 28;
    let top = u64::from(denied.iter().copied().max().unwrap_or(0).max(1));
    let _ = write!(out, "<svg viewBox=\"{LEFT} 0 {WIDTH} {TALL}\" preserveAspectRatio=\"none\" role=\"img\">");
    for (bar, count) in denied.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (x, width) = place(bar, denied.len());
        // At least a fifth of the height, so that a single denial is seen beside a storm.
        let tall = (u64::from(*count) * TALL * 1_000 / top).max(TALL * 200);
        let (y, tall) = (thousandths(TALL * 1_000 - tall), thousandths(tall));
        let from = scale.face.instant(start_of(scale, bar));
        let _ = write!(
            out,
            "<g><title>{from}: {} denied</title><rect class=\"denied\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{tall}\"/></g>",
            human::count(u64::from(*count))
        );
    }
    out.push_str("</svg>");
}

/// Labels at round times: where a bar starts at a multiple of the step.
fn ticks(out: &mut String, scale: &Scale, bars: usize) {
    let step = scale.axis.label_step(TICKS);
    let starts = (0..bars).map(|bar| (bar, start_of(scale, bar)));
    for (bar, start) in starts.filter(|(_, start)| start.get().is_multiple_of(step.get().max(1))) {
        let (x, _) = place(bar, bars);
        let y = TOP + HEIGHT + 16;
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", scale.face.tick(start, step));
    }
}

fn start_of(scale: &Scale, bar: usize) -> Micros {
    Micros::saturating(scale.axis.start().get().saturating_add(scale.axis.width().get().saturating_mul(bar as u64)))
}

/// Where a bar stands, and how wide it is: a gap of a tenth between two.
fn place(bar: usize, bars: usize) -> (String, String) {
    let whole = WIDTH * 1_000 / (bars.max(1) as u64);
    (thousandths(LEFT * 1_000 + whole * bar as u64), thousandths((whole * 9 / 10).min(60_000)))
}

/// A count's height in thousandths.
fn height(count: u64, top: u64) -> u64 {
    count * HEIGHT * 1_000 / top
}

fn thousandths(n: u64) -> String {
    format!("{}.{:03}", n / 1_000, n % 1_000)
}

/// The next number that looks well on an axis, and so does its half.
fn round_up(n: u64) -> u64 {
    const STEPS: [u64; 11] = [10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100];
    let mut tenth = 1_u64;
    while tenth.saturating_mul(100) < n {
        tenth = tenth.saturating_mul(10);
    }
    if n <= 10 {
        return [1, 2, 4, 6, 8, 10].into_iter().find(|step| *step >= n).unwrap_or(n);
    }
    STEPS.iter().map(|step| step.saturating_mul(tenth)).find(|step| *step >= n).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_on_round_numbers() {
        for (n, top) in [(1, 1), (3, 4), (7, 8), (10, 10), (11, 12), (41, 50), (128, 160), (999, 1000), (1001, 1200)] {
            assert_eq!(round_up(n), top);
        }
    }
}
