//! What the stores on other machines have in common: addresses, reaching them with TLS or without, when to stop
//! asking, and why there was no answer.

mod address;
mod breaker;
mod error;
mod reach;
mod tls;

pub use address::UrlError;
pub(crate) use address::{ADDRESSES_MAX, address};
pub(crate) use breaker::Breaker;
#[cfg(feature = "redis")]
pub(crate) use breaker::jittered;
pub use error::{Meaning, StoreError};
#[cfg(feature = "redis")]
pub(crate) use reach::Stream;
pub(crate) use reach::{reach, unreachable};
pub use tls::{Tls, TlsFiles};
