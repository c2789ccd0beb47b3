//! What the door counts, and the Prometheus text of it and of the engine.
//!
//! Labels are limiter names, route templates, methods and statuses: all from closed sets of ours.
//! Keys, domains and paths of clients never become labels (promise M3).

use super::door::Door;
use super::routes::{ROUTE_COUNT, ROUTES};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::{LimiterInfo, Micros};
use tidegate_events::{Counts, Stream};

/// Every status that the door answers.
const STATUSES: [u16; 19] =
    [101, 200, 201, 400, 401, 403, 404, 405, 408, 409, 413, 426, 429, 431, 500, 501, 503, 507, 0];

/// Upper bounds of the latency buckets, in microseconds.
const BUCKETS_US: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 25_000, 100_000, 1_000_000];

/// One set of counters for each route, and one for all that leads nowhere.
#[derive(Default)]
pub(crate) struct Metrics {
    routes: [RouteMetrics; ROUTE_COUNT + 1],
}

#[derive(Default)]
struct RouteMetrics {
    by_status: [AtomicU64; STATUSES.len()],
    /// The last is for all that took longer.
    by_latency: [AtomicU64; BUCKETS_US.len() + 1],
    latency_sum_us: AtomicU64,
}

impl Metrics {
    /// Notes one response: its route, its status and how long it took to make.
    pub(crate) fn note(&self, route: Option<usize>, status: u16, took: Micros) {
        let route = &self.routes[route.unwrap_or(ROUTE_COUNT)];
        let status = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len() - 1);
        let bucket = BUCKETS_US.iter().position(|bound| took.get() <= *bound).unwrap_or(BUCKETS_US.len());
        route.by_status[status].fetch_add(1, Relaxed);
        route.by_latency[bucket].fetch_add(1, Relaxed);
        route.latency_sum_us.fetch_add(took.get(), Relaxed);
    }
}

/// Writing to a `String` cannot fail.
macro_rules! line {
    ($text:expr, $($arg:tt)*) => { let _ = writeln!($text, $($arg)*); };
}

/// The store on other machines, if there is one.
fn push_store(text: &mut String, door: &Door) {
    let Some(health) = door.gate.store_health() else { return };
    line!(text, "# HELP tidegate_store_up 1 while the store answers.");
    line!(text, "# TYPE tidegate_store_up gauge");
    line!(text, "tidegate_store_up {}", u8::from(health.error.is_none()));
    line!(text, "# HELP tidegate_degraded_total Decisions that were made without the store.");
    line!(text, "# TYPE tidegate_degraded_total counter");
    line!(text, "tidegate_degraded_total {}", health.degraded);
    line!(text, "# HELP tidegate_store_errors_total Questions that the store did not answer, by kind.");
    line!(text, "# TYPE tidegate_store_errors_total counter");
    for (kind, count) in &health.errors {
        line!(text, "tidegate_store_errors_total{{kind=\"{kind}\"}} {count}");
    }
}

/// The whole exposition.
pub(crate) fn text(door: &Door) -> String {
    let mut text = String::with_capacity(8 * 1024);
    let limiters = door.gate.limiters();
    push_limiters(&mut text, &limiters);
    push_parts(&mut text, door, &limiters);
    push_table(&mut text, door);
    push_store(&mut text, door);
    push_requests(&mut text, &door.metrics);
    push_latency(&mut text, &door.metrics);
    push_connections(&mut text, door);
    push_streams(&mut text, door);
    if let Some(udp) = &door.settings.udp {
        for (name, kind, help, value) in udp.metrics() {
            head(&mut text, name, kind, help);
            line!(text, "{name} {value}");
        }
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    line!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn push_limiters(text: &mut String, limiters: &[LimiterInfo]) {
    type Read = fn(&LimiterInfo) -> u64;
    let by_verdict: [(&str, &str, Read, Read); 2] = [
        ("tidegate_decisions_total", "Decisions on hits.", |i| i.counts.allowed, |i| i.counts.denied),
        (
            "tidegate_sketched_decisions_total",
            "Those of the decisions that the over-counting sketch made because the table was full.",
            |i| i.counts.sketched_allowed,
            |i| i.counts.sketched_denied,
        ),
    ];
    for (name, help, allowed, denied) in by_verdict {
        head(text, name, "counter", help);
        for info in limiters {
            line!(text, "{name}{{limiter=\"{}\",verdict=\"allowed\"}} {}", info.spec.name, allowed(info));
            line!(text, "{name}{{limiter=\"{}\",verdict=\"denied\"}} {}", info.spec.name, denied(info));
        }
    }
    let plain: [(&str, &str, &str, Read); 5] = [
        ("tidegate_peeks_total", "counter", "Questions that charged nothing.", |i| i.counts.peeked),
        ("tidegate_stats_refused_total", "counter", "Hits whose key found no place for its statistics.", |i| {
            i.counts.stats_refused
        }),
        ("tidegate_limiter_enabled", "gauge", "1 while the limiter is enabled.", |i| i.enabled.into()),
        ("tidegate_limiter_entries", "gauge", "Keys held, idle ones included.", |i| i.entries as u64),
        ("tidegate_limiter_bytes", "gauge", "Memory held by the limiter's table.", |i| i.bytes as u64),
    ];
    for (name, kind, help, read) in plain {
        head(text, name, kind, help);
        for info in limiters {
            line!(text, "{name}{{limiter=\"{}\"}} {}", info.spec.name, read(info));
        }
    }
}

/// What this process holds of limiters that are held in parts.
fn push_parts(text: &mut String, door: &Door, limiters: &[LimiterInfo]) {
    let mut parts =
        limiters.iter().filter_map(|info| Some((&info.spec.name, door.gate.share_now(&info.spec.name)?))).peekable();
    if parts.peek().is_some() {
        let name = "tidegate_limiter_part";
        head(text, name, "gauge", "What this process may let through of the limiter in the current window.");
        for (limiter, part) in parts {
            line!(text, "{name}{{limiter=\"{limiter}\"}} {part}");
        }
    }
}

fn push_streams(text: &mut String, door: &Door) {
    type Read = fn(&Stream) -> u64;
    let streams = door.settings.streams.all();
    if streams.is_empty() {
        return;
    }
    let name = "tidegate_stream_submissions_total";
    head(text, name, "counter", "Events by what became of them.");
    for stream in streams {
        let Counts { submitted, conflict, full, unavailable, .. } = stream.counts();
        let outcomes = [("submitted", submitted), ("conflict", conflict), ("full", full), ("unavailable", unavailable)];
        for (outcome, count) in outcomes {
            line!(text, "{name}{{stream=\"{}\",outcome=\"{outcome}\"}} {count}", stream.spec().name);
        }
    }
    let plain: [(&str, &str, &str, Read); 3] = [
        ("tidegate_stream_events", "gauge", "Texts that are remembered.", |s| s.len() as u64),
        ("tidegate_stream_subscribers", "gauge", "Subscribers over STOMP and server-sent events.", |s| {
            s.counts().subscribers
        }),
        ("tidegate_stream_cut_total", "counter", "Subscribers that were cut for being slow.", |s| s.counts().cut),
    ];
    for (name, kind, help, read) in plain {
        head(text, name, kind, help);
        for stream in streams {
            line!(text, "{name}{{stream=\"{}\"}} {}", stream.spec().name, read(stream));
        }
    }
}

fn push_table(text: &mut String, door: &Door) {
    let usage = door.gate.usage();
    let gauges = [
        ("tidegate_table_entries", "Keys held by all limiters, idle ones included.", usage.entries),
        ("tidegate_table_bytes", "Memory held by all limiters.", usage.bytes),
        ("tidegate_table_max_bytes", "Memory that all limiters may hold.", usage.max_bytes),
    ];
    for (name, help, value) in gauges {
        head(text, name, "gauge", help);
        line!(text, "{name} {value}");
    }
    let saves = door.gate.saves();
    let name = "tidegate_snapshots_total";
    head(text, name, "counter", "Snapshots by outcome; failed ones leave the one before in place.");
    line!(text, "{name}{{outcome=\"done\"}} {}\n{name}{{outcome=\"failed\"}} {}", saves.done, saves.failed);
    let name = "tidegate_snapshot_timestamp_seconds";
    head(text, name, "gauge", "When the last snapshot was written; 0: none was.");
    line!(text, "{name} {}", seconds(saves.last_at.get()));
}

/// The routes that were asked, with their labels.
fn asked(metrics: &Metrics) -> impl Iterator<Item = (String, &RouteMetrics)> {
    let labels = ROUTES.iter().map(|route| format!("route=\"{}\",method=\"{}\"", route.template, route.method));
    let labels = labels.chain(std::iter::once("route=\"none\",method=\"none\"".to_owned()));
    labels.zip(&metrics.routes).filter(|(_, route)| route.by_status.iter().any(|count| count.load(Relaxed) > 0))
}

fn push_requests(text: &mut String, metrics: &Metrics) {
    let name = "tidegate_http_requests_total";
    head(text, name, "counter", "HTTP requests by route and status; route none: an unknown path or method.");
    for (labels, route) in asked(metrics) {
        for (status, count) in STATUSES.iter().zip(&route.by_status) {
            let count = count.load(Relaxed);
            if count > 0 {
                line!(text, "{name}{{{labels},status=\"{status}\"}} {count}");
            }
        }
    }
}

fn push_latency(text: &mut String, metrics: &Metrics) {
    let name = "tidegate_http_request_duration_seconds";
    head(text, name, "histogram", "From the request's head to its response, without the socket.");
    for (labels, route) in asked(metrics) {
        let mut so_far = 0;
        for (bound, count) in BUCKETS_US.iter().zip(&route.by_latency) {
            so_far += count.load(Relaxed);
            line!(text, "{name}_bucket{{{labels},le=\"{}\"}} {so_far}", seconds(*bound));
        }
        so_far += route.by_latency[BUCKETS_US.len()].load(Relaxed);
        line!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {so_far}");
        line!(text, "{name}_sum{{{labels}}} {}", seconds(route.latency_sum_us.load(Relaxed)));
        line!(text, "{name}_count{{{labels}}} {so_far}");
    }
}

fn seconds(us: u64) -> String {
    super::reply::seconds(Micros::saturating(us))
}

fn push_connections(text: &mut String, door: &Door) {
    let census = &door.census;
    let open = census.open() as u64;
    let all = [
        ("tidegate_http_connections", "gauge", "Open connections.", open),
        (
            "tidegate_http_max_connections",
            "gauge",
            "Connections that may be open.",
            door.settings.max_connections as u64,
        ),
        ("tidegate_http_connections_total", "counter", "Connections accepted.", census.accepted()),
        (
            "tidegate_http_connections_refused_total",
            "counter",
            "Connections refused because all were taken.",
            census.refused(),
        ),
        (
            "tidegate_http_connections_cut_total",
            "counter",
            "Connections cut because the client was idle or slow.",
            census.cut(),
        ),
        (
            "tidegate_http_unread_bytes",
            "gauge",
            "Bytes of large answers and messages that clients have not read yet.",
            door.backlog.bytes() as u64,
        ),
        (
            "tidegate_http_unread_refused_total",
            "counter",
            "Answers, feeds and sessions that ended because too much was unread.",
            door.backlog.refused(),
        ),
    ];
    for (name, kind, help, value) in all {
        head(text, name, kind, help);
        line!(text, "{name} {value}");
    }
    let name = "tidegate_build_info";
    head(text, name, "gauge", "The version, as a label.");
    line!(text, "{name}{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
}
