//! A file that is looked at now and then: has it changed?

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Remembers a file's time of change and length.
pub(crate) struct Watch {
    file: PathBuf,
    seen: Option<(SystemTime, u64)>,
}

impl Watch {
    /// Made before the file is first read, so that a change in between is seen.
    pub(crate) fn new(file: PathBuf) -> Watch {
        let seen = look(&file);
        Watch { file, seen }
    }

    /// Made after: the first look says that it has changed.
    pub(crate) fn unseen(file: PathBuf) -> Watch {
        Watch { file, seen: None }
    }

    /// Has it changed since this was last asked?
    pub(crate) fn has_changed(&mut self) -> bool {
        let now = look(&self.file);
        std::mem::replace(&mut self.seen, now) != now
    }
}

fn look(file: &Path) -> Option<(SystemTime, u64)> {
    let about = std::fs::metadata(file).ok()?;
    Some((about.modified().ok()?, about.len()))
}
