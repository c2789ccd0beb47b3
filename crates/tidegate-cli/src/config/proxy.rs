//! `[proxy]`: the transparent proxy.
//!
//! What a limit, a key or an upstream may be is checked by the crates that use them; here their
//! refusals are given a place. The proxy's limit is a limiter of the policy: the one that `limiter` names, or one that
//! `limit` makes.

use super::doors;
use super::replicas;
use super::section::{Known, Section};
use super::size;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate::{Algorithm, Gate, Limit, LimiterSpec, Micros, PROXY_LIMITER, Policy, Replicas, Rules, text};
use tidegate_proxy::{self as proxy, KeyPart, Template, Upstream, WhenLimited};

/// What the file says of the proxy. Settings that are left out have the proxy's defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Proxy {
    pub(crate) listen: SocketAddr,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) upstream: Option<String>,
    upstream_ca: Option<PathBuf>,
    pub(crate) limit: Option<Limit>,
    /// The limiter of the policy that counts, if not one that `limit` makes.
    limiter: Option<String>,
    in_flight: Option<u32>,
    when_limited: WhenLimited,
    max_waiting: Option<u32>,
    max_waiting_bytes: Option<u64>,
    max_waiting_per_client: Option<u32>,
    max_in_flight_per_client: Option<u32>,
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
    pub(crate) replicas: Replicas,
}

impl Default for Proxy {
    fn default() -> Proxy {
        Proxy {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 4040)),
            admin: None,
            upstream: None,
            upstream_ca: None,
            limit: None,
            limiter: None,
            in_flight: None,
            when_limited: WhenLimited::Wait,
            max_waiting: None,
            max_waiting_bytes: None,
            max_waiting_per_client: None,
            max_in_flight_per_client: None,
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
        "limiter",
        "in_flight",
        "when_limited",
        "max_waiting",
        "max_waiting_bytes",
        "max_waiting_per_client",
        "max_in_flight_per_client",
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
        limiter: section.text("limiter", "api").map(|name| name.text.to_owned()),
        in_flight: count(section.number("in_flight", COUNT, 100)),
        when_limited: section.parsed("when_limited", "wait", when_limited).unwrap_or_default(),
        max_waiting: count(section.number("max_waiting", COUNT, 10_000)),
        max_waiting_bytes: section.parsed("max_waiting_bytes", "256MiB", size::parse),
        max_waiting_per_client: count(section.number("max_waiting_per_client", COUNT, 1_000)),
        max_in_flight_per_client: count(section.number("max_in_flight_per_client", AT_LEAST_ONE, 100)),
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
        replicas: replicas::read(section),
    };
    let _: Option<()> = section.parsed("on_failure", "deny", on_failure);
    for setting in ["limit", "replicas", "replica"] {
        if let (Some(node), Some(name)) = (section.node(setting), &proxy.limiter) {
            let message =
                format!("limiter = \"{}\" says it; set it at that limiter, or leave limiter out", name.escape_debug());
            section.refuse(node.place, setting, &message);
        }
    }
    if let (Some(node), Err(message)) = (section.node("upstream"), proxy.upstream()) {
        section.refuse(node.place, "upstream", &message);
    }
    proxy
}

impl Proxy {
    /// The limiter that `limit` makes: aligned windows, one key for each path or whatever `key` says.
    ///
    /// # Panics
    /// Never: the default limit is within its bounds.
    pub(crate) fn own_limiter(&self) -> LimiterSpec {
        let default = || Limit::new(100, Micros::from_secs(60)).expect("a minute is a period");
        let limit = self.limit.unwrap_or_else(default);
        let rules = Rules::new(Algorithm::AlignedWindow, &[limit]).expect("every limit makes an aligned window");
        LimiterSpec { replicas: self.replicas, ..LimiterSpec::new(PROXY_LIMITER, rules) }
    }

    /// The policy with the limiter that counts here.
    ///
    /// # Errors
    /// When the limiter that is named is none that can count starts, or the name of its own is taken.
    pub(super) fn join(&self, policy: &Policy) -> Result<Policy, String> {
        let known = |name: &str| policy.limiters().iter().find(|limiter| limiter.name == name);
        let Some(name) = &self.limiter else {
            if known(PROXY_LIMITER).is_some() {
                return Err(format!(
                    "a limiter is named \"{PROXY_LIMITER}\", which is the name of the one that [proxy] limit makes; \
                     rename it, or write limiter = \"{PROXY_LIMITER}\" in [proxy]"
                ));
            }
            return policy.with(self.own_limiter()).map_err(|error| error.to_string());
        };
        let limiter = known(name).ok_or_else(|| {
            let names: Vec<&str> = policy.limiters().iter().map(|limiter| limiter.name.as_str()).take(10).collect();
            format!("limiter: no limiter is named \"{}\"; there are: {}", name.escape_debug(), names.join(", "))
        })?;
        if limiter.candidate || limiter.candidate_rules.is_some() {
            return Err(format!(
                "limiter: lines of the proxy know one limit, and \"{name}\" is or has a candidate; leave that out there, or name \
                 another limiter"
            ));
        }
        if !limiter.matches.is_empty() {
            return Err(format!(
                "limiter: lines of the proxy know one limit for all keys, and \"{name}\" has [[limiter.match]]; leave it out \
                 there, or name another limiter"
            ));
        }
        let fits = matches!(limiter.rules.limits(), [limit] if limit.block().is_none());
        if fits && limiter.rules.limits().iter().any(|limit| limit.count() == 0) {
            return Err(format!(
                "limiter: \"{name}\" has a limit of 0, which lets no request start, ever; write a count from 1 on there"
            ));
        }
        if !fits || limiter.rules.algorithm() != Algorithm::AlignedWindow {
            return Err(format!(
                "limiter: the proxy counts starts in aligned windows, and \"{name}\" does not; give it algorithm = \
                 \"fixed-window\", aligned = true and one limit without a block, or write limit = \"100 per minute\" here"
            ));
        }
        Ok(policy.clone())
    }

    /// True when `limit` makes the limiter that counts here.
    pub(crate) const fn makes_limiter(&self) -> bool {
        self.limiter.is_none()
    }

    /// The name of the limiter that counts here.
    pub(crate) fn limiter_name(&self) -> &str {
        self.limiter.as_deref().unwrap_or(PROXY_LIMITER)
    }

    fn upstream(&self) -> Result<Upstream, String> {
        let missing = "no upstream; name one: tidegate proxy http://127.0.0.1:9000, or [proxy] upstream in the file";
        Upstream::new(self.upstream.as_deref().ok_or(missing)?, self.upstream_ca.as_deref())
    }

    /// The proxy's settings, with its limiter of this gate.
    ///
    /// # Errors
    /// When the upstream is missing or cannot be one, or the gate does not have the limiter.
    pub(crate) fn policy(&self, gate: &Gate) -> Result<proxy::Policy, String> {
        let limiter = gate.limiter(self.limiter_name()).map_err(|error| error.to_string())?;
        let default = proxy::Policy::new(self.upstream()?, limiter);
        Ok(proxy::Policy {
            limiter: default.limiter,
            in_flight: self.in_flight.unwrap_or(default.in_flight),
            when_limited: self.when_limited,
            max_waiting: self.max_waiting.unwrap_or(default.max_waiting),
            max_waiting_bytes: self.max_waiting_bytes.unwrap_or(default.max_waiting_bytes),
            max_waiting_per_client: self.max_waiting_per_client,
            max_in_flight_per_client: self.max_in_flight_per_client,
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
    if limit.count() == 0 {
        return Err(format!(
            "\"{shown}\" lets no request start, ever, so that all would wait for good; write a count from 1 on"
        ));
    }
    Ok(limit)
}

fn on_failure(text: &str) -> Result<(), String> {
    match text {
        "deny" => Ok(()),
        other => {
            Err(format!("\"{}\" would start requests outside this replica's share; use \"deny\"", other.escape_debug()))
        }
    }
}

fn when_limited(text: &str) -> Result<WhenLimited, String> {
    match text {
        "wait" => Ok(WhenLimited::Wait),
        "reject" => Ok(WhenLimited::Reject),
        other => Err(format!("\"{}\" is neither; use \"wait\" or \"reject\"", other.escape_debug())),
    }
}

/// A duration that a client can wait: at most a day, as a timer of a year is a mistake in units.
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
