//! Lines from a file or from standard input, bounded, with a progress bar on a terminal.

use super::progress::Progress;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::Path;

/// Longest line, in bytes: a key has 512 at most.
const LINE_MAX: u64 = 1 << 20;

/// Where lines come from.
pub(super) struct Input {
    name: String,
    reader: Box<dyn BufRead>,
    live: bool,
    progress: Progress,
    line: Vec<u8>,
    number: u64,
}

impl Input {
    pub(super) fn open(file: &Path, with_progress: bool) -> Result<Input, String> {
        let (name, reader, length, live): (String, Box<dyn BufRead>, _, _) = if file.as_os_str() == "-" {
            let stdin = std::io::stdin();
            let live = stdin.is_terminal();
            ("standard input".to_owned(), Box::new(BufReader::with_capacity(1 << 16, stdin)), None, live)
        } else {
            let name = file.display().to_string();
            let opened = File::open(file).and_then(|opened| Ok((opened.metadata()?, opened)));
            let (about, opened) = opened.map_err(|error| {
                format!("error: the trace {name} cannot be read: {error}; check the path and its permissions")
            })?;
            (name, Box::new(BufReader::with_capacity(1 << 16, opened)), Some(about.len()), false)
        };
        let progress = if with_progress && !live { Progress::start(length) } else { Progress::none() };
        Ok(Input { name, reader, live, progress, line: Vec::new(), number: 0 })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Is the input typed at a terminal, so that each answer is due at once?
    pub(super) fn is_live(&self) -> bool {
        self.live
    }

    /// The first line that is not blank, as far as it has come; it is still to be read.
    pub(super) fn peek_line(&mut self) -> Result<Vec<u8>, String> {
        let come = self.reader.fill_buf().map_err(|error| format!("error: {} cannot be read: {error}", self.name))?;
        let lines = come.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        Ok(lines.into_iter().find(|line| !line.is_empty()).unwrap_or_default().to_vec())
    }

    /// The next line without its end, and its number from 1.
    pub(super) fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, String> {
        self.line.clear();
        self.number += 1;
        let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line);
        let read =
            read.map_err(|error| format!("line {} of {}: {error}; the trace ends here", self.number, self.name))?;
        if read as u64 == LINE_MAX && !self.line.ends_with(b"\n") {
            return Err(format!(
                "line {} of {}: it is longer than {LINE_MAX} bytes, the most; is it the right file?",
                self.number, self.name
            ));
        }
        self.progress.advance(read as u64);
        while self.line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            self.line.pop();
        }
        Ok((read > 0).then_some((self.number, self.line.as_slice())))
    }
}
