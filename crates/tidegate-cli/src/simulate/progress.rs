//! How far a replay has come, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;

/// A bar over the input's bytes, or nothing. Clones are the same bar.
#[derive(Clone)]
pub(super) struct Progress {
    bar: ProgressBar,
    pending: u64,
}

/// The bar moves on by this many bytes at a time: moving it costs more than a line of the trace does.
const STEP: u64 = 1 << 20;

impl Progress {
    /// A bar, if stderr is a terminal and stdout is not one that it would disturb.
    pub(super) fn start(length: Option<u64>) -> Progress {
        if !std::io::stderr().is_terminal() || std::io::stdout().is_terminal() {
            return Progress::none();
        }
        let (bar, template) = match length {
            Some(length) => (ProgressBar::new(length), "{bar:40} {percent:>3} % {bytes_per_sec}, {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {bytes} at {bytes_per_sec}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, pending: 0 }
    }

    pub(super) fn none() -> Progress {
        Progress { bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()), pending: 0 }
    }

    pub(super) fn advance(&mut self, bytes: u64) {
        self.pending += bytes;
        if self.pending >= STEP {
            self.bar.inc(std::mem::take(&mut self.pending));
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
