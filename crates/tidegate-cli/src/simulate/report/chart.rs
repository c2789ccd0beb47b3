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

/// Height of a chart in the SVG's own units; a bar is [`BAR`] wide. The page stretches both to its own sizes, so texts are beside
/// the SVG and not in it.
const HEIGHT: u64 = 1_000;
const BAR: usize = 10;
/// A chart has room for this many bars at least, so that a short trace has no walls for bars.
const BARS_MIN: usize = 24;
/// Labels below a chart, about.
const TICKS: u64 = 9;

/// Counts of one kind, by bar.
pub(super) struct Series<'a> {
    class: &'static str,
    what: &'static str,
    counts: &'a [u32],
}

impl<'a> Series<'a> {
    pub(super) fn new(class: &'static str, what: &'static str, counts: &'a [u32]) -> Series<'a> {
        Series { class, what, counts }
    }
}

/// Several counts over time, one on the other, with axes.
pub(super) fn stacked(out: &mut String, scale: &Scale, series: &[Series<'_>]) {
    let bars = series.first().map_or(0, |one| one.counts.len());
    let sum = |bar: usize| series.iter().map(|one| u64::from(one.counts[bar])).sum::<u64>();
    let top = round_up((0..bars).map(sum).max().unwrap_or(0).max(1));
    let width = bars.max(BARS_MIN) * BAR;
    let middle = if top.is_multiple_of(2) { human::count(top / 2) } else { String::new() };
    let _ = write!(
        out,
        "<div class=\"chart\"><div class=\"y\"><span>{}</span><span>{middle}</span><span>0</span></div><div class=\"plot\">\n\
         <svg viewBox=\"0 0 {width} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">\n\
         <path class=\"grid\" d=\"M0 0H{width}M0 500H{width}M0 {HEIGHT}H{width}\"/>\n",
        human::count(top),
        series.iter().map(|one| one.what).collect::<Vec<_>>().join(" and ") + " over time",
    );
    for bar in (0..bars).filter(|bar| sum(*bar) > 0) {
        let counts: Vec<String> =
            series.iter().map(|one| format!("{} {}", human::count(one.counts[bar].into()), one.what)).collect();
        let from = scale.face.instant(start_of(scale, bar));
        let _ = write!(out, "<g><title>{from}: {}</title>", counts.join(", "));
        let mut base = HEIGHT * 10;
        for one in series.iter().filter(|one| one.counts[bar] > 0) {
            let tall = u64::from(one.counts[bar]) * HEIGHT * 10 / top;
            base -= tall;
            rect(out, one.class, bar, base, tall);
        }
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n<div class=\"x\">");
    ticks(out, scale, bars);
    out.push_str("</div></div></div>\n");
}

/// Denials over time, as high as the cell; its tallest bar is its own largest count.
pub(super) fn sparkline(out: &mut String, scale: &Scale, denied: &[u32]) {
    let top = u64::from(denied.iter().copied().max().unwrap_or(0).max(1));
    let width = denied.len().max(BARS_MIN) * BAR;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {width} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"denied over time\">"
    );
    for (bar, count) in denied.iter().enumerate().filter(|(_, count)| **count > 0) {
        // At least a fifth of the height, so that a single denial is seen beside a storm.
        let tall = (u64::from(*count) * HEIGHT * 10 / top).max(HEIGHT * 2);
        let from = scale.face.instant(start_of(scale, bar));
        let _ = write!(out, "<g><title>{from}: {} denied</title>", human::count(u64::from(*count)));
        rect(out, "denied", bar, HEIGHT * 10 - tall, tall);
        out.push_str("</g>");
    }
    out.push_str("</svg>");
}

/// A bar's part, with a gap of a tenth to the next; heights in tenths.
fn rect(out: &mut String, class: &str, bar: usize, y: u64, tall: u64) {
    let _ = write!(
        out,
        "<rect class=\"{class}\" x=\"{}\" y=\"{}.{}\" width=\"{}\" height=\"{}.{}\"/>",
        bar * BAR,
        y / 10,
        y % 10,
        BAR - 1,
        tall / 10,
        tall % 10
    );
}

/// Labels at round times: where a bar starts at a multiple of the step. None so far right that it would leave the page.
fn ticks(out: &mut String, scale: &Scale, bars: usize) {
    let step = scale.axis.label_step(TICKS);
    let starts = (0..bars).map(|bar| (bar * 1_000 / bars.max(BARS_MIN), start_of(scale, bar)));
    let round = starts.filter(|(permille, start)| *permille < 900 && start.get().is_multiple_of(step.get().max(1)));
    for (permille, start) in round {
        let left = format!("{}.{}%", permille / 10, permille % 10);
        let _ = write!(out, "<span style=\"left:{left}\">{}</span>", scale.face.tick(start, step));
    }
}

fn start_of(scale: &Scale, bar: usize) -> Micros {
    Micros::saturating(scale.axis.start().get().saturating_add(scale.axis.width().get().saturating_mul(bar as u64)))
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
