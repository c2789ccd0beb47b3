//! Memory campaigns: a flood of keys against a small budget, and a million full sliding logs.
//!
//! `cargo bench -p tidegate --bench memory [-- --quick]`. Both print what they found and fail when a
//! promise is broken (M1, M2, and the design note's arithmetic). `--quick` uses a tenth of the users.
#![allow(clippy::unwrap_used, reason = "a bench that cannot set itself up should stop")]

use std::time::Instant;
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Micros, Policy, Rules, Settings};

fn main() {
    let has = |word: &str| std::env::args().any(|arg| arg == word);
    let users = if has("--quick") { 100_000 } else { 1_000_000 };
    match (has("flood"), has("logs")) {
        (true, _) => flood(),
        (_, true) => logs(users),
        _ => {
            // Each in a process of its own: memory that one has freed would hide what the other takes.
            for campaign in ["flood", "logs"] {
                let mut child = std::process::Command::new(std::env::current_exe().unwrap());
                let status = child.arg(campaign).args(std::env::args().skip(1)).status().unwrap();
                assert!(status.success(), "{campaign} broke a promise");
            }
        }
    }
}

/// M1, M2: ten million distinct keys against 64 MiB.
fn flood() {
    const KEYS: u32 = 10_000_000;
    const LIMIT: u32 = 3;
    /// Every key of this many is hit again and again, and its admissions are counted.
    const WATCHED: u32 = 50;
    let gate = gate(Algorithm::SlidingLog, "3 per hour", 64 << 20);
    let limiter = gate.limiter("flood").unwrap();
    let before = resident();
    let mut admitted = vec![0_u32; (KEYS / WATCHED) as usize];
    let (mut peak, mut hits, mut denied, mut falsely) = (0, 0_u64, 0_u64, 0_u64);
    let start = Instant::now();
    for key in 0..KEYS {
        let watched = key % WATCHED == 0;
        for _ in 0..if watched { LIMIT + 2 } else { 1 } {
            let allowed = gate.hit_on(&limiter, name(key).as_bytes(), 1).unwrap().unwrap().is_allowed();
            let so_far = if watched { &mut admitted[(key / WATCHED) as usize] } else { &mut 0 };
            hits += 1;
            denied += u64::from(!allowed);
            falsely += u64::from(!allowed && *so_far < LIMIT);
            *so_far += u32::from(allowed);
        }
        if key % 100_000 == 0 {
            peak = peak.max(resident());
        }
    }
    // And once more, long after the table was full: what was let through counts on.
    for key in (0..KEYS).step_by(WATCHED as usize) {
        let allowed = gate.hit_on(&limiter, name(key).as_bytes(), 1).unwrap().unwrap().is_allowed();
        admitted[(key / WATCHED) as usize] += u32::from(allowed);
    }
    let over = admitted.iter().filter(|count| **count > LIMIT).count();
    println!(
        "flood: {KEYS} keys, 64 MiB: peak resident {} MiB (started at {} MiB), {} entries, {} MiB accounted",
        peak >> 20,
        before >> 20,
        gate.usage().entries,
        gate.usage().bytes >> 20
    );
    println!(
        "       {hits} hits in {:.1} s, {denied} denied, of those {falsely} falsely ({:.1} % of all hits); keys over their limit: {over}",
        start.elapsed().as_secs_f64(),
        falsely as f64 * 100.0 / hits as f64
    );
    assert_eq!(over, 0, "M2: filling the table lifted a limit");
    assert!(peak - before <= (64 << 20) / 10 * 11, "M1: resident memory grew by more than 1.1 times max_memory");
}

/// The design note's arithmetic: 500 requests an hour, a million users, 12 GB. Ours: at most 2.2 GB.
fn logs(users: u32) {
    const REQUESTS: u64 = 500;
    let gate = gate(Algorithm::SlidingLog, "500 per hour", 8 << 30);
    let limiter = gate.limiter("flood").unwrap();
    let before = resident();
    let start = Instant::now();
    let mut random = 1_u64;
    for request in 0..REQUESTS {
        // Users take turns, each at its own random moment of a 500th of an hour.
        for user in 0..users {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = 1_000_000_000 + request * 7_200_000 + (random >> 40) % 7_200_000;
            gate.clock().set(Micros::saturating(at));
            assert!(gate.hit_on(&limiter, name(user).as_bytes(), 1).unwrap().unwrap().is_allowed());
        }
    }
    let spent = start.elapsed().as_secs_f64();
    let full = resident();
    let decisions = f64::from(users) * REQUESTS as f64;
    println!(
        "logs:  {users} users x {REQUESTS} requests: {:.2} GB resident, {:.0} bytes a user, {:.0} accounted ({:.0} ns a decision)",
        (full - before) as f64 / 1e9,
        (full - before) as f64 / f64::from(users),
        gate.usage().bytes as f64 / f64::from(users),
        spent * 1e9 / decisions
    );
    assert!(!gate.hit_on(&limiter, name(0).as_bytes(), 1).unwrap().unwrap().is_allowed(), "the logs are full");
    gate.clock().set(Micros::from_secs(1_000 + 2 * 3_600));
    for _ in 0..16 {
        gate.tend();
    }
    println!(
        "       an hour idle: {} entries, {:.2} GB resident, {} MiB accounted",
        gate.usage().entries,
        resident().saturating_sub(before) as f64 / 1e9,
        gate.usage().bytes >> 20
    );
    assert!((full - before) as f64 / f64::from(users) <= 2_200.0, "more than 2.2 KB a user");
    assert_eq!(gate.usage().entries, 0, "idle users are forgotten");
}

fn gate(algorithm: Algorithm, limit: &str, max_memory: usize) -> Gate {
    let rules = Rules::new(algorithm, &[limit.parse().unwrap()]).unwrap();
    let spec = LimiterSpec { names: false, ..LimiterSpec::new("flood", rules) };
    let settings = Settings { max_memory, ..Settings::default() };
    Gate::open(Policy::new(vec![spec]).unwrap(), &settings, Clock::manual(Micros::from_secs(1_000))).unwrap()
}

fn name(key: u32) -> String {
    format!("user-{key:011}")
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
