//! `memory://host:port`.

use crate::remote::{UrlError, address};
use crate::store::{Capabilities, Layout};
use std::fmt;
use std::str::FromStr;
use tidegate_core::Algorithm;

/// Where a memory server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// `host:port`.
    pub address: String,
}

const SCHEME: &str = "memory://";
const PORT: u16 = 7070;

impl Url {
    /// Is this text meant for a memory server? It may still be refused.
    pub(crate) fn is_of(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// What a memory server can do.
    #[expect(clippy::unused_self, reason = "asked of every store's URL")]
    pub(crate) const fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "a memory server",
            algorithms: &Algorithm::ALL,
            lists: &[Layout::Native],
            blocks: true,
            gives_back: false,
            overrides: false,
            pause_layout: false,
            streams: false,
            shared: true,
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let address = text.strip_prefix(SCHEME).and_then(|host| address(host, PORT));
        let refused =
            || UrlError::new(format!("\"{}\" is no memory server; write {SCHEME}host:port", text.escape_debug()));
        address.map(|address| Url { address }).ok_or_else(refused)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.address)
    }
}
