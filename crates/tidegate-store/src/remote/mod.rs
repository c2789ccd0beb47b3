//! What the stores on other machines have in common: addresses, reaching them with TLS or without, and when to stop
//! asking.

mod address;
pub(crate) mod breaker;
pub(crate) mod reach;
mod tls;

pub(crate) use crate::store::{Meaning, StoreError, UrlError};
pub(crate) use address::{ADDRESSES_MAX, address};
pub(crate) use reach::{reach, unreachable};
pub use tls::{Tls, TlsFiles};
