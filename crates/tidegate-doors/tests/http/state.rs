//! What requests of the access tables could have changed or charged, and the requests themselves.

/// All that a request could have changed or charged, as somebody who may read everything is told it, a line for each thing.
pub(crate) fn state(mut ask: impl FnMut(&str) -> String) -> Vec<String> {
    let paths = [
        "/v1/limiters",
        "/v1/limiters/api/keys?most=1000",
        "/v1/limiters/api/keys?state=blocked&most=1000",
        "/v1/limiters/api/keys?state=overridden",
        "/v1/limiters/notify/keys",
        "/v1/limiters/notify/keys/k",
        "/v1/limiters/notify/keys/k/decisions",
        "/v1/limiters/login-user/keys?most=1000",
        "/v1/streams",
        "/v1/streams/orders",
        "/v1/streams/first",
        "/v1/audit?most=1",
    ];
    let mut state: Vec<String> = Vec::new();
    for path in paths {
        // Each limiter or stream of a list by itself.
        let told = ask(&format!("GET {path}"));
        let parts = told.split("{\"name\":").map(|part| without(&without(part, "\"peeked\":"), "\"subscribers\":"));
        state.extend(parts.map(|part| format!("{path} {part}")));
    }
    // Decisions by limiter, entries of the audit and open reservations: what listings do not show.
    let figures =
        ["tidegate_decisions_total", "tidegate_audit_entries_total", "tidegate_limits_taken{what=\"reservations\"}"];
    let page = ask("GET /metrics");
    let lines = page.lines().filter(|line| !line.ends_with(" 0") && figures.iter().any(|name| line.starts_with(name)));
    state.extend(lines.map(str::to_owned));
    state
}

/// Without the number behind this: peeks are counted, of which this makes some, and feeds end in their own time.
fn without(text: &str, name: &str) -> String {
    match text.split_once(name) {
        Some((before, rest)) => format!("{before}{}", rest.trim_start_matches(|digit: char| digit.is_ascii_digit())),
        None => text.to_owned(),
    }
}

/// What is other than before: lines that came, and lines that went.
pub(crate) fn changed(before: &[String], after: Vec<String>) -> Vec<String> {
    let went: Vec<String> =
        before.iter().filter(|line| !after.contains(line)).map(|line| format!("without {line}")).collect();
    after.into_iter().filter(|line| !before.contains(line)).chain(went).collect()
}

/// A row's request, with a number and, if it wants one, an open reservation.
pub(crate) fn filled(row: &str, number: u32, reserve: impl FnOnce(&str) -> String) -> String {
    let request = row.replace("{n}", &number.to_string());
    if !request.contains("{r}") {
        return request;
    }
    let reserved = reserve(&format!("POST /v1/reserve {{\"limiter\":\"api\",\"key\":\"c{number}\"}}"));
    let id = reserved.split_once("\"reservation\":\"").and_then(|(_, rest)| rest.split_once('"')).map(|(id, _)| id);
    request.replace("{r}", id.unwrap_or_else(|| panic!("no reservation: {reserved}")))
}
