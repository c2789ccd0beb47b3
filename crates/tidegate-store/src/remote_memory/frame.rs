//! Frames, and what they are made of: a frame is its length in four bytes and so many bytes; in it are numbers of eight
//! bytes, and texts that begin with their length. All are little-endian.
//!
//! Invariant: no length that was read is trusted before as many bytes are there.

use tidegate_core::Micros;

/// The longest frame in bytes: a request of more than a thousand keys.
pub(super) const FRAME_MAX: usize = 1 << 20;

/// A frame that is being written.
#[derive(Debug)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Writer {
        Writer(vec![0; 4])
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.number(flag.into());
    }

    pub(super) fn maybe(&mut self, number: Option<u64>) {
        self.flag(number.is_some());
        self.number(number.unwrap_or(0));
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        self.count(text.len());
        self.0.extend_from_slice(text);
    }

    /// The frame with its length; `None`: it is longer than [`FRAME_MAX`].
    pub(super) fn finish(mut self) -> Option<Vec<u8>> {
        let len = self.0.len() - 4;
        let header = u32::try_from(len).ok().filter(|_| len <= FRAME_MAX)?;
        self.0[..4].copy_from_slice(&header.to_le_bytes());
        Some(self.0)
    }
}

/// What is left of a frame that is being read.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        Some(self.number()? == 1)
    }

    pub(super) fn maybe(&mut self) -> Option<Option<u64>> {
        let (is_there, number) = (self.flag()?, self.number()?);
        Some(is_there.then_some(number))
    }

    pub(super) fn micros(&mut self) -> Option<Micros> {
        Micros::new(self.number()?)
    }

    pub(super) fn maybe_micros(&mut self) -> Option<Option<Micros>> {
        self.maybe()?.map_or(Some(None), |number| Some(Some(Micros::new(number)?)))
    }

    pub(super) fn text(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(text)
    }

    pub(super) fn name(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.text()?).ok()
    }

    /// As many as the number that comes first says.
    pub(super) fn list<T>(&mut self, mut one: impl FnMut(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| one(self)).collect()
    }
}

/// Takes the first frame out of what has come; `None`: it is not whole yet.
///
/// # Errors
/// When it is longer than [`FRAME_MAX`].
pub(super) fn take(bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>, String> {
    let Some((header, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let len = u32::from_le_bytes(*header) as usize;
    if len > FRAME_MAX {
        return Err(format!("a frame of {len} bytes is longer than {FRAME_MAX}"));
    }
    let Some(frame) = rest.get(..len).map(<[u8]>::to_vec) else { return Ok(None) };
    bytes.drain(..4 + len);
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_or_not_there_and_bounded() {
        let mut writer = Writer::new();
        writer.text(b"key");
        writer.maybe(None);
        let frame = writer.finish().unwrap();
        for cut in 0..frame.len() {
            assert_eq!(take(&mut frame[..cut].to_vec()), Ok(None));
        }
        let mut bytes = [&frame[..], b"next"].concat();
        let whole = take(&mut bytes).unwrap().unwrap();
        let mut reader = Reader(&whole);
        assert_eq!((reader.text(), reader.maybe(), reader.number()), (Some(&b"key"[..]), Some(None), None));
        assert_eq!(bytes, b"next");
        assert!(take(&mut vec![255; 4]).unwrap_err().contains("is longer than 1048576"));
        let mut long = Writer::new();
        long.text(&vec![0; FRAME_MAX]);
        assert_eq!(long.finish(), None);
        // A length that lies, and a list that is shorter than it says.
        assert_eq!(Reader(&u64::MAX.to_le_bytes()).text(), None);
        assert_eq!(Reader(&u64::MAX.to_le_bytes()).list(Reader::number), None);
    }
}
