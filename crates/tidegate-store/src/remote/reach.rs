//! Reaching a server: a connection, in the clear or not. What is said on it first is the store's matter.

use super::{StoreError, Tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection to a server, in the clear or not.
pub(crate) type Stream = Box<dyn Wire>;

/// What bytes go through.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Connects. The caller bounds the time.
pub(crate) async fn reach(address: &str, tls: Option<&Tls>) -> Result<Stream, StoreError> {
    let failed = |error: std::io::Error| unreachable(address, error.to_string());
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.over(stream, address).await.map_err(|why| unusable(address, why))?),
    })
}

/// Nothing answers there, with the remedy for that.
pub(crate) fn unreachable(address: &str, why: String) -> StoreError {
    unusable(address, format!("{why}; start it, or correct its address in [store]"))
}

/// Something answers there and cannot be used. `why` says what to do about it: starting it would not help.
pub(crate) fn unusable(address: &str, why: String) -> StoreError {
    StoreError::Unreachable { address: address.to_owned(), why }
}
