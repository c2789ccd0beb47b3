//! Housekeeping that no caller has to ask for: a thread tends the gate once a second, and ends with it.
//!
//! No decision waits for it or knows of it. A gate whose clock is set by hand has none, as its time stands still between two
//! settings and a simulation must come out the same every time: the code that sets that clock calls [`Gate::tend`].

use super::Gate;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::Builder;
use std::time::Duration;
use tidegate_store::{Door, panic_point};

/// How often the gate is tended.
const EVERY: Duration = Duration::from_secs(1);

/// Begins to tend a gate, until the sender's side of `ended` is dropped with it.
pub(super) fn begin(gate: &Gate, ended: Receiver<Infallible>) {
    if gate.clock().manual_now().is_some() {
        return;
    }
    let inner = Arc::downgrade(&gate.0);
    let tend = move || {
        // The first time at once: the clock's pace is known better after a moment than at its start.
        while let Some(inner) = inner.upgrade() {
            panic_point("tend");
            Gate(inner, Door::Library).tend();
            if ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    // Where no thread can be had, decisions are as exact as ever: idle keys then make room only for keys that come.
    let _ = Builder::new().name("tidegate-tend".to_owned()).spawn(tend);
}
