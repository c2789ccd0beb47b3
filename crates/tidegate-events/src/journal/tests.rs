//! Journals on a real disk: what comes back, what is cut, what is refused.

use super::*;
use std::fs::OpenOptions;

fn step(clock: u64, time_ms: u64) -> Step {
    Step::Submitted { clock, event: format!("event {clock}").into(), time_ms }
}

fn batch(steps: impl IntoIterator<Item = Step>) -> Batch {
    let mut batch = Batch::default();
    steps.into_iter().for_each(|step| batch.push(&step));
    batch
}

fn read_all(folder: &Path) -> Result<(Journal, Found, Vec<Step>), JournalError> {
    let mut steps = Vec::new();
    Journal::open(folder, |_, step| steps.push(step)).map(|(journal, found)| (journal, found, steps))
}

/// Three commits of two steps each: clocks 1 to 6.
fn written(folder: &Path) -> Vec<Step> {
    let (mut journal, ..) = read_all(folder).unwrap();
    let steps: Vec<Step> = (1..=6).map(|clock| step(clock, 100 * clock)).collect();
    steps.chunks(2).for_each(|pair| journal.commit(&batch(pair.iter().cloned())).unwrap());
    steps
}

#[test]
fn e1_what_was_committed_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = written(folder.path());
    for clock in 7..10 {
        let (mut journal, found, steps) = read_all(folder.path()).unwrap();
        assert_eq!((steps, found.cut), (expected.clone(), None));
        journal.commit(&batch([step(clock, 1_000)])).unwrap();
        expected.push(step(clock, 1_000));
    }
}

/// Where the frames of a segment end, the first entry where they begin.
fn ends(whole: &[u8], begin: usize) -> Vec<usize> {
    let mut ends = vec![begin];
    while let Front::Frame(_, len) = frame::front(&whole[*ends.last().unwrap()..]) {
        ends.push(ends.last().unwrap() + len);
    }
    ends
}

/// The segment as it is after a crash in the midst of its last commit, which was never acknowledged.
fn unfinished(whole: &[u8]) -> (Vec<u8>, Vec<usize>) {
    let ends = ends(whole, synced::END);
    let mut bytes = whole.to_vec();
    let synced = (ends[ends.len() - 2] as u64).to_le_bytes();
    bytes[synced::AT..synced::AT + 8].copy_from_slice(&synced);
    bytes[synced::AT + 8..synced::END].copy_from_slice(&crc32fast::hash(&synced).to_le_bytes());
    (bytes, ends)
}

#[test]
fn e1_a_torn_tail_is_cut_and_reported_wherever_it_is_torn() {
    let folder = tempfile::tempdir().unwrap();
    let expected = written(folder.path());
    let path = path_of(folder.path(), 1);
    let (whole, ends) = unfinished(&fs::read(&path).unwrap());
    let unsent = ends[ends.len() - 2];
    for len in unsent..whole.len() {
        // Cut short; or as long as it was to be, without its bytes.
        let mut zeros = whole[..len].to_vec();
        zeros.resize(whole.len() + 4_096, 0);
        for torn in [&whole[..len], &zeros] {
            fs::write(&path, torn).unwrap();
            let (journal, found, steps) = read_all(folder.path()).unwrap();
            assert_eq!(steps, expected[..4], "cut to {len}");
            let lost = torn.len() - unsent;
            match found.cut {
                Some(cut) => assert!(cut.contains(&format!("{lost} bytes from byte {unsent} on")), "{cut}"),
                None => assert_eq!(lost, 0),
            }
            drop(journal);
            assert_eq!(read_all(folder.path()).unwrap().2.len(), 4, "cut to {len}, opened again");
        }
    }
}

/// A bit flipped in the last frame, or half of the file gone, was once taken for a torn tail: clock values that
/// subscribers had seen were used again.
#[test]
fn c1_damage_in_acknowledged_frames_refuses_to_start() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let path = path_of(folder.path(), 1);
    let whole = fs::read(&path).unwrap();
    let check = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        let error = read_all(folder.path()).unwrap_err();
        let JournalError::Damaged { path: named, at, .. } = &error else { panic!("{what}: {error}") };
        assert_eq!(*named, path);
        assert!(error.to_string().contains("restore the folder from a copy"), "{error}");
        usize::try_from(*at).unwrap()
    };
    let ends = ends(&whole, synced::END);
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        let place = check(&flipped, &format!("byte {at}"));
        let frame = ends.iter().rev().find(|end| **end <= at).copied().unwrap_or(0);
        assert!(place == frame || at < synced::END, "byte {at}: {place}");
        assert_eq!(fs::read(&path).unwrap(), flipped, "byte {at}: it is left as it was");
    }
    for len in synced::END..whole.len() {
        let frame = ends.iter().rev().find(|end| **end <= len).copied().unwrap();
        assert_eq!(check(&whole[..len], &format!("cut to {len}")), frame);
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(read_all(folder.path()).unwrap().2.len(), 6);
}

/// A journal of the version before is read and goes on in a segment of this one; damage of a whole frame is found
/// there, too.
#[test]
fn a_journal_of_the_version_before_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let expected = written(folder.path());
    let path = path_of(folder.path(), 1);
    let whole = fs::read(&path).unwrap();
    let old = |version: Version| {
        let mut head = version.mark().to_vec();
        frame::push(&mut head, &[0; 16]);
        if version == Version::Two {
            // As far as an unfinished last commit.
            let synced = (synced::AT - 8 + synced::LEN) as u64;
            head.extend_from_slice(&synced.to_le_bytes());
            head.extend_from_slice(&crc32fast::hash(&synced.to_le_bytes()).to_le_bytes());
        }
        [&head, &whole[synced::END..]].concat()
    };
    let before = old(Version::One);
    for (before, lost) in [Version::One, Version::Two].into_iter().flat_map(|v| [0, 1, 5].map(|lost| (old(v), lost))) {
        fs::write(&path, &before[..before.len() - lost]).unwrap();
        let (mut journal, found, steps) = read_all(folder.path()).unwrap();
        let kept = if lost == 0 { 6 } else { 4 };
        assert_eq!((steps, found.cut.is_some()), (expected[..kept].to_vec(), lost > 0));
        let next = step(kept as u64 + 1, 1_000);
        journal.commit(&batch([next.clone()])).unwrap();
        drop(journal);
        let (_, again, steps) = read_all(folder.path()).unwrap();
        assert_eq!(steps, [&expected[..kept], &[next]].concat());
        assert_eq!(again.standing.epoch, found.standing.epoch, "C5: drawn once");
        assert_eq!(segments(folder.path()).unwrap(), [1, 2]);
        fs::remove_file(path_of(folder.path(), 2)).unwrap();
    }
    let mut flipped = before.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&path, &flipped).unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("a whole frame's checksum does not fit"), "{error}");
}

#[test]
fn segments_are_dropped_when_nothing_alive_needs_them() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, first, _) = read_all(folder.path()).unwrap();
    let standing = |clock, horizon_ms| Standing { clock, horizon_ms, ..first.standing };
    for clock in 1..=10 {
        journal.commit(&batch([step(clock, 100 * clock)])).unwrap();
        journal.tend_past(100, standing(clock, 100 * clock), Some(100)).unwrap();
    }
    assert!(segments(folder.path()).unwrap().len() > 4);
    drop(journal);
    let (mut journal, _, steps) = read_all(folder.path()).unwrap();
    assert_eq!(steps.len(), 10, "all is read over segments");
    journal.tend_past(100, standing(10, 1_000), Some(601)).unwrap();
    drop(journal);
    let (_, found, steps) = read_all(folder.path()).unwrap();
    assert_eq!(found.standing.clock + 1, steps[0].clock().unwrap());
    assert!(steps[0].clock().unwrap() <= 7 && steps.len() >= 4 && steps.len() < 10, "{steps:?}");
    let numbers = segments(folder.path()).unwrap();
    let (mut journal, ..) = read_all(folder.path()).unwrap();
    journal.tend_past(100, standing(10, 1_000), None).unwrap();
    assert_eq!(segments(folder.path()).unwrap().len(), 1, "was {numbers:?}");
    drop(journal);
    let (_, found, steps) = read_all(folder.path()).unwrap();
    assert_eq!((steps.len(), found.standing), (0, standing(10, 1_000)), "C1: the clock goes on");
}

#[test]
fn a_segment_that_is_missing_or_torn_in_the_middle_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, first, _) = read_all(folder.path()).unwrap();
    let standing = |clock, horizon_ms| Standing { clock, horizon_ms, ..first.standing };
    for clock in 1..=4 {
        journal.commit(&batch([step(clock, 100)])).unwrap();
        journal.tend_past(1, standing(clock, 100), Some(100)).unwrap();
    }
    drop(journal);
    let second = path_of(folder.path(), 2);
    let (bytes, _) = unfinished(&fs::read(&second).unwrap());
    fs::write(&second, &bytes[..bytes.len() - 1]).unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("00000002.journal is damaged at byte") && error.contains("a segment comes after"),
        "{error}"
    );
    fs::remove_file(&second).unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("00000002.journal") && error.contains("missing"), "{error}");
    fs::write(&second, b"what is this").unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("does not begin as a journal"), "{error}");
}

#[test]
fn a_commit_that_the_disk_refused_can_be_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, ..) = read_all(folder.path()).unwrap();
    journal.commit(&batch([step(1, 1)])).unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let real = std::mem::replace(&mut journal.file, full);
    let error = journal.commit(&batch([step(2, 1)])).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains("free space"), "{error}");
    journal.file = real;
    journal.commit(&batch([step(2, 1)])).unwrap();
    assert_eq!(read_all(folder.path()).unwrap().2, [step(1, 1), step(2, 1)]);
}

impl Journal {
    /// A journal whose disk is full until the file is put back.
    pub(crate) fn on_a_full_disk(folder: &Path) -> (Journal, File) {
        let (mut journal, ..) = read_all(folder).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let real = std::mem::replace(&mut journal.file, full);
        (journal, real)
    }
}

#[test]
fn c5_the_epoch_is_kept_and_a_folder_that_was_emptied_has_another() {
    let folder = tempfile::tempdir().unwrap();
    let epoch = || read_all(folder.path()).unwrap().1.standing.epoch;
    let first = epoch();
    written(folder.path());
    assert_eq!(epoch(), first);
    // A head that never came to disk says nothing, and the segment before it does.
    let whole = fs::read(path_of(folder.path(), 1)).unwrap();
    fs::write(path_of(folder.path(), 2), &whole[..20]).unwrap();
    assert_eq!(epoch(), first);
    fs::remove_file(path_of(folder.path(), 2)).unwrap();
    fs::remove_file(path_of(folder.path(), 1)).unwrap();
    assert_ne!(epoch(), first);
}

#[test]
fn c5_segments_of_two_histories_are_not_joined() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let other = Standing { epoch: Epoch::draw(), clock: 6, horizon_ms: 600 };
    begin(folder.path(), 2, other).unwrap();
    let error = read_all(folder.path()).unwrap_err().to_string();
    assert!(error.contains("00000001.journal") && error.contains("a later segment is of"), "{error}");
}
