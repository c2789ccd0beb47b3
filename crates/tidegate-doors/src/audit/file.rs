//! The audit on disk: one JSON object on each line of `audit.jsonl`, appended and synced; when the file is twice as long as
//! what is kept, it is replaced by one with what is kept.
//!
//! A line that was torn by a crash is cut, as its change was not answered. A line that is no entry is logged and left out: whoever reads
//! the file by other means still has it, until the file is replaced.

use super::{BYTES_MAX, Entry};
use serde_json::Value;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use tidegate::private_file;

const FILE: &str = "audit.jsonl";
const NEW_FILE: &str = "audit.jsonl.new";
/// Past so many bytes the file is replaced.
const FILE_BYTES_MAX: u64 = 2 * BYTES_MAX as u64;

/// The open file, which this process alone has.
#[derive(Debug)]
pub(super) struct AuditFile {
    folder: PathBuf,
    file: File,
    /// Bytes that are whole lines.
    len: u64,
}

/// What opening found.
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    /// A sentence about what could not be read.
    pub(super) note: Option<String>,
}

impl AuditFile {
    pub(super) fn open(folder: &Path) -> io::Result<(AuditFile, Found)> {
        private_file::make_folder(folder)?;
        let path = folder.join(FILE);
        let file = private_file::open_or_make(&path)?;
        lock(&file)?;
        let text = fs::read(&path)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let (entries, bad) = parse(&text[..whole]);
        let torn = text.len() - whole;
        let note = (bad > 0 || torn > 0).then(|| {
            format!(
                "{}: {bad} lines are no entries and are left out, and {torn} bytes at its end were not written whole and are cut",
                path.display()
            )
        });
        file.set_len(whole as u64)?;
        let opened = AuditFile { folder: folder.to_owned(), file, len: whole as u64 };
        Ok((opened, Found { entries, note }))
    }

    /// Appends entries; after `Ok` they survive a power cut. After an error none of them is there, and they may be tried again.
    pub(super) fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        let lines = lines(entries);
        self.file.seek(SeekFrom::Start(self.len))?;
        if let Err(error) = self.file.write_all(&lines).and_then(|()| self.file.sync_data()) {
            let _ = self.file.set_len(self.len);
            return Err(error);
        }
        self.len += lines.len() as u64;
        Ok(())
    }

    pub(super) fn is_long(&self) -> bool {
        self.len > FILE_BYTES_MAX
    }

    /// Replaces the file by one with these entries; after an error it is as it was.
    pub(super) fn replace(&mut self, entries: &[Entry]) -> io::Result<()> {
        let (new, path) = (self.folder.join(NEW_FILE), self.folder.join(FILE));
        let lines = lines(entries);
        let mut file = private_file::make_anew(&new)?;
        lock(&file)?;
        if let Err(error) = file.write_all(&lines).and_then(|()| file.sync_all()) {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        fs::rename(&new, &path)?;
        File::open(&self.folder)?.sync_all()?;
        (self.file, self.len) = (file, lines.len() as u64);
        Ok(())
    }
}

fn lines(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| [entry.json.as_bytes(), b"\n"].concat()).collect()
}

fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another process has it; give this one a path of its own"),
        TryLockError::Error(error) => error,
    })
}

/// The entries, whose numbers go up, and how many lines are none.
fn parse(text: &[u8]) -> (Vec<Entry>, usize) {
    let (mut entries, mut bad): (Vec<Entry>, usize) = (Vec::new(), 0);
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let number = serde_json::from_slice::<Value>(line).ok().and_then(|value| value.get("number")?.as_u64());
        let follows = |number: &u64| entries.last().is_none_or(|last| last.number < *number);
        match (number.filter(follows), std::str::from_utf8(line)) {
            (Some(number), Ok(line)) => entries.push(Entry { number, json: line.into() }),
            _ => bad += 1,
        }
    }
    (entries, bad)
}
