//! What the tests and benches of several crates share: real servers, faults between them and their clients, plain
//! clients, random numbers that come again, and settings from the environment.
//!
//! Only ever a dev-dependency, and it depends on no crate of ours: unit tests use it too, and a crate under unit test is
//! compiled a second time, so that its types would differ from those that came through here. What knows our types stays
//! beside the tests that use it (`tidegate/tests/every_store`, `tidegate-store/tests/load`), as does what starts our binary
//! (`tidegate-cli/tests/server`): cargo tells its path to the tests of that crate alone.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[cfg(feature = "certificates")]
pub mod certificates;
pub mod faults;
mod folder;
pub mod http;
mod random;
pub mod servers;
mod settings;
pub mod stomp;
mod stopwatch;
mod wait;

pub use folder::Folder;
pub use random::Random;
pub use settings::{number, setting};
pub use stopwatch::{Stopwatch, slowness, waited_for_processor};
pub use wait::{WAIT_TIME_MAX, eventually};
