//! The memory server as a process, on the port of 127.0.0.1 that its argument names.

use std::net::{Ipv4Addr, TcpListener};

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let port: u16 = port.ok_or_else(|| std::io::Error::other("give it the port to listen on: memory-server 7070"))?;
    tidegate_store::remote_memory::serve(TcpListener::bind((Ipv4Addr::LOCALHOST, port))?)
}
