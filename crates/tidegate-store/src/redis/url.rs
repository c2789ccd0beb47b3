//! `[store] url`, as text and parsed.
//!
//! Invariant: no password is ever part of what [`Url`] prints, nor of an error.

use crate::remote::{ADDRESSES_MAX, Tls, TlsFiles, UrlError, address};
use crate::store::{Capabilities, Layout};
use std::fmt;
use tidegate_core::Algorithm;
use tidegate_wire::percent;

/// Where a Redis is, and the login.
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
    /// What the sentinels call the master; empty for other kinds.
    pub master: String,
    /// User and password at the sentinels, if they want them.
    pub sentinel: (Option<String>, Option<String>),
    /// With TLS: the trusted CAs and the client's certificate.
    pub tls: Option<Tls>,
}

/// Kinds of installations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// One server: `redis://`.
    Standalone,
    /// A master that sentinels know: `redis-sentinel://`.
    Sentinel,
    /// A Redis Cluster: `redis-cluster://`.
    Cluster,
    /// Shards behind a proxy: `twemproxy://`. No key of one script may live on another's shard.
    Twemproxy,
}

const EXAMPLE: &str = "write it as redis://[user:password@]host:6379/0, redis-cluster://host:6379,host:6379, \
                       redis-sentinel://host:26379,host:26379/MASTER or twemproxy://host:22121; rediss://… with TLS";

impl Url {
    /// The server that a machine has if it has one: `redis://127.0.0.1:6379`.
    #[must_use]
    pub fn local() -> Url {
        Url::new(Kind::Standalone, vec!["127.0.0.1:6379".to_owned()])
    }

    /// Is this text meant for a Redis? It may still be refused.
    pub(crate) fn is_of(text: &str) -> bool {
        text.starts_with("redis") || text.starts_with("twemproxy")
    }

    /// What a Redis of this kind can do.
    #[must_use]
    pub(crate) fn capabilities(&self) -> Capabilities {
        let (name, lists): (&str, &[Layout]) = match self.kind {
            Kind::Standalone | Kind::Sentinel => ("Redis", &[Layout::Native, Layout::Pause]),
            // Pause has no index of names: they would have to be looked for on every node.
            Kind::Cluster => ("Redis Cluster", &[Layout::Native]),
            Kind::Twemproxy => ("Redis behind twemproxy", &[]),
        };
        Capabilities {
            name,
            algorithms: &Algorithm::ALL,
            lists,
            blocks: true,
            gives_back: true,
            overrides: true,
            pause_layout: true,
            // Blocking reads and one clock are needed for them.
            streams: self.kind != Kind::Twemproxy,
            shared: true,
        }
    }

    fn new(kind: Kind, addresses: Vec<String>) -> Url {
        let (user, password, master, sentinel) = (None, None, String::new(), (None, None));
        Url { kind, addresses, user, password, database: 0, master, sentinel, tls: None }
    }
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Standalone, Kind::Sentinel, Kind::Cluster, Kind::Twemproxy];

    /// How it is written, and its usual port.
    const fn scheme(self) -> (&'static str, u16) {
        match self {
            Kind::Standalone => ("redis", 6379),
            Kind::Sentinel => ("redis-sentinel", 26_379),
            Kind::Cluster => ("redis-cluster", 6379),
            Kind::Twemproxy => ("twemproxy", 22_121),
        }
    }

    const fn has_several_addresses(self) -> bool {
        matches!(self, Kind::Sentinel | Kind::Cluster)
    }
}

impl std::str::FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| fail("the URL has no scheme"))?;
        // rediss://, rediss-sentinel:// and rediss-cluster:// are the same with TLS.
        let (plain, secret) = match scheme.strip_prefix("rediss") {
            Some(rest) => (format!("redis{rest}"), true),
            None => (scheme.to_owned(), false),
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.scheme().0 == plain);
        let kind = kind.ok_or_else(|| fail(&format!("the scheme \"{}\" is not known", scheme.escape_debug())))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may hold a slash only as %2F.
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (who, hosts) = authority.rsplit_once('@').map_or((None, authority), |(who, hosts)| (Some(who), hosts));
        let mut url = Url::new(kind, addresses(kind, hosts)?);
        (url.user, url.password) = credentials(who)?;
        (url.master, url.database) = path_of(kind, path)?;
        url.sentinel = sentinel_of(kind, query)?;
        url.tls = secret.then(|| Tls::load(TlsFiles::default())).transpose().map_err(|error| fail(&error))?;
        Ok(url)
    }
}

fn fail(what: &str) -> UrlError {
    UrlError::new(format!("{what}; {EXAMPLE}"))
}

fn addresses(kind: Kind, hosts: &str) -> Result<Vec<String>, UrlError> {
    let one = |host: &str| {
        let refused = || fail(&format!("\"{}\" is not host:port", host.escape_debug()));
        address(host, kind.scheme().1).ok_or_else(refused)
    };
    if !kind.has_several_addresses() {
        return Ok(vec![one(hosts)?]);
    }
    match hosts.split(',').count() {
        count if count > ADDRESSES_MAX => Err(fail(&format!("{count} addresses are more than {ADDRESSES_MAX}"))),
        _ => hosts.split(',').map(one).collect(),
    }
}

/// What follows the addresses: the master's name and the database.
fn path_of(kind: Kind, path: &str) -> Result<(String, u32), UrlError> {
    let (name, number) = match kind {
        Kind::Sentinel => path.split_once('/').unwrap_or((path, "")),
        _ => ("", path),
    };
    if kind == Kind::Sentinel && (name.is_empty() || name.contains(char::is_whitespace)) {
        return Err(fail(&format!("\"{}\" is not the name of a master", name.escape_debug())));
    }
    let refused = || fail(&format!("the database \"{}\" is not a number", number.escape_debug()));
    let database = if number.is_empty() { 0 } else { number.parse().map_err(|_| refused())? };
    match kind {
        Kind::Twemproxy if database != 0 => Err(fail("twemproxy has no database numbers")),
        Kind::Cluster if database != 0 => Err(fail("a cluster has no database numbers")),
        _ => Ok((name.to_owned(), database)),
    }
}

/// `?sentinel_user=U&sentinel_password=P`.
fn sentinel_of(kind: Kind, query: &str) -> Result<(Option<String>, Option<String>), UrlError> {
    let mut who = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "sentinel_user" if kind == Kind::Sentinel => who.0 = Some(decoded(value)?),
            "sentinel_password" if kind == Kind::Sentinel => who.1 = Some(decoded(value)?),
            _ => {
                let name = name.escape_debug();
                return Err(fail(&format!(
                    "\"{name}\" is not known; only sentinel_user and sentinel_password may follow, after redis-sentinel://"
                )));
            }
        }
    }
    Ok(who)
}

/// `user:password`, `:password` or `user`, percent-encoded.
fn credentials(who: Option<&str>) -> Result<(Option<String>, Option<String>), UrlError> {
    let Some(who) = who else { return Ok((None, None)) };
    let (user, password) = who.split_once(':').map_or((who, None), |(user, password)| (user, Some(password)));
    let user = if user.is_empty() { None } else { Some(decoded(user)?) };
    Ok((user, password.map(decoded).transpose()?))
}

fn decoded(text: &str) -> Result<String, UrlError> {
    let decoded = percent::decode(text).and_then(|bytes| String::from_utf8(bytes.into_owned()).ok());
    decoded.ok_or_else(|| {
        UrlError::new("user or password is not percent-encoded UTF-8; write % as %25, @ as %40, / as %2F".to_owned())
    })
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.kind.scheme().0;
        match (&self.tls, scheme.strip_prefix("redis")) {
            (Some(_), Some(rest)) => write!(f, "rediss{rest}")?,
            _ => f.write_str(scheme)?,
        }
        write!(f, "://{}", self.addresses.join(","))?;
        if self.kind == Kind::Sentinel {
            write!(f, "/{}", self.master)?;
        }
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
    fn check(text: &str, addresses: &str, user: Option<&str>, password: Option<&str>, path: &str) {
        let url: Url = text.parse().unwrap();
        assert_eq!(url.addresses.join(","), addresses);
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (user, password));
        assert_eq!(format!("{}/{}", url.master, url.database), path);
    }

    #[test]
    fn parts() {
        check("redis://127.0.0.1", "127.0.0.1:6379", None, None, "/0");
        check("redis://cache:7000/1", "cache:7000", None, None, "/1");
        check("redis://:s%40crt%2F@cache", "cache:6379", None, Some("s@crt/"), "/0");
        check("redis://me:p:w@[::1]:7/2", "[::1]:7", Some("me"), Some("p:w"), "/2");
        check("redis://[::1]", "[::1]:6379", None, None, "/0");
        check("twemproxy://10.0.0.1:22121", "10.0.0.1:22121", None, None, "/0");
        check("redis-cluster://:p@a,b:7,[::1]:8", "a:6379,b:7,[::1]:8", None, Some("p"), "/0");
        check("redis-sentinel://u:p@a,b:7/main", "a:26379,b:7", Some("u"), Some("p"), "main/0");
        check("redis-sentinel://a/main/3?sentinel_password=x", "a:26379", None, None, "main/3");
        check("rediss-cluster://a", "a:6379", None, None, "/0");
        let url: Url = "rediss://:secret@x/3".parse().unwrap();
        assert_eq!((url.tls.is_some(), url.to_string().as_str()), (true, "rediss://x:6379/3"));
        assert!("twemproxys://x".parse::<Url>().is_err());
    }

    #[test]
    fn sentinels_have_passwords_of_their_own() {
        let url: Url = "redis-sentinel://a/main?sentinel_user=me&sentinel_password=s%26t".parse().unwrap();
        assert_eq!(url.sentinel, (Some("me".to_owned()), Some("s&t".to_owned())));
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
            ("redis://:%+1@x", "percent-encoded"),
            ("redis://:%ff@x", "percent-encoded"),
            ("redis://x,y", "\"x,y\" is not host:port"),
            ("redis://x?sentinel_password=hush", "\"sentinel_password\" is not known"),
            ("redis-sentinel://x", "\"\" is not the name of a master"),
            ("redis-cluster://x,,y", "\"\" is not host:port"),
            ("redis-cluster://x/1", "no database numbers"),
            ("twemproxy://x:1/1", "no database numbers"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hush"), "{text}: {error}");
        }
        for (text, shown) in [
            ("redis://me:secret@x/3", "redis://x:6379/3"),
            ("redis-sentinel://:secret@x,y/main?sentinel_password=secret", "redis-sentinel://x:26379,y:26379/main"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(format!("{url} {url:?}"), format!("{shown} {shown}"));
        }
    }
}
