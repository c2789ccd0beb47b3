//! What a start prints: where it listens, and for those without a file, what to try.

use crate::config::{Config, Doors};
use crate::human;
use std::fmt::Write as _;
use std::path::Path;
use tracing::warn;

/// Prints it on stdout. The lines `listening on http://…`, `udp://…`, `grpc://…` and `redis://…` are for programs
/// to read, too. `listening` has the addresses that the doors really have. A banner that nobody can read is no reason not to
/// serve.
pub(super) fn print(listening: &Doors, file: Option<&Path>, config: &Config) {
    say(&text(listening, file, config));
}

/// A part of the banner.
pub(crate) fn say(text: &str) {
    if let Err(error) = crate::say(text) {
        warn!("what the start says is not there: {error}");
    }
}

fn text(listening: &Doors, file: Option<&Path>, config: &Config) -> String {
    let limiters = human::policy(config);
    let policy = file.map_or("an example policy".to_owned(), |file| file.display().to_string());
    let state = match (&config.store.remote, &config.store.path) {
        (Some(store), _) => format!("in {}", store.url),
        (None, Some(path)) => format!("kept in {}", path.display()),
        (None, None) => "in memory only".to_owned(),
    };
    let mut text = String::new();
    let _ = writeln!(text, "tidegate {}", env!("CARGO_PKG_VERSION"));
    let http = if config.tls.http.is_some() { "https" } else { "http" };
    let grpc = if config.tls.grpc.is_some() { "grpcs" } else { "grpc" };
    let redis = if config.tls.resp.is_some() { "rediss" } else { "redis" };
    let doors = [(http, listening.http), ("udp", listening.udp), (grpc, listening.grpc), (redis, listening.resp)];
    for (scheme, address) in doors {
        if let Some(address) = address {
            let _ = writeln!(text, "listening on {scheme}://{address}");
        }
    }
    let _ = write!(text, "policy: {policy}, {limiters}; state: {state}");
    if let (None, Some(address)) = (file, listening.http) {
        let _ = write!(text, "\n\n{}", to_try(&format!("{http}://{address}"), listening, config));
    }
    text
}

fn to_try(url: &str, listening: &Doors, config: &Config) -> String {
    // As it was called: after `cargo run` it is not on the path.
    let tidegate = std::env::args().next().unwrap_or_else(|| "tidegate".to_owned());
    let is_default = listening.http == Doors::default().http && config.tls.http.is_none();
    let server = if is_default { String::new() } else { format!(" --server {url}") };
    let over_udp = listening.udp.map_or_else(String::new, |udp| {
        format!("\x20 # the same limit over UDP\n\x20 {tidegate} udp {udp} over_limit api ip=192.0.2.1\n\n")
    });
    let events = config.streams.first().map_or_else(String::new, |stream| {
        let name = &stream.name;
        format!(
            "\x20 # an event that may happen once in ten seconds: watch in another terminal, and submit it twice\n\
             \x20 {tidegate} watch {name}{server}\n\x20 {tidegate} submit {name} taco{server}\n\n"
        )
    });
    format!(
        "Things to try:\n\n\
         \x20 # the sixth in a row is denied\n\
         \x20 curl -i {url}/v1/hit -d '{{\"limiter\":\"api\",\"key\":\"u1\"}}'\n\n\
         {over_udp}\
         \x20 # a user and an address: both must allow, and both are charged or neither\n\
         \x20 curl -i '{url}/v1/allowed?user=u1&ip=192.0.2.1'\n\n\
         {events}\
         \x20 # what there is, and what it did\n\
         \x20 {tidegate} limiters{server}\n\n\
         Then write a policy of your own, and start with: {tidegate} serve --config tidegate.toml"
    )
}
