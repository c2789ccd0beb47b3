//! The audit, as those who note and read see it.

use super::*;
use std::fs;
use tidegate_testkit::Folder;

fn change(what: &'static str) -> Change {
    Change { who: "ops".to_owned(), what, ..Change::default() }
}

/// Notes on a runtime, as the doors do.
fn note(audit: &Arc<Audit>, at: u64, change: &Change) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(audit.note(Micros::from_secs(at), change));
}

#[track_caller]
fn check(change: &Change, expected: &str) {
    assert_eq!(to_json(7, Micros::saturating(1_500_000), change), expected);
}

#[test]
fn an_entry_is_one_line_of_json() {
    check(&change("reload"), r#"{"number":7,"at":1.5,"who":"ops","what":"reload"}"#);
    let block = Change {
        limiter: Some("api".to_owned()),
        key: Some("a\n\"b".into()),
        detail: "for 10m".to_owned(),
        why: Some("ticket 5".to_owned()),
        ..change("block")
    };
    check(
        &block,
        r#"{"number":7,"at":1.5,"who":"ops","what":"block","limiter":"api","key":"a\n\"b","detail":"for 10m","why":"ticket 5"}"#,
    );
    let binary = Change { key: Some(vec![0xFF, b'a']), ..change("unblock") };
    check(&binary, r#"{"number":7,"at":1.5,"who":"ops","what":"unblock","binary_key":"%FFa"}"#);
    let long = Change { detail: "é".repeat(2_000), ..change("reload") };
    assert!(to_json(1, Micros::ZERO, &long).len() < 1_200, "it is cut between characters");
}

#[test]
fn pages_are_newest_first_and_without_gaps() {
    let audit = Arc::new(Audit::in_memory(None));
    assert_eq!(audit.page(None, 10), AuditPage { entries: Vec::new(), next: None });
    for at in 1..=5 {
        note(&audit, at, &change("enable"));
    }
    let numbers = |page: &AuditPage| -> Vec<u64> {
        let number =
            |json: &Arc<str>| serde_json::from_str::<serde_json::Value>(json).unwrap()["number"].as_u64().unwrap();
        page.entries.iter().map(number).collect()
    };
    let first = audit.page(None, 2);
    assert_eq!((numbers(&first), first.next), (vec![5, 4], Some(4)));
    // What comes in between changes no page.
    note(&audit, 6, &change("disable"));
    let second = audit.page(first.next, 2);
    assert_eq!((numbers(&second), second.next), (vec![3, 2], Some(2)));
    let last = audit.page(second.next, 2);
    assert_eq!((numbers(&last), last.next), (vec![1], None));
}

#[test]
fn m6_it_is_bounded_in_entries_and_bytes() {
    let audit = Arc::new(Audit::in_memory(None));
    let large = Change { detail: "x".repeat(DETAIL_LEN_MAX), key: Some(vec![b'\n'; 512]), ..change("block") };
    for at in 0..6_000 {
        note(&audit, at, &large);
    }
    assert!(audit.recent().bytes <= BYTES_MAX);
    for at in 0..ENTRIES_MAX as u64 + 10 {
        note(&audit, at, &change("block"));
    }
    let kept = audit.recent().entries.len();
    assert_eq!((kept, audit.count()), (ENTRIES_MAX, 6_000 + ENTRIES_MAX as u64 + 10));
}

#[test]
fn s7_entries_are_kept_over_restarts_and_a_torn_line_is_cut() {
    let folder = Folder::new();
    let (path, file) = (folder.path("data"), folder.path("data/audit.jsonl"));
    let open = || Audit::open(&path, None).map(|(audit, told)| (Arc::new(audit), told)).unwrap();
    let (audit, told) = open();
    assert!(told.is_none() && audit.is_kept());
    assert!(Audit::open(&path, None).is_err(), "another has it");
    note(&audit, 1, &change("enable"));
    note(&audit, 2, &change("disable"));
    let before = audit.page(None, 10);
    drop(audit);
    fs::write(&file, fs::read_to_string(&file).unwrap() + "no entry\n{\"number\":3,\"at\":").unwrap();
    let (audit, told) = open();
    assert!(told.is_some_and(|told| told.contains("1 lines are no entries") && told.contains("17 bytes at its end")));
    assert_eq!(audit.page(None, 10), before);
    note(&audit, 3, &change("enable"));
    drop(audit);
    assert_eq!(open().0.count(), 3);
}

/// The file grows to twice what is kept, and then holds what is kept.
#[test]
fn m6_the_file_is_bounded() {
    let folder = Folder::new();
    let path = folder.path("data");
    let (audit, _) = Audit::open(&path, None).unwrap();
    let large = Change { detail: "x".repeat(DETAIL_LEN_MAX), ..change("block") };
    let mut longest = 0;
    for round in 0..12 {
        {
            // A thousand at a time: each write is a sync of its own.
            let mut recent = audit.recent();
            for _ in 0..1_000 {
                let number = recent.last + 1;
                recent.push(Entry { number, json: to_json(number, Micros::from_secs(round), &large).into() });
            }
        }
        audit.write();
        assert_eq!(audit.failure(), None);
        longest = longest.max(fs::metadata(path.join("audit.jsonl")).unwrap().len());
    }
    assert!(longest <= 2 * BYTES_MAX as u64, "{longest}");
    let page = audit.page(None, ENTRIES_MAX);
    drop(audit);
    assert_eq!(Audit::open(&path, None).unwrap().0.page(None, ENTRIES_MAX).entries[..1_000], page.entries[..1_000]);
}
