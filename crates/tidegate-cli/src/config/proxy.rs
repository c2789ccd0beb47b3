//! `[proxy]`: the transparent proxy.
//!
//! What a limit, a key or an upstream may be is checked by the crates that use them; here their
//! refusals are given a place.

use super::doors;
use super::section::{Known, Section};
use super::size;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate::{Limit, Sharing, StoreUrl, Together, text};
use tidegate_proxy::{KeyPart, Policy, Template, Upstream, WhenLimited};

/// What the file says of the proxy. Settings that are left out have the proxy's defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Proxy {
    pub(crate) listen: SocketAddr,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) upstream: Option<String>,
    upstream_ca: Option<PathBuf>,
    pub(crate) limit: Option<Limit>,
    in_flight: Option<u32>,
    when_limited: WhenLimited,
    max_waiting: Option<u32>,
    max_waiting_bytes: Option<u64>,
    max_wait: Option<Duration>,
    max_upstream: Option<u32>,
    pub(crate) max_connections: Option<usize>,
    max_paths: Option<u32>,
    key: Option<Vec<KeyPart>>,
    templates: Vec<Template>,
    trusted_hops: usize,
    connect_timeout: Option<Duration>,
    upstream_timeout: Option<Duration>,
    pub(crate) client_timeout: Option<Duration>,
    replicas: Replicas,
    replica: Option<(u32, u32)>,
    /// The store through which replicas count together, or find each other.
    store: Option<StoreUrl>,
}

/// How replicas keep one limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Replicas {
    /// They count together, in the store. In memory, that is this process alone.
    #[default]
    Exact,
    /// Each holds a part.
    Share,
}

/// Why a number alone is refused.
pub(super) const REPLICA_ALONE: &str = "it has no effect without replicas = \"share\"; add that, or leave it out";

/// What the replicas of a proxy have in common at a store.
const NAME: &str = "proxy";

impl Default for Proxy {
    fn default() -> Proxy {
        Proxy {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4040)),
            admin: None,
            upstream: None,
            upstream_ca: None,
            limit: None,
            in_flight: None,
            when_limited: WhenLimited::Wait,
            max_waiting: None,
            max_waiting_bytes: None,
            max_wait: None,
            max_upstream: None,
            max_connections: None,
            max_paths: None,
            key: None,
            templates: Vec::new(),
            trusted_hops: 0,
            connect_timeout: None,
            upstream_timeout: None,
            client_timeout: None,
            replicas: Replicas::Exact,
            replica: None,
            store: None,
        }
    }
}

pub(super) const KNOWN: Known = Known {
    here: &[
        "listen",
        "admin",
        "upstream",
        "upstream_ca",
        "limit",
        "in_flight",
        "when_limited",
        "max_waiting",
        "max_waiting_bytes",
        "max_wait",
        "max_upstream",
        "max_connections",
        "max_paths",
        "key",
        "templates",
        "trusted_hops",
        "connect_timeout",
        "upstream_timeout",
        "client_timeout",
        "replicas",
        "replica",
        "on_failure",
    ],
    later: &[],
};

const COUNT: RangeInclusive<u64> = 0..=10_000_000;
const AT_LEAST_ONE: RangeInclusive<u64> = 1..=10_000_000;
const HOPS: RangeInclusive<u64> = 0..=16;
/// Templates are tried one after the other.
const TEMPLATES_MAX: usize = 1_000;

/// Reads the table; relative paths are seen from `folder`, the one of the file.
pub(super) fn read(section: &mut Section<'_>, folder: &Path) -> Proxy {
    let default = Proxy::default();
    let count = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok());
    let proxy = Proxy {
        listen: section.parsed("listen", "127.0.0.1:4040", doors::address).unwrap_or(default.listen),
        admin: section.parsed("admin", "127.0.0.1:4041", doors::address),
        upstream: section.text("upstream", "http://127.0.0.1:9000").map(|url| url.text.to_owned()),
        upstream_ca: section.text("upstream_ca", "ca.pem").map(|file| folder.join(file.text)),
        limit: section.parsed("limit", "100 per minute", limit),
        in_flight: count(section.number("in_flight", COUNT, 100)),
        when_limited: section.parsed("when_limited", "wait", when_limited).unwrap_or_default(),
        max_waiting: count(section.number("max_waiting", COUNT, 10_000)),
        max_waiting_bytes: section.parsed("max_waiting_bytes", "256MiB", size::parse),
        max_wait: section.parsed("max_wait", "5m", duration),
        max_upstream: count(section.number("max_upstream", AT_LEAST_ONE, 1_000)),
        max_connections: count(section.number("max_connections", AT_LEAST_ONE, 10_000)).map(|count| count as usize),
        max_paths: count(section.number("max_paths", AT_LEAST_ONE, 1_000_000)),
        key: list(section, "key", "path", 8),
        templates: list(section, "templates", "/users/{id}", TEMPLATES_MAX).unwrap_or_default(),
        trusted_hops: count(section.number("trusted_hops", HOPS, 1)).unwrap_or_default() as usize,
        connect_timeout: section.parsed("connect_timeout", "5s", duration),
        upstream_timeout: section.parsed("upstream_timeout", "60s", duration),
        client_timeout: section.parsed("client_timeout", "60s", duration),
        replicas: section.parsed("replicas", "exact", replicas).unwrap_or_default(),
        replica: section.parsed("replica", "1/3", replica),
        store: None,
    };
    let _: Option<()> = section.parsed("on_failure", "deny", on_failure);
    if let (Some(node), Replicas::Exact) = (section.node("replica"), proxy.replicas) {
        section.refuse(node.place, "replica", REPLICA_ALONE);
    }
    if let (Some(node), Err(message)) = (section.node("upstream"), proxy.upstream()) {
        section.refuse(node.place, "upstream", &message);
    }
    proxy
}

impl Proxy {
    /// Tells it where replicas count together or find each other.
    ///
    /// # Errors
    /// When they must, and cannot.
    pub(super) fn meet_at(&mut self, store: Option<StoreUrl>) -> Result<(), String> {
        if self.replicas == Replicas::Share && self.replica.is_none() && store.is_none() {
            let remedy =
                "set [store] kind = \"redis\" or \"etcd\", or number them: replica = \"1/3\" in the first of three";
            return Err(format!("[proxy] replicas: with \"share\" replicas find each other through a store; {remedy}"));
        }
        self.store = store;
        Ok(())
    }

    /// Where replicas count together, if they do.
    pub(crate) fn together(&self) -> Option<Together> {
        let store = self.store.clone().filter(|_| self.replicas == Replicas::Exact)?;
        Some(Together { store, name: NAME.to_owned() })
    }

    /// Which part of the limit this process holds.
    pub(crate) fn sharing(&self) -> Option<Sharing> {
        match (self.replicas, self.replica, &self.store) {
            (Replicas::Exact, ..) => None,
            (Replicas::Share, Some((rank, of)), _) => Some(Sharing::Fixed(rank, of)),
            (Replicas::Share, None, Some(url)) => Some(Sharing::Through(url.clone(), NAME.to_owned())),
            (Replicas::Share, None, None) => None,
        }
    }

    fn upstream(&self) -> Result<Upstream, String> {
        let missing = "no upstream; name one: tidegate proxy http://127.0.0.1:9000, or [proxy] upstream in the file";
        Upstream::new(self.upstream.as_deref().ok_or(missing)?, self.upstream_ca.as_deref())
    }

    /// What the proxy is told.
    ///
    /// # Errors
    /// When the upstream is missing or cannot be one.
    pub(crate) fn policy(&self) -> Result<Policy, String> {
        let default = Policy::new(self.upstream()?);
        Ok(Policy {
            limit: self.limit.unwrap_or(default.limit),
            in_flight: self.in_flight.unwrap_or(default.in_flight),
            when_limited: self.when_limited,
            max_waiting: self.max_waiting.unwrap_or(default.max_waiting),
            max_waiting_bytes: self.max_waiting_bytes.unwrap_or(default.max_waiting_bytes),
            max_wait: self.max_wait,
            max_upstream: self.max_upstream.unwrap_or(default.max_upstream),
            max_keys: self.max_paths.unwrap_or(default.max_keys),
            key: self.key.clone().unwrap_or(default.key),
            templates: self.templates.clone(),
            trusted_hops: self.trusted_hops,
            connect_timeout: self.connect_timeout.unwrap_or(default.connect_timeout),
            upstream_timeout: self.upstream_timeout.unwrap_or(default.upstream_timeout),
            upstream: default.upstream,
        })
    }
}

/// A limit, of which the proxy uses the count and the period.
///
/// # Errors
/// A sentence with the remedy.
pub(crate) fn limit(text: &str) -> Result<Limit, String> {
    let shown = text.escape_debug();
    let limit: Limit = text.parse().map_err(|error| format!("\"{shown}\": {error}"))?;
    if limit.has_burst() || limit.block().is_some() {
        return Err(format!("\"{shown}\" has a burst or a block; the proxy counts starts per window, leave them out"));
    }
    Ok(limit)
}

pub(super) fn replicas(text: &str) -> Result<Replicas, String> {
    match text {
        "share" => Ok(Replicas::Share),
        "exact" => Ok(Replicas::Exact),
        other => Err(format!("\"{}\" is no way to be several; use \"exact\" or \"share\"", other.escape_debug())),
    }
}

/// `1/3`: the first of three.
pub(super) fn replica(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once('/').and_then(|(one, of)| Some((one.parse::<u32>().ok()?, of.parse::<u32>().ok()?)));
    match parsed {
        Some((one, of)) if (1..=of).contains(&one) && of <= 1_000 => Ok((one - 1, of)),
        _ => Err(format!(
            "\"{}\" is none of 1/1 to 1000/1000; write \"1/3\" for the first of three",
            text.escape_debug()
        )),
    }
}

fn on_failure(text: &str) -> Result<(), String> {
    match text {
        "deny" => Ok(()),
        other => Err(format!("\"{}\" would start what was not promised; use \"deny\"", other.escape_debug())),
    }
}

fn when_limited(text: &str) -> Result<WhenLimited, String> {
    match text {
        "wait" => Ok(WhenLimited::Wait),
        "reject" => Ok(WhenLimited::Reject),
        other => Err(format!("\"{}\" is neither; use \"wait\" or \"reject\"", other.escape_debug())),
    }
}

/// A duration that somebody can wait: at most a day, as a timer of a year is a mistake in units.
fn duration(text: &str) -> Result<Duration, String> {
    const MS: RangeInclusive<u64> = 1..=86_400_000;
    let ms = text::duration(text)?.as_millis_ceil();
    if !MS.contains(&ms) {
        return Err(format!("\"{}\" is outside 1ms to 1d; use one inside, such as \"60s\"", text.escape_debug()));
    }
    Ok(Duration::from_millis(ms))
}

fn list<T>(section: &mut Section<'_>, name: &str, example: &str, max: usize) -> Option<Vec<T>>
where
    T: std::str::FromStr<Err = String>,
{
    let texts = section.texts(name, example)?;
    if let Some(over) = texts.get(max) {
        section.refuse(over.place, name, &format!("there are {}, and at most {max} may be; use fewer", texts.len()));
    }
    let mut all = Vec::new();
    for text in texts {
        match text.text.parse::<T>() {
            Ok(element) => all.push(element),
            Err(message) => section.refuse(text.place, name, &message),
        }
    }
    if all.is_empty() && name == "key" {
        let place = section.node(name)?.place;
        section.refuse(place, name, "it is empty, so that all requests would share one limit; write key = [\"path\"]");
    }
    Some(all)
}
