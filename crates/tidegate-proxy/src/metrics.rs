//! What the proxy counts, by limiter and never by path (promise M3).
//!
//! Time in line is counted separately from the time that the proxy itself takes: the *wait* ends when a slot
//! could be had, the *overhead* is from there (or from the arrival, if that was later) to forwarding.

use crate::queue::Census;
use crate::reply::LIMITER;
use http::StatusCode;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate::Micros;
use tidegate_doors::listener;
use tidegate_doors::metrics::{Histogram, Kind, Page, Scale};
use tracing::{info, warn};

pub(crate) struct Metrics {
    wait: Histogram,
    overhead: Histogram,
    by_class: [AtomicU64; 6],
    denied: AtomicU64,
    line_full: AtomicU64,
    left: AtomicU64,
    again: AtomicU64,
    resent: AtomicU64,
    upstream_errors: AtomicU64,
    truncated: AtomicU64,
    left_logged: OncePerSecond,
    truncated_logged: OncePerSecond,
    pub(crate) census: Arc<listener::Census>,
}

impl Metrics {
    /// Nothing yet, of so many connections.
    pub(crate) fn new(connections: listener::Caps) -> Metrics {
        Metrics {
            wait: Histogram::new(Scale::Eighths),
            overhead: Histogram::new(Scale::Eighths),
            by_class: Default::default(),
            denied: AtomicU64::new(0),
            line_full: AtomicU64::new(0),
            left: AtomicU64::new(0),
            again: AtomicU64::new(0),
            resent: AtomicU64::new(0),
            upstream_errors: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            left_logged: OncePerSecond::default(),
            truncated_logged: OncePerSecond::default(),
            census: Arc::new(listener::Census::new(connections)),
        }
    }

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

    /// A client left while its request waited, or before it was forwarded.
    pub(crate) fn note_left(&self) {
        let left = self.left.fetch_add(1, Relaxed) + 1;
        if self.left_logged.is_due() {
            info!("a client left before its request was forwarded; {left} since the start");
        }
    }

    pub(crate) fn note_resent(&self) {
        self.resent.fetch_add(1, Relaxed);
    }

    /// The upstream broke off, or fell silent, in the middle of an answer's body.
    pub(crate) fn note_truncated(&self, why: &dyn Display) {
        let truncated = self.truncated.fetch_add(1, Relaxed) + 1;
        if self.truncated_logged.is_due() {
            warn!("an answer was cut short: {why}; {truncated} since the start");
        }
    }

    pub(crate) fn note_again(&self) {
        self.again.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_upstream_error(&self) {
        self.upstream_errors.fetch_add(1, Relaxed);
    }

    fn counters(&self) -> [(&'static str, &'static str, u64); 8] {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        [
            ("forwarded", "Requests forwarded to the upstream.", self.wait.read().count()),
            ("denied", "Requests answered 429, by the limit or after max_wait.", read(&self.denied)),
            ("line_full", "Requests answered 503 because as many waited as may.", read(&self.line_full)),
            ("left", "Requests whose client left before they were forwarded.", read(&self.left)),
            ("again", "Slots that were not used in their window and lined up again.", read(&self.again)),
            ("resent", "Requests sent again, as the upstream had closed a kept connection.", read(&self.resent)),
            ("upstream_errors", "Requests answered 502 or 504.", read(&self.upstream_errors)),
            ("truncated", "Answers that the upstream cut short.", read(&self.truncated)),
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

    /// What Prometheus reads.
    pub(crate) fn fill(&self, census: Census, upstream: usize, page: &mut Page) {
        for (name, help, value) in self.counters() {
            push(page, &format!("tidegate_proxy_{name}_total"), Kind::Counter, help, value);
        }
        for (name, help, value) in self.gauges(census, upstream) {
            push(page, &format!("tidegate_proxy_{name}"), Kind::Gauge, help, value);
        }
        for (name, help, value) in self.connection_counters() {
            push(page, &format!("tidegate_proxy_connections_{name}_total"), Kind::Counter, help, value);
        }
        let help = "Answers by class of their status.";
        let mut classes = page.family("tidegate_proxy_responses_total", Kind::Counter, help);
        for (class, count) in self.by_class.iter().enumerate().skip(1) {
            classes.sample(&[LABEL, ("class", &format!("{class}xx"))], count.load(Relaxed));
        }
        let help = "Time until a slot could be had.";
        page.histogram("tidegate_proxy_wait_seconds", help).times(&[LABEL], &self.wait.read());
        let help = "From then, or from the arrival, to forwarding.";
        page.histogram("tidegate_proxy_overhead_seconds", help).times(&[LABEL], &self.overhead.read());
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

/// Lets a line of the log through once a second at most.
#[derive(Default)]
struct OncePerSecond(Mutex<Option<Instant>>);

impl OncePerSecond {
    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= Duration::from_secs(1));
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// Every metric of the proxy is its limiter's.
const LABEL: (&str, &str) = ("limiter", LIMITER);

pub(crate) fn push(page: &mut Page, name: &str, kind: Kind, help: &str, value: impl Display) {
    page.family(name, kind, help).sample(&[LABEL], value);
}
