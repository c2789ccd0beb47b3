//! A memory server: the embedded store in a process of its own, asked over TCP. **For tests only.**
//!
//! It shows what a store needs to be one: this folder, its line in `each_store!` and its `mod` line; the engine does not
//! know of it. No configuration names it and no default feature builds it: nothing that it counts outlives its process, it
//! asks for no password and speaks no TLS. Its server can be killed and stopped, so it passes the same scenarios as the
//! stores that people use (`tidegate/tests/every_store`).
//!
//! `frame.rs` and `message.rs` are its protocol, `link.rs` the client's one connection, `server.rs` the other side.

mod frame;
mod link;
mod message;
mod server;
mod store;
mod url;

pub use server::serve;
pub(crate) use store::Store;
pub use url::Url;
