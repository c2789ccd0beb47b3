//! A file that is looked at now and then: has it changed?
//!
//! A file that takes the place of another by renaming may have its length and its time; its number is another.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Remembers a file's time of change, length and number.
pub(crate) struct Watch {
    file: PathBuf,
    seen: Option<Seen>,
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

type Seen = (SystemTime, u64, u64);

fn look(file: &Path) -> Option<Seen> {
    let about = std::fs::metadata(file).ok()?;
    Some((about.modified().ok()?, about.len(), about.ino()))
}
