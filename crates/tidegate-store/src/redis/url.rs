//! `[store] url` in words and in parts.
//!
//! Invariant: the password is never part of what [`Url`] prints.

use std::fmt;

/// Where a Redis is, and who we are there.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// What kind of installation it is.
    pub kind: Kind,
    /// `host:port`, at least one; several only where the kind has several.
    pub addresses: Vec<String>,
    /// An ACL user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The database number.
    pub database: u32,
}

/// Kinds of installations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// One server: `redis://`.
    Standalone,
    /// Shards behind a proxy: `twemproxy://`. No key of one script may live on another's shard.
    Twemproxy,
}

/// Why a URL was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UrlError(String);

impl std::error::Error for UrlError {}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const EXAMPLE: &str = "write it as redis://[user:password@]host:6379/0 or twemproxy://host:22121";

impl Url {
    /// The server that a machine has if it has one: `redis://127.0.0.1:6379`.
    #[must_use]
    pub fn local() -> Url {
        let addresses = vec!["127.0.0.1:6379".to_owned()];
        Url { kind: Kind::Standalone, addresses, user: None, password: None, database: 0 }
    }
}

impl std::str::FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let fail = |what: &str| Err(UrlError(format!("{what}; {EXAMPLE}")));
        let Some((scheme, rest)) = text.split_once("://") else { return fail("the URL has no scheme") };
        let (kind, port) = match scheme {
            "redis" => (Kind::Standalone, 6379),
            "twemproxy" => (Kind::Twemproxy, 22_121),
            _ => return fail(&format!("the scheme \"{}\" is not known", scheme.escape_debug())),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (who, host) = authority.rsplit_once('@').map_or((None, authority), |(who, host)| (Some(who), host));
        let (user, password) = credentials(who)?;
        let address = address(host, port)
            .ok_or_else(|| UrlError(format!("\"{}\" is not host:port; {EXAMPLE}", host.escape_debug())))?;
        let database = match path {
            "" => 0,
            number => number.parse().map_err(|_| {
                UrlError(format!("the database \"{}\" is not a number; {EXAMPLE}", number.escape_debug()))
            })?,
        };
        if kind == Kind::Twemproxy && database != 0 {
            return fail("twemproxy has no database numbers");
        }
        Ok(Url { kind, addresses: vec![address], user, password, database })
    }
}

/// `user:password`, `:password` or `user`, percent-encoded.
fn credentials(who: Option<&str>) -> Result<(Option<String>, Option<String>), UrlError> {
    let Some(who) = who else { return Ok((None, None)) };
    let (user, password) = who.split_once(':').map_or((who, None), |(user, password)| (user, Some(password)));
    let user = if user.is_empty() { None } else { Some(decoded(user)?) };
    Ok((user, password.map(decoded).transpose()?))
}

fn address(host: &str, port: u16) -> Option<String> {
    let (name, number) = match host.rsplit_once(':') {
        Some((name, number)) if !number.ends_with(']') => (name, number.parse().ok()?),
        _ => (host, port),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_name = |name: &str| !name.is_empty() && !name.contains([':', '[', ']', ' ', '@', '?', '#']);
    (bare.is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()) || is_name(name))
        .then(|| format!("{name}:{number}"))
}

fn decoded(text: &str) -> Result<String, UrlError> {
    let fail =
        || UrlError("user or password is not percent-encoded UTF-8; write % as %25, @ as %40, / as %2F".to_owned());
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(2).ok_or_else(fail)?;
        let digits = std::str::from_utf8(digits).map_err(|_| fail())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| fail())?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| fail())
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            Kind::Standalone => "redis",
            Kind::Twemproxy => "twemproxy",
        };
        write!(f, "{scheme}://{}", self.addresses.join(","))?;
        if self.database != 0 { write!(f, "/{}", self.database) } else { Ok(()) }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, address: &str, user: Option<&str>, password: Option<&str>, database: u32) {
        let url: Url = text.parse().unwrap();
        assert_eq!(url.addresses, [address]);
        assert_eq!((url.user.as_deref(), url.password.as_deref(), url.database), (user, password, database));
    }

    #[test]
    fn parts() {
        check("redis://127.0.0.1", "127.0.0.1:6379", None, None, 0);
        check("redis://cache:7000/1", "cache:7000", None, None, 1);
        check("redis://:s%40crt%2F@cache", "cache:6379", None, Some("s@crt/"), 0);
        check("redis://me:p:w@[::1]:7/2", "[::1]:7", Some("me"), Some("p:w"), 2);
        check("redis://[::1]", "[::1]:6379", None, None, 0);
        check("twemproxy://10.0.0.1:22121", "10.0.0.1:22121", None, None, 0);
    }

    #[test]
    fn refusals_show_how_it_is_written_and_no_password() {
        for (text, part) in [
            ("127.0.0.1:6379", "no scheme"),
            ("http://x", "\"http\" is not known"),
            ("redis://a:b:c", "\"a:b:c\" is not host:port"),
            ("redis://", "\"\" is not host:port"),
            ("redis://x:99999", "is not host:port"),
            ("redis://x/first", "\"first\" is not a number"),
            ("redis://:%zz@x", "percent-encoded"),
            ("twemproxy://x:1/1", "no database numbers"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let url: Url = "redis://me:secret@x/3".parse().unwrap();
        assert_eq!(format!("{url} {url:?}"), "redis://x:6379/3 redis://x:6379/3");
    }
}
