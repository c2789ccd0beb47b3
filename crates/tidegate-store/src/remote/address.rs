//! `host:port` in words.

/// Most addresses: any of them leads to all the others.
#[allow(dead_code, reason = "a store with one address needs no bound")]
pub(crate) const ADDRESSES_MAX: usize = 64;

/// `host:port` of what may lack its port; `None`: it is neither.
pub(crate) fn address(host: &str, port: u16) -> Option<String> {
    let (name, number) = match host.rsplit_once(':') {
        Some((name, number)) if !number.ends_with(']') => (name, number.parse().ok()?),
        _ => (host, port),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_name = |name: &str| !name.is_empty() && !name.contains([':', '[', ']', ' ', '@', '?', '#', ',']);
    (bare.is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()) || is_name(name))
        .then(|| format!("{name}:{number}"))
}
