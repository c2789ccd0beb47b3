//! `[store] endpoints` as text and parsed, and the login.
//!
//! Invariant: no password is ever part of what [`Url`] prints, nor of an error.

use crate::remote::{ADDRESSES_MAX, Tls, TlsFiles, UrlError, address};
use crate::store::Capabilities;
use std::fmt;
use tidegate_core::Algorithm;

/// Where an etcd is, and the login.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// `host:port` of its members, at least one. The first that answers is asked.
    pub addresses: Vec<String>,
    /// A user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// With TLS: the trusted CAs and the client's certificate.
    pub tls: Option<Tls>,
}

const EXAMPLE: &str = "write endpoints as [\"http://host:2379\", …], or all with https:// for TLS";
const PORT: u16 = 2379;

impl Url {
    /// The server that a machine has if it has one: `http://127.0.0.1:2379`.
    #[must_use]
    pub fn local() -> Url {
        Url { addresses: vec![format!("127.0.0.1:{PORT}")], user: None, password: None, tls: None }
    }

    /// Is this text meant for an etcd? It may still be refused.
    pub(crate) fn is_of(text: &str) -> bool {
        text.starts_with("http")
    }

    /// What an etcd can do.
    #[must_use]
    #[expect(clippy::unused_self, reason = "asked of every store's URL")]
    pub(crate) const fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "etcd",
            algorithms: &[Algorithm::AlignedWindow],
            lists: &[],
            blocks: false,
            gives_back: true,
            overrides: false,
            pause_layout: false,
            streams: false,
            shared: true,
        }
    }

    /// An etcd by the URLs of its members: all with `http://`, or all with `https://`.
    ///
    /// # Errors
    /// Names what is no endpoint, and how one is written.
    pub fn of<'a>(endpoints: impl IntoIterator<Item = &'a str>) -> Result<Url, UrlError> {
        let members = endpoints.into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
        let secret = members.iter().filter(|(secret, _)| *secret).count();
        match members.len() {
            0 => return Err(fail("there is no endpoint")),
            count if count > ADDRESSES_MAX => {
                return Err(fail(&format!("{count} endpoints are more than {ADDRESSES_MAX}")));
            }
            count if secret != 0 && secret != count => {
                return Err(fail("some endpoints are http:// and some https://"));
            }
            _ => {}
        }
        let tls = (secret > 0).then(|| Tls::load(TlsFiles::default())).transpose().map_err(|error| fail(&error))?;
        Ok(Url { addresses: members.into_iter().map(|(_, address)| address).collect(), tls, ..Url::local() })
    }
}

/// Endpoints with commas between them.
impl std::str::FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        Url::of(text.split(','))
    }
}

/// With TLS or not, and the address.
fn member(endpoint: &str) -> Result<(bool, String), UrlError> {
    let (secret, rest) = match endpoint.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some((scheme, _)) => return Err(fail(&format!("the scheme \"{}\" is not known", scheme.escape_debug()))),
        None => return Err(fail("an endpoint has no scheme")),
    };
    if rest.contains('@') {
        return Err(fail("an endpoint holds no user and password; set user and password_file"));
    }
    let host = rest.strip_suffix('/').unwrap_or(rest);
    let refused = || fail(&format!("\"{}\" is not host:port", host.escape_debug()));
    Ok((secret, address(host, PORT).filter(|address| !address.contains('/')).ok_or_else(refused)?))
}

fn fail(what: &str) -> UrlError {
    UrlError::new(format!("{what}; {EXAMPLE}"))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.addresses.join(","))
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

    #[test]
    fn parts() {
        for (text, shown) in [
            ("http://127.0.0.1:2379", "http://127.0.0.1:2379"),
            ("http://a,http://b:7/,http://[::1]", "http://a:2379,b:7,[::1]:2379"),
            ("https://a,https://b", "https://a:2379,b:2379"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(format!("{url} {url:?}"), format!("{shown} {shown}"));
        }
        assert_eq!(Url::local().to_string(), "http://127.0.0.1:2379");
    }

    #[test]
    fn refusals_show_how_it_is_written_and_no_password() {
        for (text, part) in [
            ("", "no scheme"),
            ("a:2379", "no scheme"),
            ("redis://a", "\"redis\" is not known"),
            ("http://a,https://b", "some endpoints are http:// and some https://"),
            ("http://a/path", "\"a/path\" is not host:port"),
            ("http://a:99999", "\"a:99999\" is not host:port"),
            ("http://me:hush@a", "set user and password_file"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(part) && error.ends_with(EXAMPLE) && !error.contains("hush"), "{text}: {error}");
        }
        assert!(Url::of([]).is_err() && Url::of(["http://a"; 65]).is_err());
        let url = Url { password: Some("hush".to_owned()), ..Url::local() };
        assert!(!format!("{url:?}").contains("hush"));
    }
}
