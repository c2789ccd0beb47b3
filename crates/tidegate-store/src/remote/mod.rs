//! What the stores on other machines have in common: addresses, reaching them with TLS or without, and when to stop
//! asking.

mod address;
pub(crate) mod breaker;
pub(crate) mod connect_time;
pub(crate) mod reach;

#[allow(unused_imports, reason = "each store takes what it needs")]
pub(crate) use crate::store::{Meaning, StoreError, UrlError};
#[allow(unused_imports, reason = "each store takes what it needs")]
pub(crate) use crate::tls::{Tls, TlsFiles};
#[allow(unused_imports, reason = "a store with one address needs no bound")]
pub(crate) use address::{ADDRESSES_MAX, address};
#[allow(unused_imports, reason = "only Redis has servers that answer and are of no use")]
pub(crate) use reach::unusable;
pub(crate) use reach::{reach, unreachable};
