//! Recordings: what is in them, in which order, and what they may take.

use super::*;
use crate::{Algorithm, Gate, LimiterSpec, Policy, Rules};
use std::collections::HashMap;
use std::path::Path;
use tidegate_testkit::Folder;

fn policy() -> Policy {
    let rules = || Rules::new(Algorithm::SlidingLog, &["1000 per minute".parse().unwrap()]).unwrap();
    let (user, ip) = (LimiterSpec::new("user", rules()), LimiterSpec::new("ip", rules()));
    Policy::new(vec![
        LimiterSpec::new("api", rules()),
        user.by(Some("login"), &["user"]),
        ip.by(Some("login"), &["ip"]),
    ])
    .unwrap()
}

fn settings(folder: &Path, keys: RecordedKeys) -> RecordSettings {
    RecordSettings { folder: folder.to_owned(), sample: Sample::ALL, keys, max_bytes: RECORD_BYTES_MIN }
}

/// All files of a folder, the oldest first.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

fn lines(folder: &Path) -> Vec<String> {
    files(folder).iter().flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn every_way_in_is_recorded_once_and_looks_are_not() {
    let home = Folder::new();
    let folder = home.path("recorded");
    let clock = Clock::manual(Micros::from_secs(5));
    let gate = Gate::with_clock(policy(), clock.clone());
    let recording = gate.record(&settings(&folder, RecordedKeys::Names)).unwrap();
    let attributes: [(&str, &[u8]); 2] = [("user", b"u\"1"), ("ip", b"2001:db8::1")];
    let _ = gate.hit("api", "a").unwrap();
    clock.set(Micros::saturating(6_500_000));
    let _ = gate.decide(&Request::of(Some("login"), &attributes).cost(3)).unwrap();
    let _ = gate.decide(&Request::hit("api", b"explained").explained()).unwrap();
    gate.hit_on(&gate.limiter("api").unwrap(), b"handle", 2).unwrap();
    gate.decide_many("api", &[b"m1", b"m2"], 1).unwrap();
    let limiter = gate.limiter("api").unwrap();
    let hits = [crate::Hit::new(&limiter, b"e1").unwrap(), crate::Hit::from_door(&limiter, b"\xff")];
    gate.hit_each(&hits, &gate.batch(gate.now()), |_, _| {});
    let _ = gate.peek("api", "peeked").unwrap();
    let _ = gate.decide(&Request::hit("api", b"looked").cost(0)).unwrap();
    gate.hit("nobody", "x").unwrap_err();
    gate.hit("api", "").unwrap_err();
    drop(recording);
    let mut lines = lines(&folder);
    assert_eq!(lines.remove(0), r#"{"at":5.000000,"limiter":"api","key":"a"}"#);
    lines.sort();
    // What is no text is there as a hash.
    let hashed = lines.extract_if(.., |line| line.starts_with(r##"{"at":6.500000,"limiter":"api","key":"#"##)).count();
    assert_eq!(hashed, 1);
    assert_eq!(
        lines,
        [
            r#"{"at":6.500000,"domain":"login","attributes":{"user":"u\"1","ip":"2001:db8::1"},"cost":3}"#,
            r#"{"at":6.500000,"limiter":"api","key":"e1"}"#,
            r#"{"at":6.500000,"limiter":"api","key":"explained"}"#,
            r#"{"at":6.500000,"limiter":"api","key":"handle","cost":2}"#,
            r#"{"at":6.500000,"limiter":"api","key":"m1"}"#,
            r#"{"at":6.500000,"limiter":"api","key":"m2"}"#,
        ]
    );
    let stats = gate.record_stats().unwrap();
    assert_eq!((stats.written, stats.dropped, stats.failed, stats.failure), (8, 0, 0, None));
}

#[test]
fn hashes_hide_names_and_keep_keys_apart() {
    let home = Folder::new();
    let folder = home.path("recorded");
    let gate = Gate::with_clock(policy(), Clock::manual(Micros::from_secs(1)));
    let recording = gate.record(&settings(&folder, RecordedKeys::Hashes)).unwrap();
    for key in ["alice", "bob", "alice"] {
        let _ = gate.hit("api", key).unwrap();
    }
    // Two addresses of one network are one key, and so are their hashes.
    for ip in ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"] {
        let _ = gate.decide(&Request::of(Some("login"), &[("ip", ip.as_bytes())])).unwrap();
    }
    drop(recording);
    let text: String = files(&folder).into_iter().map(|(_, text)| text).collect();
    assert!(!text.contains("alice") && !text.contains("bob") && !text.contains("2001"), "{text}");
    let mut counts: HashMap<String, u32> = HashMap::new();
    text.lines().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
    let mut counts: Vec<u32> = counts.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 2, 2], "{text}");
}

/// Of a key all requests are recorded, or none; and about as many keys as asked for.
#[test]
fn whole_keys_are_sampled() {
    let home = Folder::new();
    let folder = home.path("recorded");
    let gate = Gate::with_clock(policy(), Clock::manual(Micros::from_secs(1)));
    let settings = RecordSettings { sample: Sample::millionths(100_000), ..settings(&folder, RecordedKeys::Names) };
    let recording = gate.record(&settings).unwrap();
    for round in 0..15_000 {
        let _ = gate.hit("api", format!("k{}", round % 5_000)).unwrap();
    }
    drop(recording);
    let mut counts: HashMap<String, u32> = HashMap::new();
    lines(&folder).into_iter().for_each(|line| *counts.entry(line).or_default() += 1);
    assert!(counts.values().all(|count| *count == 3));
    assert!((350..650).contains(&counts.len()), "{}", counts.len());
}

/// Threads that hit at once leave lines in time order, none twice; what found no room is counted.
#[test]
fn f4_lines_are_in_order_and_nothing_is_lost_uncounted() {
    const EACH: u64 = 40_000;
    let home = Folder::new();
    let folder = home.path("recorded");
    let gate = Gate::embedded(policy());
    let recording = gate.record(&settings(&folder, RecordedKeys::Names)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let gate = &gate;
            scope.spawn(move || (0..EACH).for_each(|i| drop(gate.hit("api", format!("{thread}-{i}")).unwrap())));
        }
    });
    drop(recording);
    let lines = lines(&folder);
    let at = |line: &String| line.split(['{', ':', ',']).nth(2).unwrap().parse::<f64>().unwrap();
    assert!(lines.windows(2).all(|pair| at(&pair[0]) <= at(&pair[1])), "in order");
    let stats = gate.record_stats().unwrap();
    assert_eq!(stats.written, lines.len() as u64);
    assert_eq!(stats.written + stats.dropped, 3 * EACH);
    assert!(stats.written > 0);
}

#[cfg(unix)]
#[test]
fn files_are_bounded_rotated_and_for_this_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Folder::new();
    let folder = home.path("recorded");
    let gate = Gate::with_clock(policy(), Clock::manual(Micros::from_secs(1)));
    std::fs::create_dir(&folder).unwrap();
    let stranger = folder.join("requests.txt");
    std::fs::write(&stranger, "mine").unwrap();
    let mut written = 0;
    // Each round is less than the buffers hold, so that nothing is dropped; all of them are more than the files may.
    for round in 0..8_u64 {
        gate.clock().set(Micros::from_secs(10 + round));
        let (recorder, recording) =
            Recorder::start(&settings(&folder, RecordedKeys::Names), gate.clock().clone()).unwrap();
        for i in 0..12_000 {
            recorder.hit("api", format!("{round}-{i}-{}", "x".repeat(100)).as_bytes(), 1);
        }
        drop(recording);
        assert_eq!(recorder.stats().dropped, 0);
        written += recorder.stats().written;
    }
    assert_eq!(written, 96_000);
    let all: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()).collect();
    let ours: Vec<_> = all.iter().filter(|entry| entry.path() != stranger).collect();
    let bytes: u64 = ours.iter().map(|entry| entry.metadata().unwrap().len()).sum();
    assert!(bytes <= RECORD_BYTES_MIN && bytes > RECORD_BYTES_MIN / 2, "{bytes}");
    for entry in ours {
        let about = entry.metadata().unwrap();
        assert!(about.len() <= RECORD_BYTES_MIN / 8);
        assert_eq!(about.permissions().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(entry.path()).unwrap().ends_with("}\n"));
    }
    assert_eq!(std::fs::read_to_string(stranger).unwrap(), "mine");
}

#[cfg(unix)]
#[test]
fn a_link_is_not_followed_and_a_folder_that_goes_is_told() {
    let home = Folder::new();
    let (folder, victim) = (home.path("recorded"), home.path("victim"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(&victim, "precious").unwrap();
    let clock = Clock::manual(Micros::from_secs(7));
    std::os::unix::fs::symlink(&victim, folder.join("requests-0000000007000000.ndjson")).unwrap();
    let (recorder, recording) = Recorder::start(&settings(&folder, RecordedKeys::Names), clock.clone()).unwrap();
    recorder.hit("api", b"k", 1);
    drop(recording);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(lines(&folder), [r#"{"at":7.000000,"limiter":"api","key":"k"}"#]);

    let nowhere = victim.join("below");
    assert!(Recorder::start(&settings(&nowhere, RecordedKeys::Names), clock).is_err());
}
