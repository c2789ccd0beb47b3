//! What the proxy counts, by limiter and never by path (promise M3).
//!
//! Waiting that was asked for is told apart from what the proxy itself takes: the *wait* ends when a slot
//! could be had, the *overhead* is from there (or from the arrival, if that was later) to forwarding.

use crate::histogram::{Histogram, Reading};
use crate::queue::Census;
use crate::reply::LIMITER;
use http::StatusCode;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::Micros;
use tidegate_doors::listener;

#[derive(Default)]
pub(crate) struct Metrics {
    wait: Histogram,
    overhead: Histogram,
    by_class: [AtomicU64; 6],
    denied: AtomicU64,
    line_full: AtomicU64,
    left: AtomicU64,
    again: AtomicU64,
    upstream_errors: AtomicU64,
    pub(crate) census: Arc<listener::Census>,
}

impl Metrics {
    /// A request goes to the upstream.
    pub(crate) fn note_start(&self, arrived: Micros, possible: Micros, now: Micros) {
        self.wait.note(possible.saturating_sub(arrived));
        self.overhead.note(now.saturating_sub(arrived.max(possible)));
    }

    /// A request is answered, by the upstream or by us.
    pub(crate) fn note_answer(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100);
        self.by_class[class.min(5)].fetch_add(1, Relaxed);
    }

    pub(crate) fn note_denied(&self) {
        self.denied.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_line_full(&self) {
        self.line_full.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_left(&self) {
        self.left.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_again(&self) {
        self.again.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_upstream_error(&self) {
        self.upstream_errors.fetch_add(1, Relaxed);
    }

    fn counters(&self) -> [(&'static str, &'static str, u64); 6] {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        [
            ("forwarded", "Requests forwarded to the upstream.", self.wait.read().count()),
            ("denied", "Requests answered 429, by the limit or after max_wait.", read(&self.denied)),
            ("line_full", "Requests answered 503 because as many waited as may.", read(&self.line_full)),
            ("left", "Requests whose client had left when a slot came.", read(&self.left)),
            ("again", "Slots that were not used in their window and lined up again.", read(&self.again)),
            ("upstream_errors", "Requests answered 502 or 504.", read(&self.upstream_errors)),
        ]
    }

    fn gauges(&self, census: Census, upstream: usize) -> [(&'static str, &'static str, u64); 5] {
        [
            ("in_flight", "Requests under way.", census.in_flight.into()),
            ("waiting", "Requests in line.", census.waiting.into()),
            ("keys", "Keys that have a place.", census.keys as u64),
            ("connections", "Client connections.", self.census.open() as u64),
            ("upstream_connections", "Connections to the upstream, idle ones included.", upstream as u64),
        ]
    }

    /// The Prometheus text.
    pub(crate) fn text(&self, census: Census, upstream: usize) -> String {
        let mut text = String::with_capacity(8 << 10);
        for (name, help, value) in self.counters() {
            push(&mut text, &format!("tidegate_proxy_{name}_total"), "counter", help, value);
        }
        for (name, help, value) in self.gauges(census, upstream) {
            push(&mut text, &format!("tidegate_proxy_{name}"), "gauge", help, value);
        }
        for (name, help, value) in self.connection_counters() {
            push(&mut text, &format!("tidegate_proxy_connections_{name}_total"), "counter", help, value);
        }
        let name = "tidegate_proxy_responses_total";
        let _ = writeln!(text, "# HELP {name} Answers by class of their status.\n# TYPE {name} counter");
        for (class, count) in self.by_class.iter().enumerate().skip(1) {
            let _ = writeln!(text, "{name}{{limiter=\"{LIMITER}\",class=\"{class}xx\"}} {}", count.load(Relaxed));
        }
        push_histogram(&mut text, "wait", "Time until a slot could be had.", &self.wait.read());
        push_histogram(&mut text, "overhead", "From then, or from the arrival, to forwarding.", &self.overhead.read());
        text
    }

    fn connection_counters(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            ("accepted", "Client connections accepted.", self.census.accepted()),
            ("refused", "Client connections refused because all were taken.", self.census.refused()),
            ("cut", "Client connections cut because they were idle or slow.", self.census.cut()),
        ]
    }

    /// The JSON summary.
    pub(crate) fn json(&self, census: Census, upstream: usize) -> String {
        let mut text = format!("{{\"limiter\":\"{LIMITER}\"");
        for (name, _, value) in self.counters().into_iter().chain(self.gauges(census, upstream)) {
            let _ = write!(text, ",\"{name}\":{value}");
        }
        for (name, histogram) in [("wait", &self.wait), ("overhead", &self.overhead)] {
            let reading = histogram.read();
            let _ = write!(text, ",\"{name}_us\":{{\"count\":{},\"sum\":{}", reading.count(), reading.sum_us);
            for (percentile, thousandths) in [("p50", 500), ("p90", 900), ("p95", 950), ("p99", 990)] {
                let _ = write!(text, ",\"{percentile}\":{}", reading.percentile_us(thousandths));
            }
            text.push('}');
        }
        text.push_str("}\n");
        text
    }
}

pub(crate) fn push(text: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{limiter=\"{LIMITER}\"}} {value}");
}

fn push_histogram(text: &mut String, name: &str, help: &str, reading: &Reading) {
    let name = format!("tidegate_proxy_{name}_seconds");
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
    for (bound_us, count) in reading.cumulative() {
        let _ = writeln!(text, "{name}_bucket{{limiter=\"{LIMITER}\",le=\"{}\"}} {count}", seconds(bound_us));
    }
    let count = reading.count();
    let _ = writeln!(text, "{name}_bucket{{limiter=\"{LIMITER}\",le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "{name}_sum{{limiter=\"{LIMITER}\"}} {}", seconds(reading.sum_us));
    let _ = writeln!(text, "{name}_count{{limiter=\"{LIMITER}\"}} {count}");
}

pub(crate) fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}
