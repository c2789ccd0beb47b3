//! What the HTTP door counts, and everything that its `/metrics` tells.

use super::door::Door;
use super::routes::{ROUTE_COUNT, ROUTES};
use crate::budget;
use crate::listener::{Backlog, Census};
use crate::metrics::{
    Histogram, Kind, Page, Registry, Scale, fill_certificates, fill_engine, fill_process, fill_streams,
};
use std::array::from_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::Micros;

/// Every status that the door answers.
const STATUSES: [u16; 19] =
    [101, 200, 201, 400, 401, 403, 404, 405, 408, 409, 413, 426, 429, 431, 500, 501, 503, 507, 0];

/// Upper bounds of the latency buckets, in microseconds.
const LATENCIES_US: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 25_000, 100_000, 1_000_000];

/// One set of counters for each route, and one for all that leads nowhere.
pub(crate) struct Metrics {
    routes: [RouteMetrics; ROUTE_COUNT + 1],
}

struct RouteMetrics {
    by_status: [AtomicU64; STATUSES.len()],
    latency: Histogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let route = |_| RouteMetrics {
            by_status: from_fn(|_| AtomicU64::new(0)),
            latency: Histogram::new(Scale::Bounds(&LATENCIES_US)),
        };
        Metrics { routes: from_fn(route) }
    }
}

impl Metrics {
    /// Notes one response: its route, its status and how long it took to make.
    pub(crate) fn note(&self, route: Option<usize>, status: u16, took: Micros) {
        let route = &self.routes[route.unwrap_or(ROUTE_COUNT)];
        let status = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len() - 1);
        route.by_status[status].fetch_add(1, Relaxed);
        route.latency.note(took);
    }

    /// The routes that were asked, with their labels.
    fn asked(&self) -> impl Iterator<Item = ([(&'static str, &'static str); 2], &RouteMetrics)> {
        let labels = ROUTES.iter().map(|route| [("route", route.template), ("method", route.method)]);
        let labels = labels.chain([[("route", "none"), ("method", "none")]]);
        labels.zip(&self.routes).filter(|(_, route)| route.by_status.iter().any(|count| count.load(Relaxed) > 0))
    }

    /// The times of `/v1/hit` since the start: pairs of an upper bound in microseconds and the count up to it, and the count of all.
    pub(crate) fn latency_of_hits(&self) -> String {
        let reading = self.routes[0].latency.read();
        let pairs: Vec<String> =
            reading.cumulative().into_iter().map(|(bound_us, count)| format!("[{bound_us},{count}]")).collect();
        format!("{{\"up_to_us\":[{}],\"count\":{}}}", pairs.join(","), reading.count())
    }

    fn fill(&self, page: &mut Page) {
        let help = "HTTP requests by route and status; route none: an unknown path or method.";
        let mut requests = page.family("tidegate_http_requests_total", Kind::Counter, help);
        for ([route, method], counts) in self.asked() {
            for (status, count) in STATUSES.iter().zip(&counts.by_status) {
                let count = count.load(Relaxed);
                if count > 0 {
                    requests.sample(&[route, method, ("status", &status.to_string())], count);
                }
            }
        }
        let help = "From the request's head to its response, without the socket.";
        let mut times = page.histogram("tidegate_http_request_duration_seconds", help);
        self.asked().for_each(|(labels, counts)| times.times(&labels, &counts.latency.read()));
    }
}

/// Everything that `/metrics` tells.
pub(crate) fn registry(door: &Door) -> Registry {
    let mut registry = Registry::default();
    let gate = door.gate.clone();
    registry.register(move |page| fill_engine(&gate, page));
    let metrics = Arc::clone(&door.metrics);
    registry.register(move |page| metrics.fill(page));
    let (budget, grpc, resp) = (Arc::clone(&door.budget), door.settings.grpc.clone(), door.settings.resp.clone());
    registry.register(move |page| {
        fill_connections(&budget.connections, &budget.backlog, page);
        fill_http2(&budget.http2_requests, page);
        let mut things = budget.things();
        things.extend(grpc.iter().flat_map(|grpc| grpc.things()));
        things.extend(resp.iter().flat_map(|(resp, _)| resp.things()));
        budget::fill(&things, page);
    });
    let streams = Arc::clone(&door.settings.streams);
    registry.register(move |page| fill_streams(streams.all(), page));
    let audit = Arc::clone(&door.settings.audit);
    registry.register(move |page| {
        let help = "Changes by hand that were noted in the audit.";
        page.single("tidegate_audit_entries_total", Kind::Counter, help, audit.count());
    });
    let log_lines_lost = door.settings.log_lines_lost;
    registry.register(move |page| fill_process(log_lines_lost(), page));
    let resp_tls = door.settings.resp.as_ref().and_then(|(_, tls)| tls.clone());
    let of_doors = [("http", &door.settings.tls), ("grpc", &door.settings.grpc_tls), ("resp", &resp_tls)];
    let certificates: Vec<_> = of_doors.into_iter().filter_map(|(name, tls)| Some((name, tls.clone()?))).collect();
    registry.register(move |page| fill_certificates(&certificates, page));
    if let Some((counters, _)) = door.settings.resp.clone() {
        registry.register(move |page| counters.fill(page));
    }
    if let Some(udp) = door.settings.udp.clone() {
        registry.register(move |page| {
            for (name, kind, help, value) in udp.metrics() {
                page.single(name, if kind == "counter" { Kind::Counter } else { Kind::Gauge }, help, value);
            }
        });
    }
    let (ratelimit, gate) = (Arc::clone(&door.settings.ratelimit_counters), door.gate.clone());
    registry.register(move |page| ratelimit.fill(&gate, page));
    if let Some(grpc) = door.settings.grpc.clone() {
        registry.register(move |page| grpc.fill(page));
    }
    registry
}

fn fill_http2(requests: &Census, page: &mut Page) {
    let help = "Requests of HTTP/2 under way.";
    page.single("tidegate_http2_requests", Kind::Gauge, help, requests.open());
    let help = "Requests of HTTP/2 refused because too many were under way.";
    page.single("tidegate_http2_requests_refused_total", Kind::Counter, help, requests.refused());
}

fn fill_connections(census: &Census, backlog: &Backlog, page: &mut Page) {
    let gauges = [
        ("tidegate_http_connections", "Open connections.", census.open()),
        ("tidegate_http_max_connections", "Connections that may be open.", census.caps().all),
        (
            "tidegate_http_unread_bytes",
            "Bytes of large answers and messages that clients have not read yet.",
            backlog.bytes(),
        ),
    ];
    gauges.into_iter().for_each(|(name, help, value)| page.single(name, Kind::Gauge, help, value));
    let counters = [
        ("tidegate_http_connections_total", "Connections accepted.", census.accepted()),
        ("tidegate_http_connections_refused_total", "Connections refused because all were taken.", census.refused()),
        ("tidegate_http_connections_cut_total", "Connections cut because the client was idle or slow.", census.cut()),
        (
            "tidegate_http_unread_refused_total",
            "Answers, feeds and sessions that ended because too much was unread.",
            backlog.refused(),
        ),
    ];
    counters.into_iter().for_each(|(name, help, value)| page.single(name, Kind::Counter, help, value));
    let mut build = page.family("tidegate_build_info", Kind::Gauge, "The version, as a label.");
    build.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
}
