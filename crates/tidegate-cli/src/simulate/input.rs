//! Whole lines from a file or from standard input, in blocks; gzip is unpacked on the way. With a progress bar on a terminal.
//!
//! A block is what one read gave, up to its last line's end, so that what is typed is answered at once.

use super::progress::Progress;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read};
use std::path::Path;

/// Longest line, in bytes: a key has 512 at most.
pub(super) const LINE_MAX: usize = 1 << 20;
/// Bytes of a block, about.
const BLOCK: usize = 1 << 20;

/// Where lines come from.
pub(super) struct Input {
    name: String,
    reader: Box<dyn Read + Send>,
    /// Is a block filled up, or is what has come enough?
    fill: bool,
    progress: Progress,
    /// Read, and not given out yet.
    pending: Vec<u8>,
    lines: u64,
    ended: bool,
}

/// Some whole lines.
pub(super) struct Block {
    pub(super) text: Vec<u8>,
    /// The number of the first of them, from 1.
    pub(super) first_line: u64,
}

impl Block {
    /// Its lines without their ends, each with its place from 0; blank ones are left out.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let lines = self.text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        lines.enumerate().filter(|(_, line)| !line.trim_ascii().is_empty())
    }
}

impl Input {
    pub(super) fn open(file: &Path, with_progress: bool) -> Result<Input, String> {
        let (name, raw, length, live): (String, Box<dyn Read + Send>, _, _) = if file.as_os_str() == "-" {
            let stdin = io::stdin();
            let live = stdin.is_terminal();
            ("standard input".to_owned(), Box::new(stdin), None, live)
        } else {
            let name = file.display().to_string();
            let opened = File::open(file).and_then(|opened| Ok((opened.metadata()?, opened)));
            let (about, opened) = opened.map_err(|error| {
                format!("error: the trace {name} cannot be read: {error}; check the path and its permissions")
            })?;
            (name, Box::new(opened), about.is_file().then_some(about.len()), false)
        };
        let progress = if with_progress && !live { Progress::start(length) } else { Progress::none() };
        Input::of(name, raw, length.is_some(), progress)
    }

    /// Lines of any reader; with `fill`, a block is filled up rather than given out as it comes.
    pub(super) fn of(name: String, raw: Box<dyn Read + Send>, fill: bool, progress: Progress) -> Result<Input, String> {
        let mut raw = BufReader::with_capacity(1 << 16, Counted { raw, progress: progress.clone() });
        let packed = raw.fill_buf().map(|start| start.starts_with(&[0x1f, 0x8b]));
        let packed = packed.map_err(|error| format!("error: {name} cannot be read: {error}"))?;
        let reader: Box<dyn Read + Send> = if packed { Box::new(MultiGzDecoder::new(raw)) } else { Box::new(raw) };
        let fill = fill || packed;
        Ok(Input { name, reader, fill, progress, pending: Vec::new(), lines: 0, ended: false })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The first line that is not blank, as far as it has come; it is still to be given out.
    pub(super) fn peek_line(&mut self) -> Result<Vec<u8>, String> {
        self.read_on()?;
        let lines = self.pending.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        Ok(lines.into_iter().find(|line| !line.is_empty()).unwrap_or_default().to_vec())
    }

    /// The next lines; `None`: there are no more.
    ///
    /// # Errors
    /// A sentence: the input cannot be read any further, or a line is too long.
    pub(super) fn next_block(&mut self) -> Result<Option<Block>, String> {
        loop {
            let end = match self.pending.iter().rposition(|byte| *byte == b'\n') {
                Some(at) => at + 1,
                None if self.ended => self.pending.len(),
                None => {
                    if self.pending.len() >= LINE_MAX {
                        return Err(self.too_long(self.lines + 1));
                    }
                    self.read_on()?;
                    continue;
                }
            };
            if end == 0 {
                self.progress.finish();
                return Ok(None);
            }
            let rest = self.pending.split_off(end);
            let text = std::mem::replace(&mut self.pending, rest);
            let first_line = self.lines + 1;
            let ends = text.iter().filter(|byte| **byte == b'\n').count();
            self.lines += ends as u64;
            if let Some(long) = text.split(|byte| *byte == b'\n').position(|line| line.len() > LINE_MAX) {
                return Err(self.too_long(first_line + long as u64));
            }
            return Ok(Some(Block { text, first_line }));
        }
    }

    /// Reads a block's worth, or as much as has come.
    fn read_on(&mut self) -> Result<(), String> {
        let (before, wanted) = (self.pending.len(), self.pending.len() + BLOCK);
        self.pending.resize(wanted, 0);
        let mut at = before;
        while at < wanted && (at == before || self.fill) {
            match self.reader.read(&mut self.pending[at..]) {
                Ok(0) => {
                    self.ended = true;
                    break;
                }
                Ok(read) => at += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.pending.truncate(at);
                    let whole = self.pending.iter().filter(|byte| **byte == b'\n').count() as u64;
                    let line = self.lines + whole + 1;
                    return Err(format!("line {line} of {}: {error}; the trace ends here", self.name));
                }
            }
        }
        self.pending.truncate(at);
        Ok(())
    }

    fn too_long(&self, line: u64) -> String {
        format!("line {line} of {}: it is longer than {LINE_MAX} bytes, the most; is it the right file?", self.name)
    }
}

/// Tells the progress bar what is read, as it lies on the disk.
struct Counted {
    raw: Box<dyn Read + Send>,
    progress: Progress,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.raw.read(into)?;
        self.progress.advance(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// Gives a few bytes at a time.
    struct Dribble(Vec<u8>, usize);

    impl Read for Dribble {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let take = self.1.min(self.0.len()).min(into.len());
            into[..take].copy_from_slice(&self.0[..take]);
            self.0.drain(..take);
            Ok(take)
        }
    }

    fn lines(bytes: &[u8], step: usize, fill: bool) -> Result<Vec<(u64, String)>, String> {
        let reader = Box::new(Dribble(bytes.to_vec(), step));
        let mut input = Input::of("t".to_owned(), reader, fill, Progress::none())?;
        let mut all = Vec::new();
        while let Some(block) = input.next_block()? {
            let line =
                |(at, line): (usize, &[u8])| (block.first_line + at as u64, String::from_utf8_lossy(line).into_owned());
            all.extend(block.lines().map(line));
        }
        Ok(all)
    }

    #[test]
    fn lines_and_their_numbers_do_not_depend_on_how_they_come() {
        let text = b"one\r\n\n  \ntwo\nthree";
        let expected = [(1, "one"), (4, "two"), (5, "three")].map(|(n, line)| (n, line.to_owned()));
        for (step, fill) in [(1, false), (2, true), (3, false), (100, true)] {
            assert_eq!(lines(text, step, fill).unwrap(), expected, "{step} {fill}");
        }
        assert_eq!(lines(b"", 1, true).unwrap(), []);
    }

    #[test]
    fn packed_lines_are_unpacked_and_damage_is_told() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(b"one\ntwo\n").unwrap();
        let packed = packer.finish().unwrap();
        let expected = [(1, "one".to_owned()), (2, "two".to_owned())];
        assert_eq!(lines(&packed, 100, true).unwrap(), expected);
        // Logs are appended to and rotated: several members, one after another.
        let four = lines(&[packed.clone(), packed.clone()].concat(), 7, false).unwrap();
        assert_eq!(four.last(), Some(&(4, "two".to_owned())));
        let cut = lines(&packed[..packed.len() - 6], 100, true).unwrap_err();
        assert!(cut.starts_with("line 3 of t: ") && cut.ends_with("the trace ends here"), "{cut}");
    }

    #[test]
    fn s1_a_line_without_end_is_refused() {
        let long = lines(&[b"a\n".as_slice(), &vec![b'x'; LINE_MAX + 1]].concat(), 1 << 16, true);
        assert_eq!(long.unwrap_err(), "line 2 of t: it is longer than 1048576 bytes, the most; is it the right file?");
        let hidden = [b"a\n".as_slice(), &vec![b'x'; LINE_MAX + 1], b"\n"].concat();
        assert!(lines(&hidden, 1 << 20, true).unwrap_err().starts_with("line 2 of t: it is longer"));
    }
}
