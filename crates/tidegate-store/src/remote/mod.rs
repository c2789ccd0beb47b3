//! What the stores on other machines have in common: why they did not answer, and TLS towards them.

mod error;
mod tls;

pub use error::{Meaning, StoreError};
pub use tls::{Tls, TlsFiles};
