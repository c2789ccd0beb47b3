//! Where states live. The embedded store is a table in memory with a hard budget; it decides with
//! the core's arithmetic and holds no opinion of its own.

mod bare;
mod budget;
mod clock;
mod directory;
#[cfg(feature = "etcd")]
pub mod etcd;
mod layout;
mod logs;
mod memory;
mod names;
mod panic_point;
pub mod private_file;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "remote-memory")]
pub mod remote_memory;
mod shard;
mod slots;
mod snapshot;
mod stats;
mod store;
mod table;
#[cfg(feature = "tls")]
mod tls;

pub use clock::Clock;
pub use directory::{Directory, SnapshotError};
pub use layout::Shape;
pub use memory::Memory;
pub use panic_point::panic_point;
pub use shard::{ByDoor, Counts, Door, Verdicts};
pub use snapshot::{Carried, Loaded};
pub use stats::KeyStats;
pub use store::{
    Answers, Asked, Capabilities, Embedded, Holder, Layout, Meaning, NewOverride, Override, Overrides, Placed,
    Question, Register, Reserve, Reserved, Settled, Store, StoreError, StoreUrl, Swap, UrlError, When,
};
pub use table::{
    DECISIONS_MAX, Decided, Denials, Denied, EMPTY_BYTES as EMPTY_TABLE_BYTES, Keeping, Listing, NotReserved,
    OVERRIDES_MAX, PageOf, Part, PartAnswer, RESERVATIONS_MAX, Single, Table, TopBy, TopListing, Which, decide_all,
};
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsFiles};
