//! Counting and asking apart, as applications do with several checks over one history.

use crate::play::{Limiter, Scenario, at, spec};
use crate::stores::{Store, patient};
use tidegate::{Algorithm, Analyzed, Clock, Layout, Status, Unless};

/// The two checks of most scenarios, with blocks of 10 s that are kept for 60 s.
const TWO: &[Limiter] = &[("a", Algorithm::Buckets, &["5 per 20s block 40s", "7 per 40s block 40s"], None)];

pub(crate) const ALL: [Scenario; 10] = [
    Scenario {
        name: "limited for a period and a resolution",
        limiters: &[("a", Algorithm::Buckets, &["5 per 20s"], None)],
        matches: &[],
        script: "
            0         u increment 5 -> counted
            0         v increment 5 -> counted
            0         w increment 5 -> counted
            0         u ok          -> false
            19        v ok          -> false
            29.999999 w ok          -> false
            39.999999 x increment 5 -> counted
            69.999999 x ok          -> true",
    },
    Scenario {
        name: "limited from the fifth for a period and a block",
        limiters: TWO,
        matches: &[],
        script: "
            0    u increment 4 -> counted
            0    u analyze     -> ok
            0    u increment 1 -> counted
            0    u analyze     -> limited 5 of 5 per 20s block 40s until 40
            0    u analyze     -> blocked until 40
            1    u is_limited  -> true",
    },
    Scenario {
        name: "the second check sees further back",
        limiters: TWO,
        matches: &[],
        script: "
            0    u increment 4 -30 -> counted
            0    u increment 2     -> counted
            0    u analyze         -> ok
            0    u increment 1     -> counted
            0    u analyze         -> limited 7 of 7 per 40s block 40s until 40",
    },
    Scenario {
        name: "free exactly at the end of a block and not listed then",
        limiters: TWO,
        matches: &[],
        script: "
            0          u increment 5 -> counted
            0          u ok          -> false
            39.999999  u ok          -> false
            39.999999  all blocked   -> u
            40         all blocked   ->
            40         u ok          -> true
            40         all tracked   -> u",
    },
    Scenario {
        name: "blocks again while the history exceeds",
        limiters: &[("a", Algorithm::Buckets, &["5 per 40s block 10s"], None)],
        matches: &[],
        script: "
            0    u increment 5 -> counted
            5    u analyze     -> limited 5 of 5 per 40s block 10s until 15
            14   u analyze     -> blocked until 15
            15   u analyze     -> limited 5 of 5 per 40s block 10s until 25
            49   u analyze     -> limited 5 of 5 per 40s block 10s until 59
            59   u analyze     -> ok",
    },
    Scenario {
        name: "increments never block and analyses never count",
        limiters: &[("a", Algorithm::Buckets, &["2 per 20s"], None)],
        matches: &[],
        script: "
            0    u analyze     -> ok
            0    all tracked   ->
            0    u increment 9 -> counted
            0    all blocked   ->
            0    u analyze     -> limited 9 of 2 per 20s until 20
            0    all blocked   -> u
            0    u increment 1 -> counted
            0    u recompute   -> limited 10 of 2 per 20s until 20
            20   u recompute   -> limited 10 of 2 per 20s until 40
            30   u recompute   -> nothing
            30   u analyze     -> blocked until 40",
    },
    Scenario {
        name: "a count of nothing is fine without a history",
        limiters: &[("a", Algorithm::Buckets, &["0 per 20s"], None)],
        matches: &[],
        script: "
            0    u ok          -> true
            0    u hit 1       -> deny left=0 retry=never cost_above_limit
            0    u ok          -> true
            0    u increment 1 -> counted
            0    u ok          -> false",
    },
    Scenario {
        name: "what is older than the history is not counted",
        limiters: &[("a", Algorithm::Buckets, &["1 per 60s"], None)],
        matches: &[],
        script: "
            0    u increment 1 -61 -> dropped
            0    u ok              -> true
            0    u increment 1 -60 -> counted
            0    u ok              -> false",
    },
    Scenario {
        name: "a hit asks and counts in one step",
        limiters: TWO,
        matches: &[],
        script: "
            0    u hit 4       -> allow left=1
            0    u hit 2       -> deny left=0 retry=40 limited
            0    u analyze     -> blocked until 40
            40   u hit 3       -> allow left=0
            40   u hit 5       -> deny left=0 retry=50 limited
            80   u hit 4       -> allow left=0",
    },
    Scenario {
        name: "unblocking all forgets the blocked and keeps the others",
        limiters: TWO,
        matches: &[],
        script: "
            0    a increment 5 -> counted
            0    b increment 6 -> counted
            0    c increment 4 -> counted
            0    a ok          -> false
            0    b ok          -> false
            0    c ok          -> true
            0    all tracked   -> a b c
            0    all unblock_all -> 2
            0    all unblock_all -> 0
            0    all tracked   -> c
            0    a ok          -> true
            0    c increment 1 -> counted
            0    c ok          -> false
            0    c unblock     -> true
            0    c unblock     -> false
            0    c ok          -> true
            0    d block_for 9 -> 9
            0    d recompute   -> nothing
            0    d analyze     -> blocked until 9
            9    d ok          -> true",
    },
];

/// Keys of any bytes, in two limiters whose scopes look alike.
pub(crate) fn any_identifier_survives_listing_and_scopes_stay_apart(store: &Store) {
    let [limiter] = TWO else { unreachable!("one limiter") };
    let limiters = vec![spec(limiter), spec(&("other", limiter.1, limiter.2, None)).in_scope("a:b")];
    let can = store.capabilities();
    if !can.counts(Algorithm::Buckets) {
        return;
    }
    let gate = store.gate(limiters, patient(), Clock::manual(at("0")));
    let mut ids: Vec<Vec<u8>> = vec![
        b"|".to_vec(),
        b"a|b|".to_vec(),
        b"a:b:".to_vec(),
        b"two words ".to_vec(),
        "h\u{fc}te \u{1F40C}".into(),
        vec![b'x'; 512],
    ];
    ids.sort_unstable();
    store.wait(async {
        for id in &ids {
            assert!(gate.action("a", id).increment(5, None).await.unwrap());
            assert!(!gate.action("a", id).ok().await.unwrap());
        }
        assert!(gate.action("other", "only here").increment(1, None).await.unwrap());
        if can.lists_in(Layout::Native) {
            assert_eq!(gate.actions("a").tracked().await.unwrap(), ids, "{:?}", store.kind);
            assert_eq!(gate.actions("other").tracked().await.unwrap(), [b"only here"]);
        }
        assert_eq!(gate.actions("a").blocked().await.unwrap(), ids, "{:?}", store.kind);
        assert!(gate.action("a", vec![b'x'; 513]).ok().await.is_err());
    });
}

/// Work that fails is not counted; the third that would succeed is not begun.
pub(crate) fn work_is_done_unless_limited_and_counted_when_it_succeeds(store: &Store) {
    if !store.capabilities().counts(Algorithm::Buckets) {
        return;
    }
    let limiter = spec(&("work", Algorithm::Buckets, &["2 per 20s"], None));
    let gate = store.gate(vec![limiter], patient(), Clock::manual(at("0")));
    store.wait(async {
        let action = gate.actions("work").of("u");
        for _ in 0..5 {
            let failed = action.unless_limited(async { Err::<(), _>("no network") }).await.unwrap();
            assert_eq!(failed, Unless::Failed("no network"));
        }
        for n in 0..2 {
            let done = action.unless_limited(async { Ok::<_, ()>(n) }).await.unwrap();
            assert_eq!(done, Unless::Done { value: n, counted: Ok(true) });
        }
        let begun = std::cell::Cell::new(false);
        let work = async {
            begun.set(true);
            Ok::<_, ()>(())
        };
        let limited = action.unless_limited(work).await.unwrap();
        let Unless::Limited(Analyzed { status: Status::Limited(event), .. }) = limited else { panic!("{limited:?}") };
        assert_eq!((event.identifier.as_slice(), event.sum, begun.get()), (&b"u"[..], 2, false));
        assert_eq!((event.timestamp, event.check.to_string()), (gate.now(), "2 per 20s".to_owned()));
    });
}
