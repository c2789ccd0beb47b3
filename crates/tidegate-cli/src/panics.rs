//! A panic, in whatever task or thread, ends the process in order.
//!
//! A runtime catches the panic of a task, and a thread's panic ends that thread: what it did is then missing, a door, a journal
//! or the housekeeping, while the process lives on. So the one hook that sees every panic, before anybody catches it, logs
//! it and gives the signal that `serve` and `proxy` wait for beside SIGTERM: doors stop, state is saved, and the exit code is
//! [`crate::exit::PANICKED`]. What is saved then: ARCHITECTURE.md, "When something panics".

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;
use tracing::error;

/// How long the process may take to stop in order after a panic: longer than requests may take to end.
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// What `serve` and `proxy` say at their end.
pub(crate) const LAST_WORDS: &str =
    "error: a part of the server panicked, as the log says, and the others were stopped; start again and report this";

static HAPPENED: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));

/// From now on a panic is logged and gives the signal.
pub(crate) fn watch() {
    // Made here, so that a hook allocates as little as may be.
    LazyLock::force(&HAPPENED);
    panic::set_hook(Box::new(|info| {
        tell(info);
        HAPPENED.send_replace(true);
    }));
}

/// Did anything panic?
pub(crate) fn happened() -> bool {
    *HAPPENED.borrow()
}

/// Waits for the first panic.
pub(crate) async fn first() {
    // The sender is never dropped.
    let _ = HAPPENED.subscribe().wait_for(|happened| *happened).await;
}

/// Waits for the first panic, and then as long as the process may take to stop: a part that waits for one that panicked must not
/// hold the process for ever.
pub(crate) async fn stopped_too_slowly() {
    first().await;
    tokio::time::sleep(STOPPED_WITHIN).await;
    error!("the process did not stop within {STOPPED_WITHIN:?} after a panic; it ends as it is");
}

fn tell(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let current = thread::current();
    let at = info.location().map_or_else(String::new, |location| format!(" at {location}"));
    error!(
        "panic in thread {}{at}: {}; the process stops in order: start it again and report this",
        current.name().unwrap_or("without a name"),
        text.unwrap_or("no text")
    );
    // Only if RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        error!("{backtrace}");
    }
}
