//! `[record]`: a sample of the requests, for `tidegate simulate`.

use super::section::{Known, Section};
use super::size;
use super::source::Place;
use crate::share;
use std::path::Path;
use tidegate::{RECORD_BYTES_MIN, RecordSettings, RecordedKeys, Sample};

pub(super) const KNOWN: Known = Known { here: &["path", "sample", "keys", "max_size"], later: &[] };

/// Bytes that files take, unless the file says otherwise.
const MAX_SIZE: u64 = 256 << 20;
/// Keys in a million that are recorded, unless the file says otherwise.
const SAMPLE: u32 = 10_000;

/// Reads the table; relative paths start in `folder`. `None`: a setting is at fault.
pub(super) fn read(section: &mut Section<'_>, place: Place, folder: &Path) -> Option<RecordSettings> {
    let path = section.parsed("path", "recorded", |text| match text {
        "" => Err("it is empty; write a folder".to_owned()),
        text => Ok(folder.join(text)),
    });
    if section.node("path").is_none() {
        section.problem(place, "it has no path; add path = \"recorded\", the folder of its files".to_owned());
    }
    let sample = section.parsed("sample", "1%", sample).unwrap_or(Sample::millionths(SAMPLE));
    let keys = section.parsed("keys", "hashes", keys).unwrap_or(RecordedKeys::Hashes);
    let max_bytes = section.parsed("max_size", "256MiB", max_size).unwrap_or(MAX_SIZE);
    Some(RecordSettings { folder: path?, sample, keys, max_bytes })
}

/// `1%`, above 0 and up to 100.
fn sample(text: &str) -> Result<Sample, String> {
    match share::millionths(text) {
        Some(millionths @ 1..) => Ok(Sample::millionths(millionths)),
        _ => Err(format!(
            "\"{}\" is no share of the keys; write one above 0% and up to 100%, such as \"1%\"",
            text.escape_debug()
        )),
    }
}

fn keys(text: &str) -> Result<RecordedKeys, String> {
    match text {
        "hashes" => Ok(RecordedKeys::Hashes),
        "names" => Ok(RecordedKeys::Names),
        other => Err(format!("\"{}\" is not known; use \"hashes\" or \"names\"", other.escape_debug())),
    }
}

fn max_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if bytes < RECORD_BYTES_MIN {
        return Err(format!(
            "{} is less than {}, the least; raise it",
            size::show(bytes),
            size::show(RECORD_BYTES_MIN)
        ));
    }
    Ok(bytes)
}
