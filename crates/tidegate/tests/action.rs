//! Actions where there is no other store than the embedded one: refusals and restarts. What actions answer is checked on
//! every store in `every_store/actions.rs`.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate::{Algorithm, Analyzed, Clock, Gate, Grid, LimiterSpec, Micros, Policy, Rules, Settings, Status};

/// The two checks of most scenarios, with blocks of 10 s that are kept for 60 s.
const TWO: [&str; 2] = ["5 per 20s block 40s", "7 per 40s block 40s"];
/// When scenarios take place: a multiple of ten seconds long after the epoch.
const T: u64 = 1_700_000_000;

fn spec(name: &str, limits: &[&str]) -> LimiterSpec {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(60)).unwrap();
    LimiterSpec::new(name, Rules::buckets(grid, &limits).unwrap())
}

#[test]
fn other_algorithms_name_the_remedy() {
    let rules = Rules::new(Algorithm::SlidingLog, &["1 per day".parse().unwrap()]).unwrap();
    let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("log", rules)]).unwrap());
    let error = gate.at_once(gate.increment("log", b"u", 1, None)).unwrap_err().to_string();
    assert!(
        error.contains("increment needs algorithm = \"buckets\", and limiter \"log\" has \"sliding-log\""),
        "{error}"
    );
    let error = gate.at_once(gate.analyze("log", b"u", tidegate::IfBlocked::Tell)).unwrap_err().to_string();
    assert!(error.contains("analyze needs algorithm = \"buckets\""), "{error}");
}

/// Counts and blocks outlive a restart, and a renamed limiter that keeps its scope keeps them too.
#[test]
fn a10_a_restart_and_a_new_name_keep_counts_and_blocks() {
    let files = tempfile::tempdir().unwrap();
    let settings = Settings { path: Some(files.path().to_owned()), ..Settings::default() };
    let open = |name: &str| {
        let policy = Policy::new(vec![spec(name, &TWO).in_scope("kept")]).unwrap();
        Gate::open(policy, &settings, Clock::manual(Micros::from_secs(T))).unwrap()
    };
    let gate = open("before");
    gate.at_once(gate.increment("before", b"blocked", 5, None)).unwrap();
    gate.at_once(gate.increment("before", b"counted", 4, None)).unwrap();
    assert!(!gate.at_once(gate.analyze("before", b"blocked", tidegate::IfBlocked::Tell)).unwrap().is_ok());
    gate.save().unwrap();
    drop(gate);
    let gate = open("after");
    let until = Micros::from_secs(T + 40);
    let analyzed = gate.at_once(gate.analyze("after", b"blocked", tidegate::IfBlocked::Tell)).unwrap();
    assert_eq!(analyzed, Analyzed { at: gate.now(), status: Status::Blocked { until }, degraded: None });
    gate.at_once(gate.increment("after", b"counted", 1, None)).unwrap();
    let analyzed = gate.at_once(gate.analyze("after", b"counted", tidegate::IfBlocked::Tell)).unwrap();
    assert!(matches!(analyzed.status, Status::Limited(event) if event.sum == 5));
}
