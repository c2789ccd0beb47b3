//! Who changed what, when and why: one entry for every change by hand.
//!
//! The latest entries are in memory, as the JSON that they are answered as, within a number and a size. With a folder they are kept in
//! a file too, and are on disk when a change is answered. A disk that refuses is logged; the change is made all the same, as unblocking
//! a user must not depend on the disk, and its entry comes to disk when there is room again.
//! Invariant: no decision waits for anything here, and an entry is noted once, after its change.

mod file;

use file::AuditFile;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::Micros;
use tidegate_wire::json::push_string;
use tidegate_wire::percent::encode;

/// Entries that are kept; the oldest go first.
pub const ENTRIES_MAX: usize = 10_000;
/// Bytes of entries that are kept.
pub const BYTES_MAX: usize = 4 << 20;
/// Longest reason, in bytes. A longer one is refused by the door.
pub const REASON_LEN_MAX: usize = 512;
/// Longest text in an entry, in bytes; a longer one is cut.
const DETAIL_LEN_MAX: usize = 1_024;

/// A change by hand.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// A token's name, an address, or what else asked for it.
    pub who: String,
    /// The command, such as `block`.
    pub what: &'static str,
    /// The limiter that was changed.
    pub limiter: Option<String>,
    /// The key that was changed.
    pub key: Option<Vec<u8>>,
    /// Its arguments and its outcome, in words.
    pub detail: String,
    /// The reason that the caller gave.
    pub why: Option<String>,
}

/// What was noted.
#[derive(Debug, Default)]
pub struct Audit {
    recent: Mutex<Recent>,
    /// Locked while it is written, which is I/O under a lock: so that entries come to disk in their order. No decision takes it.
    file: Option<Mutex<AuditFile>>,
    /// Why entries could not be written, until they are.
    failure: Mutex<Option<String>>,
    /// Where each entry is said, too.
    say: Option<fn(&str)>,
}

#[derive(Debug, Default)]
struct Recent {
    /// By number, oldest first.
    entries: VecDeque<Entry>,
    bytes: usize,
    /// The number of the latest entry.
    last: u64,
    /// The number of the latest entry on disk.
    written: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    number: u64,
    json: Arc<str>,
}

/// Entries, newest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditPage {
    /// Each as a JSON object.
    pub entries: Vec<Arc<str>>,
    /// The next page is of entries before this number; `None`: there are none.
    pub next: Option<u64>,
}

impl Audit {
    /// An audit in memory; `say` gets each entry, too.
    #[must_use]
    pub fn in_memory(say: Option<fn(&str)>) -> Audit {
        Audit { say, ..Audit::default() }
    }

    /// An audit that is kept in a folder, with what was kept there; and a sentence about lines that could not be read.
    ///
    /// # Errors
    /// When the file cannot be opened or read, or another process has it.
    pub fn open(folder: &Path, say: Option<fn(&str)>) -> io::Result<(Audit, Option<String>)> {
        let (file, found) = AuditFile::open(folder)?;
        let mut recent = Recent::default();
        found.entries.into_iter().for_each(|entry| recent.push(entry));
        recent.written = recent.last;
        let audit = Audit { recent: Mutex::new(recent), file: Some(Mutex::new(file)), failure: Mutex::default(), say };
        Ok((audit, found.note))
    }

    /// Are entries kept over a restart?
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Notes a change that was made at this time; it is on disk when this is done, if the disk takes it.
    pub async fn note(self: &Arc<Audit>, at: Micros, change: &Change) {
        let json = {
            let mut recent = self.recent();
            let number = recent.last + 1;
            let json: Arc<str> = to_json(number, at, change).into();
            recent.push(Entry { number, json: Arc::clone(&json) });
            json
        };
        if let Some(say) = self.say {
            say(&json);
        }
        if self.is_kept() {
            let audit = Arc::clone(self);
            // If it panics, the process ends, and says so.
            let _ = tokio::task::spawn_blocking(move || audit.write()).await;
        }
    }

    /// Brings to disk what is not there yet. Blocking file I/O.
    pub fn write(&self) {
        let Some(file) = &self.file else { return };
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        let (new, last) = {
            let recent = self.recent();
            let new = recent.entries.iter().filter(|entry| entry.number > recent.written).cloned().collect::<Vec<_>>();
            (new, recent.last)
        };
        if new.is_empty() {
            return;
        }
        let outcome = file.append(&new).and_then(|()| {
            self.recent().written = last;
            if file.is_long() { file.replace(self.recent().entries.make_contiguous()) } else { Ok(()) }
        });
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) =
            outcome.err().map(|error| error.kind().to_string());
    }

    /// Why entries could not be written, in a few words, until they are.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Entries before this number, newest first; `None`: the latest.
    #[must_use]
    pub fn page(&self, before: Option<u64>, most: usize) -> AuditPage {
        let recent = self.recent();
        let end = recent.entries.partition_point(|entry| before.is_none_or(|before| entry.number < before));
        let start = end.saturating_sub(most);
        let entries = recent.entries.range(start..end).rev().map(|entry| Arc::clone(&entry.json)).collect();
        AuditPage { entries, next: (start > 0).then(|| recent.entries[start].number) }
    }

    /// Changes noted so far, those that are not kept any more included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.recent().last
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    fn push(&mut self, entry: Entry) {
        self.last = entry.number;
        self.bytes += entry.json.len();
        self.entries.push_back(entry);
        while self.entries.len() > ENTRIES_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.json.len();
        }
    }
}

/// One line: what is not there is left out, and control characters are escaped.
fn to_json(number: u64, at: Micros, change: &Change) -> String {
    let mut json = format!("{{\"number\":{number},\"at\":{},\"who\":", crate::metrics::seconds(at.get()));
    push_string(&mut json, cut(&change.who, DETAIL_LEN_MAX));
    json.push_str(",\"what\":");
    push_string(&mut json, change.what);
    let key = change.key.as_ref().map(|key| String::from_utf8(key.clone()).map_err(|_| encode(key)));
    let (text_key, binary_key) = match key {
        Some(Ok(text)) => (Some(text), None),
        Some(Err(encoded)) => (None, Some(encoded)),
        None => (None, None),
    };
    let detail = Some(cut(&change.detail, DETAIL_LEN_MAX)).filter(|detail| !detail.is_empty());
    let members = [
        ("limiter", change.limiter.as_deref()),
        ("key", text_key.as_deref()),
        ("binary_key", binary_key.as_deref()),
        ("detail", detail),
        ("why", change.why.as_deref().map(|why| cut(why, REASON_LEN_MAX))),
    ];
    for (name, value) in members {
        if let Some(value) = value {
            json.push_str(&format!(",\"{name}\":"));
            push_string(&mut json, value);
        }
    }
    json.push('}');
    json
}

fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests;
