//! What the gRPC door counts, for the `/metrics` of the HTTP door.

use super::server::RESERVED_PART;
use crate::access::Scope;
use crate::budget::Thing;
use crate::listener::{Caps, Census};
use crate::metrics::{Histogram, Kind, Page, Scale};
use std::array::from_fn;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::Micros;
use tidegate_wire::grpc::{Code, health, ratelimit};

/// A method that can be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    ShouldRateLimit,
    CheckRateLimit,
    Report,
    HealthCheck,
    HealthWatch,
    Unknown,
}

impl Method {
    /// Every method with its path and the scope that it needs, if any; the most called first. A call of another counts as the last.
    const ALL: [(Method, &'static str, Option<Scope>); 6] = [
        (Method::ShouldRateLimit, ratelimit::SHOULD_RATE_LIMIT, Some(Scope::Check)),
        (Method::CheckRateLimit, ratelimit::CHECK_RATE_LIMIT, Some(Scope::Check)),
        (Method::Report, ratelimit::REPORT, Some(Scope::Check)),
        (Method::HealthCheck, health::CHECK, None),
        (Method::HealthWatch, health::WATCH, None),
        (Method::Unknown, "none", None),
    ];

    /// The method of this path, and the scope that it needs, if any.
    pub(super) fn of(path: &str) -> (Method, Option<Scope>) {
        let known = Method::ALL.iter().find(|(_, known, _)| *known == path);
        known.map_or((Method::Unknown, None), |(method, _, needs)| (*method, *needs))
    }

    /// The methods that there are, for people.
    pub(super) fn known() -> String {
        let named = Method::ALL.iter().filter(|(method, ..)| *method != Method::Unknown);
        named.map(|(_, path, _)| path.trim_start_matches('/')).collect::<Vec<_>>().join(", ")
    }

    fn index(self) -> usize {
        Method::ALL.iter().position(|(method, ..)| *method == self).unwrap_or(Method::ALL.len() - 1)
    }
}

/// Upper bounds of the latency buckets, in microseconds.
const LATENCIES_US: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 15_000, 100_000, 1_000_000];

/// One set of counters for each method.
pub struct Metrics {
    methods: [MethodMetrics; Method::ALL.len()],
    pub(super) connections: Arc<Census>,
    /// Calls that wait for their message.
    pub(super) waiting: Arc<Census>,
    /// Calls about health that wait: for their message, or for a change of state. They need no token, and keep their connections from
    /// making room, so that there may be fewer than connections that are kept free for others.
    pub(super) waiting_for_health: Arc<Census>,
}

struct MethodMetrics {
    by_code: [AtomicU64; Code::ALL.len()],
    latency: Histogram,
}

impl Metrics {
    /// For a door that takes so many connections.
    #[must_use]
    pub fn new(connections: Caps) -> Metrics {
        let method = |_| MethodMetrics {
            by_code: from_fn(|_| AtomicU64::new(0)),
            latency: Histogram::new(Scale::Bounds(&LATENCIES_US)),
        };
        let census = |caps| Arc::new(Census::new(caps));
        Metrics {
            methods: from_fn(method),
            connections: census(connections),
            waiting: census(connections),
            waiting_for_health: census(Caps::of((connections.all / RESERVED_PART).max(1))),
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Metrics {
    /// What clients of the door can make grow.
    pub(crate) fn things(&self) -> [Thing; 3] {
        [
            Thing::counted("grpc_connections", &self.connections),
            Thing::counted("grpc_waiting_calls", &self.waiting),
            Thing::counted("grpc_waiting_health_calls", &self.waiting_for_health),
        ]
    }

    /// Notes one answer: its method, its code and how long it took to make.
    pub(super) fn note(&self, method: Method, code: Code, took: Micros) {
        let method = &self.methods[method.index()];
        if let Some(at) = Code::ALL.iter().position(|known| *known == code) {
            method.by_code[at].fetch_add(1, Relaxed);
        }
        method.latency.note(took);
    }

    /// The methods that were called, with their labels.
    fn called(&self) -> impl Iterator<Item = (&'static str, &MethodMetrics)> {
        let methods = Method::ALL.iter().map(|(_, path, _)| path.trim_start_matches('/')).zip(&self.methods);
        methods.filter(|(_, method)| method.by_code.iter().any(|count| count.load(Relaxed) > 0))
    }

    pub(crate) fn fill(&self, page: &mut Page) {
        let help = "gRPC calls by method and code; method none: an unknown one.";
        let mut calls = page.family("tidegate_grpc_calls_total", Kind::Counter, help);
        for (method, counts) in self.called() {
            for (code, count) in Code::ALL.iter().zip(&counts.by_code) {
                let count = count.load(Relaxed);
                if count > 0 {
                    calls.sample(&[("method", method), ("code", code.name())], count);
                }
            }
        }
        let help = "From the call's head to its answer, without the socket.";
        let mut times = page.histogram("tidegate_grpc_call_duration_seconds", help);
        self.called().for_each(|(method, counts)| times.times(&[("method", method)], &counts.latency.read()));
        page.single("tidegate_grpc_connections", Kind::Gauge, "Open connections.", self.connections.open());
        let counters = [
            ("tidegate_grpc_connections_total", "Connections accepted.", self.connections.accepted()),
            (
                "tidegate_grpc_connections_refused_total",
                "Connections refused because all were taken.",
                self.connections.refused(),
            ),
            (
                "tidegate_grpc_connections_cut_total",
                "Connections cut because the client was idle or slow.",
                self.connections.cut(),
            ),
        ];
        counters.into_iter().for_each(|(name, help, value)| page.single(name, Kind::Counter, help, value));
    }
}
