//! Taking an address, or saying why it cannot be had.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// A listener, and the address that it really has: port 0 asks for any.
pub(super) async fn on(address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
    let bound = TcpListener::bind(address).await.and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|error| refusal(address, &error))
}

fn refusal(address: SocketAddr, error: &Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "another process has it; stop that one, or choose another port with [doors] http or TIDEGATE_DOORS__HTTP={}:0",
            address.ip()
        ),
        ErrorKind::PermissionDenied => {
            "ports below 1024 need a privilege; choose a higher one with [doors] http".to_owned()
        }
        ErrorKind::AddrNotAvailable => {
            "this machine does not have the address; use 127.0.0.1, or 0.0.0.0 for all of its own".to_owned()
        }
        _ => "choose another address with [doors] http".to_owned(),
    };
    format!("error: cannot listen on {address}: {error}; {remedy}")
}
