//! Journals on a real disk: what comes back, what is cut, what is refused.

use super::*;

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

#[test]
fn e1_a_torn_tail_is_cut_and_reported_wherever_it_is_torn() {
    let folder = tempfile::tempdir().unwrap();
    let expected = written(folder.path());
    let path = path_of(folder.path(), 1);
    let whole = fs::read(&path).unwrap();
    let mut ends = vec![MAGIC.len() + 12 + 16];
    for _ in 0..3 {
        let Front::Frame(_, len) = frame::front(&whole[*ends.last().unwrap()..]) else { panic!() };
        ends.push(ends.last().unwrap() + len);
    }
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let (journal, found, steps) = read_all(folder.path()).unwrap();
        let frames = ends.iter().filter(|end| **end <= len).count().saturating_sub(1);
        assert_eq!(steps, expected[..2 * frames], "cut to {len}");
        assert_eq!(found.cut.is_some(), !ends.contains(&len), "cut to {len}");
        if let Some(cut) = found.cut {
            assert!(cut.contains("00000001.journal") && cut.contains("are cut"), "{cut}");
        }
        drop(journal);
        assert_eq!(read_all(folder.path()).unwrap().2.len(), 2 * frames, "cut to {len}, opened again");
    }
}

#[test]
fn damage_elsewhere_is_an_error_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path());
    let path = path_of(folder.path(), 1);
    let whole = fs::read(&path).unwrap();
    let first = MAGIC.len() + 12 + 16;
    let Front::Frame(_, len) = frame::front(&whole[first..]) else { panic!() };
    for at in 0..first + 2 * len {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x40;
        fs::write(&path, &flipped).unwrap();
        let JournalError::Damaged { path: named, at: place, .. } = read_all(folder.path()).unwrap_err() else {
            panic!("byte {at}")
        };
        assert_eq!(named, path);
        assert!(
            usize::try_from(place).unwrap() <= at && at < usize::try_from(place).unwrap() + len + 32,
            "{at}: {place}"
        );
    }
}

#[test]
fn segments_are_dropped_when_nothing_alive_needs_them() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, ..) = read_all(folder.path()).unwrap();
    for clock in 1..=10 {
        journal.commit(&batch([step(clock, 100 * clock)])).unwrap();
        journal.tend_past(100, Standing { clock, horizon_ms: 100 * clock }, Some(100)).unwrap();
    }
    assert!(segments(folder.path()).unwrap().len() > 4);
    drop(journal);
    let (mut journal, _, steps) = read_all(folder.path()).unwrap();
    assert_eq!(steps.len(), 10, "all is read over segments");
    journal.tend_past(100, Standing { clock: 10, horizon_ms: 1_000 }, Some(601)).unwrap();
    drop(journal);
    let (_, found, steps) = read_all(folder.path()).unwrap();
    assert_eq!(found.standing.clock + 1, steps[0].clock().unwrap());
    assert!(steps[0].clock().unwrap() <= 7 && steps.len() >= 4 && steps.len() < 10, "{steps:?}");
    let numbers = segments(folder.path()).unwrap();
    let (mut journal, ..) = read_all(folder.path()).unwrap();
    journal.tend_past(100, Standing { clock: 10, horizon_ms: 1_000 }, None).unwrap();
    assert_eq!(segments(folder.path()).unwrap().len(), 1, "was {numbers:?}");
    drop(journal);
    let (_, found, steps) = read_all(folder.path()).unwrap();
    assert_eq!((steps.len(), found.standing), (0, Standing { clock: 10, horizon_ms: 1_000 }), "C1: the clock goes on");
}

#[test]
fn a_segment_that_is_missing_or_torn_in_the_middle_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, ..) = read_all(folder.path()).unwrap();
    for clock in 1..=4 {
        journal.commit(&batch([step(clock, 100)])).unwrap();
        journal.tend_past(1, Standing { clock, horizon_ms: 100 }, Some(100)).unwrap();
    }
    drop(journal);
    let second = path_of(folder.path(), 2);
    let bytes = fs::read(&second).unwrap();
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
