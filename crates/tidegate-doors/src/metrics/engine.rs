//! The figures of the engine and of the streams.

use super::{Kind, Page, seconds};
use tidegate::{Door, Gate, LimiterInfo, Verdicts};
use tidegate_events::{Counts, Stream};

/// Limiters, tables, snapshots, and the store's health.
pub fn fill_engine(gate: &Gate, page: &mut Page) {
    let limiters = gate.limiters();
    fill_limiters(page, &limiters);
    fill_parts(page, gate, &limiters);
    fill_table(page, gate);
    fill_store(page, gate);
    fill_record(page, gate);
}

fn fill_limiters(page: &mut Page, limiters: &[LimiterInfo]) {
    type Read = fn(&LimiterInfo) -> u64;
    let help = "Decisions on hits, by the door that they were asked at; of candidates, what would have been decided.";
    let mut family = page.family("tidegate_decisions_total", Kind::Counter, help);
    for (limiter, role, counts) in limiters.iter().flat_map(by_role) {
        for door in Door::ALL {
            let labels = |verdict| [limiter, role, ("verdict", verdict), ("door", door.name())];
            let Verdicts { allowed, denied } = counts.by_door.at(door);
            family.sample(&labels("allowed"), allowed);
            family.sample(&labels("denied"), denied);
        }
    }
    let help = "Those of the decisions that the over-counting sketch made because the table was full.";
    let mut family = page.family("tidegate_sketched_decisions_total", Kind::Counter, help);
    for (limiter, role, counts) in limiters.iter().flat_map(by_role) {
        family.sample(&[limiter, role, ("verdict", "allowed")], counts.sketched_allowed);
        family.sample(&[limiter, role, ("verdict", "denied")], counts.sketched_denied);
    }
    let plain: [(&str, Kind, &str, Read); 5] = [
        ("tidegate_peeks_total", Kind::Counter, "Questions that charged nothing.", |i| i.counts.peeked),
        ("tidegate_stats_refused_total", Kind::Counter, "Hits whose key found no place for its statistics.", |i| {
            i.counts.stats_refused
        }),
        ("tidegate_limiter_enabled", Kind::Gauge, "1 while the limiter is enabled.", |i| i.enabled.into()),
        ("tidegate_limiter_entries", Kind::Gauge, "Keys held in this process, idle ones included.", |i| {
            i.entries.unwrap_or(0) as u64
        }),
        ("tidegate_limiter_bytes", Kind::Gauge, "Memory held by the limiter's table.", |i| i.bytes.unwrap_or(0) as u64),
    ];
    for (name, kind, help, read) in plain {
        let mut family = page.family(name, kind, help);
        limiters.iter().for_each(|info| family.sample(&[("limiter", &info.spec.name)], read(info)));
    }
}

type Label<'a> = (&'static str, &'a str);

/// A limiter's counts, and those of its candidate limits if it has some, each with its labels.
fn by_role(info: &LimiterInfo) -> impl Iterator<Item = (Label<'_>, Label<'_>, &tidegate::Counts)> {
    let role = if info.spec.candidate { "candidate" } else { "enforced" };
    let counts = [(role, Some(&info.counts)), ("candidate", info.candidate.as_ref())];
    let labelled = |(role, counts)| Some((("limiter", info.spec.name.as_str()), ("role", role), counts?));
    counts.into_iter().filter_map(labelled)
}

/// This process's shares of limiters that replicas share.
fn fill_parts(page: &mut Page, gate: &Gate, limiters: &[LimiterInfo]) {
    let mut parts =
        limiters.iter().filter_map(|info| Some((&info.spec.name, gate.share_now(&info.spec.name)?))).peekable();
    if parts.peek().is_some() {
        let help = "What this process may let through of the limiter in the current window.";
        let mut family = page.family("tidegate_limiter_part", Kind::Gauge, help);
        parts.for_each(|(limiter, part)| family.sample(&[("limiter", limiter)], part));
    }
}

fn fill_table(page: &mut Page, gate: &Gate) {
    let usage = gate.usage();
    let gauges = [
        ("tidegate_table_entries", "Keys held by all limiters, idle ones included.", usage.entries),
        ("tidegate_table_bytes", "Memory held by all limiters.", usage.bytes),
        ("tidegate_table_max_bytes", "Memory that all limiters may hold.", usage.max_bytes),
    ];
    gauges.into_iter().for_each(|(name, help, value)| page.single(name, Kind::Gauge, help, value));
    let saves = gate.saves();
    let help = "Snapshots by outcome; failed ones leave the one before in place.";
    let mut family = page.family("tidegate_snapshots_total", Kind::Counter, help);
    family.sample(&[("outcome", "done")], saves.done);
    family.sample(&[("outcome", "failed")], saves.failed);
    let help = "When the last snapshot was written; 0: none was.";
    page.single("tidegate_snapshot_timestamp_seconds", Kind::Gauge, help, seconds(saves.last_at.get()));
}

/// The store on another machine, if there is one.
fn fill_store(page: &mut Page, gate: &Gate) {
    let Some(health) = gate.store_health() else { return };
    page.single("tidegate_store_up", Kind::Gauge, "1 while the store answers.", u8::from(health.error.is_none()));
    let help = "Decisions that were made without the store.";
    page.single("tidegate_degraded_total", Kind::Counter, help, health.degraded);
    let help = "Questions that the store did not answer, by kind.";
    let mut family = page.family("tidegate_store_errors_total", Kind::Counter, help);
    health.errors.iter().for_each(|(kind, count)| family.sample(&[("kind", kind)], count));
}

/// The recording of requests, if there is one.
fn fill_record(page: &mut Page, gate: &Gate) {
    let Some(stats) = gate.record_stats() else { return };
    let help = "Requests of the recording's sample, by what became of them.";
    let mut family = page.family("tidegate_record_requests_total", Kind::Counter, help);
    for (outcome, count) in [("written", stats.written), ("dropped", stats.dropped), ("failed", stats.failed)] {
        family.sample(&[("outcome", outcome)], count);
    }
}

/// Event streams, if there are any.
pub fn fill_streams(streams: &[std::sync::Arc<Stream>], page: &mut Page) {
    type Read = fn(&Stream) -> u64;
    if streams.is_empty() {
        return;
    }
    let mut family = page.family("tidegate_stream_submissions_total", Kind::Counter, "Events by what became of them.");
    for stream in streams {
        let Counts { submitted, conflict, full, unavailable, .. } = stream.counts();
        let outcomes = [("submitted", submitted), ("conflict", conflict), ("full", full), ("unavailable", unavailable)];
        for (outcome, count) in outcomes {
            family.sample(&[("stream", &stream.spec().name), ("outcome", outcome)], count);
        }
    }
    let plain: [(&str, Kind, &str, Read); 4] = [
        ("tidegate_stream_failing", Kind::Gauge, "1 while its journal or store cannot be used.", |s| {
            u64::from(s.failure().is_some())
        }),
        ("tidegate_stream_events", Kind::Gauge, "Texts that are remembered.", |s| s.len() as u64),
        ("tidegate_stream_subscribers", Kind::Gauge, "Subscribers over STOMP and server-sent events.", |s| {
            s.counts().subscribers
        }),
        ("tidegate_stream_cut_total", Kind::Counter, "Subscribers that were cut for being slow.", |s| s.counts().cut),
    ];
    for (name, kind, help, read) in plain {
        let mut family = page.family(name, kind, help);
        streams.iter().for_each(|stream| family.sample(&[("stream", &stream.spec().name)], read(stream)));
    }
}
