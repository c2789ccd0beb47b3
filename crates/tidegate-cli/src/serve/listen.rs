//! Taking an address, or saying why it cannot be had.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use tidegate_doors::udp::Sockets;
use tokio::net::TcpListener;

/// A listener for a door, and the address that it really has: port 0 asks for any.
pub(super) async fn on(door: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
    let bound = TcpListener::bind(address).await.and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|error| refusal(door, address, &error))
}

/// The UDP door's sockets, as many as there are processors, within a bound.
pub(super) fn on_udp(address: SocketAddr) -> Result<Sockets, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(UDP_THREADS_MAX);
    Sockets::bind(address, threads).map_err(|error| refusal("udp", address, &error))
}

/// Most threads of the UDP door: the kernel's own work is spread over as many processors again.
const UDP_THREADS_MAX: usize = 16;

fn refusal(door: &str, address: SocketAddr, error: &Error) -> String {
    let variable = format!("TIDEGATE_DOORS__{}", door.to_uppercase());
    let remedy = match error.kind() {
        ErrorKind::AddrInUse => format!(
            "another process has it; stop that one, or choose another port with [doors] {door} or {variable}={}:0",
            address.ip()
        ),
        ErrorKind::PermissionDenied => {
            format!("ports below 1024 need a privilege; choose a higher one with [doors] {door}")
        }
        ErrorKind::AddrNotAvailable => {
            "this machine does not have the address; use 127.0.0.1, or 0.0.0.0 for all of its own".to_owned()
        }
        _ => format!("choose another address with [doors] {door}"),
    };
    format!("error: cannot listen on {address}: {error}; {remedy}")
}
