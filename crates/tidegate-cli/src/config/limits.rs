//! `[limits]`: how much clients of the HTTP door may take.

use super::section::{Known, Section};
use super::size;
use tidegate_doors::http::Limits;

pub(super) const KNOWN: Known = Known {
    here: &[
        "connections",
        "connections_per_address",
        "connections_per_token",
        "reserved_connections",
        "idle_sessions",
        "subscriptions",
        "subscriptions_per_session",
        "reservations",
        "unread",
    ],
    later: &[],
};

/// More than a process can have open.
const CONNECTIONS_MAX: u64 = 1_000_000;
const SUBSCRIPTIONS_MAX: u64 = 10_000_000;
const RESERVATIONS_MAX: u64 = 1_000_000;
const UNREAD_MIN: u64 = 1 << 20;

/// Reads the table; what it leaves out is as by default.
pub(super) fn read(section: &mut Section<'_>) -> Limits {
    let default = Limits::default();
    let mut count = |name: &str, least: u64, most: u64, example: usize| {
        let number = section.number(name, least..=most, example as u64)?;
        usize::try_from(number).ok()
    };
    let connections = count("connections", 1, CONNECTIONS_MAX, default.connections);
    let most = connections.unwrap_or(default.connections);
    let connections_per_address = count("connections_per_address", 1, most as u64, most);
    let connections_per_token = count("connections_per_token", 1, most as u64, most);
    // One at least is left for feeds and sessions; who wants none has no streams.
    let reserved_connections = count("reserved_connections", 0, most as u64 - 1, most / 10);
    let idle_sessions = count("idle_sessions", 1, CONNECTIONS_MAX, default.idle_sessions);
    let subscriptions = count("subscriptions", 1, SUBSCRIPTIONS_MAX, default.subscriptions);
    let subscriptions_per_session =
        count("subscriptions_per_session", 1, SUBSCRIPTIONS_MAX, default.subscriptions_per_session);
    let reservations = count("reservations", 1, RESERVATIONS_MAX, default.reservations);
    Limits {
        connections: most,
        connections_per_address,
        connections_per_token,
        reserved_connections,
        idle_sessions: idle_sessions.unwrap_or(default.idle_sessions),
        subscriptions: subscriptions.unwrap_or(default.subscriptions),
        subscriptions_per_session: subscriptions_per_session.unwrap_or(default.subscriptions_per_session),
        reservations: reservations.unwrap_or(default.reservations),
        unread_bytes: section.parsed("unread", "256MiB", unread).unwrap_or(default.unread_bytes),
    }
}

fn unread(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    if bytes < UNREAD_MIN {
        let least = size::show(UNREAD_MIN);
        return Err(format!(
            "{} is less than {least}, and large answers would be refused; write {least} or more",
            size::show(bytes)
        ));
    }
    usize::try_from(bytes)
        .map_err(|_| format!("{} is more than a machine can have; write \"256MiB\"", size::show(bytes)))
}
