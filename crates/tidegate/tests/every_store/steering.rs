//! Limits by value and limits of single keys (A11): the same on every store, in headers and explanations too.

use crate::play::{Limiter, Scenario, spec};
use crate::stores::{Store, patient};
use std::time::{Duration, Instant};
use tidegate::Algorithm::{AlignedWindow, Buckets, FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
use tidegate::{Clock, Gate, Request};

/// The window that every store can count in.
const ONE: Limiter = ("steered", AlignedWindow, &["1 per day"], None);

fn limit(store: &Store, gate: &Gate) -> Option<u32> {
    store.wait(gate.ask(&Request::hit("steered", b"vip").peek().explained())).unwrap().limit
}

/// What is set at one gate holds at all of them within a second, and at one that is opened later.
pub(crate) fn an_override_reaches_every_gate_within_a_second(store: &Store) {
    let can = store.capabilities();
    if !can.shared || !can.overrides {
        return;
    }
    let open = || store.gate(vec![spec(&ONE).in_scope("steered-by-three")], patient(), Clock::process());
    let gates = [open(), open(), open()];
    let (set, clear) = (Some("7 per day"), None);
    for (turn, to) in [set, clear, set].into_iter().enumerate() {
        match to {
            Some(limit) => {
                let limits = [limit.parse().unwrap()];
                store.wait(gates[turn].set_override("steered", b"vip", &limits, None, Some("café"))).unwrap();
            }
            None => assert!(store.wait(gates[turn].clear_override("steered", b"vip")).unwrap()),
        }
        let expected = Some(if to.is_some() { 7 } else { 1 });
        let since = Instant::now();
        assert_eq!(limit(store, &gates[turn]), expected, "{:?}: at once where it is set", store.kind);
        for gate in &gates {
            while limit(store, gate) != expected {
                assert!(since.elapsed() < Duration::from_secs(1), "{:?}", store.kind);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    let late = open();
    assert_eq!(limit(store, &late), Some(7), "{:?}", store.kind);
    let [info] = late.overrides("steered").unwrap().try_into().unwrap();
    assert_eq!((info.key.as_slice(), info.reason.as_deref(), info.until), (&b"vip"[..], Some("café"), None));
}

pub(crate) static ALL: [Scenario; 10] = [
    Scenario {
        name: "limits by key",
        limiters: &[("api", AlignedWindow, &["2 per 10s"], None)],
        matches: &[("api", "key=gold*", "4 per 10s"), ("api", "key=*old", "unlimited"), ("api", "key=bad", "deny")],
        script: "
            0 plain hit 2   -> allow left=0
            0 plain hit 1   -> deny left=0 retry=10 limited
            0 gold-1 hit 3  -> allow left=1
            0 gold-1 hit 2  -> deny left=1 retry=10 limited
            0 gold-1 peek 1 -> allow left=1
            0 gold hit 4    -> allow left=0
            0 bold hit 100  -> allow left=0
            0 bold peek 1   -> allow left=0
            0 bad hit 1     -> deny left=0 retry=never blocked
            0 bad peek 1    -> deny left=0 retry=never blocked
            10 gold-1 hit 4 -> allow left=0",
    },
    Scenario {
        name: "values that count together",
        limiters: &[("api", AlignedWindow, &["2 per 10s"], None)],
        matches: &[("api", "key=ws-1", "9 per 10s"), ("api", "key=ws-*", "together 4 per 10s")],
        script: "
            0 ws-1 hit 3    -> allow left=6
            0 ws-2 hit 3    -> allow left=1
            0 ws-3 hit 1    -> allow left=0
            0 ws-2 hit 1    -> deny left=0 retry=10 limited
            0 ws-* peek 1   -> deny left=0 retry=10 limited
            0 ws-4 peek 1   -> deny left=0 retry=10 limited
            0 ws-1 hit 6    -> allow left=0
            0 ws hit 2      -> allow left=0
            10 ws-5 hit 1   -> allow left=3",
    },
    Scenario {
        name: "a deny list charges no other limiter",
        limiters: &[
            ("user", AlignedWindow, &["2 per 10s"], Some("user")),
            ("ip", AlignedWindow, &["3 per 10s"], Some("ip")),
        ],
        matches: &[
            ("ip", "ip=10.0.0.0/8", "deny"),
            ("ip", "ip=192.0.2.0/24", "unlimited"),
            ("user", "plan=gold", "5 per 10s"),
        ],
        script: "
            0 user=a ip=10.1.2.3 hit 1              -> deny left=0 retry=never blocked by ip
            0 user=a ip=11.1.2.3 hit 2              -> allow left=0 by user
            0 user=a ip=192.0.2.1 hit 1             -> deny left=0 retry=10 limited by user
            0 user=b ip=192.0.2.1 hit 2             -> allow left=0 by user
            0 user=b ip=192.0.2.1 plan=gold hit 2   -> allow left=1 by user
            0 user=b ip=192.0.2.1 plan=gold peek 1  -> allow left=1 by user
            0 user=b ip=192.0.2.1 peek 1            -> deny left=0 retry=10 limited by user
            0 ip=192.0.2.1 hit 9                    -> allow left=0 by ip",
    },
    Scenario {
        name: "two limits of a token bucket by key",
        limiters: &[("api", TokenBucket, &["2 per 10s", "3 per minute"], None)],
        matches: &[("api", "key=gold*", "20 per 10s;30 per hour")],
        script: "
            0 a hit 2       -> allow left=0
            0 a hit 1       -> deny left=0 retry=5 limited
            0 gold hit 20   -> allow left=0
            0 gold hit 1    -> deny left=0 retry=0.500000 limited
            10 gold hit 11  -> deny left=10 retry=110 limited
            10 gold hit 10  -> allow left=0",
    },
    Scenario {
        name: "a longer window by key",
        limiters: &[("api", FixedWindow, &["2 per 10s"], None)],
        matches: &[("api", "key=slow*", "2 per hour block 2h")],
        script: "
            0 a hit 2      -> allow left=0
            0 slow hit 2   -> allow left=0
            11 a hit 1     -> allow left=1
            11 slow hit 1  -> deny left=0 retry=7200 limited
            3700 slow hit 1 -> deny left=0 retry=3511 blocked",
    },
    Scenario {
        name: "a log by key",
        limiters: &[("api", SlidingLog, &["2 per 10s"], None)],
        matches: &[("api", "key=gold*", "4 per 20s")],
        script: "
            0 gold hit 3   -> allow left=1
            5 gold hit 1   -> allow left=0
            12 gold hit 1  -> deny left=0 retry=8 limited
            20 gold hit 3  -> allow left=0",
    },
    Scenario {
        name: "two counters by key",
        limiters: &[("api", SlidingWindow, &["2 per 10s"], None)],
        matches: &[("api", "key=gold*", "4 per 10s"), ("api", "key=none", "0 per 10s")],
        script: "
            0 gold hit 4 -> allow left=0
            0 gold hit 1 -> deny left=0 retry=12.500000 limited
            0 none hit 1 -> deny left=0 retry=never cost_above_limit",
    },
    Scenario {
        name: "buckets by key",
        limiters: &[("notify", Buckets, &["2 per 20s block 30s"], None)],
        matches: &[
            ("notify", "key=gold*", "4 per 20s block 10s"),
            ("notify", "key=free", "unlimited"),
            ("notify", "key=bad", "deny"),
        ],
        script: "
            0 a increment 2    -> counted
            0 a analyze        -> limited 2 of 2 per 20s block 30s until 30
            0 gold increment 3 -> counted
            0 gold analyze     -> ok
            0 gold increment 1 -> counted
            0 gold analyze     -> limited 4 of 4 per 20s block 10s until 10
            0 gold peek 1      -> deny left=0 retry=30 blocked
            0 free increment 9 -> counted
            0 free analyze     -> ok
            0 bad analyze      -> denied
            0 free block_for 60 -> 60
            0 free hit 1       -> allow left=0",
    },
    Scenario {
        name: "an override shares the counters and ends",
        limiters: &[("api", SlidingLog, &["2 per 10s", "5 per minute"], None)],
        matches: &[("api", "key=gold*", "4 per 10s;5 per minute"), ("api", "key=bad", "deny")],
        script: "
            0 a hit 2                            -> allow left=0
            0 a hit 1                            -> deny left=0 retry=10 limited
            0 a override 4_per_10s;6_per_minute 5 -> 5
            0 a hit 1                            -> allow left=1
            0 a peek 1                           -> allow left=1
            0 all overridden                     -> a
            0 b hit 3                            -> deny left=2 retry=never cost_above_limit
            4.999999 a peek 1                    -> allow left=1
            5 a peek 1                           -> deny left=0 retry=5 limited
            5 all overridden                     ->
            5 a clear                            -> false
            6 gold override 1_per_10s;5_per_minute -> for good
            6 bad override 1_per_10s;5_per_minute  -> for good
            6 all overridden                     -> bad gold
            6 gold hit 1                         -> allow left=0
            6 gold hit 1                         -> deny left=0 retry=10 limited
            6 bad hit 1                          -> allow left=0
            6 gold clear                         -> true
            6 gold hit 1                         -> allow left=2
            6 bad clear                          -> true
            6 bad hit 1                          -> deny left=0 retry=never blocked",
    },
    Scenario {
        name: "an override of buckets",
        limiters: &[("notify", Buckets, &["2 per 20s block 30s"], None)],
        matches: &[],
        script: "
            0 a increment 2             -> counted
            0 a override 4_per_20s_block_10s -> for good
            0 a analyze                 -> ok
            0 a increment 2             -> counted
            0 a analyze                 -> limited 4 of 4 per 20s block 10s until 10
            0 a peek 1                  -> deny left=0 retry=30 blocked
            0 a clear                   -> true",
    },
];
