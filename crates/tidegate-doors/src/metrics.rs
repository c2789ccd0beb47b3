//! What Tidegate tells monitors: one registry that every part fills, in the Prometheus text format 0.0.4 or in OpenMetrics (`format.rs`).
//!
//! Parts count for themselves, in atomics or in the engine's own figures; a registry asks them when a monitor asks it. The HTTP door,
//! the UDP door, the engine, the streams and the proxy each fill a page in this way, so that heads, labels and histograms are
//! written in one place.
//!
//! Why not the crate prometheus-client: nearly all figures are read from where they are kept for other reasons (limiters,
//! tables, streams, lines of the proxy), which there takes a collector of one's own that is as long as what it would replace; and its
//! text is OpenMetrics alone.
//! Invariant: labels are from closed sets of ours; keys, domains and paths of clients never become labels (promise M3).

mod certificates;
mod engine;
mod format;
mod histogram;
mod process;

pub use certificates::fill_certificates;
pub use engine::{fill_engine, fill_streams};
pub use format::Format;
pub use histogram::{Histogram, Reading, Scale};
pub use process::fill_process;

use std::fmt::{Display, Write as _};

/// The parts that fill a page.
#[derive(Default)]
pub struct Registry(Vec<Fill>);

type Fill = Box<dyn Fn(&mut Page) + Send + Sync>;

impl Registry {
    /// Adds a part, which fills its place on every page.
    pub fn register(&mut self, fill: impl Fn(&mut Page) + Send + Sync + 'static) {
        self.0.push(Box::new(fill));
    }

    /// A page with the figures of now.
    #[must_use]
    pub fn text(&self, format: Format) -> String {
        let mut page = Page { text: String::new(), format };
        self.0.iter().for_each(|fill| fill(&mut page));
        page.text + format.end()
    }
}

/// The page that is being filled.
pub struct Page {
    text: String,
    format: Format,
}

/// What a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It is what it is now.
    Gauge,
}

impl Page {
    /// A metric whose samples follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.family_of(name, kind, help)
    }

    /// A metric of times whose samples follow.
    pub fn histogram(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family_of(name, "histogram", help)
    }

    /// A metric with one sample and no label.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }

    fn family_of(&mut self, name: &str, kind: &str, help: &str) -> Family<'_> {
        // Writing to a string cannot fail.
        let family = self.format.family(name);
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {kind}");
        Family { text: &mut self.text, name: name.to_owned() }
    }
}

/// One metric, and where its samples go.
pub struct Family<'p> {
    text: &'p mut String,
    name: String,
}

/// Names and values of labels.
pub type Labels<'l> = [(&'l str, &'l str)];

impl Family<'_> {
    /// One sample.
    pub fn sample(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.push("", labels, &[], value);
    }

    /// The samples of a histogram: cumulative counts by upper bound, in seconds, the sum and the count.
    pub fn times(&mut self, labels: &Labels<'_>, reading: &Reading) {
        for (bound_us, count) in reading.cumulative() {
            self.push("_bucket", labels, &[("le", &reading.bound(bound_us))], count);
        }
        self.push("_bucket", labels, &[("le", "+Inf")], reading.count());
        self.push("_sum", labels, &[], seconds(reading.sum_us));
        self.push("_count", labels, &[], reading.count());
    }

    fn push(&mut self, end: &str, labels: &Labels<'_>, more: &Labels<'_>, value: impl Display) {
        let _ = write!(self.text, "{}{end}", self.name);
        for (index, (label, value)) in labels.iter().chain(more).enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            self.text.extend(value.chars().flat_map(escaped));
            self.text.push('"');
        }
        let close = if labels.is_empty() && more.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }
}

fn escaped(character: char) -> impl Iterator<Item = char> {
    let (backslash, character) = match character {
        '\n' => (Some('\\'), 'n'),
        '\\' | '"' => (Some('\\'), character),
        _ => (None, character),
    };
    backslash.into_iter().chain([character])
}

/// Microseconds as seconds, exact: `14401` or `14401.5`.
#[must_use]
pub fn seconds(us: u64) -> String {
    let (whole, part) = (us / 1_000_000, us % 1_000_000);
    match part {
        0 => whole.to_string(),
        _ => format!("{whole}.{part:06}").trim_end_matches('0').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Micros;

    #[track_caller]
    fn check(fill: impl Fn(&mut Page) + Send + Sync + 'static, expected: &[&str]) {
        let mut registry = Registry::default();
        registry.register(fill);
        let text = registry.text(Format::Text);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn samples_carry_their_labels() {
        check(|page| page.single("up", Kind::Gauge, "Help.", 1), &["up 1"]);
        let two = |page: &mut Page| {
            let mut family = page.family("hits_total", Kind::Counter, "Help.");
            family.sample(&[("limiter", "a"), ("verdict", "allowed")], 3);
            family.sample(&[("limiter", "q\"b\\s\n")], 4);
        };
        check(two, &["hits_total{limiter=\"a\",verdict=\"allowed\"} 3", "hits_total{limiter=\"q\\\"b\\\\s\\n\"} 4"]);
        let mut registry = Registry::default();
        registry.register(|page| page.single("a_total", Kind::Counter, "What it counts.", 7));
        registry.register(|page| page.single("b", Kind::Gauge, "What it is.", "0.5"));
        let expected = "# HELP a_total What it counts.\n# TYPE a_total counter\na_total 7\n# HELP b What it is.\n# TYPE b gauge\nb 0.5\n";
        assert_eq!(registry.text(Format::Text), expected);
        let open = expected.replace("HELP a_total", "HELP a").replace("TYPE a_total", "TYPE a") + "# EOF\n";
        assert_eq!(registry.text(Format::OpenMetrics), open);
    }

    #[test]
    fn times_are_cumulative_and_in_seconds() {
        let times = |page: &mut Page| {
            let histogram = Histogram::new(Scale::Bounds(&[5, 1_000]));
            [3, 5, 6, 5_000_000].into_iter().for_each(|us| histogram.note(Micros::saturating(us)));
            page.histogram("wait_seconds", "Help.").times(&[("route", "/")], &histogram.read());
        };
        check(
            times,
            &[
                "wait_seconds_bucket{route=\"/\",le=\"0.000005\"} 2",
                "wait_seconds_bucket{route=\"/\",le=\"0.001\"} 3",
                "wait_seconds_bucket{route=\"/\",le=\"+Inf\"} 4",
                "wait_seconds_sum{route=\"/\"} 5.000014",
                "wait_seconds_count{route=\"/\"} 4",
            ],
        );
    }
}
