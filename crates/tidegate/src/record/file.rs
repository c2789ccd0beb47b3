//! The files of a recording: `requests-TIME.ndjson`, one after another, the oldest deleted when there are too many bytes.
//!
//! Invariant: no file is larger than an eighth of what all may take, and a new one is begun only when the others leave room for
//! it; so all together never take more.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use tidegate_core::Micros;
use tidegate_store::private_file;

/// How many files share the bytes.
const FILES: u64 = 8;

/// The folder, and the file that is being written.
pub(super) struct Files {
    folder: PathBuf,
    max_bytes: u64,
    file: Option<File>,
    /// Bytes of it.
    len: u64,
    /// The last line's time: times never go back, also over files.
    last: Micros,
    text: Vec<u8>,
}

impl Files {
    /// Makes the folder and the first file.
    ///
    /// # Errors
    /// When either cannot be made.
    pub(super) fn open(folder: &Path, max_bytes: u64, now: Micros) -> io::Result<Files> {
        private_file::make_folder(folder)?;
        let folder = folder.to_owned();
        let mut files = Files { folder, max_bytes, file: None, len: 0, last: Micros::ZERO, text: Vec::new() };
        files.begin(now)?;
        Ok(files)
    }

    /// Writes lines, each with its time, beginning new files as it goes.
    ///
    /// # Errors
    /// The first error; what was not written is lost, and the next lines go to a new file.
    pub(super) fn write<'l>(&mut self, lines: impl Iterator<Item = (Micros, &'l [u8])>) -> io::Result<()> {
        let outcome = self.write_all(lines);
        if outcome.is_err() {
            // Half a line may be there: whatever comes next stands in a file of its own.
            self.file = None;
            self.text.clear();
        }
        outcome
    }

    fn write_all<'l>(&mut self, lines: impl Iterator<Item = (Micros, &'l [u8])>) -> io::Result<()> {
        for (at, rest) in lines {
            self.last = self.last.max(at);
            let begin = self.text.len();
            let (seconds, micros) = (self.last.get() / 1_000_000, self.last.get() % 1_000_000);
            write!(self.text, "{{\"at\":{seconds}.{micros:06}")?;
            self.text.extend_from_slice(rest);
            if self.file.is_none() || self.len + self.text.len() as u64 > self.max_bytes / FILES {
                // This line is the first of the next file.
                let line = self.text.split_off(begin);
                self.flush()?;
                self.begin(self.last)?;
                self.text = line;
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&self.text)?;
            self.len += self.text.len() as u64;
        }
        self.text.clear();
        Ok(())
    }

    /// Begins a file, after deleting the oldest that leave no room for it.
    fn begin(&mut self, at: Micros) -> io::Result<()> {
        (self.file, self.len) = (None, 0);
        let mut known = self.known()?;
        let mut bytes: u64 = known.iter().map(|(_, bytes)| bytes).sum();
        known.reverse();
        while bytes + self.max_bytes / FILES > self.max_bytes {
            let Some((oldest, freed)) = known.pop() else { break };
            fs::remove_file(&oldest)?;
            bytes -= freed;
        }
        let path = self.folder.join(format!("requests-{:016}.ndjson", at.get()));
        self.file = Some(private_file::make_anew(&path)?);
        Ok(())
    }

    /// The files of recordings that are there with their bytes, the oldest first: names are as long as each other.
    fn known(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut known = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let digits = name.to_str().and_then(|name| name.strip_prefix("requests-")?.strip_suffix(".ndjson"));
            let ours =
                digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit()));
            if ours && entry.file_type()?.is_file() {
                known.push((entry.path(), entry.metadata()?.len()));
            }
        }
        known.sort();
        Ok(known)
    }
}
